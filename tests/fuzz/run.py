"""Runs trials on servers, judges what comes back, and counts."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from tests.fuzz.child import BAD, Calls, Job, Result
from tests.fuzz.generate import Pair, Trial, trial
from tests.fuzz.program import Program
from tests.support.checkout import PYTHONPATH, ROOT

_COLD_RANK = (0, 2)
_NUM_RANKS = 2
_COLD = -1
"""Number of a program's first process among its outcomes: no pair, as it found nothing to load."""
_RECOMPILED = 8
"""One changed process in so many compiles what it misses, and compares that too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one pair.

    Attributes:
        name: of the change, with the moment.
        number: of the pair; -1 for the first process alone, if that compiled nothing.
        outcome: that of `Calls`; ``broken`` if the program does not run.
        detail: reason.
        effective: eager returned something else than in the first process.
    """

    seed: int
    number: int
    name: str
    outcome: str
    detail: str = ""
    effective: bool = False

    @property
    def bad(self) -> bool:
        return self.outcome in BAD

    def line(self) -> str:
        return f"{self.seed}:{self.number} {self.outcome}: {self.name}: {self.detail.strip()[-300:]}"


@dataclass(slots=True)
class Report:
    """Counts of a run.

    Attributes:
        trials: programs.
        alone: outcomes of programs that did not compile, and so made no pair.
        pairs: changed processes whose first process had compiled.
        outcomes: theirs.
        refusals: errors by name.
        on_ranks: pairs on two real ranks.
        effective: pairs whose change altered what eager returns; no other can show staleness.
        unseen: pairs whose change alters nothing that is traced.
        unseen_hits: those that were loaded.
        missed: the others.
        bad: failures.
    """

    trials: int = 0
    alone: Counter[str] = field(default_factory=Counter)
    pairs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    modes: Counter[str] = field(default_factory=Counter)
    on_ranks: int = 0
    effective: int = 0
    unseen: int = 0
    unseen_hits: int = 0
    missed: list[str] = field(default_factory=list)
    bad: list[Outcome] = field(default_factory=list)
    seconds: float = 0.0


class Servers:
    """A server of each kind; see `tests.fuzz.child`."""

    def __init__(self) -> None:
        self._processes = {kind: self._start(kind, str(seed)) for seed, kind in enumerate(("cold", "warm"))}
        for process in self._processes.values():
            ready = _of(process.stdout).readline()
            assert ready == "ready\n", ready

    @staticmethod
    def _start(kind: str, hash_seed: str) -> subprocess.Popen[str]:
        own = {"PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": hash_seed}
        own |= {"PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.child", kind],
            cwd=ROOT,
            env={**os.environ, **own},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, kind: str, job: Job) -> Result:
        process = self._processes[kind]
        stdin = _of(process.stdin)
        stdin.write(json.dumps(asdict(job)) + "\n")
        stdin.flush()
        found = json.loads(_of(process.stdout).readline())
        calls = {name: found[name] and Calls(**found[name]) for name in ("first", "later")}
        return Result(broken=found["broken"], **calls)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.communicate(timeout=60)


def _of(stream: Any) -> Any:
    assert stream is not None
    return stream


class Runner:
    """Runs the pairs of trials; of one trial one after the other, in a directory of their own."""

    def __init__(self, servers: Servers, directory: Path, *, guards: str = "") -> None:
        self._servers = servers
        self._directory = directory
        self._guards = guards

    def run(self, made: Trial, numbers: set[int] | None = None) -> list[Outcome]:
        """The outcome of each pair, or of some."""
        directory = Path(tempfile.mkdtemp(prefix=f"{made.seed}_", dir=self._directory))
        try:
            return list(self._outcomes(made, directory, numbers))
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def _outcomes(self, made: Trial, directory: Path, numbers: set[int] | None) -> Iterator[Outcome]:
        cold = self._servers.run("cold", self._job(made.program, directory, "cold"))
        calls = cold.first or Calls("broken", cold.broken)
        pairs = [(n, pair) for n, pair in enumerate(made.pairs) if numbers is None or n in numbers]
        if calls.outcome != "compiled":
            yield Outcome(
                seed=made.seed, number=_COLD, name="first process", outcome=calls.outcome, detail=calls.detail
            )
            return
        for number, pair in pairs:
            yield self._second(made, number, pair, directory, calls)

    def _second(self, made: Trial, number: int, pair: Pair, directory: Path, cold: Calls) -> Outcome:
        job = self._changed_job(made, number, pair, directory)
        result = self._servers.run("cold" if job.may_compile else "warm", job)
        if result.broken or result.first is None:
            return self._outcome(made, number, pair, "broken", result.broken)
        calls = result.first
        if pair.later and calls.outcome not in BAD:
            calls = result.later or Calls(f"first {calls.outcome}", calls.detail)
        effective = calls.eager != cold.eager
        if pair.change.alone:  # what one rank left is tried on the other
            effective = len(set(cold.eager.split("|"))) > 1
        return self._outcome(made, number, pair, calls.outcome, calls.detail, effective=effective)

    def jobs(self, made: Trial, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """The jobs of a pair, for a script: without its directories."""
        with tempfile.TemporaryDirectory() as directory:
            first = self._job(made.program, Path(directory), "cold")
            second = self._changed_job(made, number, made.pairs[number], Path(directory))
        own = {"package", "cache"}
        return tuple({k: v for k, v in asdict(job).items() if k not in own} for job in (first, second))  # type: ignore[return-value]

    def _changed_job(self, made: Trial, number: int, pair: Pair, directory: Path) -> Job:
        change = pair.change
        job = self._job(pair.changed(made.program), directory, f"pair{number}")
        if change.rank is not None:
            job = replace(job, rank=change.rank)
        if change.alone:
            cache = directory / f"cache{number}"
            shutil.copytree(job.cache, cache, dirs_exist_ok=True)
            job = replace(job, cache=str(cache), alone=True)
        if pair.later:
            return replace(
                job, later=change.mutate or "pass", later_context=change.context, may_compile=False
            )
        return replace(
            job,
            mutate=change.mutate,
            environment={**job.environment, **change.environment},
            context=change.context or job.context,
            may_compile=(made.seed + number) % _RECOMPILED == 0,
        )

    def _outcome(
        self, made: Trial, number: int, pair: Pair, outcome: str, detail: str, *, effective: bool = False
    ) -> Outcome:
        name = f"{'later: ' if pair.later else ''}{pair.change.name}"
        return Outcome(
            seed=made.seed, number=number, name=name, outcome=outcome, detail=detail, effective=effective
        )

    def _job(self, program: Program, directory: Path, name: str) -> Job:
        package = directory / name
        program.write(package)
        return Job(
            package=str(package),
            cache=str(directory / "cache"),
            mode=program.mode,
            dynamic=program.dynamic,
            guards=self._guards,
            environment=program.environment,
            rank=_COLD_RANK if program.ranks and not program.gloo else None,
            gloo=_NUM_RANKS if program.gloo else 0,
        )


def count(report: Report, made: Trial, outcomes: list[Outcome]) -> None:
    """Add the outcomes of a trial, and show failures at once, because a run takes an hour."""
    report.trials += 1
    for outcome in outcomes:
        if outcome.bad:
            report.bad.append(outcome)
            print(f"{outcome.line()}\n    {made.program.name}", flush=True)  # noqa: T201 - as the docstring says
        elif outcome.outcome == "refused":
            report.refusals[outcome.detail.partition(":")[0]] += 1
        if outcome.number == _COLD:
            report.alone[outcome.outcome] += 1
            continue
        report.pairs += 1
        report.modes[made.program.mode] += 1
        report.on_ranks += made.program.gloo
        report.outcomes[outcome.outcome] += 1
        report.effective += outcome.effective
        pair = made.pairs[outcome.number]
        if pair.index == -1 and not (pair.x or pair.change.rank or pair.change.alone):
            hit = outcome.outcome in ("loaded", "adopted")
            report.unseen += 1
            report.unseen_hits += hit
            if not hit:
                report.missed.append(f"{outcome.line()} ({made.program.name})")


def fuzz(
    seeds: Iterator[int],
    servers: Sequence[Servers],
    *,
    pairs: float = math.inf,
    seconds: float = math.inf,
    guards: str = "",
    make: Callable[[int], Trial] = trial,
) -> Report:
    """Run trials, one at a time on each of some servers, until enough pairs were run or the time is over."""
    report, lock, started = Report(), threading.Lock(), time.monotonic()

    def work(runner: Runner) -> None:
        while True:
            with lock:
                if report.pairs >= pairs or time.monotonic() - started > seconds:
                    return
                seed = next(seeds)
            made = make(seed)
            outcomes = runner.run(made)
            with lock:
                count(report, made, outcomes)

    with tempfile.TemporaryDirectory(prefix="fuzz") as directory, ThreadPoolExecutor(len(servers)) as pool:
        list(pool.map(work, [Runner(each, Path(directory), guards=guards) for each in servers]))
    report.seconds = time.monotonic() - started
    return report


def summary(report: Report) -> list[str]:
    """The counts as lines."""
    modes = ", ".join(f"{name} {number}" for name, number in report.modes.items())
    percent = 100 * report.effective // max(1, report.pairs)
    return [
        f"{report.pairs} pairs of {report.trials} programs in {report.seconds:.0f} s ({modes})",
        f"pairs on two real ranks: {report.on_ranks}",
        "programs that made no pair: " + ", ".join(f"{name} {n}" for name, n in report.alone.most_common()),
        "outcomes of pairs: "
        + ", ".join(f"{name} {number}" for name, number in report.outcomes.most_common()),
        f"changes that alter eager's result: {report.effective} ({percent} %)",
        f"changes that alter nothing: {report.unseen}, of which hits: {report.unseen_hits}",
        "refusals: " + ", ".join(f"{name} {number}" for name, number in report.refusals.most_common()),
        f"failures: {len(report.bad)}",
    ]
