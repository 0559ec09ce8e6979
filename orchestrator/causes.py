"""Failures of ranks: their kinds, the policy of each kind, and equal failures grouped into causes; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal, NamedTuple

from warmrank.orchestrator.text import grouped


@dataclass(frozen=True, slots=True)
class about:  # noqa: N801 - stands among a field's types as a word
    """Description of a field in a document's schema; without pydantic, which a warm rank does not import."""

    text: str

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Any) -> dict[str, Any]:
        return {**handler(core_schema), "description": self.text}


Budget = Literal["rank", "node", "hang", "start"]  # A key of the config's `retries`


class FailureKind(StrEnum):
    """Every kind of failure that decides something; any other kind is the name of an exception's type.

    Of several kinds the first decides. What ranks report themselves comes after `TIMEOUT`, because it may
    follow from what stands before.
    """

    CLUSTER_LOST = "cluster lost"
    NODE_LOST = "node lost"
    DIED = "died"
    PORT_IN_USE = "PortInUse"  # the others wait for rank 0 in vain
    STOPPED = "stopped"
    TIMEOUT = "timeout"
    # torch's names for a peer that went away or is silent: no death was seen, so one hangs or is cut off.
    PEER_SILENT = "DistBackendError"
    PEER_AWAY = "DistNetworkError"
    PEER_STORE_AWAY = "DistStoreError"
    ENVIRONMENT = "environment"
    IMPORT = "import"
    COMPILE_FORBIDDEN = "CompileForbidden"
    FUNCTION_RAISED = "FunctionRaised"
    COMPILE_FAILED = "CompileFailed"
    CAPTURE_MISMATCH = "CaptureMismatch"
    DOES_NOT_SETTLE = "DoesNotSettle"
    WORKLOAD = "WorkloadError"
    BAD_ARGUMENT = "BadArgument"
    DEVICE_UNAVAILABLE = "DeviceUnavailable"
    UNUSABLE_CACHE = "UnusableCache"
    UNWRITABLE_DISK = "UnwritableDisk"
    STORE_UNAVAILABLE = "StoreUnavailable"


CLUSTER_LOST, NODE_LOST, DIED = FailureKind.CLUSTER_LOST, FailureKind.NODE_LOST, FailureKind.DIED
STOPPED, TIMEOUT = FailureKind.STOPPED, FailureKind.TIMEOUT

OF_THE_FUNCTION = frozenset({"GraphBreak", "NotPortable", "RandomOp", "BackwardNotSupported", "NotYet"})
"""Failures of a compile that come again on the same rank: the function is to be changed."""


class Policy(NamedTuple):
    """Policy for a kind of failure."""

    budget: Budget | None = None  # of another attempt; None where it would fail alike
    exit: Literal["FAILED", "BAD_INPUT", "FAULT", "LOST"] = "FAILED"  # name of the exit code
    remedy: str = ""  # for failures that name none, with {stage} for theirs


_PEER = Policy("hang", "LOST")
_POLICIES: dict[str, Policy] = {
    CLUSTER_LOST: Policy(
        None, "LOST", "start the cluster anew, then launch again: what was compiled is kept"
    ),
    NODE_LOST: Policy(
        "node", "LOST", "look at the node and its network; watch.node_silent_s says how long silence is borne"
    ),
    DIED: Policy(
        "rank", "LOST", "its log holds the last words; a kill by the system leaves none (see dmesg)"
    ),
    FailureKind.PORT_IN_USE: Policy("start", "LOST"),
    STOPPED: Policy(
        "hang",
        "LOST",
        "whoever stopped it can let it go on (SIGCONT); watch.stopped_s says how long that is borne",
    ),
    TIMEOUT: Policy(
        "hang", "LOST", "raise timeouts.{stage}_s, or look into the rank's log for what it waits on"
    ),
    FailureKind.PEER_SILENT: _PEER,
    FailureKind.PEER_AWAY: _PEER,
    FailureKind.PEER_STORE_AWAY: _PEER,
    FailureKind.IMPORT: Policy(
        remedy="start the launch in the directory that holds the module, or install it on the nodes"
    ),
    FailureKind.COMPILE_FORBIDDEN: Policy(
        remedy="warmrank explain says what differs from what is stored; launch once without --no-compile, or "
        "preseed from a store that holds this launch"
    ),
    FailureKind.CAPTURE_MISMATCH: Policy(
        remedy="capture is in step, so the workload must give every rank the same calls"
    ),
    FailureKind.DOES_NOT_SETTLE: Policy(
        remedy="keep what changes from call to call in a tensor, or pass it as an argument"
    ),
    FailureKind.WORKLOAD: Policy(exit="BAD_INPUT"),
    FailureKind.BAD_ARGUMENT: Policy(exit="BAD_INPUT"),
    FailureKind.DEVICE_UNAVAILABLE: Policy(exit="BAD_INPUT"),
    FailureKind.UNUSABLE_CACHE: Policy(exit="FAULT"),
    FailureKind.UNWRITABLE_DISK: Policy(exit="FAULT"),
    FailureKind.STORE_UNAVAILABLE: Policy(exit="FAULT"),
}
_ORDER: dict[str, int] = {kind: index for index, kind in enumerate(FailureKind)}


def policy_of(*kinds: str) -> Policy:
    """The policy of failures of these kinds: that of the first in the order of `FailureKind`."""
    first = min(kinds, key=lambda kind: _ORDER.get(kind, len(_ORDER)))
    return _POLICIES.get(first, Policy())


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFailure:
    """A failure of one rank in one stage; plain data, so that it crosses Ray whatever was raised."""

    rank: int
    stage: str
    kind: str  # a `FailureKind`, or the name of another exception's type
    message: str
    function: str = ""
    store_fault: bool = False  # a launch may go on without the store
    traceback: str = ""  # where it was raised, or what the rank's threads were doing
    remedy: str = ""

    def advice(self) -> str:
        """The remedy; may be empty."""
        return self.remedy or policy_of(self.kind).remedy.format(stage=self.stage)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Equal failures of some ranks."""

    ranks: Annotated[tuple[int, ...], about("on which, in order.")]
    kind: Annotated[str, about("name of the exception's type, or a word such as died, node lost, stopped.")]
    function: Annotated[str, about("cached function that it concerns; empty when it concerns the ranks.")]
    message: Annotated[str, about("the error's text.")]
    remedy: Annotated[str, about("what to do; may be empty.")]
    hosts: Annotated[tuple[str, ...], about("of these ranks, in order; empty before they had any.")] = ()
    traceback: Annotated[str, about("of the first: where it was raised, or its threads stood.")] = ""


def causes_of(failures: Iterable[WorkerFailure], hosts: Mapping[int, str]) -> tuple[Cause, ...]:
    """Equal failures grouped; those that others follow from come first, then by rank."""
    by_rank = sorted(failures, key=lambda failure: failure.rank)
    groups = grouped(((each.kind, each.function, each.message, each.advice()), each) for each in by_rank)
    found = [
        Cause(
            ranks=tuple(failure.rank for failure in alike),
            kind=str(kind),
            function=function,
            message=message,
            remedy=remedy,
            hosts=tuple(dict.fromkeys(hosts[each.rank] for each in alike if each.rank in hosts)),
            traceback=next((each.traceback for each in alike if each.traceback), ""),
        )
        for (kind, function, message, remedy), alike in groups.items()
    ]
    last = _ORDER[TIMEOUT] + 1
    return tuple(sorted(found, key=lambda cause: (min(_ORDER.get(cause.kind, last), last), cause.ranks)))
