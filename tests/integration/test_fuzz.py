"""Programs and changes, of a table and from fixed seeds, cold and then changed in fresh processes.

Eager is the judge.

`make fuzz` runs as many as one likes; ``python -m tests.fuzz --replay SEED:PAIR`` shows one of them again.
"""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.fuzz.child import Calls
from tests.fuzz.generate import trial
from tests.fuzz.parts.calls import AHEAD, CALLED, OF_ONE_HASH_SEED, ON_DATA
from tests.fuzz.parts.code import CODE
from tests.fuzz.parts.evaluated import EVALUATED
from tests.fuzz.parts.language import LANGUAGE
from tests.fuzz.parts.sets import SETS
from tests.fuzz.parts.stale import CASES, trials
from tests.fuzz.parts.tensors import OPERATORS
from tests.fuzz.program import NOTHING, Change, Pair, Part, Program, Trial
from tests.fuzz.ranks import READS, ranked_reading
from tests.fuzz.run import Outcome, Report, Runner, Servers, fuzz, shrunk
from tests.support.checkout import ended, selected
from tests.support.tracing import compiles_ahead

FEW, FIRST, SLOW_FIRST = 4, 1, 100_000
"""Pairs of `make test`, and the seeds that it and `make test-slow` begin with."""


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with Servers() as made:
        yield made


def fuzzed(
    servers: Servers, first: int, *, pairs: float = math.inf, seconds: float = math.inf, guards: str = ""
) -> Report:
    report = fuzz(itertools.count(first), [servers], pairs=pairs, seconds=seconds, guards=guards)
    print("\n".join(report.summary()))  # noqa: T201 - shown with a failure
    return report


def failures(report: Report) -> str:
    return "\n".join(outcome.line() for outcome in report.bad)


def test_a_few_pairs_equal_eager(servers: Servers) -> None:
    report = fuzzed(servers, FIRST, pairs=FEW)
    assert not failures(report)
    assert any(outcome.effective for outcome in report.pairs)
    assert any(outcome.unseen and outcome.hit for outcome in report.pairs)


@pytest.mark.slow
def test_artifacts_whose_guards_are_skipped_are_noticed(servers: Servers) -> None:
    assert fuzzed(servers, FIRST, pairs=FEW, guards="skip").bad


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_minute_of_pairs_equals_eager(servers: Servers) -> None:
    assert not failures(fuzzed(servers, SLOW_FIRST, seconds=60))


TABLE = {part.name: part.numbered(0) for part in (*EVALUATED, *SETS, *LANGUAGE, *OPERATORS, *CODE)}
BY_CHANCE = {part.name for part in CODE}
"""The fuzzer comes upon these by itself."""
MADE_SETS = [name for name in TABLE if "set that is made" in name and "placed#(set(" in name]


@pytest.mark.one_in(8, also=MADE_SETS)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in BY_CHANCE else ()) for name in TABLE]
)
def test_program_of_the_table_is_followed_noticed_or_refused_by_name(
    servers: Servers, tmp_path: Path, name: str
) -> None:
    part = TABLE[name]
    moments = [(change, later) for change in part.changes for later in (False, True)]
    pairs = [Pair(index=0, change=c, later=later) for c, later in moments if not later or c.mutate]
    is_alone = not any(pair.later for pair in pairs)  # else each of these loads what is unchanged, first
    if is_alone:
        pairs.insert(0, Pair(index=-1, change=NOTHING))
    program = Program(parts=(part,))
    outcomes = Runner(servers, tmp_path).run(Trial(seed=1, program=program, pairs=tuple(pairs)))
    said = "\n".join(outcome.line() for outcome in outcomes)
    assert not any(outcome.bad or outcome.outcome == "broken" for outcome in outcomes), said
    is_refused = [outcome.outcome for outcome in outcomes] == ["refused"]
    if is_refused and (torch.__version__ < "2.13" or name in BY_CHANCE):
        return  # some graphs break there
    if part.refused:
        assert is_refused, said
        assert re.search(part.refused, outcomes[0].detail), outcomes[0].detail
    else:
        assert len(outcomes) == len(pairs), said  # the first process compiled
        assert re.search(part.said, "\n".join(outcome.detail for outcome in outcomes)), said
        assert part.said or not part.changes or any(outcome.effective for outcome in outcomes)
        assert not any(outcome.outcome.startswith("first") for outcome in outcomes), said
        assert not is_alone or outcomes[0].hit is bool(part.changes or not part.said), said


@pytest.mark.one_in(12, also=("group.rank", "group.rank of the world"))
@pytest.mark.parametrize("name", READS)
def test_rank_1_adopts_what_rank_0_compiled_where_the_rank_does_not_matter_only(
    servers: Servers, tmp_path: Path, name: str
) -> None:
    changes = (NOTHING, Change(name="rank 1 of 2", rank=(1, 2)))
    program = Program(parts=(ranked_reading(name).numbered(0),))
    pairs = tuple(Pair(index=-1, change=change) for change in changes)
    outcomes = Runner(servers, tmp_path).run(Trial(seed=1, program=program, pairs=pairs))
    said = "\n".join(outcome.line() for outcome in outcomes)
    if outcomes[0].outcome == "refused":
        assert "mesh" in name or name == "group.rank as an attribute", said
        return
    same, other = outcomes
    decides = other.effective and name != "rank in a tensor"
    assert (same.outcome, other.outcome) == ("loaded", "miss" if decides else "adopted"), said


@pytest.fixture(scope="module")
def after_changes(
    request: pytest.FixtureRequest, servers: Servers, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Outcome]:
    """Outcomes of the cases that this session runs, by name."""
    chosen = [case for name, case in CASES.items() if name in selected(request, "case")]
    runner = Runner(servers, tmp_path_factory.mktemp("stale"), apart=True)
    return {
        pair.change.name: outcome
        for made in trials(chosen)
        for pair, outcome in zip(made.pairs, runner.run(made), strict=True)
    }


@pytest.mark.timeout(1200)
@pytest.mark.one_in(40)
@pytest.mark.parametrize("case", CASES)
def test_old_graph_is_loaded_after_a_change_that_does_not_matter_only(
    case: str, after_changes: dict[str, Outcome]
) -> None:
    """Results are eager's to the bit; what is compiled anew says why, and the next process loads it."""
    change, outcome = CASES[case].change, after_changes[case]
    wanted = "refused" if change.refused else "loaded" if change.fits else "compiled"
    assert outcome.outcome == wanted, outcome.line()
    assert re.search(change.said, outcome.detail), outcome.line()


def called(servers: Servers, directory: Path, name: str, kind: str, **changed: Any) -> Calls:
    """What a process of this kind does with a program's calls, in a directory that has its cache.

    The kinds hash strings otherwise. Where that counts, a warm process is one of the kind cold.
    """
    program = replace(CALLED[name].program, **changed)
    job = Runner(servers, directory).job(program, directory, "program")
    if kind == "warm":
        job = replace(job, may_compile=False, captured=True)
    result = servers.run("cold" if name in OF_ONE_HASH_SEED else kind, job)
    assert result.first is not None, result.broken
    return result.first


@pytest.mark.one_in(8, also=("checkpoint", "scan", "vmap", "flex attention"))
@pytest.mark.parametrize("name", [name for name in CALLED if not CALLED[name].refused])
def test_calls_compile_or_run_what_fits_and_a_later_process_loads(
    servers: Servers, tmp_path: Path, name: str
) -> None:
    outcomes = list(CALLED[name].cold)
    cold = called(servers, tmp_path, name, "cold")
    assert cold.outcomes == outcomes, cold
    warm = called(servers, tmp_path, name, "warm")
    assert warm.outcomes == ["loaded" if each == "compiled" else each for each in outcomes], warm


@compiles_ahead
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ON_DATA else pytest.mark.slow) for name in AHEAD]
)
def test_programs_are_compiled_ahead_of_time_but_for_choices_on_data(
    servers: Servers, tmp_path: Path, name: str
) -> None:
    cold = called(servers, tmp_path, name, "cold", mode="max-autotune")
    if name in ON_DATA:
        assert cold.outcome == "refused"
        assert re.search(r"depends on data.*use mode reduce-overhead", cold.detail)
        return
    warm = called(servers, tmp_path, name, "warm", mode="max-autotune")
    assert cold.outcomes == list(CALLED[name].cold), cold
    assert warm.outcomes == ["loaded", *cold.outcomes[1:]], warm


@pytest.mark.parametrize("name", [name for name in CALLED if CALLED[name].refused])
def test_what_cannot_be_kept_is_refused(servers: Servers, tmp_path: Path, name: str) -> None:
    found = called(servers, tmp_path, name, "cold")
    if name == "writes in a branch" and torch.__version__ < "2.12":
        pytest.skip("this torch does not run it in eager")
    assert (found.outcome, found.detail.partition(":")[0]) == ("refused", CALLED[name].refused)


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Servers]:
    """Processes with another hash seed."""
    with Servers("cold", seed=2) as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CALLED if not CALLED[name].refused])
def test_artifacts_of_two_processes_are_equal_bytes(
    servers: Servers, elsewhere: Servers, tmp_path: Path, name: str
) -> None:
    made = []
    for number, each in enumerate((servers, elsewhere)):
        directory = tmp_path / str(number)
        called(each, directory, name, "cold")
        files = sorted(directory.rglob("compiled_module*"))
        made.append({file.relative_to(directory): file.read_bytes() for file in files})
    assert len(made[0]) == CALLED[name].cold.count("compiled")
    assert made[0] == made[1]


def made_of(*parts: Part, gloo: bool = False, **change: object) -> Trial:
    program = Program(parts=tuple(p.numbered(n) for n, p in enumerate(parts)), gloo=gloo)
    return Trial(seed=1, program=program, pairs=(Pair(index=-1, change=Change(name="made", **change)),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("read", "outcome"), [("get_rank", "miss"), pytest.param("all_reduce", "adopted", marks=pytest.mark.slow)]
)
def test_two_real_ranks_share_what_asks_for_no_rank(
    servers: Servers, tmp_path: Path, read: str, outcome: str
) -> None:
    made = made_of(ranked_reading(read), gloo=True, alone=True)
    assert [found.outcome for found in Runner(servers, tmp_path).run(made)] == [outcome]


@pytest.mark.slow
def test_shrunk_failure_is_a_script_that_fails_alone(servers: Servers, tmp_path: Path) -> None:
    held = Part(name="held", slots={"init": "self.a# = 2", "body": "y = y * self.a#"})
    beside = Part(name="beside", slots={"body": "y = y + 111"})
    script = tmp_path / "script.py"
    script.write_text(shrunk(made_of(held, beside, mutate="m.a0 = 7"), 0, servers, guards="skip"))
    assert "111" not in script.read_text()
    ran = ended(str(script))
    assert ran.returncode == 1, ran.stderr
    assert "1:0 wrong" in ran.stdout


def test_seed_gives_the_same_trial_again() -> None:
    assert [trial(seed) for seed in range(50)] == [trial(seed) for seed in range(50)]


@pytest.mark.slow
def test_generated_programs_and_changes_are_python() -> None:
    for seed in range(200):
        made = trial(seed)
        for pair in made.pairs:
            ast.parse(pair.change.mutate)
            for text in made.program.changed(pair.index, pair.change).files().values():
                ast.parse(text)
