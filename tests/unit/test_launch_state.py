"""The state of a launch, folded from its events, and the course that its report keeps of it."""

from __future__ import annotations

from tests.support.made_reports import result, state_of, until_compile
from warmrank.orchestrator.launch import events
from warmrank.orchestrator.launch.state import LaunchState


def class_of(leader: int | None, *ranks: int, action: events.ClassAction = "compile") -> events.RankClass:
    return events.RankClass(
        round=0, function="f", request_key="ab", ranks=ranks, action=action, leader=leader
    )


def heard() -> LaunchState:
    """Two attempts: the first ends while rank 1 of two is still at work, the second goes on."""
    return state_of(
        (
            events.AttemptStarted(at_s=0.0, attempt=1),
            events.StageStarted(at_s=1.0, stage="build", ranks=(0, 1)),
            events.RankFinished(at_s=2.0, stage="build", rank=0, ok=True),
            events.Planned(at_s=2.5, classes=(class_of(0, 0, 1),)),
            events.AttemptFailed(at_s=3.0, attempt=1, stage="build", text="gone", is_last=False),
            events.AttemptStarted(at_s=4.0, attempt=2, reason="a rank died"),
            events.Planned(at_s=5.0, classes=(class_of(1, 0, 1),)),
            events.StageStarted(at_s=5.0, stage="compile", ranks=(1,)),
            events.RankFinished(at_s=6.0, stage="compile", rank=1, ok=True),
            events.RankFinished(at_s=7.0, stage="compile", rank=1, ok=True),
            events.StageFinished(at_s=7.5, stage="compile", seconds=2.5),
        )
    )


def test_attempts_have_their_times_reasons_and_errors() -> None:
    first, second = heard().course(now_s=9.0).attempts
    assert (first.start_s, first.end_s, first.failed_stage, first.error) == (0.0, 3.0, "build", "gone")
    assert (second.start_s, second.end_s, second.reason, second.error) == (4.0, 9.0, "a rank died", "")


def test_stage_that_failed_ends_with_its_attempt_and_so_does_who_had_not_answered() -> None:
    failed, over = heard().course().timeline
    assert (failed.stage, failed.ok, failed.start_s, failed.end_s) == ("build", False, 1.0, 3.0)
    assert failed.rank_end_s == (2.0, 3.0)
    assert (over.ok, over.ranks, over.rank_end_s, over.end_s) == (True, (1,), (7.0,), 7.5)


def test_seconds_of_stages_are_summed_over_attempts_and_classes_are_the_last_one_s() -> None:
    state = heard()
    assert state.stage_seconds == {"build": 2.0, "compile": 2.5}
    assert [found.leader for found in state.course().classes] == [1]


def test_ranks_that_a_later_round_moves_leave_their_class() -> None:
    first = class_of(None, *range(64), action="adopt")
    state = state_of(
        [
            events.Planned(at_s=0.0, classes=(first,)),
            events.Planned(at_s=1.0, classes=(class_of(5, 5, 6),)),
        ]
    )
    assert [(found.action, len(found.ranks)) for found in state.classes.values()] == [
        ("adopt", 62),
        ("compile", 2),
    ]


def test_function_that_is_told_again_counts_once_with_its_last_word() -> None:
    told = [
        events.FunctionFinished(at_s=1.0, stage="load", rank=0, result=result("f", compiled=compiled))
        for compiled in (False, True)
    ]
    assert [found.outcome for found in state_of(told).results.values()] == ["compiled"]


def test_stage_waits_for_those_that_answered_the_fewest_calls() -> None:
    state = state_of(until_compile(8))
    assert state.running is not None
    assert state.running.waiting_for() == (0, 1, 2, 3, 4, 5, 6, 7)
    state.apply(events.RankFinished(at_s=20.0, stage="compile", rank=3, ok=True))
    assert 3 not in state.running.waiting_for()
    assert state.running.num_done() == 1
