"""Chaos: what befalls each launch, from a seed and its number, and what must be true when it has ended.

Any launch can so be repeated by itself, in any order, whatever became of the others.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import time
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal

from tests.support.fault_workload import helpers_of
from tests.support.launching import data_of
from tests.support.netns import Node
from tests.support.netns_cluster import Cluster
from tests.support.processes import ENDS_S, LaunchProcess, await_true
from tests.support.stored import open_store, stored
from warmrank.orchestrator.errors import CLUSTER_LOST, DIED, NODE_LOST, STOPPED, TIMEOUT
from warmrank.orchestrator.inspect.store_contents import verify
from warmrank.orchestrator.launch.report import Report, from_json

Start = Literal["cold", "fetched", "warm"]
Place = Literal["own", "nodes"]


class Fault(StrEnum):
    """What is done to a launch."""

    KILL_RANK = "kill a rank"
    STOP_RANK = "stop a rank"
    KILL_HELPER = "kill a rank's helper"
    KILL_WATCH = "kill the watch of a node"
    KILL_RAYLET = "kill the raylet"
    KILL_HEAD = "kill the head"
    KILL_DRIVER = "kill the driver"
    PAUSE_DRIVER = "pause the driver for longer than the lease"
    TERMINATE = "SIGTERM to the driver"
    INTERRUPT = "Ctrl-C to the driver"
    STORE_GONE = "the store goes away"
    STORE_REFUSES = "the store refuses to be written"
    STORE_DAMAGED = "bytes of the store have changed"
    KILL_NODE = "a node goes down"
    CUT_LINK = "the cable of a node is pulled"
    CUT_BRIEFLY = "the cable of a node is pulled, and put back in"


_ON_NODES = (Fault.KILL_NODE, Fault.CUT_LINK, Fault.CUT_BRIEFLY)
FAULTS: dict[Place, tuple[Fault, ...]] = {
    "own": (Fault.KILL_RANK, *(fault for fault in Fault if fault not in _ON_NODES)),
    "nodes": (*_ON_NODES, Fault.KILL_RANK, Fault.STOP_RANK),
}
"""Of launches with a Ray of their own, and on nodes in network namespaces; twice for what comes oftener."""

STAGES = ("start", "fetch", "build", "probe", "compile", "load", "capture", "first_call", "verify", "commit")
_SHARE_ON_NODES = _SHARE_OF_TWO = 0.25
_MAX_DELAY_S = {"start": 8.0, "compile": 1.0}
_DELAY_S = 0.4
_REACHED_S = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """One fault.

    Attributes:
        fault: what is done.
        stage: when this stage has begun, for the first time since the strike before ...
        delay_s: ... and so many seconds have passed.
        victim: which rank or node, from 0; counted round.
    """

    fault: Fault
    stage: str
    delay_s: float
    victim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One launch: where, what it finds (nothing, artifacts in the store, or on its disk as well), strikes."""

    number: int
    place: Place
    start: Start
    strikes: tuple[Strike, ...]


def plan_of(seed: int, number: int, *, with_nodes: bool) -> Plan:
    """What befalls a launch of a run; ``with_nodes``: there can be nodes in network namespaces here."""
    chance = random.Random(f"{seed}/{number}")
    on_nodes = chance.random() < _SHARE_ON_NODES
    place: Place = "nodes" if on_nodes and with_nodes else "own"
    start: Start = chance.choice(("cold", "cold", "fetched", "warm"))
    num_strikes = 2 if chance.random() < _SHARE_OF_TWO else 1
    strikes = tuple(_strike(chance, FAULTS[place]) for _ in range(num_strikes))
    return Plan(number=number, place=place, start=start, strikes=strikes)


def _strike(chance: random.Random, faults: tuple[Fault, ...]) -> Strike:
    stage = chance.choice(STAGES)
    delay_s = round(chance.uniform(0.0, _MAX_DELAY_S.get(stage, _DELAY_S)), 3)
    return Strike(fault=chance.choice(faults), stage=stage, delay_s=delay_s, victim=chance.randrange(8))


_CANNOT_START = "CannotStart"
_LOST_NODE = frozenset({NODE_LOST, DIED, TIMEOUT, _CANNOT_START})
_BUDGETED: dict[Fault, frozenset[str]] = {
    Fault.KILL_RANK: frozenset({DIED, _CANNOT_START}),
    Fault.STOP_RANK: frozenset({STOPPED, _CANNOT_START}),
    Fault.KILL_WATCH: frozenset({NODE_LOST, DIED, _CANNOT_START}),
    Fault.PAUSE_DRIVER: frozenset({DIED, NODE_LOST}),
    **dict.fromkeys(_ON_NODES, _LOST_NODE),
}
"""Causes of faults that another attempt makes good: a single one must end warm."""

_ENDS: dict[Fault, tuple[frozenset[int], frozenset[str]]] = {
    Fault.KILL_RAYLET: (frozenset({1, 5}), frozenset({NODE_LOST, DIED, CLUSTER_LOST, _CANNOT_START})),
    Fault.KILL_HEAD: (frozenset({1, 5}), frozenset({CLUSTER_LOST, _CANNOT_START})),
    Fault.KILL_DRIVER: (frozenset({-signal.SIGKILL}), frozenset()),
    Fault.TERMINATE: (frozenset({143}), frozenset({"Terminated"})),
    Fault.INTERRUPT: (frozenset({130}), frozenset({"KeyboardInterrupt"})),
    # What is not a directory any more is a fault, unlike one that is away.
    Fault.STORE_REFUSES: (frozenset({4}), frozenset({"StoreFault", "StoreUnavailable"})),
}
"""Exit codes, and kinds of cause or of error, with which a launch may end after a fault."""


def allowed(plan: Plan) -> tuple[set[int], set[str]]:
    """How the launch may end, if not warm: exit codes, and the causes of which its report must name one."""
    ends = [_ENDS[strike.fault] for strike in plan.strikes if strike.fault in _ENDS]
    hurt = [_BUDGETED[strike.fault] for strike in plan.strikes if strike.fault in _BUDGETED]
    ends += [(frozenset({5}), causes) for causes in hurt if len(hurt) > 1]
    return {code for codes, _ in ends for code in codes}, {cause for _, causes in ends for cause in causes}


LINGER_S = 0.4
"""How long ranks stay in a stage at least: about as long as strikes are delayed at most."""

_LAUNCH_S = 240.0
_ENTRYPOINT = "tests.support.fault_workload:workload"


def _send(pids: list[int], strike: Strike) -> bool:
    number = signal.SIGSTOP if strike.fault is Fault.STOP_RANK else signal.SIGKILL
    with contextlib.suppress(ProcessLookupError):
        if pids:
            os.kill(sorted(pids)[strike.victim % len(pids)], number)
            return True
    return False


class OwnRoom:
    """Launches of two ranks, each with a Ray of its own; ``temp_dir`` has a path short enough for sockets."""

    num_ranks = 2

    def __init__(self, root: Path, temp_dir: Path) -> None:
        self.store, self.cache_dir, self.kept = root / "store", root / "cache", root / "kept"
        self.aside, self.marks = root / "store-aside", root / "marks"
        self._temp_dir = temp_dir
        arguments = {"marks": str(self.marks), "helpers": True, "linger_s": LINGER_S}
        stages = ("fetch", "build", "probe", "compile", "load", "capture", "first_call", "verify", "commit")
        # What is silent for eight seconds is lost; ranks whose driver is silent end after six.
        self._data = data_of(
            root,
            workload={"entrypoint": _ENTRYPOINT, "arguments": arguments},
            watch={"every_s": 0.5, "node_silent_s": 8, "stopped_s": 1, "lease_s": 6},
            timeouts={**{f"{stage}_s": 40 for stage in (*stages, "collective")}, "start_s": 60},
        )

    def begin(self) -> _Own:
        return _Own(self, LaunchProcess(self.store.parent, self._data, temp_dir=self._temp_dir))

    def empty(self) -> None:
        for directory in (self.store, self.cache_dir, self.marks):
            shutil.rmtree(directory, ignore_errors=True)
        self.marks.mkdir()


_PAUSE_S = 8.0
_SIGNALS = {
    Fault.KILL_DRIVER: signal.SIGKILL,
    Fault.TERMINATE: signal.SIGTERM,
    Fault.INTERRUPT: signal.SIGINT,
}


class _Own:
    """A launch of `OwnRoom`."""

    def __init__(self, room: OwnRoom, launch: LaunchProcess) -> None:
        self._room, self._launch = room, launch
        self.said, self.left_over = launch.said, launch.left_over

    def has_ended(self) -> bool:
        return self._launch.process.poll() is not None

    def wait(self) -> int:
        return self._launch.wait(timeout_s=_LAUNCH_S)

    def report(self) -> Report | None:
        return self._launch.report

    def end(self) -> None:
        self._launch.end()
        store, aside = self._room.store, self._room.aside
        if aside.exists():
            if store.is_dir():
                shutil.rmtree(store)
            store.unlink(missing_ok=True)
            aside.rename(store)

    def strike(self, strike: Strike) -> bool:
        fault = strike.fault
        if fault in {Fault.STORE_GONE, Fault.STORE_REFUSES, Fault.STORE_DAMAGED}:
            return self._room.store.is_dir() and self._strike_store(fault)
        if fault is Fault.PAUSE_DRIVER:
            self._launch.process.send_signal(signal.SIGSTOP)
            time.sleep(_PAUSE_S)
            self._launch.process.send_signal(signal.SIGCONT)
            return True
        if fault in _SIGNALS:
            self._launch.process.send_signal(_SIGNALS[fault])
            return True
        return _send(self._targets(fault), strike)

    def _strike_store(self, fault: Fault) -> bool:
        store = self._room.store
        if fault is Fault.STORE_DAMAGED:
            blobs = [path for path in (store / "cas").rglob("*") if path.is_file()]
            for path in blobs:
                content = bytearray(path.read_bytes())
                content[len(content) // 2] ^= 0xFF
                path.chmod(0o600)
                path.write_bytes(content)
            return bool(blobs)
        store.rename(self._room.aside)
        if fault is Fault.STORE_REFUSES:  # nothing below a file can be made, even by root
            store.write_text("not a directory\n")
        return True

    def _targets(self, fault: Fault) -> list[int]:
        if fault in {Fault.KILL_HEAD, Fault.KILL_RAYLET}:
            return self._launch.of_ray("gcs_server" if fault is Fault.KILL_HEAD else "raylet")
        processes = self._launch.processes()
        if fault is Fault.KILL_HELPER:
            return [pid for pid in helpers_of(self._room.marks) if "time.sleep" in processes.get(pid, "")]
        name = "NodeWatch" if fault is Fault.KILL_WATCH else "RankActor"
        return [pid for pid, text in processes.items() if text.startswith("ray::") and name in text]


_BRIEFLY_S = 1.5


class NodesRoom:
    """Launches of four ranks on nodes of two CPUs each."""

    num_ranks = 4
    num_nodes = 3
    cache_dir = None  # each node has its own

    def __init__(self, nodes: Cluster) -> None:
        self.nodes = nodes
        self.store, self.kept = nodes.shared / "chaos", nodes.shared / "chaos-kept"
        self.json = nodes.net.base / "chaos.json"
        marks = nodes.shared / "chaos-marks"
        marks.mkdir()
        self._config = nodes.config(
            "chaos",
            workload={"entrypoint": _ENTRYPOINT, "arguments": {"marks": str(marks), "linger_s": LINGER_S}},
            ranks=self.num_ranks,
            parallel={"tp": 2, "dp": 2},
            watch={"every_s": 0.5, "node_silent_s": 5, "stopped_s": 1, "lease_s": 7},
            retries={"node": 2, "rank": 1, "hang": 1, "start": 2},
        )

    def begin(self) -> _OnNodes:
        self.json.unlink(missing_ok=True)
        return _OnNodes(self, str(self._config))

    def empty(self) -> None:
        shutil.rmtree(self.store, ignore_errors=True)
        for node in self.nodes.net.nodes.values():
            shutil.rmtree(self.nodes.cache_of(node), ignore_errors=True)


class _OnNodes:
    """A launch of `NodesRoom`."""

    def __init__(self, room: NodesRoom, config: str) -> None:
        self._room, self._nodes = room, room.nodes
        self._running = room.nodes.start("launch", config, "--json", str(room.json))
        self.said = self._running.said
        self._cut: list[Node] = []

    def has_ended(self) -> bool:
        return self._running.process.poll() is not None

    def wait(self) -> int:
        return self._running.wait(timeout_s=_LAUNCH_S).exit_code

    def report(self) -> Report | None:
        return from_json(self._room.json.read_text()) if self._room.json.exists() else None

    def left_over(self) -> list[str]:
        for node in self._cut:
            self._nodes.net.mend(node)
        processes = self._nodes.left_over(timeout_s=ENDS_S)
        found = [f"on {name}: {text}" for name, texts in processes.items() for text in texts]
        return found + self._nodes.temporary_files()

    def end(self) -> None:
        """Have as many nodes alive as before."""
        self._nodes.restore(self._room.num_nodes)

    def strike(self, strike: Strike) -> bool:
        if strike.fault in {Fault.KILL_RANK, Fault.STOP_RANK}:
            return _send([pid for node in self._nodes.net.nodes.values() for pid in _ranks_on(node)], strike)
        up = [node for node in self._nodes.net.nodes.values() if node is not self._nodes.head]
        victims = [node for node in up if node not in self._cut]
        if not victims:
            return False
        # Better one with ranks: others are not missed.
        busy = [node for node in victims if _ranks_on(node)] or victims
        victim = busy[strike.victim % len(busy)]
        if strike.fault is Fault.KILL_NODE:
            self._nodes.kill_node(victim)
            return True
        self._nodes.net.cut(victim)
        if strike.fault is Fault.CUT_BRIEFLY:
            time.sleep(_BRIEFLY_S)
            self._nodes.net.mend(victim)
        else:
            self._cut.append(victim)
        return True


def _ranks_on(node: Node) -> list[int]:
    return [pid for pid, text in node.processes().items() if "RankActor" in text]


Room = OwnRoom | NodesRoom
Struck = _Own | _OnNodes


@dataclass(kw_only=True)
class Outcome:
    """How a launch ended; ``struck`` are the strikes that hit something, ``wrong`` is what must not be."""

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
        attempts = len(self.report.timeline.attempts) if self.report is not None else 0
        end = "warm" if self.exit_code == 0 else f"exit {self.exit_code}"
        what = f"{plan.number}: {plan.place}, {plan.start}: {hits}"
        return f"{what}: {end}, {attempts} attempts, {self.seconds:.0f} s"


def run(room: Room, plan: Plan) -> Outcome:
    """Launch, strike, and look at what is left; after a failure, launch again undisturbed."""
    _prepare(room, plan.start)
    before, began_s = launches_of(room.store), time.monotonic()
    launch = room.begin()
    try:
        struck = _strike_all(launch, plan)
        exit_code = launch.wait()
        outcome = Outcome(exit_code=exit_code, report=launch.report(), said=launch.said(), struck=struck)
        outcome.wrong += [f"left behind: {text}" for text in launch.left_over()]
        outcome.seconds = time.monotonic() - began_s
    finally:
        launch.end()
    _judge(plan, outcome, num_ranks=room.num_ranks)
    _judge_store(room, outcome, before)
    if exit_code != 0 or plan.number % 10 == 9:
        after = room.begin()
        try:
            if after.wait() != 0:
                outcome.wrong.append(f"the launch after it failed:\n{after.said()}")
            outcome.wrong += [f"left behind by the launch after it: {text}" for text in after.left_over()]
        finally:
            after.end()
    return outcome


def _prepare(room: Room, start: Start) -> None:
    """Lay out what the launch is to find, the same whatever ran before."""
    directories = [room.store, *([room.cache_dir] if room.cache_dir is not None else [])]
    if start != "cold" and not room.kept.exists():
        room.empty()
        first = room.begin()
        assert first.wait() == 0, first.said()
        room.kept.mkdir()
        for directory in directories:
            shutil.copytree(directory, room.kept / directory.name, symlinks=True)
    room.empty()
    for directory in directories[: {"cold": 0, "fetched": 1, "warm": 2}[start]]:
        shutil.copytree(room.kept / directory.name, directory, symlinks=True)


def _strike_all(launch: Struck, plan: Plan) -> tuple[Strike, ...]:
    struck, heard = [], 0
    for strike in plan.strikes:
        text = f"{strike.stage}: on"

        def is_reached(text: str = text, heard: int = heard) -> bool:
            return text in launch.said()[heard:] or launch.has_ended()

        if not await_true(is_reached, timeout_s=_REACHED_S) or launch.has_ended():
            break
        heard = len(launch.said())
        await_true(launch.has_ended, timeout_s=strike.delay_s)
        if launch.has_ended():
            break
        if launch.strike(strike):
            struck.append(strike)
    return tuple(struck)


def _judge(plan: Plan, outcome: Outcome, *, num_ranks: int) -> None:
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
    codes, causes = allowed(plan)
    if outcome.exit_code not in codes:
        wrong.append(f"exit code {outcome.exit_code}; expected 0 or one of {sorted(codes)}")
    failure = report.failure
    named = {failure.kind, *(cause.kind for cause in failure.causes)} if failure is not None else set()
    if not named & causes:
        wrong.append(f"the error is {sorted(named)}; expected one of {sorted(causes)}")


def _judge_store(room: Room, outcome: Outcome, before: set[str]) -> None:
    """Note what is wrong with the store and the cache directory that a launch left behind."""
    if not outcome.has_met(Fault.STORE_DAMAGED):
        found = verify(
            open_store(room.store) if room.store.exists() else None,
            room.cache_dir if room.cache_dir is not None and room.cache_dir.is_dir() else None,
            signatures_checked=False,
        )
        outcome.wrong += found.faults
    has_committed = "\ncommit: " in outcome.said.replace("\ncommit: on", "")
    if outcome.exit_code != 0 and not has_committed and launches_of(room.store) != before:
        outcome.wrong.append("a launch that failed has left a launch record")


def launches_of(store: Path) -> set[str]:
    """The launch records of a store."""
    return {str(path) for path in stored(store, "launch")}
