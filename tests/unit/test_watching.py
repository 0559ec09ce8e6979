"""What follows from what nodes see of their ranks."""

from __future__ import annotations

import pytest

from warmrank.orchestrator.causes import DIED, NODE_LOST, STOPPED
from warmrank.orchestrator.gang.launcher import ProcessStatus
from warmrank.orchestrator.gang.ray_watch import Limits, Watching

LIMITS = Limits(node_silent_s=10, stopped_s=3)
AT_WORK = ProcessStatus(state="R")


def watching() -> Watching:
    """Two nodes of two ranks, at second 100."""
    return Watching({0: ("n1", (0, 1)), 1: ("n2", (2, 3))}, LIMITS, 100.0)


def seen(found: Watching, node: int, statuses: dict[int, ProcessStatus], now_s: float) -> None:
    """A node answers as soon as it is asked."""
    found.answered(node, statuses, asked_s=now_s, now_s=now_s)


def kinds(found: Watching, now_s: float) -> dict[int, str]:
    return {failure.rank: failure.kind for failure in found.failures("compile", now_s)}


def test_silent_node_is_lost_with_all_its_ranks_at_the_limit_and_not_before() -> None:
    found = watching()
    seen(found, 0, {}, 109.0)
    assert kinds(found, 109.9) == {}
    assert kinds(found, 110.0) == {2: NODE_LOST, 3: NODE_LOST}
    assert "node n2 has not answered for 10 s" in found.failures("build", 110.0)[0].message


def test_time_in_which_the_driver_itself_stood_still_counts_against_no_node() -> None:
    found = watching()
    found.paused(60.0)
    assert kinds(found, 165.0) == {}
    assert len(kinds(found, 170.0)) == 4


def test_rank_that_a_signal_holds_is_stopped_after_the_limit() -> None:
    found = watching()
    for now_s in (101.0, 103.0):
        seen(found, 0, {0: AT_WORK, 1: ProcessStatus(state="T")}, now_s)
    seen(found, 1, {}, 103.0)
    assert kinds(found, 103.9) == {}
    assert kinds(found, 104.0) == {1: STOPPED}


@pytest.mark.parametrize("state", ["", "Z", "X"])
def test_rank_without_a_process_died_whether_or_not_it_was_called(state: str) -> None:
    found = watching()
    seen(found, 1, {3: ProcessStatus(state=state)}, 101.0)
    assert kinds(found, 103.9) == {}  # Ray may say more of it
    seen(found, 1, {3: ProcessStatus(state=state)}, 103.9)
    assert kinds(found, 104.0) == {3: DIED}


def test_node_of_a_rank_that_died_is_in_doubt_until_it_answers_what_was_asked_later() -> None:
    found = watching()
    assert not found.is_in_doubt(101.0, others_wait=False)
    found.failed(3, 101.0, died=True)
    found.answered(1, {}, asked_s=102.4, now_s=102.6)  # Ray's processes on a node notice its end one by one
    found.answered(0, {}, asked_s=102.6, now_s=102.6)  # another node says nothing of this one
    assert found.is_in_doubt(102.7, others_wait=False)
    found.answered(1, {}, asked_s=102.5, now_s=102.8)
    assert not found.is_in_doubt(102.8, others_wait=False)


def test_node_that_answers_nothing_after_a_death_is_lost_with_the_rank() -> None:
    found = watching()
    found.failed(3, 101.0, died=True)
    assert found.is_in_doubt(105.9, others_wait=False)
    assert kinds(found, 105.9) == {}
    assert kinds(found, 106.0) == {2: NODE_LOST, 3: NODE_LOST}
    assert not found.is_in_doubt(106.0, others_wait=False)


def test_rank_that_is_gone_is_waited_for_after_the_error_of_its_peer_until_its_death_is_told() -> None:
    found = watching()
    found.failed(0, 101.0, died=False)
    seen(found, 0, {0: AT_WORK, 1: AT_WORK}, 102.6)
    seen(found, 1, {2: AT_WORK, 3: ProcessStatus(state="")}, 102.6)
    assert found.is_in_doubt(102.6, others_wait=True)
    assert kinds(found, 105.6) == {3: DIED}
    found.failed(3, 105.6, died=True)
    seen(found, 1, {2: AT_WORK, 3: ProcessStatus(state="")}, 107.1)
    assert not found.is_in_doubt(107.1, others_wait=True)
