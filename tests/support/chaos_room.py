"""Launches that are struck as a plan says, and what must be true when they have ended."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tests.support.chaos_plan import Fault, Plan, Strike, allowed
from tests.support.fault_workload import helpers_of
from tests.support.launching import data_of
from tests.support.processes import LaunchProcess, await_true
from tests.support.stored import open_store
from warmrank.orchestrator.inspect.store_contents import verify
from warmrank.orchestrator.launch.report import Report

# What is silent for eight seconds is lost; ranks whose driver is silent end after six.
WATCH = {"every_s": 0.5, "node_silent_s": 8, "stopped_s": 1, "lease_s": 6}
LINGER_S = 0.4
"""How long ranks stay in a stage at least: about as long as strikes are delayed at most."""

_PAUSE_S = 8.0
_LAUNCH_S = 240.0
_REACHED_S = 90.0
_TIMEOUTS = {
    **dict.fromkeys(("fetch_s", "build_s", "probe_s", "compile_s", "load_s", "capture_s"), 40),
    **dict.fromkeys(("first_call_s", "verify_s", "commit_s", "collective_s"), 40),
    "start_s": 60,
}


class Struck(Protocol):
    """A launch that runs and can be struck."""

    def has_ended(self) -> bool:
        """Whether the driver has ended."""

    def said(self) -> str:
        """What it said so far."""

    def strike(self, strike: Strike) -> bool:
        """Carry a strike out; false where there is nothing that it could hit."""


@dataclass(kw_only=True)
class Outcome:
    """How a launch ended.

    Attributes:
        exit_code: of the driver.
        report: its report; None where there is none.
        said: what it said.
        struck: the strikes that hit something.
        seconds: from its start until nothing was left of it.
        wrong: what must not be, in words.
    """

    exit_code: int
    report: Report | None
    said: str
    struck: tuple[Strike, ...]
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)

    def has_met(self, *faults: Fault) -> bool:
        """Whether one of the faults hit."""
        return any(strike.fault in faults for strike in self.struck)

    def line(self, plan: Plan) -> str:
        """The outcome in one line."""
        hits = ", ".join(
            f"{strike.fault} in {strike.stage}{'' if strike in self.struck else ' (hit nothing)'}"
            for strike in plan.strikes
        )
        attempts = len(self.report.course.attempts) if self.report is not None else 0
        end = "warm" if self.exit_code == 0 else f"exit {self.exit_code}"
        what = f"{plan.number}: {plan.place}, {plan.start}: {hits}"
        return f"{what}: {end}, {attempts} attempts, {self.seconds:.0f} s"


def strike_all(launch: Struck, plan: Plan) -> tuple[Strike, ...]:
    """Strike a launch as its plan says; the strikes that hit something."""
    struck, heard = [], 0
    for strike in plan.strikes:
        text = f"{strike.stage}: on"
        reached = await_true(_reached(launch, text, heard), timeout_s=_REACHED_S)
        if not reached or launch.has_ended():
            break
        heard = len(launch.said())
        await_true(launch.has_ended, timeout_s=strike.delay_s)
        if launch.has_ended():
            break
        if launch.strike(strike):
            struck.append(strike)
    return tuple(struck)


def _reached(launch: Struck, text: str, heard: int) -> Callable[[], bool]:
    return lambda: text in launch.said()[heard:] or launch.has_ended()


def judge(plan: Plan, outcome: Outcome, *, num_ranks: int) -> None:
    """Note what is wrong with how a launch ended."""
    report, wrong = outcome.report, outcome.wrong
    if outcome.exit_code == -signal.SIGKILL and outcome.has_met(Fault.KILL_DRIVER):
        return
    if report is None:
        wrong.append(f"exit code {outcome.exit_code}, and no report")
        return
    if report.exit_code != outcome.exit_code:
        wrong.append(f"exit code {outcome.exit_code}, but {report.exit_code} in the report")
    if outcome.exit_code == 0:
        sure = [rank for rank in report.ranks if rank.verification is not None and rank.verification.ok]
        if report.outcome != "warm" or report.failure is not None or len(sure) != num_ranks:
            wrong.append(f"exit code 0, but {len(sure)} of {num_ranks} ranks are warm and right")
        return
    may = allowed(plan)
    if outcome.exit_code not in may.exit_codes:
        wrong.append(f"exit code {outcome.exit_code}; expected 0 or one of {sorted(may.exit_codes)}")
    failure = report.failure
    named = {failure.kind, *(cause.kind for cause in failure.causes)} if failure is not None else set()
    if not named & may.causes:
        wrong.append(f"the error is {sorted(named)}; expected one of {sorted(may.causes)}")


def judge_store(outcome: Outcome, store: Path, cache_dir: Path | None, before: set[str]) -> None:
    """Note what is wrong with the store and the cache directory that a launch left behind."""
    if not outcome.has_met(Fault.STORE_DAMAGED):
        found = verify(
            open_store(store) if store.exists() else None,
            cache_dir if cache_dir is not None and cache_dir.is_dir() else None,
            signatures_checked=False,
        )
        outcome.wrong += found.faults
    has_committed = "\ncommit: " in outcome.said.replace("\ncommit: on", "")
    if outcome.exit_code != 0 and not has_committed and launches_of(store) != before:
        outcome.wrong.append("a launch that failed has left a launch record")


def launches_of(store: Path) -> set[str]:
    """The launch records of a store."""
    return {str(path) for path in (store / "launch").rglob("*") if path.is_file()}


class OwnRoom:
    """Launches of two ranks, each with a Ray of its own.

    Args:
        root: directory of its store, its cache directory and what launches say.
        temp_dir: directory for temporary files, with a path short enough for sockets.
    """

    num_ranks = 2

    def __init__(self, root: Path, temp_dir: Path) -> None:
        self._root, self._temp_dir = root, temp_dir
        self._store, self._cache, self._marks = root / "store", root / "cache", root / "marks"
        self._kept = root / "kept"
        self._launch: LaunchProcess | None = None

    def run(self, plan: Plan) -> Outcome:
        """Launch, strike, and look at what is left."""
        self._prepare(plan)
        before, began_s = launches_of(self._store), time.monotonic()
        self._launch = launch = self._begin()
        try:
            struck = strike_all(_Own(launch, self._store, self._marks), plan)
            exit_code = launch.wait(timeout_s=_LAUNCH_S)
            outcome = Outcome(exit_code=exit_code, report=launch.report, said=launch.said(), struck=struck)
            outcome.wrong += [f"left behind: {text}" for text in launch.left_over()]
            outcome.seconds = time.monotonic() - began_s
        finally:
            launch.end()
            _put_back(self._store)
        judge(plan, outcome, num_ranks=self.num_ranks)
        judge_store(outcome, self._store, self._cache, before)
        if exit_code != 0 or plan.number % 10 == 9:
            self._launch_undisturbed(outcome)
        return outcome

    def _launch_undisturbed(self, outcome: Outcome) -> None:
        after = self._begin()
        try:
            if after.wait(timeout_s=_LAUNCH_S) != 0:
                outcome.wrong.append(f"the launch after it failed:\n{after.said()}")
            outcome.wrong += [f"left behind by the launch after it: {text}" for text in after.left_over()]
        finally:
            after.end()

    def _prepare(self, plan: Plan) -> None:
        """Lay out what the launch is to find, the same whatever ran before."""
        if plan.start != "cold" and not self._kept.exists():
            self._empty()
            first = self._begin()
            assert first.wait(timeout_s=_LAUNCH_S) == 0, first.said()
            self._kept.mkdir()
            for directory in (self._store, self._cache):
                shutil.copytree(directory, self._kept / directory.name, symlinks=True)
        self._empty()
        wanted = {"cold": (), "fetched": (self._store,), "warm": (self._store, self._cache)}[plan.start]
        for directory in wanted:
            shutil.copytree(self._kept / directory.name, directory, symlinks=True)

    def _empty(self) -> None:
        for directory in (self._store, self._cache, self._marks):
            shutil.rmtree(directory, ignore_errors=True)
        self._marks.mkdir()

    def _begin(self) -> LaunchProcess:
        arguments = {"marks": str(self._marks), "helpers": True, "linger_s": LINGER_S}
        workload = {"entrypoint": "tests.support.fault_workload:workload", "arguments": arguments}
        changes: dict[str, Any] = {"workload": workload, "watch": WATCH, "timeouts": _TIMEOUTS}
        return LaunchProcess(self._root, data_of(self._root, **changes), temp_dir=self._temp_dir)


class _Own:
    """A launch of `OwnRoom`."""

    def __init__(self, launch: LaunchProcess, store: Path, marks: Path) -> None:
        self._launch, self._store, self._marks = launch, store, marks
        self.said = launch.said

    def has_ended(self) -> bool:
        return self._launch.process.poll() is not None

    def strike(self, strike: Strike) -> bool:
        fault = strike.fault
        if fault in _STORE_FAULTS:
            return self._store.is_dir() and _STORE_FAULTS[fault](self._store)
        if fault is Fault.PAUSE_DRIVER:
            self._launch.process.send_signal(signal.SIGSTOP)
            time.sleep(_PAUSE_S)
            self._launch.process.send_signal(signal.SIGCONT)
            return True
        if fault in _DRIVER_SIGNALS:
            self._launch.process.send_signal(_DRIVER_SIGNALS[fault])
            return True
        pids = sorted(self._targets(fault))
        if not pids:
            return False
        number = signal.SIGSTOP if fault is Fault.STOP_RANK else signal.SIGKILL
        return _send(pids[strike.victim % len(pids)], number)

    def _targets(self, fault: Fault) -> list[int]:
        if fault is Fault.KILL_HEAD:
            return self._launch.of_ray("gcs_server")
        if fault is Fault.KILL_RAYLET:
            return self._launch.of_ray("raylet")
        processes = self._launch.processes()
        if fault is Fault.KILL_HELPER:
            return [pid for pid in helpers_of(self._marks) if "time.sleep" in processes.get(pid, "")]
        name = "NodeWatch" if fault is Fault.KILL_WATCH else "RankActor"
        return [pid for pid, text in processes.items() if text.startswith("ray::") and name in text]


def _send(pid: int, number: signal.Signals) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


_DRIVER_SIGNALS = {
    Fault.KILL_DRIVER: signal.SIGKILL,
    Fault.TERMINATE: signal.SIGTERM,
    Fault.INTERRUPT: signal.SIGINT,
}


def _take_away(store: Path) -> bool:
    store.rename(_aside(store))
    return True


def _refuse(store: Path) -> bool:
    """Have a file where the store's files lie: nothing below it can be made, even by root."""
    store.rename(_aside(store))
    store.write_text("not a directory\n")
    return True


def _damage(store: Path) -> bool:
    blobs = [path for path in (store / "cas").rglob("*") if path.is_file()]
    for path in blobs:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 0xFF
        path.chmod(0o600)
        path.write_bytes(content)
    return bool(blobs)


_STORE_FAULTS: dict[Fault, Callable[[Path], bool]] = {
    Fault.STORE_GONE: _take_away,
    Fault.STORE_REFUSES: _refuse,
    Fault.STORE_DAMAGED: _damage,
}


def _aside(store: Path) -> Path:
    return store.with_name("store-aside")


def _put_back(store: Path) -> None:
    if _aside(store).exists():
        if store.is_dir():
            shutil.rmtree(store)
        store.unlink(missing_ok=True)
        _aside(store).rename(store)
