"""What befalls each launch of a chaos run: pure, from a seed and the launch's number.

Any launch can so be repeated by itself, in any order, whatever became of the others.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from warmrank.orchestrator.causes import CLUSTER_LOST, DIED, NODE_LOST, STOPPED, TIMEOUT

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


OF_OWN = (
    Fault.KILL_RANK,
    Fault.KILL_RANK,
    Fault.STOP_RANK,
    Fault.KILL_HELPER,
    Fault.KILL_WATCH,
    Fault.KILL_RAYLET,
    Fault.KILL_HEAD,
    Fault.KILL_DRIVER,
    Fault.PAUSE_DRIVER,
    Fault.TERMINATE,
    Fault.INTERRUPT,
    Fault.STORE_GONE,
    Fault.STORE_REFUSES,
    Fault.STORE_DAMAGED,
)
"""Faults of a launch with a Ray of its own; what is named twice comes twice as often."""

OF_NODES = (Fault.KILL_NODE, Fault.CUT_LINK, Fault.CUT_BRIEFLY, Fault.KILL_RANK, Fault.STOP_RANK)
"""Faults of a launch on nodes in network namespaces."""

STAGES = ("start", "fetch", "build", "probe", "compile", "load", "capture", "first_call", "verify", "commit")
_SHARE_ON_NODES = 0.25
_SHARE_OF_TWO = 0.25
_MAX_DELAY_S = {"start": 8.0, "compile": 1.0}
_DELAY_S = 0.4


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
    """One launch.

    Attributes:
        number: which, from 0.
        place: on a Ray of its own, or on nodes.
        start: what it finds: nothing, its artifacts in the store, or on its disk as well.
        strikes: in order.
    """

    number: int
    place: Place
    start: Start
    strikes: tuple[Strike, ...]


def plan_of(seed: int, number: int, *, with_nodes: bool) -> Plan:
    """What befalls a launch.

    Args:
        seed: of the run.
        number: the launch's.
        with_nodes: this machine can have nodes in network namespaces.
    """
    chance = random.Random(f"{seed}/{number}")
    on_nodes = chance.random() < _SHARE_ON_NODES
    place: Place = "nodes" if on_nodes and with_nodes else "own"
    start: Start = chance.choice(("cold", "cold", "fetched", "warm"))
    num_strikes = 2 if chance.random() < _SHARE_OF_TWO else 1
    strikes = tuple(_strike(chance, OF_NODES if place == "nodes" else OF_OWN) for _ in range(num_strikes))
    return Plan(number=number, place=place, start=start, strikes=strikes)


def _strike(chance: random.Random, faults: tuple[Fault, ...]) -> Strike:
    stage = chance.choice(STAGES)
    delay_s = round(chance.uniform(0.0, _MAX_DELAY_S.get(stage, _DELAY_S)), 3)
    return Strike(fault=chance.choice(faults), stage=stage, delay_s=delay_s, victim=chance.randrange(8))


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """How a launch may end after a fault, if not warm.

    Attributes:
        exit_codes: codes; a negative one is a signal's.
        causes: kinds of cause, or of error, of which its report must name one.
    """

    exit_codes: frozenset[int] = frozenset()
    causes: frozenset[str] = frozenset()


_CANNOT_START = "CannotStart"
_BUDGETED: dict[Fault, frozenset[str]] = {
    Fault.KILL_RANK: frozenset({DIED, _CANNOT_START}),
    Fault.STOP_RANK: frozenset({STOPPED, _CANNOT_START}),
    Fault.KILL_WATCH: frozenset({NODE_LOST, DIED, _CANNOT_START}),
    Fault.PAUSE_DRIVER: frozenset({DIED, NODE_LOST}),
    Fault.KILL_NODE: frozenset({NODE_LOST, DIED, TIMEOUT, _CANNOT_START}),
    Fault.CUT_LINK: frozenset({NODE_LOST, DIED, TIMEOUT, _CANNOT_START}),
    Fault.CUT_BRIEFLY: frozenset({NODE_LOST, DIED, TIMEOUT, _CANNOT_START}),
}
"""Faults that another attempt makes good: a single one must end warm."""

_ENDS: dict[Fault, Allowed] = {
    Fault.KILL_RAYLET: Allowed(
        exit_codes=frozenset({1, 5}), causes=frozenset({NODE_LOST, DIED, CLUSTER_LOST, _CANNOT_START})
    ),
    Fault.KILL_HEAD: Allowed(exit_codes=frozenset({1, 5}), causes=frozenset({CLUSTER_LOST, _CANNOT_START})),
    Fault.KILL_DRIVER: Allowed(exit_codes=frozenset({-9})),
    Fault.TERMINATE: Allowed(exit_codes=frozenset({143}), causes=frozenset({"Terminated"})),
    Fault.INTERRUPT: Allowed(exit_codes=frozenset({130}), causes=frozenset({"KeyboardInterrupt"})),
    # What is not a directory any more is a fault, unlike one that is away.
    Fault.STORE_REFUSES: Allowed(
        exit_codes=frozenset({4}), causes=frozenset({"StoreFault", "StoreUnavailable"})
    ),
}


def allowed(plan: Plan) -> Allowed:
    """How the launch may end, if not warm."""
    codes: set[int] = set()
    causes: set[str] = set()
    for strike in plan.strikes:
        end = _ENDS.get(strike.fault, Allowed())
        codes |= end.exit_codes
        causes |= end.causes
    hurt = [strike.fault for strike in plan.strikes if strike.fault in _BUDGETED]
    if len(hurt) > 1:
        codes.add(5)
        causes |= frozenset().union(*(_BUDGETED[fault] for fault in hurt))
    return Allowed(exit_codes=frozenset(codes), causes=frozenset(causes))
