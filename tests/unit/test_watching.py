"""What follows from what nodes see of their ranks."""

from __future__ import annotations

import pytest

from warmrank.orchestrator.causes import DIED, NODE_LOST, STOPPED
from warmrank.orchestrator.config.models import WatchConfig
from warmrank.orchestrator.gang.launcher import ProcessStatus
from warmrank.orchestrator.gang.ray_watch import Watching

LIMITS = WatchConfig(node_silent_s=10, stopped_s=3)
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


def test_node_whose_watch_has_ended_is_lost_at_once() -> None:
    found = watching()
    found.ended(1)
    assert kinds(found, 100.0) == {2: NODE_LOST, 3: NODE_LOST}
    message = found.failures("build", 100.0)[0].message
    assert message == "the watch of node n2 has ended, as it does with Ray there"


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


@pytest.mark.parametrize("state", ["R", "S", "D", "I"])
def test_rank_that_waits_or_works_is_well(state: str) -> None:
    found = watching()
    seen(found, 0, {0: ProcessStatus(state=state)}, 101.0)
    assert kinds(found, 101.0) == {}


def test_node_of_a_rank_that_died_is_in_doubt_until_it_answers_what_was_asked_later() -> None:
    found = watching()
    assert not found.is_in_doubt(101.0, others_wait=False)
    found.failed(3, 101.0, died=True)
    found.answered(1, {}, asked_s=102.4, now_s=102.6)  # Ray's processes on a node notice its end one by one
    found.answered(0, {}, asked_s=102.6, now_s=102.6)  # another node says nothing of this one
    assert found.is_in_doubt(102.7, others_wait=False)
    found.answered(1, {}, asked_s=102.5, now_s=102.8)
    assert not found.is_in_doubt(102.8, others_wait=False)


def test_node_that_ended_is_in_doubt_no_longer() -> None:
    found = watching()
    found.failed(3, 101.0, died=True)
    found.ended(1)
    assert not found.is_in_doubt(101.0, others_wait=False)
    assert kinds(found, 101.0) == {2: NODE_LOST, 3: NODE_LOST}


def test_node_that_answers_nothing_after_a_death_is_lost_with_the_rank() -> None:
    found = watching()
    found.failed(3, 101.0, died=True)
    assert found.is_in_doubt(105.9, others_wait=False)
    assert kinds(found, 105.9) == {}
    assert kinds(found, 106.0) == {2: NODE_LOST, 3: NODE_LOST}
    assert not found.is_in_doubt(106.0, others_wait=False)


def test_node_whose_watch_ray_cannot_reach_after_a_death_is_lost_at_once_unless_it_answers() -> None:
    found = watching()
    found.unavailable(1)
    assert kinds(found, 101.0) == {}  # a link may be down for a moment
    found.failed(3, 101.0, died=True)
    assert kinds(found, 101.0) == {2: NODE_LOST, 3: NODE_LOST}
    seen(found, 1, {2: AT_WORK}, 101.2)
    assert kinds(found, 101.2) == {}


def test_node_that_answers_too_early_and_then_no_more_is_lost_too() -> None:
    found = watching()
    found.failed(3, 101.0, died=True)
    seen(found, 1, {2: AT_WORK}, 101.5)  # its processes notice the end of Ray there one by one
    assert found.is_in_doubt(105.9, others_wait=False)
    assert kinds(found, 106.0) == {2: NODE_LOST, 3: NODE_LOST}


def test_ranks_of_a_node_that_let_go_of_them_have_died_and_it_is_not_lost() -> None:
    found = watching()
    seen(found, 0, {0: AT_WORK, 1: AT_WORK}, 150.0)
    found.let_go(1)
    assert kinds(found, 150.0) == {2: DIED, 3: DIED}
    found.failed(2, 150.0, died=True)
    assert not found.is_in_doubt(150.1, others_wait=False)
    assert not found.is_whole()


def test_unseen_is_the_node_that_was_asked_last_the_longest_ago() -> None:
    found = watching()
    found.answered(0, {0: AT_WORK, 1: AT_WORK}, asked_s=110.0, now_s=111.0)
    assert found.unseen_s(112.0) == pytest.approx(12.0)
    found.answered(1, {2: AT_WORK, 3: AT_WORK}, asked_s=105.0, now_s=111.0)
    assert found.unseen_s(112.0) == pytest.approx(7.0)
    assert found.is_whole()
    found.answered(1, {2: ProcessStatus(state=""), 3: AT_WORK}, asked_s=112.0, now_s=112.0)
    assert not found.is_whole()


def test_error_of_a_rank_puts_all_nodes_in_doubt_as_long_as_others_have_not_answered() -> None:
    found = watching()
    found.failed(0, 101.0, died=False)
    assert found.is_in_doubt(102.5, others_wait=True)
    assert not found.is_in_doubt(102.5, others_wait=False)  # all have answered, so none is lost
    seen(found, 0, {0: AT_WORK, 1: AT_WORK}, 102.6)
    assert found.is_in_doubt(102.6, others_wait=True)
    seen(found, 1, {2: AT_WORK, 3: AT_WORK}, 102.6)
    assert not found.is_in_doubt(102.6, others_wait=True)


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
