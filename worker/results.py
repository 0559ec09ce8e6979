"""Plain values that a rank hands to the driver; picklable, and free of torch.

Everything here crosses a process border, so it holds strings, numbers and tuples only.
"""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

from warmrank.worker.values import Value

if TYPE_CHECKING:
    from warmrank.cache_store.records.manifest import PartitionRef

ProbeState = Literal["hit", "adoptable", "miss"]
RetraceOutcome = Literal["equal", "differs", "missing", "failed"]
Outcome = Literal["compiled", "loaded", "adopted"]


class Failure(StrEnum):
    """The reason why a stage failed for a function on a rank."""

    MISSING = "missing"  # no artifact is there, or the offered one is not
    GUARDS = "guards"  # the guards of the offered artifact do not hold here
    FORBIDDEN = "forbidden"  # it would have had to be compiled
    CORRUPT = "corrupt"  # an artifact, or what the store has of it
    STORE = "store"  # the store refused, or is away
    ERROR = "error"  # anything else; the reason says what


def function_of_unit(name: str) -> str:
    """Name of the function that a unit's name is made of."""
    return name.partition("[")[0]


class FunctionProbe(Value):
    """One rank's look-up of one cached function, before anything was compiled."""

    function: str
    request_key: str  # hex key of what was asked; equal on ranks that ask for the same
    components: dict[str, str]
    state: ProbeState  # ``hit`` (own partition), ``adoptable`` (another partition's artifact fits), ``miss``
    reason: str  # one line; for a miss, what was looked at and why it did not fit
    digest: str = ""
    runtime_state: dict[str, str] = field(default_factory=dict)  # declared for the function, name -> text
    cost: int = 1  # of compiling it, compared with other functions; 1 where nothing is to be compiled
    # of the trace that the artifact found was made of, where its audits were not through, or found a fault
    trace: str = ""


class StageSeconds(Value):
    """Seconds one function spent in each stage on one rank; ``audit_s``: traced again for an audit."""

    trace_s: float = 0.0
    compile_s: float = 0.0
    load_s: float = 0.0
    capture_s: float = 0.0
    first_call_s: float = 0.0
    audit_s: float = 0.0


class FunctionResult(Value):
    """Outcome of one function on one rank."""

    function: str
    ok: bool  # false when the stage failed on this rank for this function; ``reason`` then says why
    outcome: Outcome
    reason: str
    failure: Failure | None = None
    error: str = ""  # type of the exception that it failed with; ``reason`` then begins with it
    digest: str = ""
    size_bytes: int = 0
    beside: tuple[tuple[str, int], ...] = ()  # SHA-256 and size of each file beside it, such as kernels
    path: str = ""
    seconds: StageSeconds = field(default_factory=StageSeconds)
    num_captures: int = 0  # graphs captured for this cached function so far, in all its calls
    pool_bytes: int = 0  # of the pools that these graphs use, which other functions may share
    runtime_state: dict[str, str] = field(default_factory=dict)  # declared values that it was made with
    trace: str = ""  # digest of the trace that the artifact was made of; of a compile only

    @property
    def guard_failed(self) -> bool:
        """True if the artifact was offered and its guards do not hold here."""
        return self.failure is Failure.GUARDS


class TraceResult(Value):
    """One rank's trace of a function, to be compared with other ranks'."""

    function: str
    trace: str  # its digest; empty where it failed
    reason: str = ""
    seconds: float = 0.0
    cpu_s: float = 0.0


class Retraced(Value):
    """A new trace of a function, to be compared with the artifact that a rank would load."""

    function: str
    outcome: RetraceOutcome  # ``missing``: there is no artifact; ``failed``: it cannot be traced
    reason: str = ""  # the first difference (the artifact's / this trace's), or why nothing was compared
    digest: str = ""
    request_key: str = ""
    seconds: float = 0.0
    cpu_s: float = 0.0


class LeftOut(Value):
    """A unit of work that an offline build does not build, and why."""

    function: str
    reason: str


class CaptureProposal(Value):
    """One graph, or the graphs of one call, that a rank would capture."""

    function: str
    signature: str  # what the capture plan says of it; empty for a call that captures nothing
    shapes: str  # the same without the artifact, equal on ranks that have other artifacts but equal shapes
    num_elements: int  # its size; the largest is captured first
    planned: bool  # it comes from the plan of an earlier launch; otherwise it is a call of the workload


class PlannedCapture(Value):
    """A graph that an earlier launch captured, of a manifest: the call of the workload, and its shapes."""

    function: str
    signature: str


class Partition(Value):
    """A rank's partition at the end of a launch, on its way to the rank that publishes it."""

    manifest: bytes  # as `worker.rank.manifests.packed` gives it
    num_shared: int = 0  # blobs that the rank added to the store when it had compiled them
    bytes_shared: int = 0


class Verification(Value):
    """Comparison of the warm model's output with its reference.

    Attributes:
        max_error: largest absolute difference seen.
        tolerance: largest absolute difference allowed.
        compared: what was compared with what, in words; empty when the workload has no check.
    """

    ok: bool
    max_error: float
    tolerance: float
    compared: str


class Published(Value):
    """Outcome of publishing one rank's partition at the end of a launch."""

    ref: PartitionRef | None  # what a launch record says of it; None for one that is not in the store
    environment: dict[str, str]
    partition: str
    key: str
    conflicts: tuple[str, ...] = ()  # functions that compiled to other bytes than the store holds
    num_blobs_new: int = 0  # that the store did not have before this rank compiled or published them
    bytes_new: int = 0
    queued: str = ""  # why it waits on this node's disk to be published; empty when it does not
    problems: tuple[str, ...] = ()  # places of the store that this rank went on without, one line each
