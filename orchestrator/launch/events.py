"""Events of a launch, one after the other, and the state that they make: the one fold over them.

Events are plain frozen values. A listener takes the launch's state and the event that made it so, in the
driver's thread; display is its business, never the driver's. Nothing here reads a clock or prints; times are
those of the events. A new attempt begins anew, but for what is kept of the attempts before it. Readers in
another thread than the driver's hold `LaunchState.lock`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from warmrank.orchestrator.errors import about
from warmrank.orchestrator.gang.launcher import ProcessStatus
from warmrank.orchestrator.nodes import RankPlacement, distinct_hosts
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
    """Base of all events; ``at_s`` counts seconds since the launch began, and is set when it is told."""

    at_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarted(Event):
    """A gang is about to be started; the first attempt is 1; ``reason``: why the one before failed."""

    attempt: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed(Event):
    """Every rank of the attempt has a place."""

    placements: tuple[RankPlacement, ...]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptReport:
    """One attempt of a launch."""

    attempt: Annotated[int, about("its number, from 1.")]
    start_s: Annotated[float, about("when it began, in seconds since the launch did.")]
    end_s: Annotated[float, about("when it ended.")]
    reason: Annotated[str, about("why the attempt before failed, and the budget of this one; or empty.")] = ""
    failed_stage: Annotated[str, about("the stage it ended in; empty where every rank is warm.")] = ""
    error: Annotated[str, about("its error; empty for such an attempt.")] = ""

    @property
    def why_again(self) -> str:
        """Reason for this attempt, in words that leave no doubt which of the two failed."""
        return f"because attempt {self.attempt - 1} failed: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSpan:
    """A stage of one attempt; one that came again, round after round, has a span for each time."""

    attempt: Annotated[int, about("number of the attempt, from 1.")]
    stage: Annotated[str, about("its name.")]
    start_s: Annotated[float, about("when it began, in seconds since the launch did.")]
    end_s: Annotated[float, about("when it ended; when the attempt did, for a stage that failed.")]
    ok: Annotated[bool, about("false for the stage that the attempt ended in.")]
    ranks: Annotated[tuple[int, ...], about("who took part, in order.")]
    rank_end_s: Annotated[tuple[float, ...], about("when each answered last; end_s for who did not.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """Attempts, classes, audits and stages, each in order; classes and audits are the last attempt's."""

    attempts: tuple[AttemptReport, ...] = ()
    classes: tuple[RankClass, ...] = ()
    audits: tuple[AuditReport, ...] = ()
    timeline: tuple[StageSpan, ...] = ()


@dataclass(slots=True)
class StageState:
    """A stage of the running attempt, all its rounds together; all but ``seconds`` is of the last round."""

    stage: str
    ranks: tuple[int, ...] = ()
    start_s: float = 0.0
    seconds: float = 0.0
    is_running: bool = False
    answers: dict[int, int] = field(default_factory=dict)  # number of calls that each rank has answered
    ended_s: dict[int, float] = field(default_factory=dict)

    def begin(self, ranks: tuple[int, ...], at_s: float) -> None:
        """Begin a round."""
        self.ranks, self.start_s, self.is_running = ranks, at_s, True
        self.answers = dict.fromkeys(ranks, 0)
        self.ended_s.clear()

    def answered(self, rank: int, at_s: float) -> None:
        """Count one more answer of a rank."""
        self.ended_s[rank] = at_s
        self.answers[rank] = self.answers.get(rank, 0) + 1

    @property
    def step(self) -> int:
        """The call that is furthest; a stage may consist of several."""
        return max(self.answers.values(), default=0)

    def num_done(self) -> int:
        """Ranks that are through the call that is furthest."""
        return list(self.answers.values()).count(self.step) if self.step else 0

    def waiting_for(self) -> tuple[int, ...]:
        """Ranks that have answered the fewest calls; none where all have answered as many."""
        least = min(self.answers.values(), default=0)
        if not self.is_running or least == self.step > 0:
            return ()
        return tuple(rank for rank, number in self.answers.items() if number == least)

    def seconds_at(self, now_s: float) -> float:
        """Wall seconds of all rounds until ``now_s``."""
        return self.seconds + (max(now_s - self.start_s, 0.0) if self.is_running else 0.0)


@dataclass(slots=True)
class LaunchState:
    """The known state of a launch, made of nothing but its events."""

    num_ranks: int
    now_s: float = 0.0
    attempts: list[AttemptReport] = field(default_factory=list)
    is_over: bool = False
    ending_s: float | None = None  # when ranks began to be taken down
    placements: dict[int, RankPlacement] = field(default_factory=dict)
    num_nodes: int = 0
    stages: dict[str, StageState] = field(default_factory=dict)  # of this attempt, in order
    running: StageState | None = None
    stage_seconds: dict[str, float] = field(default_factory=dict)  # of all attempts and rounds
    spans: list[StageSpan] = field(default_factory=list)  # of stages that are over, of all attempts
    round: int | None = None
    planned: list[RankClass] = field(default_factory=list)  # every class of this attempt
    class_of: dict[tuple[int, str], RankClass] = field(default_factory=dict)  # as the plan has them now
    audits: list[AuditReport] = field(default_factory=list)
    results: dict[tuple[int, str], FunctionResult] = field(default_factory=dict)  # since it was planned last
    busy: dict[int, ProcessStatus] = field(default_factory=dict)  # in the running stage
    problems: dict[str, None] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)  # held while an event comes in
    _hosts: dict[int, str] = field(default_factory=dict)

    def apply(self, event: Event) -> None:
        """Take an event in."""
        with self.lock:
            self.now_s = max(self.now_s, event.at_s)
            self._take(event)

    def course(self, *, now_s: float | None = None) -> Course:
        """The course so far; an attempt that goes on ends ``now``, by default with the last event."""
        attempts = list(self.attempts)
        if attempts and not attempts[-1].error:
            attempts[-1] = replace(attempts[-1], end_s=self.now_s if now_s is None else now_s)
        return Course(
            attempts=tuple(attempts),
            classes=tuple(self.planned),
            audits=tuple(self.audits),
            timeline=tuple(self.spans),
        )

    @property
    def attempt(self) -> int:
        """Number of the running attempt; 0 before the first."""
        return self.attempts[-1].attempt if self.attempts else 0

    def failed(self) -> list[AttemptReport]:
        """The attempts that failed."""
        return [attempt for attempt in self.attempts if attempt.error]

    def host(self, rank: int) -> str:
        """The node that a rank sits on; empty before it does."""
        return self._hosts.get(rank, "")

    def hosts(self) -> tuple[str, ...]:
        """Every node with a rank, in the order of ranks."""
        return tuple(dict.fromkeys(self._hosts.values()))

    def _take(self, event: Event) -> None:
        match event:
            case AttemptStarted():
                self._begin(event)
            case Placed():
                self.placements = {placement.rank: placement for placement in event.placements}
                self._hosts = distinct_hosts(event.placements)
                self.num_nodes = len({placement.node_rank for placement in event.placements})
            case Planned():
                self.planned += event.classes
                self.round = event.classes[0].round
                found = {(rank, each.function): each for each in event.classes for rank in each.ranks}
                self.class_of |= found
                self.results = {slot: own for slot, own in self.results.items() if slot not in found}
            case Audited():
                self.audits.append(event.audit)
            case FunctionFinished():
                self.results[event.rank, event.result.function] = event.result
            case Problem():
                self.problems[event.text] = None
            case Ending():
                self.ending_s = event.at_s
            case AttemptFailed():
                self._fail(event)
            case _:
                self._move(event)

    def _move(self, event: Event) -> None:
        """A stage goes on."""
        match event:
            case StageStarted():
                self.busy.clear()
                self.running = self.stages.setdefault(event.stage, StageState(event.stage))
                self.running.begin(event.ranks, event.at_s)
            case RankFinished() if event.stage in self.stages:
                self.stages[event.stage].answered(event.rank, event.at_s)
                self.busy.pop(event.rank, None)
            case RankBusy():
                self.busy[event.rank] = event.status
            case StageFinished() if event.stage in self.stages:
                self._end(self.stages[event.stage], event.at_s, event.seconds, ok=True)

    def _begin(self, event: AttemptStarted) -> None:
        self.attempts.append(
            AttemptReport(attempt=event.attempt, start_s=event.at_s, end_s=event.at_s, reason=event.reason)
        )
        for memory in (self.placements, self.stages, self.class_of, self.results, self.busy):
            memory.clear()
        self.planned, self.audits = [], []
        self._hosts = {}
        self.running, self.ending_s, self.round, self.num_nodes = None, None, None, 0

    def _end(self, stage: StageState, end_s: float, seconds: float, *, ok: bool) -> None:
        stage.seconds += seconds
        stage.is_running = False
        self.stage_seconds[stage.stage] = self.stage_seconds.get(stage.stage, 0.0) + seconds
        self.spans.append(
            StageSpan(
                attempt=len(self.attempts),
                stage=stage.stage,
                start_s=stage.start_s,
                end_s=end_s,
                ok=ok,
                ranks=stage.ranks,
                rank_end_s=tuple(stage.ended_s.get(rank, end_s) for rank in stage.ranks),
            )
        )
        self.busy.clear()
        if self.running is stage:
            self.running = None

    def _fail(self, event: AttemptFailed) -> None:
        self.is_over, self.ending_s = event.is_last, event.at_s
        if self.attempts:
            self.attempts[-1] = replace(
                self.attempts[-1], end_s=event.at_s, failed_stage=event.stage, error=event.text
            )
        if self.running is not None:
            self._end(self.running, event.at_s, max(event.at_s - self.running.start_s, 0.0), ok=False)


Listener = Callable[[LaunchState, Event], None]


def silence(state: LaunchState, event: Event) -> None:
    """A listener that does nothing."""


def all_of(*listeners: Listener) -> Listener:
    """One listener that tells several, in order."""

    def tell(state: LaunchState, event: Event) -> None:
        for listener in listeners:
            listener(state, event)

    return tell
