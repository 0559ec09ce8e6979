"""The state of a launch, folded from its events, and the course that its report keeps of it."""

from __future__ import annotations

from tests.support.made_reports import state_of
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


def test_stage_that_failed_ends_with_its_attempt_and_so_does_who_had_not_answered() -> None:
    failed, over = heard().course().timeline
    assert (failed.stage, failed.ok, failed.start_s, failed.end_s) == ("build", False, 1.0, 3.0)
    assert failed.rank_end_s == (2.0, 3.0)
    assert (over.ok, over.ranks, over.rank_end_s, over.end_s) == (True, (1,), (7.0,), 7.5)


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
