"""Failures of ranks: their kinds, the policy of each kind, equal ones grouped into causes; and all errors.

Each error keeps its fields, survives pickling, and says what to do.
"""

from __future__ import annotations

import copyreg
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from warmrank.cache_store.text import brief_names, brief_ranks, count_text, grouped

if TYPE_CHECKING:
    from warmrank.worker.results import FunctionResult


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

ENDED_AT_ONCE = "its process ended all at once: it was killed, crashed in native code, or called os._exit"

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
        "hang",
        "LOST",
        "raise timeouts.{stage}_s, or look for what it waits on in the rank's log, and in the .stacks file "
        "beside it, which says where its threads stood",
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
    results: tuple[FunctionResult, ...] = ()  # of a script, until it failed

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


class OrchestratorError(Exception):
    """Base of every error that `orchestrator` raises; attributes set by a subclass survive pickling.

    Attributes:
        budget: what another attempt takes; None for an error that ends the launch.
        is_lost: the cluster is to blame, not the workload: another launch may end well.
    """

    budget: Budget | None = None
    is_lost: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        # typeshed does not have it.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class BadInput(OrchestratorError):
    """Input of a command that cannot be used; the command ends with 2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigProblem:
    """One thing that is wrong in a config: in a file or an override ``place``, at a dotted ``key``."""

    place: str
    key: str  # empty for the file as a whole
    found: str
    expected: str = ""
    nearest: str = ""  # empty when no known key is near
    remedy: str = ""

    def __str__(self) -> str:
        said = [f"found {self.found}", self.expected and f"expected {self.expected}", self.remedy]
        hint = f" (did you mean {self.nearest}?)" if self.nearest else ""
        key = f"{self.key}: " if self.key else ""
        return f"{self.place}: {key}{'; '.join(filter(None, said))}{hint}"


class ConfigError(BadInput):
    """A config, or another ``document`` of a person, that cannot be used; lists every problem found."""

    def __init__(self, problems: Iterable[ConfigProblem], *, document: str = "config") -> None:
        self.problems = tuple(problems)
        self.document = document
        super().__init__("\n".join(str(problem) for problem in self.problems))


class BadArgument(BadInput):
    """An argument of a command that cannot be used; says which, what was expected and what was found."""


class LaunchFailed(OrchestratorError):
    """A stage failed on at least one rank, so it was stopped on all.

    Attributes:
        causes: the failures, equal ones grouped, those that others follow from first.
        silent: ranks that had not answered when the launch was stopped.
        logs: where each rank's log lies on its node; empty when ranks ran in the driver's process.
        compiling: `launch.rounds.Compiling` of leaders that were lost.
        policy: of the failures.
    """

    def __init__(
        self,
        stage: str,
        failures: Iterable[WorkerFailure],
        *,
        num_ranks: int,
        silent: Iterable[int] = (),
        logs: str = "",
        hosts: Mapping[int, str] | None = None,
    ) -> None:
        self.stage = stage
        self.failures = tuple(sorted(failures, key=lambda failure: failure.rank))
        self.num_ranks = num_ranks
        self.silent = tuple(sorted(silent))
        self.logs = logs
        self.compiling: tuple[Any, ...] = ()
        self.causes = causes_of(self.failures, hosts or {})
        self.policy = policy_of(*(failure.kind for failure in self.failures))
        self.budget, self.is_lost = self.policy.budget, self.policy.exit == "LOST"
        super().__init__(self._describe())

    def _describe(self) -> str:
        if self.num_ranks == 1:
            lines = [f"stage {self.stage} failed on the one rank of the launch"]
        else:
            num_failed = len({failure.rank for failure in self.failures})
            ranks = f"{num_failed} of {self.num_ranks} ranks"
            lines = [f"stage {self.stage} failed on {ranks}; all ranks were stopped"]
        for cause in self.causes:
            on = f" on {brief_names(cause.hosts)}" if cause.hosts else ""
            what = f"{cause.kind} in {cause.function}" if cause.function else cause.kind
            lines.append(f"  {ranks_text(cause.ranks)}{on}: {what}: {cause.message}")
            if cause.remedy:
                lines.append(f"    remedy: {cause.remedy}")
        if self.silent:
            lines.append(f"  {ranks_text(self.silent)}: had not answered when the launch was stopped")
        if self.logs:
            lines.append(f"  logs: {self.logs} on each rank's node")
        return "\n".join(lines)


class FunctionFailed(OrchestratorError):
    """A cached function failed in a stage in which every rank must succeed."""

    def __init__(self, function: str, reason: str) -> None:
        self.function = function
        super().__init__(reason)


class VerificationFailed(OrchestratorError):
    """The warm model's output differs from its reference by more than is allowed."""


class CannotStart(OrchestratorError):
    """The ranks could not be started; the message names what is missing and the remedy.

    Another attempt may pass only with a ``budget``: nothing is known to lack. Without one, ``is_lost`` says
    that nothing answers where the head should, or nodes that are missing were there at first.
    """

    def __init__(self, message: str, *, budget: Budget | None = None, is_lost: bool = False) -> None:
        self.budget, self.is_lost = budget, is_lost or budget is not None
        super().__init__(message)


class LacksDevice(CannotStart, BadInput):
    """A machine on which the ranks were to run has too few accelerators, and gets no more."""


class BuildFailed(OrchestratorError):
    """Ranks that should be alike are not."""


class UnknownNode(BadInput):
    """A node that was asked for is not in the cluster, or its name fits several."""


class DemoFailed(OrchestratorError):
    """A launch of the demo did not end as it must; the demo ends with ``exit_code``."""

    def __init__(self, message: str, *, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class ForbiddenCompile(NamedTuple):
    """One function that would have to be compiled, for one reason, on some ranks."""

    function: str
    reason: str
    ranks: tuple[int, ...]


class CompileForbidden(OrchestratorError):
    """The launch may not compile (``--no-compile``), and missed functions, each with reason and rank."""

    def __init__(self, missed: Iterable[tuple[str, str, int]]) -> None:
        ranks = grouped(((function, reason), rank) for function, reason, rank in missed)
        self.misses = tuple(ForbiddenCompile(*key, tuple(own)) for key, own in ranks.items())
        lines = [f"  {miss.function} on {ranks_text(miss.ranks)}: {miss.reason}" for miss in self.misses]
        head = f"compiling is forbidden (no_compile), and {count_text(len(lines), 'function')} missed:"
        remedy = policy_of(FailureKind.COMPILE_FORBIDDEN).remedy
        super().__init__("\n".join([head, *lines, f"  remedy: {remedy}"]))


def in_words(error: BaseException) -> str:
    """The text of an error; what stops a launch from outside has none itself."""
    if isinstance(error, KeyboardInterrupt):
        return f"stopped ({error.args[0].name if error.args else 'Ctrl-C'})"
    return str(error).strip() or type(error).__name__


def first_line(error: BaseException) -> str:
    """The line that says what happened, without a full stop; the others of such an error say where.

    Of a traceback, as Ray's servers answer with, that is the first line of its last error.
    """
    *_, frames = (text := str(error).strip()).rpartition("Traceback (most recent call last):\n")
    if text.partition("\n")[0].endswith("Traceback (most recent call last):"):
        text = next((line for line in frames.splitlines() if not line[:1].isspace()), text)
    return text.partition("\n")[0].rstrip(".") or type(error).__name__


def ranks_text(ranks: Iterable[int]) -> str:
    """All ranks for people, however many: ``rank 3``, ``ranks 0-2, 5``."""
    return brief_ranks(ranks, max_runs=sys.maxsize)
