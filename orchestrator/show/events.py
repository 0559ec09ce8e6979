"""What a launch tells whoever watches it: events, one after the other, as plain frozen values.

A listener is a callable that takes one event, in the driver's thread. Display is the listener's business,
never the driver's. Every ``at_s`` counts seconds since the launch began.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from warmrank.orchestrator.seats import Seat
from warmrank.worker.results import FunctionResult

STAGES = (
    "start",
    "fetch",
    "build",
    "probe",
    "compile",
    "load",
    "capture",
    "first_call",
    "verify",
    "script",
    "commit",
)
"""Every stage, in the order of a launch; `compile` and `load` may come again, one round after the other."""

ClassAction = Literal["load", "adopt", "compile"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankClass:
    """Ranks that ask for the same artifact of a function, and get it in the same way.

    Attributes:
        function: name of the cached function.
        request_key: what they ask for.
        ranks: its members, in order.
        action: how they get it; ``compile``: their leader compiles, and the others adopt that.
        leader: who compiles; None where nobody does.
        auditors: who traces as well, to be compared before anybody adopts.
    """

    function: str
    request_key: str
    ranks: tuple[int, ...]
    action: ClassAction
    leader: int | None = None
    auditors: tuple[int, ...] = ()


AuditOutcome = Literal["equal", "guarded", "apart", "differs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """Ranks whose own trace was compared with that of an artifact, before anybody adopted it.

    Attributes:
        function: name of the cached function.
        leader: who compiled the artifact.
        ranks: who traced the same, or differed in the same way, in order.
        outcome: ``equal``; ``guarded``: they differ, and conditions of the artifact keep these ranks from it;
            ``apart``: they differ, and cannot have the artifact on their node anyway;
            ``differs``: they differ, and nothing but the audit keeps them from it.
        difference: the first one, in words: the leader's / theirs.
        seconds: wall seconds of these traces, summed over the ranks.
        cpu_s: their CPU seconds.
    """

    at_s: float
    function: str
    leader: int
    ranks: tuple[int, ...]
    outcome: AuditOutcome
    difference: str = ""
    seconds: float = 0.0
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarted:
    """A gang is about to be started; the first attempt is 1; ``reason``: why the one before failed."""

    at_s: float
    attempt: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seated:
    """Every rank of the attempt has a place."""

    at_s: float
    seats: tuple[Seat, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A round of the plan was made; rounds count from 0."""

    at_s: float
    round: int
    classes: tuple[RankClass, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStarted:
    """A stage begins on these ranks; ranks not named have nothing to do in it."""

    at_s: float
    stage: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFinished:
    """A rank answered one call of a stage, which may consist of several."""

    at_s: float
    stage: str
    rank: int
    ok: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionFinished:
    """A stage is over for one function on one rank."""

    at_s: float
    stage: str
    rank: int
    result: FunctionResult


RENDEZVOUS = "start: rendezvous"
"""What a rank does that waits for others to come up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBusy:
    """What a rank is doing in the running stage, as far as its node can see.

    Attributes:
        rank: global rank.
        doing: in a few words, such as ``compile Llama.decode``.
        cpu_s: CPU seconds that its process has used.
        resident_bytes: memory that its process holds.
    """

    at_s: float
    rank: int
    doing: str
    cpu_s: float
    resident_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFinished:
    """All ranks of a stage answered; ``seconds`` since its `StageStarted`."""

    at_s: float
    stage: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StillWaiting:
    """Time passes while ranks start; what is lacking is a `Problem`."""

    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """All is done, and the ranks are taken down."""

    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something went wrong that does not stop the launch."""

    at_s: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFailed:
    """An attempt is over: ``text`` is its error; ``is_last`` says that there is no other."""

    at_s: float
    attempt: int
    stage: str
    text: str
    is_last: bool


Event = (
    AttemptStarted
    | Seated
    | Planned
    | Audited
    | StageStarted
    | RankFinished
    | FunctionFinished
    | RankBusy
    | StageFinished
    | StillWaiting
    | Ending
    | Problem
    | AttemptFailed
)

Listener = Callable[[Event], None]


def silence(event: Event) -> None:
    """A listener that does nothing."""


def all_of(*listeners: Listener) -> Listener:
    """One listener that tells several, in order."""

    def tell(event: Event) -> None:
        for listener in listeners:
            listener(event)

    return tell
