"""The planner, without I/O: single rounds by example; whole launches are in `test_plan_launches`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from warmrank.orchestrator.launch.plan import (
    Action,
    Adopt,
    Attempt,
    Avoided,
    AwaitLeader,
    Compile,
    Failed,
    GiveUp,
    Load,
    PlanState,
    Slot,
    apply_round,
    begin,
    forbidden,
    plan_round,
)
from warmrank.worker.results import FunctionProbe, ProbeState


def probe(
    state: ProbeState, digest: str = "", *, function: str = "f", key: str = "k", blocks: int | None = None
) -> FunctionProbe:
    return FunctionProbe(
        function=function, request_key=key, components={}, state=state, reason="not there", digest=digest,
        runtime_state={} if blocks is None else {"blocks": str(blocks)},
    )  # fmt: skip


def plan_of(*probes: FunctionProbe, nodes: Mapping[int, int] | None = None) -> dict[Slot, Action]:
    state = begin({rank: (found,) for rank, found in enumerate(probes)})
    return plan_round(state, max_rounds=4, nodes=nodes)


def refused(state: PlanState, actions: dict[Slot, Action], *slots: Slot, made: str = "") -> PlanState:
    """The next state, when these slots refuse what the plan gives them."""

    def digest(action: Action) -> str:
        return action.digest if isinstance(action, Load | Adopt) else made

    attempts = {
        slot: Attempt(ok=slot not in slots, digest=digest(action), reason="guard")
        for slot, action in actions.items()
    }
    return apply_round(state, actions, attempts)


def test_ranks_of_other_runtime_state_neither_wait_for_nor_adopt_from_each_other() -> None:
    assert plan_of(*(probe("miss", blocks=blocks) for blocks in (1, 2, 1))) == {
        (0, "f"): Compile(),
        (1, "f"): Compile(),
        (2, "f"): AwaitLeader(leader=0),
    }
    assert plan_of(probe("hit", "a", blocks=1), probe("miss", blocks=2))[1, "f"] == Compile()


def test_miss_adopts_what_another_rank_of_its_class_holds() -> None:
    assert plan_of(probe("miss"), probe("hit", "a"))[0, "f"] == Adopt(digest="a", from_rank=1)


def test_where_all_miss_the_lowest_rank_compiles_and_the_others_wait_for_it() -> None:
    assert plan_of(probe("miss"), probe("miss"), probe("miss")) == {
        (0, "f"): Compile(),
        (1, "f"): AwaitLeader(leader=0),
        (2, "f"): AwaitLeader(leader=0),
    }


def functions_missed(*names: str, num_ranks: int) -> PlanState:
    return begin({rank: tuple(probe("miss", function=name) for name in names) for rank in range(num_ranks)})


def leaders(plan: Mapping[Slot, Action]) -> dict[str, int]:
    return {function: rank for (rank, function), action in plan.items() if isinstance(action, Compile)}


def test_calls_of_one_function_have_one_leader() -> None:
    state = functions_missed("f", "f[1]", "g", num_ranks=2)
    plan = plan_round(state, max_rounds=4, nodes={0: 0, 1: 0})
    assert leaders(plan) == {"f": 0, "f[1]": 0, "g": 1}


def test_rank_that_refused_stays_and_tries_the_next_offer() -> None:
    state = begin({0: (probe("hit", "a"),), 1: (probe("hit", "b"),), 2: (probe("miss"),)})
    state = refused(state, plan_round(state, max_rounds=4), (2, "f"))
    assert plan_round(state, max_rounds=4) == {(2, "f"): Adopt(digest="b", from_rank=1)}


def test_ranks_that_refused_every_offer_get_a_leader_among_them() -> None:
    state = begin({rank: (probe("miss"),) for rank in range(4)})
    actions = plan_round(state, max_rounds=4)
    state = refused(state, actions, (2, "f"), (3, "f"), made="x")
    assert plan_round(state, max_rounds=4) == {(2, "f"): Compile(), (3, "f"): AwaitLeader(leader=2)}


def test_forbidden_lists_functions_with_ranks_grouped_by_reason() -> None:
    state = begin({0: (probe("miss"),), 1: (probe("hit", "a", key="l"),), 2: (probe("miss"),)})
    (miss,) = forbidden(state, plan_round(state, max_rounds=4))
    assert (miss.function, miss.reason, miss.ranks) == ("f", "not there", (0, 2))


def failed(state: PlanState, actions: Mapping[Slot, Action], reason: str = "no luck") -> PlanState:
    """The next state, when every leader fails, and everybody else has what it wants."""
    attempts = {
        slot: Attempt(ok=isinstance(action, Load | Adopt), digest="", reason=reason)
        for slot, action in actions.items()
    }
    return apply_round(state, actions, attempts)


def test_class_whose_leader_failed_gets_a_leader_on_another_node() -> None:
    nodes = {0: 0, 1: 0, 2: 1}
    state = begin({rank: (probe("miss"),) for rank in range(3)})
    state = failed(state, plan_round(state, max_rounds=4, nodes=nodes))
    assert plan_round(state, max_rounds=4, nodes=nodes) == {
        (0, "f"): AwaitLeader(leader=2),
        (1, "f"): AwaitLeader(leader=2),
        (2, "f"): Compile(),
    }


def test_class_is_given_up_after_its_second_leader_and_nobody_else() -> None:
    state = begin({0: (probe("miss"),), 1: (probe("miss"),), 2: (probe("hit", "a", key="l"),)})
    for _ in range(2):
        state = failed(state, plan_round(state, max_rounds=4))
    actions = plan_round(state, max_rounds=4)
    assert actions == {(0, "f"): GiveUp(), (1, "f"): GiveUp()}
    end = apply_round(state, actions, {})
    assert (end.demands, [demand.rank for demand in end.lost]) == ((), [0, 1])
    assert [(found.rank, found.reason) for found in end.failed] == [(0, "no luck"), (1, "no luck")]


def test_calls_of_one_function_that_failed_on_different_ranks_are_tried_apart() -> None:
    state = replace(
        functions_missed("f", "f[1]", num_ranks=2),
        failed=(
            Failed(class_key=("f", "k", frozenset()), rank=0, reason="no luck"),
            Failed(class_key=("f[1]", "k", frozenset()), rank=1, reason="no luck"),
        ),
    )
    assert leaders(plan_round(state, max_rounds=4)) == {"f": 1, "f[1]": 0}


def test_what_a_former_attempt_was_lost_in_is_compiled_elsewhere() -> None:
    probes = {rank: (probe("miss"), probe("miss", function="g")) for rank in range(4)}
    nodes = {0: 0, 1: 0, 2: 1, 3: 1}
    lost = Avoided(function="f", request_key="k", rank=0, node=0)
    plan = plan_round(begin(probes, avoided=[lost]), max_rounds=4, nodes=nodes)
    assert leaders(plan) == {"f": 2, "g": 0}


def test_ranks_that_refuse_for_the_same_reason_share_a_leader() -> None:
    state = begin({rank: (probe("miss"),) for rank in range(5)})
    actions = plan_round(state, max_rounds=4)
    stages = {1: "stage 1", 2: "stage 2", 3: "stage 1", 4: "stage 2"}
    attempts = {(0, "f"): Attempt(ok=True, digest="x")} | {
        (rank, "f"): Attempt(ok=False, digest="x", reason=stage) for rank, stage in stages.items()
    }
    assert plan_round(apply_round(state, actions, attempts), max_rounds=4) == {
        (1, "f"): Compile(),
        (2, "f"): Compile(),
        (3, "f"): AwaitLeader(leader=1),
        (4, "f"): AwaitLeader(leader=2),
    }


def test_nodes_that_cannot_reach_an_artifact_compile_once_each() -> None:
    nodes = {rank: rank // 2 for rank in range(6)}
    state = begin({rank: (probe("miss"),) for rank in range(6)})
    actions = plan_round(state, max_rounds=4, nodes=nodes)
    attempts = {(rank, "f"): Attempt(ok=True, digest="x") for rank in (0, 1)} | {
        (rank, "f"): Attempt(ok=False, digest="x", reason=f"not on /disk/{rank}", out_of_reach=True)
        for rank in (2, 3, 4, 5)
    }
    plan = plan_round(apply_round(state, actions, attempts, nodes=nodes), max_rounds=4, nodes=nodes)
    assert plan == {
        (2, "f"): Compile(),
        (3, "f"): AwaitLeader(leader=2),
        (4, "f"): Compile(),
        (5, "f"): AwaitLeader(leader=4),
    }


class Counted(dict[int, int]):
    """Nodes of ranks; counts how often it is asked."""

    num_asked = 0

    def __getitem__(self, rank: int) -> int:
        self.num_asked += 1
        return super().__getitem__(rank)


@pytest.mark.parametrize("num_classes", [1, 64, 1024])
def test_planning_asks_for_each_rank_a_few_times_whatever_the_number_of_classes(num_classes: int) -> None:
    nodes = Counted({rank: rank // 8 for rank in range(1024)})
    probes = {rank: (probe("miss", key=f"k{rank % num_classes}"),) for rank in nodes}
    plan = plan_round(begin(probes), max_rounds=4, nodes=nodes)
    assert sum(action == Compile() for action in plan.values()) == num_classes
    assert nodes.num_asked <= 2 * len(nodes)
