"""Events of a launch, one after the other, as plain frozen values.

A listener takes the launch's state and the event that made it so, in the driver's thread; display is its
business, never the driver's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from warmrank.orchestrator.causes import about
from warmrank.orchestrator.gang.launcher import ProcessStatus
from warmrank.orchestrator.nodes import Seat
from warmrank.worker.results import FunctionResult

STAGES = (
    "start", "fetch", "build", "probe", "compile", "load",
    "capture", "first_call", "verify", "script", "commit",
)  # fmt: skip
"""Every stage, in the order of a launch; `compile` and `load` may come again, one round after the other."""

ClassAction = Literal["load", "adopt", "compile"]
AuditOutcome = Literal["equal", "guarded", "apart", "differs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankClass:
    """Ranks that get the artifact of a function in the same way."""

    round: Annotated[int, about("in which round of the plan, from 0.")]
    function: Annotated[str, about("name of the cached function.")]
    request_key: Annotated[str, about("hex key of what was asked, with declared runtime state.")]
    action: Annotated[ClassAction, about("compile: their leader compiles, the others adopt that.")]
    ranks: Annotated[tuple[int, ...], about("its members, in order.")]
    leader: Annotated[int | None, about("who compiles; None where nobody does.")]
    auditors: Annotated[tuple[int, ...], about("who traces too, before anybody adopts.")] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """Ranks whose own trace was compared with an artifact, before anybody adopted that."""

    round: Annotated[int, about("in which round of the plan, from 0.")]
    function: Annotated[str, about("name of the cached function.")]
    leader: Annotated[int, about("who compiled the artifact.")]
    ranks: Annotated[tuple[int, ...], about("who traced the same, or differed in the same way, in order.")]
    outcome: Annotated[
        AuditOutcome,
        about(
            "equal; guarded: they differ, and conditions of the artifact keep these ranks from it; apart: "
            "they differ, and cannot have the artifact on their node anyway; differs: they differ, and "
            "nothing but the audit keeps them from it."
        ),
    ]
    difference: Annotated[str, about("the first: the leader's trace / theirs; empty where equal.")]
    seconds: Annotated[float, about("wall seconds that these ranks traced, beside the compile, summed.")]
    cpu_s: Annotated[float, about("their CPU seconds.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base of all events; ``at_s`` counts seconds since the launch began."""

    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarted(Event):
    """A gang is about to be started; the first attempt is 1; ``reason``: why the one before failed."""

    attempt: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seated(Event):
    """Every rank of the attempt has a place."""

    seats: tuple[Seat, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned(Event):
    """A round of the plan was made."""

    classes: tuple[RankClass, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited(Event):
    """Traces were compared with that of an artifact, before anybody adopted it."""

    audit: AuditReport


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStarted(Event):
    """A stage begins on these ranks; ranks not named have nothing to do in it."""

    stage: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFinished(Event):
    """A rank answered one call of a stage, which may consist of several."""

    stage: str
    rank: int
    ok: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionFinished(Event):
    """A stage is over for one function on one rank."""

    stage: str
    rank: int
    result: FunctionResult


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBusy(Event):
    """A rank's work, such as ``compile Llama.decode``, as far as its node can see."""

    rank: int
    status: ProcessStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFinished(Event):
    """All ranks of a stage answered; ``seconds`` since its `StageStarted`."""

    stage: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StillWaiting(Event):
    """Time passes while ranks start; what is lacking is a `Problem`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending(Event):
    """All is done, and the ranks are taken down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(Event):
    """Something went wrong that does not stop the launch."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFailed(Event):
    """An attempt is over: ``text`` is its error; ``is_last`` says that there is no other."""

    attempt: int
    stage: str
    text: str
    is_last: bool
