"""What becomes of compiles that fail: told while the launch goes on, one error when it ends.

A compile that fails is a result, never cached, and no reason to stop a rank that does not need it. What the
others made lies in their cache directories (and, as blobs without a manifest, in the store), so the next
launch compiles only what failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from warmrank.orchestrator.causes import WorkerFailure
from warmrank.orchestrator.errors import LaunchFailed, ranks_text
from warmrank.orchestrator.launch.situation import OF_THE_FUNCTION, Avoided, Failed, Situation, Slot
from warmrank.orchestrator.seats import Seat

Seats = Mapping[int, Seat]
"""Every rank's seat."""

_MAX_NAMED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiling:
    """What a rank was to compile when the attempt of a launch was cut off.

    Attributes:
        function: the cached function.
        request_key: for whom; opaque, and equal in the next attempt.
        rank: who compiled.
        node_id: its node.
        host: that node's host name, where no other node of the attempt had it; else empty.
    """

    function: str
    request_key: str
    rank: int
    node_id: str
    host: str


class CompileCut(LaunchFailed):
    """A leader died or did not answer, so that the attempt is over.

    Attributes:
        compiling: what the lost leaders were to compile: the first of a rank, or one after it.
    """

    def __init__(self, error: LaunchFailed, compiling: Iterable[Compiling]) -> None:
        Exception.__init__(self, *error.args)
        self.__dict__.update(error.__dict__)
        self.compiling = tuple(compiling)


def cut_off(slots: Iterable[Slot], asked: Mapping[Slot, str], seats: Seats) -> tuple[Compiling, ...]:
    """What lost leaders were to compile.

    Args:
        slots: lost leaders, with each function that they led.
        asked: request key of every slot.
        seats: of the attempt that was cut off.
    """
    alone = _nodes_alone(seats)
    return tuple(
        Compiling(
            function=function,
            request_key=asked[rank, function],
            rank=rank,
            node_id=seats[rank].node_id,
            host=seats[rank].host if seats[rank].host in alone else "",
        )
        for rank, function in slots
    )


def avoided(former: Iterable[Compiling], seats: Seats) -> tuple[Avoided, ...]:
    """Where, in this attempt, former attempts were cut off: by node, for a rank may be elsewhere by now.

    A node whose Ray was started anew has another id: it is known by its host name, where that is its alone.
    """
    nodes = {seat.node_id: seat.node_rank for seat in seats.values()}
    alone = _nodes_alone(seats)
    found = [(lost, nodes.get(lost.node_id, alone.get(lost.host))) for lost in former]
    return tuple(
        Avoided(
            function=lost.function,
            request_key=lost.request_key,
            rank=lost.rank if lost.rank in seats and seats[lost.rank].node_rank == node else None,
            node=node,
        )
        for lost, node in found
        if node is not None
    )


def _nodes_alone(seats: Seats) -> dict[str, int]:
    """The nodes whose host name no other node has: containers and nodes on one machine may share theirs."""
    nodes: dict[str, set[int]] = {}
    for seat in seats.values():
        nodes.setdefault(seat.host, set()).add(seat.node_rank)
    return {host: min(found) for host, found in nodes.items() if len(found) == 1}


def retries(failed: Iterable[Failed], situation: Situation, seats: Seats) -> tuple[str, ...]:
    """What to say of compiles that failed for the first time and are tried again; equal causes grouped."""
    num_failed: dict[object, int] = {}
    for earlier in situation.failed:
        num_failed[earlier.class_key] = num_failed.get(earlier.class_key, 0) + 1
    ranks: dict[tuple[str, str], list[int]] = {}
    for one in failed:
        if num_failed[one.class_key] == 1 and not one.is_final:
            ranks.setdefault((one.class_key[0], one.reason), []).append(one.rank)
    return tuple(
        f"{function} did not compile on {_where(found, seats)}, and is tried once more: {reason}"
        for (function, reason), found in ranks.items()
    )


def failures_of(situation: Situation, seats: Seats) -> list[WorkerFailure]:
    """Why something was given up: functions, leaders, nodes and causes."""
    wanted: dict[str, set[int]] = {}
    for demand in situation.lost:
        wanted.setdefault(demand.function, set()).add(demand.rank)
    lost = {key for demand in situation.lost for key in (demand.class_key, demand.own_key)}
    tried: dict[tuple[str, str], list[int]] = {}
    for failed in situation.failed:
        if failed.class_key in lost:
            tried.setdefault((failed.class_key[0], failed.reason), []).append(failed.rank)
    return [
        _failure(rank, function, reason, remedy)
        for (function, reason), ranks in tried.items()
        for remedy in [_remedy(_where(ranks, seats), wanted[function])]
        for rank in dict.fromkeys(ranks)
    ]


def _failure(rank: int, function: str, reason: str, remedy: str) -> WorkerFailure:
    # A rank makes a failure's reason of the name and text of what was raised.
    kind, separator, message = reason.partition(": ")
    if not separator or not kind.isidentifier():
        kind, message = "CompileFailed", reason
    if kind in OF_THE_FUNCTION:
        remedy = f"correct that line; {remedy}"
    return WorkerFailure(
        rank=rank, stage="compile", kind=kind, message=message, function=function, remedy=remedy
    )


def _remedy(where: str, wanted: Iterable[int]) -> str:
    return (
        f"see the logs of {where}, who compiled it for {ranks_text(wanted)}; all else is kept in the ranks' "
        "cache directories, so that the next launch compiles only what failed"
    )


def _where(ranks: Sequence[int], seats: Seats) -> str:
    """Ranks with their nodes: ``rank 0 on node 0 (a), rank 4 on node 1 (b)``."""
    distinct = list(dict.fromkeys(ranks))
    named = [
        f"rank {rank} on node {seats[rank].node_rank} ({seats[rank].host})" for rank in distinct[:_MAX_NAMED]
    ]
    more = len(distinct) - len(named)
    return ", ".join([*named, *([f"{more} more"] if more else [])])
