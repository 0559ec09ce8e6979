"""Seeding the nodes of a cluster, stepped by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.ray_cluster import Clock, FakeSeedCluster, make_node
from warmrank.orchestrator.nodes import Node
from warmrank.orchestrator.seed.here import NodeSeed
from warmrank.orchestrator.seed.seeding import (
    LOOK_EVERY_S,
    MAX_LOST_SOURCES,
    MIN_FAN_OUT,
    Seeding,
    SeedPlan,
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


def test_receiver_that_fails_keeps_no_other_one_back():
    stage = Stage(ONE, TWO, THREE, fan_out="always")
    stage.end_well(ONE, **FROM_STORE)
    stage.cluster.end_badly(TWO)
    stage.end_well(THREE, **FROM_NODES)
    assert stage.statuses() == {"host1": "seeded", "host2": "faults", "host3": "seeded"}
    assert stage.seeding.is_done


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
