"""Runs the cases: first processes once for each start, then every case on a copy of what they left."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.stale_matrix_parts.cases import Case, Start
from benchmarks.stale_matrix_parts.jobs import Job, Outcome
from tests import npu_emulator

ROOT = Path(__file__).resolve().parents[2]
SOURCES = tuple(Path(__file__).with_name(name) for name in ("stale_model.py", "stale_operators.py"))
MODES = ("reduce-overhead", "npugraph_ex")
ALONE, OURS = "torchair", "warmrank"
RUNNERS = (ALONE, OURS)
_TIMEOUT_S = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What became of one case in one mode.

    Attributes:
        case: the case.
        mode: of the configuration.
        alone: outcome of TorchAir by itself.
        ours: outcome of warmrank's engine ``torchair``.
    """

    case: Case
    mode: str
    alone: Outcome
    ours: Outcome


def lines(root: Path, cases: Sequence[Case], *, workers: int, fresh: bool = False) -> list[Line]:
    """Run all cases in both modes.

    Args:
        root: an empty directory for caches and edited models.
        cases: which ones.
        workers: processes at once.
        fresh: start every process anew instead of forking it; takes two seconds each.

    Raises:
        RuntimeError: a first process did not compile, or gave another result than eager.
    """
    starts = list(dict.fromkeys(case.start for case in cases))
    places = {start: root / f"start{number}" for number, start in enumerate(starts)}
    firsts = [job for start in starts for job in _firsts(start, places[start])]
    _check(_run(firsts, root, workers=workers, fresh=fresh))
    seconds = [
        job
        for number, case in enumerate(cases)
        for job in _seconds(case, places[case.start], root / f"case{number}")
    ]
    outcomes = _run(seconds, root, workers=workers, fresh=fresh)
    return [
        Line(
            case=case,
            mode=mode,
            alone=outcomes[f"case{number} {mode} {ALONE}"],
            ours=outcomes[f"case{number} {mode} {OURS}"],
        )
        for number, case in enumerate(cases)
        for mode in case.start.modes
    ]


def _firsts(start: Start, directory: Path) -> Iterator[list[Job]]:
    _write_sources(directory, ("", ""))
    case = Case(group="", name="", start=start, unseen=bool(start.config))
    for mode in start.modes:
        yield _jobs(case, mode, directory, directory, before=start.before, num_ranks=start.num_ranks)


def _seconds(case: Case, first: Path, directory: Path) -> Iterator[list[Job]]:
    _write_sources(directory, case.edit)
    for mode in case.start.modes:
        for runner in RUNNERS:
            shutil.copytree(_cache(first, mode, runner), _cache(directory, mode, runner))
        num_ranks = case.num_ranks or case.start.num_ranks
        yield _jobs(case, mode, directory, directory, before=case.before, num_ranks=num_ranks)


def _write_sources(directory: Path, edit: tuple[str, str]) -> None:
    """The model and its operators, with one edit unless it is empty."""
    directory.mkdir()
    texts = {file.name: file.read_text() for file in SOURCES}
    if edit[0] and sum(text.count(edit[0]) for text in texts.values()) != 1:
        msg = f"{edit[0]!r} does not occur once in {', '.join(texts)}"
        raise ValueError(msg)
    for name, text in texts.items():
        (directory / name).write_text(text.replace(*edit) if edit[0] else text)


def _jobs(case: Case, mode: str, directory: Path, name: Path, *, before: str, num_ranks: int) -> list[Job]:
    """Eager, TorchAir alone and warmrank, in this order: each in a process of its own."""
    plain = Job(
        name=f"{name.name} {mode} eager",
        runner=ALONE if case.unseen else "eager",
        mode=mode,
        directory=str(directory),
        cache=str(directory / f"empty-{mode}"),
        expected=str(directory / f"expected-{mode}.pt"),
        before=before,
        build=case.build or case.start.build,
        config=case.config or case.start.config,
        call=case.call,
        context=case.context,
        num_ranks=num_ranks,
        writes=True,
    )
    made = [plain]
    for runner in RUNNERS:
        cache = str(_cache(directory, mode, runner))
        job = replace(plain, name=f"{name.name} {mode} {runner}", runner=runner, cache=cache, writes=False)
        made.append(job)
    return made


def _cache(directory: Path, mode: str, runner: str) -> Path:
    return directory / f"cache-{mode}-{runner}"


def _check(outcomes: dict[str, Outcome]) -> None:
    for name, outcome in outcomes.items():
        if outcome.wrong or outcome.outcome not in ("compiled", "ran"):
            msg = f"first process {name}: {outcome}"
            raise RuntimeError(msg)


def _run(groups: Sequence[list[Job]], root: Path, *, workers: int, fresh: bool) -> dict[str, Outcome]:
    """The outcome of every job by its name; jobs of a group run in their order."""
    shares = (
        groups
        if fresh
        else [[job for jobs in groups[start::workers] for job in jobs] for start in range(workers)]
    )
    with ThreadPoolExecutor(workers) as pool:
        found = pool.map(lambda jobs: list(_child(jobs, root, fresh=fresh)), filter(None, shares))
        return {outcome.name: outcome for outcomes in found for outcome in outcomes}


def _child(jobs: Iterable[Job], root: Path, *, fresh: bool) -> Iterator[Outcome]:
    """Outcomes of jobs that one process forks; with ``fresh``, of a process for each."""
    jobs = list(jobs)
    for share in [[job] for job in jobs] if fresh else [jobs]:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.stale_matrix_parts.process", *(["--fresh"] if fresh else [])],
            input=json.dumps([asdict(job) for job in share]),
            env={**npu_emulator.environ(), "OMP_NUM_THREADS": "1", "TMPDIR": str(root)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_S,
        )
        if done.returncode:
            msg = f"a process of {share[0].name} ended with status {done.returncode}:\n{done.stderr[-4000:]}"
            raise RuntimeError(msg)
        for line in done.stdout.splitlines():
            yield Outcome(**json.loads(line))
