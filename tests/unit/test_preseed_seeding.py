"""Seeding the nodes of a cluster, stepped by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.ray_cluster import Clock, FakeSeedCluster, make_node, seeded
from warmrank.orchestrator.errors import UnknownNode
from warmrank.orchestrator.nodes import Node
from warmrank.orchestrator.seed.here import NodeSeed
from warmrank.orchestrator.seed.seeding import (
    LONGEST_RETRY_S,
    LOOK_EVERY_S,
    MAX_LOST_SOURCES,
    MIN_FAN_OUT,
    STALLED_S,
    Seeding,
    SeedPlan,
    retry_in_s,
)

ONE, TWO, THREE, FOUR = map(make_node, range(1, 5))
FROM_STORE, FROM_NODES = {"from_store": 9}, {"from_nodes": 9}


class Stage:
    """A seeding, its cluster and its clock."""

    def __init__(self, *nodes: Node, silent_s: float = 600.0, **plan: Any) -> None:
        self.clock = Clock()
        self.cluster = FakeSeedCluster(nodes)
        self.seeding = Seeding(self.cluster, SeedPlan(**plan), silent_s=silent_s, clock=self.clock)
        self.seeding.step()

    def step(self, seconds: float = 0.0) -> None:
        self.clock.now_s += seconds
        self.seeding.step()

    def end_well(self, *nodes: Node, **came: int) -> None:
        self.cluster.end_well(*nodes, **came)
        self.step()

    def seed(self, node: Node) -> NodeSeed:
        seed = self.seeding.states[node.node_id].seed
        assert seed is not None
        return seed

    def statuses(self) -> dict[str, str]:
        return {state.node.host: self.seed(state.node).status for state in self.seeding.states.values()}


def cluster_of(count: int) -> list[Node]:
    return [make_node(number) for number in range(1, count + 1)]


def test_every_node_is_seeded_from_the_store_once():
    stage = Stage(ONE, TWO)
    assert stage.cluster.started == [("host1", ""), ("host2", "")]
    stage.end_well(ONE)
    assert not stage.seeding.is_done
    stage.end_well(TWO)
    assert stage.seeding.is_done
    assert stage.statuses() == {"host1": "seeded", "host2": "seeded"}
    assert (len(stage.cluster.started), stage.cluster.stopped) == (2, ["host1", "host2"])


def test_one_nodes_failure_hides_nothing_of_the_others():
    stage = Stage(ONE, TWO)
    stage.cluster.end_badly(ONE, "disk full")
    stage.end_well(TWO)
    assert stage.seeding.is_done
    assert stage.statuses() == {"host1": "faults", "host2": "seeded"}
    assert stage.seed(ONE).reason == "disk full"


def test_chosen_nodes_only():
    assert Stage(ONE, TWO, wanted=("host2",)).cluster.started == [("host2", "")]


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
    assert "no further for 60 s" in stage.seed(ONE).reason
    assert set(stage.cluster.stopped) == {"host1"}


def test_late_answer_of_a_node_that_was_given_up_changes_nothing():
    stage = Stage(ONE, TWO, silent_s=60.0)
    stage.step(61.0)
    stage.end_well(ONE)
    assert stage.statuses() == {"host1": "faults", "host2": "faults"}


def test_one_node_reads_the_store_and_others_take_it_in_growing_waves():
    nodes = cluster_of(12)
    stage = Stage(*nodes, fan_out="always")
    assert stage.cluster.started == [("host1", "shares")]
    stage.end_well(nodes[0], **FROM_STORE)
    assert stage.cluster.started[1:] == [("host2", "host1"), ("host3", "host1")]
    stage.end_well(nodes[1], **FROM_NODES)  # two have it now, so four take it
    assert [host for host, _ in stage.cluster.started[3:]] == ["host4", "host5", "host6"]
    stage.end_well(nodes[2], **FROM_NODES)
    assert len(stage.cluster.started) == 9
    stage.end_well(*nodes[3:9], **FROM_NODES)
    assert len(stage.cluster.started) == 12
    assert "host1" not in stage.cluster.stopped
    stage.end_well(*nodes[9:], **FROM_NODES)
    assert stage.seeding.is_done
    assert sorted(stage.cluster.stopped) == sorted(node.host for node in nodes)
    assert set(stage.statuses().values()) == {"seeded"}


@pytest.mark.parametrize(
    ("fan_out", "count", "is_wave"),
    [
        ("auto", MIN_FAN_OUT - 1, False),
        ("auto", MIN_FAN_OUT, True),
        ("always", 1, False),
        ("always", 2, True),
        ("never", 100, False),
    ],
)
def test_store_is_read_for_others_where_it_is_worth_it(fan_out: str, count: int, is_wave: bool):
    stage = Stage(*cluster_of(count), fan_out=fan_out)
    assert (len(stage.cluster.started) == 1 and stage.cluster.started[0][1] == "shares") == is_wave
    assert is_wave or len(stage.cluster.started) == count


def test_source_that_fails_is_replaced_and_after_some_the_nodes_read_the_store():
    nodes = cluster_of(10)
    stage = Stage(*nodes, fan_out="always")
    for number in range(MAX_LOST_SOURCES):
        assert stage.cluster.started[number:] == [(nodes[number].host, "shares")]
        stage.cluster.end_badly(nodes[number])
        stage.step()
    assert stage.cluster.started[MAX_LOST_SOURCES:] == [(node.host, "") for node in nodes[MAX_LOST_SOURCES:]]


def test_source_that_hangs_is_replaced():
    stage = Stage(ONE, TWO, THREE, fan_out="always", silent_s=60.0)
    stage.step(61.0)
    assert stage.cluster.started[1:] == [("host2", "shares")]
    assert stage.seed(ONE).status == "faults"


def test_source_from_which_nothing_comes_is_replaced():
    nodes = cluster_of(6)
    stage = Stage(*nodes, fan_out="always")
    stage.end_well(nodes[0], **FROM_STORE)
    stage.end_well(nodes[1], **FROM_STORE)
    assert stage.cluster.started[-1] == ("host4", "shares")
    assert "host1" in stage.cluster.stopped
    stage.end_well(nodes[2], **FROM_STORE)  # it took of the former one, so this says nothing of the next
    stage.end_well(nodes[3], **FROM_STORE)
    assert stage.cluster.started[4:] == [("host5", "host4"), ("host6", "host4")]


def test_receiver_that_is_stuck_makes_room_for_the_next():
    nodes = cluster_of(4)
    stage = Stage(*nodes, fan_out="always")
    stage.end_well(nodes[0], **FROM_STORE)
    assert len(stage.cluster.started) == 3
    stage.step(STALLED_S)
    assert stage.cluster.started[3:] == [("host4", "host1")]


def test_receiver_that_fails_keeps_no_other_one_back():
    stage = Stage(ONE, TWO, THREE, fan_out="always")
    stage.end_well(ONE, **FROM_STORE)
    stage.cluster.end_badly(TWO)
    stage.end_well(THREE, **FROM_NODES)
    assert stage.statuses() == {"host1": "seeded", "host2": "faults", "host3": "seeded"}
    assert stage.seeding.is_done


def test_source_that_leaves_is_replaced():
    stage = Stage(ONE, TWO, THREE, watch=True, fan_out="always")
    stage.cluster.alive.remove(ONE)
    stage.step(LOOK_EVERY_S)
    assert stage.cluster.started[1:] == [("host2", "shares")]


def test_source_is_let_go_once_nobody_takes_of_it():
    stage = Stage(ONE, TWO, watch=True, fan_out="always")
    stage.end_well(ONE, **FROM_STORE)
    stage.end_well(TWO, **FROM_NODES)
    assert stage.cluster.stopped == ["host2", "host1"]
    stage.cluster.alive += [THREE, FOUR]
    stage.step(LOOK_EVERY_S)
    assert stage.cluster.started[2:] == [("host3", "shares")]


def test_watch_seeds_who_joins_and_nobody_twice():
    stage = Stage(ONE, watch=True)
    stage.end_well(ONE)
    assert not stage.seeding.is_done
    stage.cluster.alive.append(TWO)
    stage.step(LOOK_EVERY_S - 0.1)
    assert len(stage.cluster.started) == 1
    for _ in range(5):
        stage.step(LOOK_EVERY_S)
    assert stage.cluster.started == [("host1", ""), ("host2", "")]


@pytest.mark.parametrize("is_found", [True, False])
def test_watch_tries_again_later_each_time(is_found: bool):
    stage = Stage(ONE, watch=True)
    for attempt, wait_s in enumerate([5.0, 10.0, 20.0], start=1):
        faults = ("disk full",) if is_found else ()
        stage.cluster.end_with(NodeSeed(node=ONE, found=is_found, reason="", faults=faults))
        stage.step()
        assert stage.seed(ONE).attempts == attempt
        stage.step(wait_s - 0.1)
        assert len(stage.cluster.started) == attempt
        stage.step(0.1)
        assert len(stage.cluster.started) == attempt + 1


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
    assert stage.statuses() == {"host2": "seeded"}
    stage.cluster.alive.append(ONE)
    stage.step(LOOK_EVERY_S)
    assert stage.cluster.started[-1] == ("host1", "")


def test_nodes_known_to_be_seeded_are_not_started():
    stage = Stage(ONE, TWO, watch=True, seeded=(seeded(ONE),))
    assert stage.cluster.started == [("host2", "")]
    assert stage.seed(ONE) == seeded(ONE)


def test_retries_come_later_each_time_within_a_bound():
    waits = [retry_in_s(attempt) for attempt in range(1, 200)]
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (5.0, LONGEST_RETRY_S)
