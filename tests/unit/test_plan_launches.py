"""Whole launches of made-up clusters through the planner: all end with what fits, at the least cost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.planned_world import PlannedWorld, carried_out, digest_of
from warmrank.orchestrator.launch.plan import Adopt, AwaitLeader, Compile, GiveUp, Load, Slot
from warmrank.worker.results import ProbeState

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


@few
@given(worlds(cold=True, breaks=False))
def test_a_cold_launch_compiles_each_true_class_once(world: PlannedWorld) -> None:
    # Four kinds are at most four rounds, even where refusals do not say why.
    course = carried_out(world, max_rounds=4)
    true_classes = {(slot[1], world.keys[slot], kind) for slot, kind in world.kinds.items()}
    assert sum(course.compiled().values()) == len(true_classes)


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
    world = parallel(**other)  # type: ignore[arg-type] # whole numbers only
    known: dict[Slot, tuple[ProbeState, int]] = {
        slot: ("adoptable", kind) for slot, kind in world.kinds.items() if slot[0] < 4
    }
    again = PlannedWorld(nodes=world.nodes, kinds=world.kinds, keys=world.keys, held=known)
    course = carried_out(again, max_rounds=4)
    assert not any(
        isinstance(action, Compile | GiveUp) for _, plan in course.rounds for action in plan.values()
    )
