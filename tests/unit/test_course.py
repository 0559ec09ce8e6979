"""The course of a launch as a listener hears it."""

from __future__ import annotations

from warmrank.orchestrator.show import events
from warmrank.orchestrator.show.course import Recorder


def heard() -> Recorder:
    """Two attempts: the first ends while rank 1 of two is still at work, the second goes on."""
    recorder = Recorder()
    for event in (
        events.AttemptStarted(at_s=0.0, attempt=1),
        events.StageStarted(at_s=1.0, stage="build", ranks=(0, 1)),
        events.RankFinished(at_s=2.0, stage="build", rank=0, ok=True),
        events.Planned(at_s=2.5, round=0, classes=(_class(leader=0),)),
        events.AttemptFailed(at_s=3.0, attempt=1, stage="build", text="gone", is_last=False),
        events.AttemptStarted(at_s=4.0, attempt=2, reason="a rank died"),
        events.Planned(at_s=5.0, round=0, classes=(_class(leader=1),)),
        events.StageStarted(at_s=5.0, stage="compile", ranks=(1,)),
        events.RankFinished(at_s=6.0, stage="compile", rank=1, ok=True),
        events.RankFinished(at_s=7.0, stage="compile", rank=1, ok=True),
        events.StageFinished(at_s=7.5, stage="compile", seconds=2.5),
    ):
        recorder(event)
    return recorder


def _class(leader: int) -> events.RankClass:
    return events.RankClass(function="f", request_key="ab", ranks=(0, 1), action="compile", leader=leader)


def test_attempts_have_their_times_reasons_and_errors() -> None:
    first, second = heard().course(now_s=9.0).attempts
    assert (first.start_s, first.end_s, first.failed_stage, first.error) == (0.0, 3.0, "build", "gone")
    assert (second.start_s, second.end_s, second.reason, second.error) == (4.0, 9.0, "a rank died", "")


def test_stage_that_failed_ends_with_its_attempt_and_so_does_who_had_not_answered() -> None:
    (span,) = [span for span in heard().course().timeline if span.attempt == 1]
    assert (span.stage, span.ok, span.start_s, span.end_s, span.rank_end_s) == (
        "build",
        False,
        1.0,
        3.0,
        (2.0, 3.0),
    )


def test_rank_ends_a_stage_with_its_last_answer() -> None:
    (span,) = [span for span in heard().course().timeline if span.attempt == 2]
    assert (span.ok, span.ranks, span.rank_end_s, span.end_s) == (True, (1,), (7.0,), 7.5)


def test_classes_are_those_of_the_last_attempt() -> None:
    assert [found.leader for found in heard().course().classes] == [1]


def test_nothing_heard_is_an_empty_course() -> None:
    course = Recorder().course()
    assert (course.attempts, course.classes, course.timeline) == ((), (), ())
