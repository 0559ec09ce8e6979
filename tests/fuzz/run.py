"""Runs trials on servers, judges and counts what comes back, and makes a failing pair small."""

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from pprint import pformat
from typing import Self

from tests import npu_emulator
from tests.fuzz.child import BAD, Calls, Job, Result, result_of
from tests.fuzz.generate import trial
from tests.fuzz.program import Pair, Program, Trial, source
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
        made: the trial.
        number: of the pair; -1 for the first process alone, if that compiled nothing.
        outcome: that of `Calls`; ``broken`` if the program does not run.
        detail: reason.
        effective: eager returned something else than in the first process; no other pair can show staleness.
    """

    made: Trial
    number: int
    outcome: str
    detail: str = ""
    effective: bool = False

    @property
    def bad(self) -> bool:
        return self.outcome in BAD

    @property
    def unseen(self) -> bool:
        """True if the change alters nothing that is traced, so that it should be a hit."""
        pair = self.made.pairs[self.number]
        return pair.index == -1 and not (pair.change.x or pair.change.rank or pair.change.alone)

    @property
    def hit(self) -> bool:
        return self.outcome in ("loaded", "adopted")

    def line(self) -> str:
        name = "first process"
        if self.number != _COLD:
            pair = self.made.pairs[self.number]
            name = f"{'later: ' if pair.later else ''}{pair.change.name}"
        return f"{self.made.seed}:{self.number} {self.outcome}: {name}: {self.detail.strip()[-300:]}"


@dataclass(slots=True)
class Report:
    """Outcomes of a run: of pairs, and of programs that did not compile, and so made no pair."""

    trials: int = 0
    alone: list[Outcome] = field(default_factory=list)
    pairs: list[Outcome] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Add the outcomes of a trial, and show failures at once, because a run takes an hour."""
        self.trials += 1
        for outcome in outcomes:
            (self.alone if outcome.number == _COLD else self.pairs).append(outcome)
            if outcome.bad:
                print(f"{outcome.line()}\n    {outcome.made.program.name}", flush=True)  # noqa: T201

    @property
    def bad(self) -> list[Outcome]:
        return [outcome for outcome in (*self.alone, *self.pairs) if outcome.bad]

    @property
    def missed(self) -> list[str]:
        """Changes that alter nothing, and were no hits."""
        missed = [outcome for outcome in self.pairs if outcome.unseen and not outcome.hit]
        return [f"{outcome.line()} ({outcome.made.program.name})" for outcome in missed]

    def summary(self) -> list[str]:
        """The counts as lines."""
        both = (*self.alone, *self.pairs)
        programs = [outcome.made.program for outcome in self.pairs]
        effective = sum(outcome.effective for outcome in self.pairs)
        unseen = [outcome for outcome in self.pairs if outcome.unseen]
        refused = (outcome.detail.partition(":")[0] for outcome in both if outcome.outcome == "refused")
        modes = _counted(program.mode for program in programs)
        return [
            f"{len(self.pairs)} pairs of {self.trials} programs in {self.seconds:.0f} s ({modes})",
            f"pairs on two real ranks: {sum(program.gloo for program in programs)}",
            f"programs that made no pair: {_counted(outcome.outcome for outcome in self.alone)}",
            f"outcomes of pairs: {_counted(outcome.outcome for outcome in self.pairs)}",
            f"changes that alter eager's result: {effective} ({100 * effective // max(1, len(programs))} %)",
            f"changes that alter nothing: {len(unseen)}, of which hits: {sum(one.hit for one in unseen)}",
            f"refusals: {_counted(refused)}",
            f"failures: {len(self.bad)}",
        ]


def _counted(names: Iterable[str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in Counter(names).most_common())


class Servers:
    """A server of each kind, by default one cold and one warm; see `tests.fuzz.child`."""

    def __init__(self, *kinds: str, seed: int = 0) -> None:
        numbered = enumerate(kinds or ("cold", "warm"), start=seed)
        self._processes = {kind: self._start(kind, str(hash_seed)) for hash_seed, kind in numbered}
        for process in self._processes.values():
            assert self._read(process) == "ready\n"

    @staticmethod
    def _start(kind: str, hash_seed: str) -> subprocess.Popen[str]:
        own = {"PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": hash_seed}
        own |= {"PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.child", kind],
            cwd=ROOT,
            env=npu_emulator.environ({**os.environ, **own}) if kind == "npu" else {**os.environ, **own},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if kind == "npu" else None,  # TorchAir's log
            text=True,
        )

    @staticmethod
    def _read(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        return process.stdout.readline()

    def run(self, kind: str, job: Job) -> Result:
        process = self._processes.get(kind) or next(iter(self._processes.values()))
        assert process.stdin is not None
        process.stdin.write(json.dumps(asdict(job)) + "\n")
        process.stdin.flush()
        result = result_of(self._read(process))
        if "device" in self._processes:
            process.communicate(timeout=60)
            self._processes["device"] = self._start("device", "0")
            assert self._read(self._processes["device"]) == "ready\n"
        return result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.communicate(timeout=60)


class Runner:
    """Runs the pairs of trials; of one trial one after the other, in a directory of their own.

    With ``apart`` each changed process has a copy of what the first one left, and compiles unless that fits;
    a third one then has to load what it compiled. With ``vendor`` TorchAir alone is tried.
    """

    def __init__(
        self,
        servers: Servers,
        directory: Path,
        *,
        guards: str = "",
        apart: bool = False,
        vendor: bool = False,
    ) -> None:
        self._servers = servers
        self._directory = directory
        self._guards = guards
        self._apart = apart
        self._vendor = vendor

    def run(self, made: Trial, numbers: set[int] | None = None) -> list[Outcome]:
        """The outcome of each pair, or of some."""
        directory = Path(tempfile.mkdtemp(prefix=f"{made.seed}_", dir=self._directory))
        try:
            return list(self._outcomes(made, directory, numbers))
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def _outcomes(self, made: Trial, directory: Path, numbers: set[int] | None) -> Iterator[Outcome]:
        cold = self._servers.run("cold", self.job(made.program, directory, "cold"))
        calls = cold.first or Calls("broken", cold.broken)
        if calls.outcome != "compiled":
            yield Outcome(made=made, number=_COLD, outcome=calls.outcome, detail=calls.detail)
            return
        for number, pair in enumerate(made.pairs):
            if numbers is None or number in numbers:
                yield self._second(made, number, pair, directory, calls)

    def _second(self, made: Trial, number: int, pair: Pair, directory: Path, cold: Calls) -> Outcome:
        job = self._changed_job(made, number, pair, directory)
        result = self._servers.run("cold" if job.may_compile else "warm", job)
        if result.broken or result.first is None:
            return Outcome(made=made, number=number, outcome="broken", detail=result.broken)
        calls = result.first
        if self._apart and calls.outcome == "compiled" and not made.program.engine:
            again = self._servers.run("warm", replace(job, may_compile=False)).first or Calls("broken")
            calls = calls if again.outcome == "loaded" else Calls(f"again {again.outcome}", again.detail)
        if pair.later and calls.outcome not in BAD:
            calls = result.later or Calls(f"first {calls.outcome}", calls.detail)
        effective = calls.eager != cold.eager
        if pair.change.alone:  # what one rank left is tried on the other
            effective = len(set(cold.eager.split("|"))) > 1
        return Outcome(
            made=made, number=number, outcome=calls.outcome, detail=calls.detail, effective=effective
        )

    def _changed_job(self, made: Trial, number: int, pair: Pair, directory: Path) -> Job:
        change = pair.change
        job = self.job(made.program.changed(pair.index, pair.change), directory, f"pair{number}")
        if change.rank is not None:
            job = replace(job, rank=change.rank, gloo=0)
        if change.alone or self._apart:
            cache = directory / f"cache{number}"
            shutil.copytree(job.cache, cache)
            job = replace(job, cache=str(cache), alone=change.alone)
        if pair.later:
            return replace(
                job, later=change.mutate or "pass", later_context=change.context, may_compile=False
            )
        return replace(
            job,
            mutate=change.mutate,
            environment={**job.environment, **change.environment},
            context=change.context or job.context,
            may_compile=not change.fits if self._apart else (made.seed + number) % _RECOMPILED == 0,
        )

    def job(self, program: Program, directory: Path, name: str) -> Job:
        """The first process of a program."""
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
            engine=program.engine,
            vendor=self._vendor,
            fresh=program.fresh,
            context=program.context,
            tolerance=program.tolerance,
            whole=bool(program.calls),
        )


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
                if len(report.pairs) >= pairs or time.monotonic() - started > seconds:
                    return
                seed = next(seeds)
            outcomes = runner.run(make(seed))
            with lock:
                report.add(outcomes)

    with tempfile.TemporaryDirectory(prefix="fuzz") as directory, ThreadPoolExecutor(len(servers)) as pool:
        list(pool.map(work, [Runner(each, Path(directory), guards=guards) for each in servers]))
    report.seconds = time.monotonic() - started
    return report


_SCRIPT = '''\
"""{line}

Run it with warmrank's root in PYTHONPATH; its exit status is 1 where it still fails. The program:

{source}
"""

import pathlib
import sys
import tempfile

from tests.fuzz.program import Change, Pair, Part, Program, Trial
from tests.fuzz.run import Runner, Servers

MADE = {made}
with Servers() as servers, tempfile.TemporaryDirectory() as directory:
    outcomes = Runner(servers, pathlib.Path(directory), guards={guards!r}).run(MADE)
for outcome in outcomes:
    print(outcome.line())
sys.exit(any(outcome.bad for outcome in outcomes))
'''


def shrunk(made: Trial, number: int, servers: Servers, *, guards: str = "") -> str:
    """A script of the smallest program that still fails like this pair."""
    with tempfile.TemporaryDirectory() as directory:
        runner = Runner(servers, Path(directory), guards=guards)

        def failure(candidate: Trial, position: int) -> Outcome | None:
            outcomes = runner.run(candidate, {position})
            return outcomes[0] if outcomes and outcomes[0].bad else None

        found = failure(made, number)
        if found is None:
            msg = f"pair {made.seed}:{number} does not fail"
            raise SystemExit(msg)
        alone, smaller = replace(made, pairs=(made.pairs[number],)), True
        while smaller:
            smaller = False
            for candidate in _smaller(alone):
                again = failure(candidate, 0)
                if again is not None and again.outcome == found.outcome:
                    alone, found, smaller = candidate, again, True
                    break
    text = source(alone.program).replace("\\", "\\\\").replace('"""', "'''")
    return _SCRIPT.format(line=found.line(), source=text, made=pformat(alone, width=110), guards=guards)


def _smaller(made: Trial) -> Iterator[Trial]:
    """Trials with one part or one slot's line less."""
    pair = made.pairs[0]
    for index in range(len(made.program.parts)):
        if index != pair.index:
            moved = pair.index - 1 if pair.index > index else pair.index
            yield replace(made, program=made.program.without(index), pairs=(replace(pair, index=moved),))
    if made.program.dynamic:
        yield replace(made, program=replace(made.program, dynamic=False))
    if made.program.gloo and not pair.change.alone:
        yield replace(made, program=replace(made.program, gloo=False))
    for index, part in enumerate(made.program.parts):
        for slot, text in part.slots.items():
            lines = text.splitlines()
            for gone in range(len(lines)) if len(lines) > 1 else ():
                slots = {**part.slots, slot: "\n".join([*lines[:gone], *lines[gone + 1 :]])}
                parts = [*made.program.parts]
                parts[index] = replace(part, slots=slots)
                yield replace(made, program=replace(made.program, parts=tuple(parts)))
