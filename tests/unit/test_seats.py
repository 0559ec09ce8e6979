"""Ranks assigned to processes, node by node."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from warmrank.orchestrator.gang.launcher import Process, seat_ranks


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


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=12))
def test_each_process_gets_one_rank_and_its_node_is_counted(nodes: list[str]) -> None:
    order, seats = seat_ranks(processes(nodes))
    assert sorted(order) == list(range(len(nodes)))
    assert [seat.rank for seat in seats] == list(range(len(nodes)))
    for index, seat in zip(order, seats, strict=True):
        assert seat.pid == 100 + index
        assert seat.local_world_size == nodes.count(nodes[index])
