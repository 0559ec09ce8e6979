"""How a launch stands while it runs: a fold over its events, each of which costs about as little.

Invariants: nothing here reads a clock or prints; times are those of the events. A new attempt begins anew,
but for what is told of the attempts before it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from warmrank.orchestrator.seats import Seat, distinct_hosts
from warmrank.orchestrator.show import events
from warmrank.orchestrator.show.events import ClassAction, Event, RankClass
from warmrank.worker.results import FunctionResult

MAX_PROBLEMS_KEPT = 200

ClassKey = tuple[str, str, ClassAction, int | None]


@dataclass(slots=True)
class StageStanding:
    """A stage of the running attempt, all its rounds together.

    Attributes:
        stage: its name.
        ranks: who takes part in the round that runs, or ran last.
        start_s: when that round began.
        seconds: of the rounds that are over.
        is_running: whether one is not.
        answers: how many calls each rank has answered in this round.
        behind: the ranks by that number; those of the lowest number are the ones that others wait for.
        ended_s: when each rank answered last in this round.
    """

    stage: str
    ranks: tuple[int, ...] = ()
    start_s: float = 0.0
    seconds: float = 0.0
    is_running: bool = False
    answers: dict[int, int] = field(default_factory=dict)
    behind: dict[int, dict[int, None]] = field(default_factory=dict)
    ended_s: dict[int, float] = field(default_factory=dict)

    def begin(self, ranks: tuple[int, ...], at_s: float) -> None:
        """A round begins."""
        self.ranks, self.start_s, self.is_running = ranks, at_s, True
        self.answers.clear()
        self.ended_s.clear()
        self.behind = {0: dict.fromkeys(ranks)}

    def answered(self, rank: int, at_s: float) -> None:
        """A rank answered one more call."""
        self.ended_s[rank] = at_s
        before = self.answers.get(rank, 0)
        self.answers[rank] = before + 1
        members = self.behind.get(before)
        if members is not None:
            members.pop(rank, None)
            if not members:
                del self.behind[before]
        self.behind.setdefault(before + 1, {})[rank] = None

    def num_done(self) -> int:
        """Ranks that are through the call that is furthest; a stage may consist of several."""
        furthest = max(self.behind, default=0)
        return len(self.behind[furthest]) if furthest else 0

    def waiting_for(self) -> tuple[int, ...]:
        """Ranks that have answered the fewest calls; none where all have answered as many."""
        if not self.is_running or not self.behind or (len(self.behind) == 1 and 0 not in self.behind):
            return ()
        return tuple(self.behind[min(self.behind)])

    def seconds_at(self, now_s: float) -> float:
        """Wall seconds of all rounds until ``now_s``."""
        return self.seconds + (max(now_s - self.start_s, 0.0) if self.is_running else 0.0)


@dataclass(slots=True)
class ClassStanding:
    """A class of ranks, as the plan has it now.

    Attributes:
        key: function, request, action and leader.
        function: name of the cached function.
        action: how its ranks get the artifact.
        leader: who compiles it; None for nobody.
        waiting: ranks that do not have it yet.
        auditors: who traces as well, in the round that was planned last.
        ranks: all its ranks.
        num_failed: ranks on which it failed.
        slowest_s: the most seconds that a rank spent on it.
        stage: the last stage that was over for one of its ranks.
    """

    key: ClassKey
    function: str
    action: ClassAction
    leader: int | None
    ranks: dict[int, None]
    waiting: dict[int, None]
    auditors: tuple[int, ...] = ()
    num_failed: int = 0
    slowest_s: float = 0.0
    stage: str = ""


@dataclass(slots=True)
class Standing:
    """All that is known of a launch so far; made of nothing but its events.

    Attributes:
        num_ranks: ranks of the launch.
        now_s: time of the last event.
        attempt: number of the running attempt; 0 before the first.
        reason: why there is another attempt than the first.
        is_over: an attempt failed, and there is no other.
        ending_s: when ranks began to be taken down, as all is done or failed; None before that.
        cut: the stage that the attempt failed in; None while it has not.
        seats: by rank.
        num_nodes: how many nodes they lie on.
        stages: those that have begun in this attempt, in order.
        running: the one that runs; None between two.
        round: the plan's; None before there is one.
        classes: by function, request, action and leader.
        results: the last word on each function of each rank.
        functions: names of cached functions, in the order of their coming.
        busy: what ranks were last seen doing in the running stage.
        problems: each once, in order.
        failed: number of the attempt, stage and error, of those that ended so.
    """

    num_ranks: int
    now_s: float = 0.0
    attempt: int = 0
    reason: str = ""
    is_over: bool = False
    ending_s: float | None = None
    cut: StageStanding | None = None
    seats: dict[int, Seat] = field(default_factory=dict)
    num_nodes: int = 0
    stages: dict[str, StageStanding] = field(default_factory=dict)
    running: StageStanding | None = None
    round: int | None = None
    classes: dict[ClassKey, ClassStanding] = field(default_factory=dict)
    results: dict[tuple[int, str], FunctionResult] = field(default_factory=dict)
    functions: dict[str, None] = field(default_factory=dict)
    busy: dict[int, events.RankBusy] = field(default_factory=dict)
    problems: dict[str, None] = field(default_factory=dict)
    failed: list[tuple[int, str, str]] = field(default_factory=list)
    _class_of: dict[tuple[int, str], ClassStanding] = field(default_factory=dict)
    _hosts: dict[int, str] = field(default_factory=dict)

    def __call__(self, event: Event) -> None:
        """Take an event in."""
        self.now_s = max(self.now_s, event.at_s)
        match event:
            case events.AttemptStarted():
                self._begin(event)
            case events.Seated():
                self.seats = {seat.rank: seat for seat in event.seats}
                self._hosts = distinct_hosts(event.seats)
                self.num_nodes = len({seat.node_rank for seat in event.seats})
            case events.Planned():
                self._plan(event)
            case events.FunctionFinished():
                self._finish(event)
            case events.Problem() if len(self.problems) < MAX_PROBLEMS_KEPT:
                self.problems[event.text] = None
            case events.AttemptFailed():
                self._fail(event)
            case events.Ending():
                self.ending_s = event.at_s
            case _:
                self._move(event)

    def host(self, rank: int) -> str:
        """The node that a rank sits on; empty before it does."""
        return self._hosts.get(rank, "")

    def hosts(self) -> tuple[str, ...]:
        """Every node with a rank, in the order of ranks."""
        return tuple(dict.fromkeys(self._hosts.values()))

    def failed_stage(self) -> str:
        """The stage that this attempt ended in; empty while it goes on, and between two stages."""
        return next((stage for attempt, stage, _ in self.failed if attempt == self.attempt), "")

    def class_of(self, rank: int, function: str) -> ClassStanding | None:
        """The class that a rank belongs to for a function, as the plan has it now."""
        return self._class_of.get((rank, function))

    def _begin(self, event: events.AttemptStarted) -> None:
        self.attempt, self.reason = event.attempt, event.reason
        for memory in (self.seats, self.stages, self.classes, self.results, self.busy, self._class_of):
            memory.clear()
        self._hosts = {}
        self.running, self.cut, self.ending_s, self.round, self.num_nodes = None, None, None, None, 0

    def _move(self, event: Event) -> None:
        """A stage goes on."""
        match event:
            case events.StageStarted():
                self.busy.clear()
                self.running = self.stages.setdefault(event.stage, StageStanding(event.stage))
                self.running.begin(event.ranks, event.at_s)
            case events.RankFinished() if event.stage in self.stages:
                self.stages[event.stage].answered(event.rank, event.at_s)
                self.busy.pop(event.rank, None)
            case events.RankBusy():
                self.busy[event.rank] = event
            case events.StageFinished() if event.stage in self.stages:
                self._end(self.stages[event.stage], event.seconds)
            case _:
                pass

    def _plan(self, event: events.Planned) -> None:
        self.round = event.round
        for found in event.classes:
            self._join(found)

    def _join(self, found: RankClass) -> None:
        self.functions[found.function] = None
        key = (found.function, found.request_key, found.action, found.leader)
        planned = self.classes.setdefault(
            key,
            ClassStanding(
                key=key,
                function=found.function,
                action=found.action,
                leader=found.leader,
                ranks={},
                waiting={},
            ),
        )
        planned.auditors = found.auditors
        for rank in found.ranks:
            self._leave(rank, found.function)
            self._class_of[rank, found.function] = planned
            planned.ranks[rank] = planned.waiting[rank] = None

    def _leave(self, rank: int, function: str) -> None:
        """A later round moves a rank into another class; a class that nobody is left in goes."""
        left = self._class_of.pop((rank, function), None)
        if left is None:
            return
        left.ranks.pop(rank, None)
        left.waiting.pop(rank, None)
        if not left.ranks:
            del self.classes[left.key]

    def _finish(self, event: events.FunctionFinished) -> None:
        result = event.result
        self.functions[result.function] = None
        self.results[event.rank, result.function] = result
        found = self._class_of.get((event.rank, result.function))
        if found is None:
            return
        found.stage = event.stage
        spent = result.seconds
        found.slowest_s = max(found.slowest_s, spent.trace_s + spent.compile_s + spent.load_s)
        if not result.ok:
            found.num_failed += 1
        else:
            found.waiting.pop(event.rank, None)

    def _end(self, stage: StageStanding, seconds: float) -> None:
        stage.seconds += seconds
        stage.is_running = False
        self.busy.clear()
        if self.running is stage:
            self.running = None

    def _fail(self, event: events.AttemptFailed) -> None:
        self.is_over = event.is_last
        self.failed.append((event.attempt, event.stage, event.text))
        self.cut, self.ending_s = self.running, event.at_s
        if self.running is not None:
            self._end(self.running, max(event.at_s - self.running.start_s, 0.0))
