"""Ranks assigned to processes, node by node."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from warmrank.orchestrator.gang.launcher import Process, seat_ranks
from warmrank.orchestrator.nodes import straddle_text, straddling_groups


def processes(nodes: list[str]) -> list[Process]:
    return [
        Process(node_id=node, host=f"host-{node}", address="10.0.0.1", pid=100 + index)
        for index, node in enumerate(nodes)
    ]


def test_ranks_of_one_node_follow_each_other() -> None:
    order, seats = seat_ranks(processes(["a", "b", "a", "b"]))
    assert order == (0, 2, 1, 3)
    assert [(seat.rank, seat.node_rank, seat.local_rank, seat.host) for seat in seats] == [
        (0, 0, 0, "host-a"),
        (1, 0, 1, "host-a"),
        (2, 1, 0, "host-b"),
        (3, 1, 1, "host-b"),
    ]


def test_nodes_with_one_host_name_stay_apart() -> None:
    pair = [Process(node_id=name, host="node", address="10.0.0.1", pid=1) for name in ("a", "b")]
    assert [seat.node_rank for seat in seat_ranks(pair)[1]] == [0, 1]


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=12))
def test_each_process_gets_one_rank_and_its_node_is_counted(nodes: list[str]) -> None:
    order, seats = seat_ranks(processes(nodes))
    assert sorted(order) == list(range(len(nodes)))
    assert [seat.rank for seat in seats] == list(range(len(nodes)))
    for index, seat in zip(order, seats, strict=True):
        assert seat.pid == 100 + index
        assert seat.local_world_size == nodes.count(nodes[index])


def test_groups_on_more_than_one_node_are_counted_and_one_is_named() -> None:
    _, seats = seat_ranks(processes(["a", "a", "a", "b", "b", "b"]), group_size=2)
    found = straddling_groups(seats, 2)
    assert found == (range(2, 4),)
    text = straddle_text("tp", found, seats)
    assert text.startswith("1 of 3 tp groups straddle nodes, such as ranks 2-3 on host-a, host-b:")
    assert straddling_groups(seats, 3) == straddling_groups(seats, 1) == ()
