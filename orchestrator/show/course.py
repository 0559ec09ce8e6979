"""The course of a launch, kept while it runs: attempts, classes of ranks, and when each stage ended where.

`Recorder` is a listener; `Course` is what it heard, and a part of the report.
"""

from __future__ import annotations

from dataclasses import dataclass

from warmrank.orchestrator.show import events
from warmrank.orchestrator.show.events import AuditOutcome, ClassAction, Event


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSpan:
    """A stage of one attempt; one that came again, round after round, has a span for each time.

    Attributes:
        attempt: number of the attempt, from 1.
        stage: its name.
        start_s: when it began, in seconds since the launch did.
        end_s: when it ended; when the attempt did, for a stage that failed.
        ok: false for the stage that the attempt ended in.
        ranks: who took part, in order.
        rank_end_s: when each of them had answered for the last time; ``end_s`` for who had not.
    """

    attempt: int
    stage: str
    start_s: float
    end_s: float
    ok: bool
    ranks: tuple[int, ...]
    rank_end_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptReport:
    """One attempt of a launch.

    Attributes:
        attempt: its number, from 1.
        start_s: when it began, in seconds since the launch did.
        end_s: when it ended.
        reason: why the attempt before it failed, and which budget this one is of; empty for the first.
        failed_stage: the stage it ended in; empty for an attempt that ended with every rank warm.
        error: its error; empty for such an attempt.
    """

    attempt: int
    start_s: float
    end_s: float
    reason: str = ""
    failed_stage: str = ""
    error: str = ""


def why_again(attempt: int, reason: str) -> str:
    """Why there is this attempt, in words that leave no doubt which of the two failed."""
    return f"because attempt {attempt - 1} failed: {reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassReport:
    """Ranks that got the artifact of a function in the same way, in the last attempt.

    Attributes:
        round: in which round of the plan, from 0.
        function: name of the cached function.
        request_key: hex key of what was asked, with declared runtime state.
        action: what the plan had them do.
        ranks: its members, in order.
        leader: who compiled; None where nobody did.
        auditors: who traced as well, to be compared before anybody adopted.
    """

    round: int
    function: str
    request_key: str
    action: ClassAction
    ranks: tuple[int, ...]
    leader: int | None
    auditors: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """Ranks whose own trace was compared with an artifact, before anybody adopted that, in the last attempt.

    Attributes:
        round: in which round of the plan, from 0.
        function: name of the cached function.
        leader: who compiled the artifact.
        ranks: who traced the same, or differed in the same way, in order.
        outcome: equal; guarded: they differ, and conditions of the artifact keep these ranks from it; apart:
            they differ, and cannot have the artifact on their node anyway; differs: they differ, and nothing
            but the audit keeps them from it.
        difference: the first one, in words: what the leader traced / what they did; empty where equal.
        seconds: wall seconds that these ranks traced, beside the compile, summed.
        cpu_s: their CPU seconds.
    """

    round: int
    function: str
    leader: int
    ranks: tuple[int, ...]
    outcome: AuditOutcome
    difference: str
    seconds: float
    cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """Attempts, classes, audits and stages, each in order."""

    attempts: tuple[AttemptReport, ...] = ()
    classes: tuple[ClassReport, ...] = ()
    audits: tuple[AuditReport, ...] = ()
    timeline: tuple[StageSpan, ...] = ()


@dataclass(slots=True)
class _Running:
    """A stage that has begun."""

    stage: str
    start_s: float
    ranks: tuple[int, ...]
    ends: dict[int, float]


class Recorder:
    """Hears a launch, and tells its course at any time."""

    def __init__(self) -> None:
        self._attempts: list[AttemptReport] = []
        self._classes: list[ClassReport] = []
        self._audits: list[AuditReport] = []
        self._spans: list[StageSpan] = []
        self._running: _Running | None = None
        self._now_s = 0.0

    def __call__(self, event: Event) -> None:
        """Take an event in."""
        self._now_s = event.at_s
        match event:
            case events.AttemptStarted():
                self._classes.clear()
                self._audits.clear()
                self._attempts.append(
                    AttemptReport(
                        attempt=event.attempt, start_s=event.at_s, end_s=event.at_s, reason=event.reason
                    )
                )
            case events.Planned():
                self._classes += [_class_report(event.round, found) for found in event.classes]
            case events.Audited():
                self._audits.append(self._audit_report(event))
            case events.StageStarted():
                self._running = _Running(event.stage, event.at_s, event.ranks, {})
            case events.RankFinished() if self._running is not None:
                self._running.ends[event.rank] = event.at_s
            case events.StageFinished():
                self._end(ok=True)
            case events.AttemptFailed():
                self._end(ok=False)
                self._fail(event)
            case _:
                pass

    def course(self, *, now_s: float | None = None) -> Course:
        """What was heard so far; an attempt that goes on ends ``now``, by default with the last event."""
        end_s = self._now_s if now_s is None else now_s
        attempts = list(self._attempts)
        if attempts and not attempts[-1].error:
            last = attempts[-1]
            attempts[-1] = AttemptReport(
                attempt=last.attempt, start_s=last.start_s, end_s=end_s, reason=last.reason
            )
        return Course(
            attempts=tuple(attempts),
            classes=tuple(self._classes),
            audits=tuple(self._audits),
            timeline=tuple(self._spans),
        )

    def _audit_report(self, event: events.Audited) -> AuditReport:
        return AuditReport(
            round=self._classes[-1].round if self._classes else 0,
            function=event.function,
            leader=event.leader,
            ranks=event.ranks,
            outcome=event.outcome,
            difference=event.difference,
            seconds=event.seconds,
            cpu_s=event.cpu_s,
        )

    def _end(self, *, ok: bool) -> None:
        running, self._running = self._running, None
        if running is None:
            return
        end_s = self._now_s
        self._spans.append(
            StageSpan(
                attempt=len(self._attempts),
                stage=running.stage,
                start_s=running.start_s,
                end_s=end_s,
                ok=ok,
                ranks=running.ranks,
                rank_end_s=tuple(running.ends.get(rank, end_s) for rank in running.ranks),
            )
        )

    def _fail(self, event: events.AttemptFailed) -> None:
        if self._attempts:
            last = self._attempts[-1]
            self._attempts[-1] = AttemptReport(
                attempt=last.attempt,
                start_s=last.start_s,
                end_s=event.at_s,
                reason=last.reason,
                failed_stage=event.stage,
                error=event.text,
            )


def _class_report(round_: int, found: events.RankClass) -> ClassReport:
    return ClassReport(
        round=round_,
        function=found.function,
        request_key=found.request_key,
        action=found.action,
        ranks=found.ranks,
        leader=found.leader,
        auditors=found.auditors,
    )
