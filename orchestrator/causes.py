"""Failures of ranks, and equal ones grouped into causes: pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

DIED = "died"
NODE_LOST = "node lost"
STOPPED = "stopped"
TIMEOUT = "timeout"
CLUSTER_LOST = "cluster lost"
"""Kinds of failure that no rank reported itself; any other kind is the name of an exception's type."""

_FIRST = (CLUSTER_LOST, NODE_LOST, DIED, STOPPED, TIMEOUT)
"""Others fail in the wake of these, so these are told first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFailure:
    """What went wrong on one rank in one stage; plain data, so that it crosses Ray whatever was raised.

    Attributes:
        rank: global rank.
        stage: stage of the launch.
        kind: name of the exception's type, or one of the kinds above.
        message: the error's text.
        function: cached function that it concerns; empty when it concerns the rank.
        store_fault: the store is at fault, not the rank, so a launch may go on without the store.
        traceback: where it was raised, or what the rank's threads were doing; may be empty.
        remedy: what to do, where the launcher knows more than the message says.
    """

    rank: int
    stage: str
    kind: str
    message: str
    function: str = ""
    store_fault: bool = False
    traceback: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """What went wrong in the same way on some ranks.

    Attributes:
        ranks: on which, in order.
        kind: name of the exception's type, or a word such as ``died``, ``node lost``, ``stopped``.
        function: cached function that it concerns; empty when it concerns the ranks.
        message: the error's text.
        remedy: what to do; may be empty.
        hosts: the nodes of these ranks, in order; empty where they had none yet.
        traceback: of the first of these ranks: where it was raised, or what its threads were doing; may be
            empty.
    """

    ranks: tuple[int, ...]
    kind: str
    function: str
    message: str
    remedy: str
    hosts: tuple[str, ...] = ()
    traceback: str = ""


def causes_of(failures: Iterable[WorkerFailure], hosts: Mapping[int, str]) -> tuple[Cause, ...]:
    """Equal failures grouped; those that others follow from come first, then by rank.

    Args:
        failures: of any ranks.
        hosts: the node of each rank, as far as it has one.
    """
    groups: dict[tuple[str, str, str, str], list[int]] = {}
    tracebacks: dict[tuple[str, str, str, str], str] = {}
    for failure in sorted(failures, key=lambda failure: failure.rank):
        cause = (failure.kind, failure.function, failure.message, failure.remedy)
        groups.setdefault(cause, []).append(failure.rank)
        tracebacks[cause] = tracebacks.get(cause) or failure.traceback
    found = [
        Cause(
            ranks=tuple(ranks),
            kind=kind,
            function=function,
            message=message,
            remedy=remedy,
            hosts=tuple(dict.fromkeys(hosts[rank] for rank in ranks if rank in hosts)),
            traceback=tracebacks[kind, function, message, remedy],
        )
        for (kind, function, message, remedy), ranks in groups.items()
    ]
    return tuple(sorted(found, key=_order))


def _order(cause: Cause) -> tuple[int, tuple[int, ...]]:
    return (_FIRST.index(cause.kind) if cause.kind in _FIRST else len(_FIRST)), cause.ranks
