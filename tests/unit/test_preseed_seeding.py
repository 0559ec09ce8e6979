"""Seeding the nodes of a cluster, stepped by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fake_seed_cluster import Clock, FakeSeedCluster, make_node, seeded
from warmrank.orchestrator.errors import UnknownNode
from warmrank.orchestrator.nodes import Node
from warmrank.orchestrator.seed.events import Began, Ended, Looked, SeedEvent
from warmrank.orchestrator.seed.outcome import NodeSeed, word, worst
from warmrank.orchestrator.seed.seeding import LOOK_EVERY_S, Seeding, SeedPlan

ONE, TWO, THREE, FOUR = map(make_node, range(1, 5))


class Stage:
    """A seeding, its cluster and its clock."""

    def __init__(self, *nodes: Node, **plan: Any) -> None:
        self.clock = Clock()
        self.cluster = FakeSeedCluster(nodes)
        self.events: list[SeedEvent] = []
        self.seeding = Seeding(self.cluster, SeedPlan(**plan), tell=self.events.append, clock=self.clock)
        self.seeding.step()

    def step(self, seconds: float = 0.0) -> None:
        self.clock.now_s += seconds
        self.seeding.step()

    def words(self) -> dict[str, str]:
        return {seed.node.host: word(seed) for seed in self.seeding.results()}

    def of_kind(self, kind: type[SeedEvent]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def test_every_node_is_seeded_from_the_store_once():
    stage = Stage(ONE, TWO)
    assert stage.cluster.started == [("host1", ""), ("host2", "")]
    stage.cluster.end_well(ONE)
    stage.step()
    assert not stage.seeding.is_done
    stage.cluster.end_well(TWO)
    stage.step()
    assert stage.seeding.is_done
    assert stage.words() == {"host1": "seeded", "host2": "seeded"}
    assert len(stage.cluster.started) == 2


def test_one_nodes_failure_hides_nothing_of_the_others():
    stage = Stage(ONE, TWO)
    stage.cluster.end_badly(ONE, "disk full")
    stage.cluster.end_well(TWO)
    stage.step()
    assert stage.seeding.is_done
    assert stage.words() == {"host1": "faults", "host2": "seeded"}
    assert stage.seeding.results()[0].reason == "disk full"
    assert worst(stage.seeding.results()) == "faults"


def test_chosen_nodes_only():
    stage = Stage(ONE, TWO, wanted=("host2",))
    assert stage.cluster.started == [("host2", "")]


def test_unknown_name_is_an_error_without_a_watch():
    with pytest.raises(UnknownNode):
        Stage(ONE, wanted=("host9",))


def test_node_that_gets_no_further_fails_with_its_reason():
    stage = Stage(ONE, silent_s=60.0)
    for done in range(5):
        stage.cluster.advance(ONE, done)
        stage.step(50.0)
    assert not stage.seeding.is_done
    stage.step(61.0)
    assert stage.seeding.is_done
    assert "no further for 60 s" in stage.seeding.results()[0].reason
    assert set(stage.cluster.stopped) == {"host1"}


def test_fan_out_starts_all_at_once_and_all_serve_until_the_last_has_ended():
    stage = Stage(ONE, TWO, THREE, fan_out="always")
    everyone = "host1 host2 host3"
    assert stage.cluster.started == [("host1", everyone), ("host2", everyone), ("host3", everyone)]
    assert [began.num_sources for began in stage.of_kind(Began)] == [2, 2, 2]
    stage.cluster.end_well(ONE, THREE)
    stage.step()
    assert stage.cluster.stopped == []
    stage.cluster.end_well(TWO)
    stage.step()
    assert stage.seeding.is_done
    assert sorted(stage.cluster.stopped) == ["host1", "host2", "host3"]


def test_node_of_a_fan_out_that_fails_keeps_no_other_one_back():
    stage = Stage(ONE, TWO, THREE, fan_out="always")
    stage.cluster.end_badly(ONE)
    stage.cluster.end_well(TWO, THREE)
    stage.step()
    assert stage.words() == {"host1": "faults", "host2": "seeded", "host3": "seeded"}
    assert stage.seeding.is_done


def test_node_of_a_fan_out_that_hangs_is_ended():
    stage = Stage(ONE, TWO, fan_out="always", silent_s=60.0)
    stage.cluster.end_well(TWO)
    stage.step(61.0)
    assert stage.words() == {"host1": "faults", "host2": "seeded"}
    assert sorted(set(stage.cluster.stopped)) == ["host1", "host2"]
    assert stage.seeding.is_done


def test_node_that_joins_is_seeded_by_one_that_is():
    stage = Stage(ONE, watch=True, fan_out="always")
    stage.cluster.end_well(ONE)
    stage.step()
    stage.cluster.alive.append(TWO)
    stage.step(LOOK_EVERY_S)
    assert stage.cluster.started[1:] == [("host2", "host1")]
    stage.cluster.end_well(TWO)
    stage.step()
    assert stage.words() == {"host1": "seeded", "host2": "seeded"}
    assert stage.cluster.stopped[-2:] == ["host2", "host1"]
    assert len(stage.of_kind(Began)) == 2


def test_node_that_joins_during_a_fan_out_waits_for_its_end():
    stage = Stage(ONE, TWO, watch=True, fan_out="always")
    stage.cluster.alive.append(THREE)
    stage.step(LOOK_EVERY_S)
    assert len(stage.cluster.started) == 2
    stage.cluster.end_well(ONE, TWO)
    stage.step()
    assert stage.cluster.started[2:] == [("host3", "host1 host2")]


def test_watch_goes_on_and_seeds_who_joins():
    stage = Stage(ONE, watch=True)
    stage.cluster.end_well(ONE)
    stage.step()
    assert not stage.seeding.is_done
    stage.cluster.alive.append(TWO)
    stage.step(LOOK_EVERY_S - 0.1)
    assert len(stage.cluster.started) == 1
    stage.step(0.1)
    assert stage.cluster.started == [("host1", ""), ("host2", "")]


def test_watch_does_not_seed_a_node_twice():
    stage = Stage(ONE, watch=True)
    stage.cluster.end_well(ONE)
    for _ in range(10):
        stage.step(LOOK_EVERY_S)
    assert stage.cluster.started == [("host1", "")]


def test_watch_tries_a_failed_node_again_later_each_time():
    stage = Stage(ONE, watch=True)
    for attempt, wait_s in enumerate([5.0, 10.0, 20.0], start=1):
        stage.cluster.end_badly(ONE)
        stage.step()
        (*_, ended) = stage.of_kind(Ended)
        assert (ended.retry_in_s, ended.seed.attempts) == (wait_s, attempt)
        stage.step(wait_s - 0.1)
        assert len(stage.cluster.started) == attempt
        stage.step(0.1)
        assert len(stage.cluster.started) == attempt + 1


def test_watch_asks_again_for_a_launch_that_is_not_there_yet():
    stage = Stage(ONE, watch=True)
    stage.cluster.end_with(NodeSeed(node=ONE, found=False, reason="no launch"))
    stage.step()
    stage.step(5.0)
    assert len(stage.cluster.started) == 2


def test_watch_waits_for_a_name_that_is_not_there_yet():
    stage = Stage(ONE, watch=True, wanted=("host2",))
    assert stage.cluster.started == []
    stage.cluster.alive.append(TWO)
    stage.step(LOOK_EVERY_S)
    assert stage.cluster.started == [("host2", "")]


def test_node_that_leaves_is_forgotten_and_seeded_again_when_it_is_back():
    stage = Stage(ONE, TWO, watch=True)
    stage.cluster.end_well(TWO)
    stage.cluster.alive.remove(ONE)
    stage.step(LOOK_EVERY_S)
    assert stage.cluster.stopped[0] == "host1"
    assert stage.of_kind(Looked)[-1].left == (ONE,)
    assert stage.words() == {"host2": "seeded"}
    stage.cluster.alive.append(ONE)
    stage.step(LOOK_EVERY_S)
    assert stage.cluster.started[-1] == ("host1", "")


def test_fan_out_is_over_when_the_last_of_its_nodes_has_left():
    stage = Stage(ONE, TWO, watch=True, fan_out="always")
    stage.cluster.end_well(TWO)
    stage.cluster.alive.remove(ONE)
    stage.step(LOOK_EVERY_S)
    assert sorted(set(stage.cluster.stopped)) == ["host1", "host2"]
    stage.cluster.alive.append(ONE)
    stage.step(LOOK_EVERY_S)
    assert stage.cluster.started[2:] == [("host1", "host2")]


def test_nodes_known_to_be_seeded_are_not_started():
    stage = Stage(ONE, TWO, watch=True, seeded=frozenset({ONE.node_id}))
    assert stage.cluster.started == [("host2", "")]


def test_late_answer_of_a_node_that_was_given_up_changes_nothing():
    stage = Stage(ONE, TWO, silent_s=60.0)
    stage.step(61.0)
    before = stage.words()
    stage.cluster.end_with(seeded(ONE))
    stage.step()
    assert stage.words() == before == {"host1": "faults", "host2": "faults"}
    assert FOUR.host not in before
