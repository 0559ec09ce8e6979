"""Who leads: spread over nodes and ranks, the longest first, never where it failed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from warmrank.orchestrator.launch.plan import Compile, Leaders, Tried, begin, lanes_of, plan_round
from warmrank.worker.results import FunctionProbe

TWO_NODES = {0: 0, 1: 0, 2: 1, 3: 1}


def probe(function: str, cost: int) -> FunctionProbe:
    return FunctionProbe(
        function=function, request_key="k", components={}, state="miss", reason="not there", cost=cost
    )


def led(costs: dict[str, int], nodes: dict[int, int], lanes: dict[int, int] | None = None) -> dict[str, int]:
    """The leader of every function, the first to be planned first."""
    probes = {rank: tuple(probe(name, cost) for name, cost in costs.items()) for rank in nodes}
    plan = plan_round(begin(probes), max_rounds=4, nodes=nodes, lanes=lanes)
    return {function: rank for (rank, function), action in plan.items() if isinstance(action, Compile)}


def test_leaders_go_to_other_nodes_before_other_ranks_of_a_node() -> None:
    assert led({"f": 1, "g": 1, "h": 1, "i": 1}, TWO_NODES) == {"f": 0, "g": 2, "h": 1, "i": 3}


def test_node_has_no_more_leaders_than_lanes_while_another_can_lead() -> None:
    found = led(dict.fromkeys("abcdef", 1), {0: 0, 1: 0, 2: 0, 3: 1, 4: 1, 5: 1}, lanes={0: 1, 1: 1})
    assert len(set(found.values())) == 2


def test_leader_that_failed_is_passed_over_for_another_node_then_for_another_rank() -> None:
    tried = Tried(ranks=frozenset({0}), nodes=frozenset({0}))
    assert Leaders(TWO_NODES).choose([0, 1, 2], 1, tried) == 2
    assert Leaders(TWO_NODES).choose([0, 1], 1, tried) == 1
    assert Leaders(TWO_NODES).choose([0], 1, tried) == 0


def test_lanes_are_the_cpus_that_ranks_reserved() -> None:
    nodes = [0] * 8 + [1] * 2
    assert lanes_of(nodes, 1.0) == {0: 8, 1: 2}
    assert lanes_of(nodes, 0.25) == {0: 2, 1: 1}
    assert lanes_of(nodes, 4.0) == {0: 8, 1: 2}


@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.integers(1, 5))
def test_no_rank_works_longer_than_four_thirds_of_the_best(costs: list[int], num_ranks: int) -> None:
    nodes = {rank: rank for rank in range(num_ranks)}
    found = led({f"f{index}": cost for index, cost in enumerate(costs)}, nodes)
    load = dict.fromkeys(nodes, 0)
    for index, cost in enumerate(costs):
        load[found[f"f{index}"]] += cost
    ordered = sorted(costs, reverse=True)
    pair = sum(ordered[num_ranks - 1 : num_ranks + 1]) if len(costs) > num_ranks else 0
    best = max(sum(costs) / num_ranks, ordered[0], pair)
    # Graham's bound, over a lower bound of the best: list scheduling by falling cost.
    assert max(load.values()) <= best + ordered[min(num_ranks, len(costs) - 1)] * (num_ranks - 1) / num_ranks
