"""The planner, without I/O: single rounds by example; whole launches are in `test_plan_launches`."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.planned_world import PlannedWorld, carried_out, digest_of
from warmrank.orchestrator.launch.plan import (
    Action,
    Adopt,
    Attempt,
    AwaitLeader,
    Compile,
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


def leaders(plan: Mapping[Slot, Action]) -> dict[str, int]:
    return {function: rank for (rank, function), action in plan.items() if isinstance(action, Compile)}


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


TWO_NODES = {0: 0, 1: 0, 2: 1, 3: 1}


def probe_leaders(function: str, cost: int) -> FunctionProbe:
    return FunctionProbe(
        function=function, request_key="k", components={}, state="miss", reason="not there", cost=cost
    )


def led(costs: dict[str, int], nodes: dict[int, int], lanes: dict[int, int] | None = None) -> dict[str, int]:
    """The leader of every function, the first to be planned first."""
    probes = {rank: tuple(probe_leaders(name, cost) for name, cost in costs.items()) for rank in nodes}
    plan = plan_round(begin(probes), max_rounds=4, nodes=nodes, lanes=lanes)
    return {function: rank for (rank, function), action in plan.items() if isinstance(action, Compile)}


def test_leaders_go_to_other_nodes_before_other_ranks_of_a_node() -> None:
    assert led({"f": 1, "g": 1, "h": 1, "i": 1}, TWO_NODES) == {"f": 0, "g": 2, "h": 1, "i": 3}


def test_node_has_no_more_leaders_than_lanes_while_another_can_lead() -> None:
    found = led(dict.fromkeys("abcdef", 1), {0: 0, 1: 0, 2: 0, 3: 1, 4: 1, 5: 1}, lanes={0: 1, 1: 1})
    assert len(set(found.values())) == 2


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


FUNCTIONS = ("f", "f[1]", "g")
STATES: st.SearchStrategy[ProbeState] = st.sampled_from(["hit", "adoptable", "miss"])


@st.composite
def worlds(draw: st.DrawFn, *, cold: bool = False, breaks: bool = True) -> PlannedWorld:
    num_ranks = draw(st.integers(1, 8))
    slots = [(rank, name) for rank in range(num_ranks) for name in FUNCTIONS]
    says_why = draw(st.booleans())
    return PlannedWorld(
        nodes={rank: draw(st.integers(0, 2)) for rank in range(num_ranks)},
        kinds={slot: draw(st.integers(0, 3)) for slot in slots},
        keys={slot: draw(st.sampled_from(["k", "l"])) for slot in slots},
        held={} if cold else {slot: (draw(STATES), draw(st.integers(0, 3))) for slot in slots},
        broken=draw(st.frozensets(st.sampled_from(slots))) if breaks else frozenset(),
        reason=(lambda made, own: f"found {own}") if says_why else (lambda made, own: "it does not fit"),
    )


bounds = st.integers(1, 6)
few = settings(max_examples=40)  # launches, of up to 24 functions each


@few
@given(worlds(), bounds)
def test_every_rank_ends_with_what_fits_or_is_named(world: PlannedWorld, max_rounds: int) -> None:
    course = carried_out(world, max_rounds=max_rounds)
    lost = {demand.slot for demand in course.end.lost}
    assert course.got.keys() | lost == world.kinds.keys()
    assert not course.got.keys() & lost
    assert course.got == {slot: digest_of(slot[1], world.kinds[slot]) for slot in course.got}


@few
@given(worlds(), bounds)
def test_nothing_that_was_refused_is_offered_again(world: PlannedWorld, max_rounds: int) -> None:
    for state, actions in carried_out(world, max_rounds=max_rounds).rounds:
        for demand in state.demands:
            action = actions[demand.slot]
            if isinstance(action, Load | Adopt):
                assert action.digest not in demand.refused


@few
@given(worlds(), bounds)
def test_rank_that_failed_does_not_try_again_while_another_can(world: PlannedWorld, max_rounds: int) -> None:
    for state, actions in carried_out(world, max_rounds=max_rounds).rounds:
        tried = {(one.class_key[:2], one.rank) for one in state.failed}
        needy = [
            demand for demand in state.demands if isinstance(actions[demand.slot], Compile | AwaitLeader)
        ]
        fresh = {demand.class_key for demand in needy if (demand.class_key[:2], demand.rank) not in tried}
        for demand in needy:
            if actions[demand.slot] == Compile() and (demand.class_key[:2], demand.rank) in tried:
                assert demand.class_key not in fresh


def parallel(*, tp: int, pp: int, dp: int, hidden: bool = False, placed: int = 8) -> PlannedWorld:
    """Ranks with `tp` innermost and `dp` outermost, whose pipeline stages differ."""
    ranks = range(tp * pp * dp)
    stage = {rank: rank // tp % pp for rank in ranks}
    slots: list[Slot] = [(rank, "decode") for rank in ranks]
    return PlannedWorld(
        nodes={rank: rank // placed for rank in ranks},
        kinds={slot: stage[slot[0]] for slot in slots},
        keys={slot: "" if hidden else f"stage {stage[slot[0]]}" for slot in slots},
    )


@pytest.mark.parametrize("hidden", [False, True], ids=["found by request", "found by guards"])
def test_of_1024_ranks_four_compile(hidden: bool) -> None:
    course = carried_out(parallel(tp=8, pp=4, dp=32, hidden=hidden), max_rounds=4)
    assert sorted(course.compiled().values()) == [1, 1, 1, 1]
    assert len(course.rounds) == (2 if hidden else 1)
    leaders = {slot[0] // 8 for _, plan in course.rounds for slot in plan if isinstance(plan[slot], Compile)}
    assert len(leaders) == 4  # four nodes


@pytest.mark.parametrize(
    "other",
    [{"tp": 2, "pp": 2, "dp": 8}, {"tp": 2, "pp": 2, "dp": 1}, {"tp": 2, "pp": 2, "dp": 2, "placed": 3}],
    ids=["more ranks", "fewer ranks", "other places"],
)
def test_another_world_compiles_nothing_where_one_rank_of_each_stage_has_its_artifact(other):
    world = parallel(**other)
    known: dict[Slot, tuple[ProbeState, int]] = {
        slot: ("adoptable", kind) for slot, kind in world.kinds.items() if slot[0] < 4
    }
    again = PlannedWorld(nodes=world.nodes, kinds=world.kinds, keys=world.keys, held=known)
    course = carried_out(again, max_rounds=4)
    assert not any(
        isinstance(action, Compile | GiveUp) for _, plan in course.rounds for action in plan.values()
    )
