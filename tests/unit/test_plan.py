"""The planner, without I/O: single rounds by example, whole launches by simulation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.launch.plan import (
    Action,
    Adopt,
    Attempt,
    AwaitLeader,
    Compile,
    Load,
    Situation,
    Slot,
    advance,
    begin,
    classes,
    forbidden,
    plan_round,
)
from worker.results import FunctionProbe, ProbeState


def probe(
    state: ProbeState, digest: str = "", *, function: str = "f", key: str = "k", blocks: int | None = None
) -> FunctionProbe:
    return FunctionProbe(
        function=function, request_key=key, components={}, state=state, reason="not there", digest=digest,
        runtime_state={} if blocks is None else {"blocks": str(blocks)},
    )  # fmt: skip


def plan_of(*probes: FunctionProbe, nodes: Mapping[int, int] | None = None) -> dict[Slot, Action]:
    situation = begin({rank: (found,) for rank, found in enumerate(probes)})
    return plan_round(situation, max_rounds=4, nodes=nodes)


def refused(situation: Situation, actions: dict[Slot, Action], *slots: Slot, made: str = "") -> Situation:
    """The next situation, when these slots refuse what the plan gives them."""

    def digest(action: Action) -> str:
        return action.digest if isinstance(action, Load | Adopt) else made

    attempts = {
        slot: Attempt(ok=slot not in slots, digest=digest(action), reason="guard")
        for slot, action in actions.items()
    }
    return advance(situation, actions, attempts)


def test_ranks_of_other_runtime_state_neither_wait_for_nor_adopt_from_each_other() -> None:
    assert plan_of(*(probe("miss", blocks=blocks) for blocks in (1, 2, 1))) == {
        (0, "f"): Compile(),
        (1, "f"): Compile(),
        (2, "f"): AwaitLeader(leader=0),
    }
    assert plan_of(probe("hit", "a", blocks=1), probe("miss", blocks=2))[1, "f"] == Compile()


def test_ranks_that_hold_their_artifact_load_it() -> None:
    assert plan_of(probe("hit", "a"), probe("hit", "b")) == {
        (0, "f"): Load(digest="a"),
        (1, "f"): Load(digest="b"),
    }


def test_miss_adopts_what_another_rank_of_its_class_holds() -> None:
    assert plan_of(probe("miss"), probe("hit", "a"))[0, "f"] == Adopt(digest="a", from_rank=1)


def test_miss_does_not_adopt_from_another_class() -> None:
    plan = plan_of(probe("miss", key="k"), probe("hit", "a", key="other"))
    assert plan == {(0, "f"): Compile(), (1, "f"): Load(digest="a")}


def test_adoptable_rank_adopts_what_its_probe_found() -> None:
    plan = plan_of(probe("adoptable", "a"), probe("hit", "b"))
    assert plan[0, "f"] == Adopt(digest="a", from_rank=None)


def test_adoptable_artifact_is_offered_to_ranks_that_miss() -> None:
    assert plan_of(probe("adoptable", "a"), probe("miss"))[1, "f"] == Adopt(digest="a", from_rank=None)


def test_held_artifact_is_offered_before_an_adoptable_one() -> None:
    plan = plan_of(probe("adoptable", "a"), probe("hit", "b"), probe("miss"))
    assert plan[2, "f"] == Adopt(digest="b", from_rank=1)


def test_where_all_miss_the_lowest_rank_compiles_and_the_others_wait_for_it() -> None:
    assert plan_of(probe("miss"), probe("miss"), probe("miss")) == {
        (0, "f"): Compile(),
        (1, "f"): AwaitLeader(leader=0),
        (2, "f"): AwaitLeader(leader=0),
    }


def test_each_class_has_its_own_leader() -> None:
    plan = plan_of(probe("miss", key="a"), probe("miss", key="b"), probe("miss", key="b"))
    assert plan == {(0, "f"): Compile(), (1, "f"): Compile(), (2, "f"): AwaitLeader(leader=1)}


def functions_missed(*names: str, num_ranks: int) -> Situation:
    return begin({rank: tuple(probe("miss", function=name) for name in names) for rank in range(num_ranks)})


def leaders(plan: Mapping[Slot, Action]) -> dict[str, int]:
    return {function: rank for (rank, function), action in plan.items() if isinstance(action, Compile)}


def test_leaders_are_spread_over_nodes_first() -> None:
    situation = functions_missed("f", "g", num_ranks=4)
    plan = plan_round(situation, max_rounds=4, nodes={0: 0, 1: 0, 2: 1, 3: 1})
    assert leaders(plan) == {"f": 0, "g": 2}


def test_leaders_are_spread_over_the_ranks_of_one_node() -> None:
    plan = plan_round(functions_missed("f", "g", num_ranks=2), max_rounds=4, nodes={0: 0, 1: 0})
    assert leaders(plan) == {"f": 0, "g": 1}


def test_without_nodes_the_lowest_rank_leads() -> None:
    assert leaders(plan_round(functions_missed("f", "g", num_ranks=2), max_rounds=4)) == {"f": 0, "g": 0}


def test_calls_of_one_function_have_one_leader() -> None:
    situation = functions_missed("f", "f[1]", "g", num_ranks=2)
    plan = plan_round(situation, max_rounds=4, nodes={0: 0, 1: 0})
    assert leaders(plan) == {"f": 0, "f[1]": 0, "g": 1}


def test_rank_that_refused_stays_and_tries_the_next_offer() -> None:
    situation = begin({0: (probe("hit", "a"),), 1: (probe("hit", "b"),), 2: (probe("miss"),)})
    situation = refused(situation, plan_round(situation, max_rounds=4), (2, "f"))
    assert plan_round(situation, max_rounds=4) == {(2, "f"): Adopt(digest="b", from_rank=1)}


def test_rank_that_cannot_use_its_own_artifact_tries_an_offer() -> None:
    situation = begin({0: (probe("hit", "a"),), 1: (probe("hit", "b"),)})
    situation = refused(situation, plan_round(situation, max_rounds=4), (0, "f"))
    assert plan_round(situation, max_rounds=4) == {(0, "f"): Adopt(digest="b", from_rank=1)}


def test_ranks_that_refused_every_offer_get_a_leader_among_them() -> None:
    situation = begin({rank: (probe("miss"),) for rank in range(4)})
    actions = plan_round(situation, max_rounds=4)
    situation = refused(situation, actions, (2, "f"), (3, "f"), made="x")
    assert plan_round(situation, max_rounds=4) == {(2, "f"): Compile(), (3, "f"): AwaitLeader(leader=2)}


def test_refusal_is_added_to_the_reason() -> None:
    situation = begin({0: (probe("miss"),), 1: (probe("miss"),)})
    situation = refused(situation, plan_round(situation, max_rounds=4), (1, "f"), made="x" * 64)
    assert situation.demands[0].reason == "not there; xxxxxxxxxxxx refused: guard"


def test_after_the_last_round_each_rank_compiles_for_itself() -> None:
    situation = begin({rank: (probe("miss"),) for rank in range(3)})
    situation = refused(situation, plan_round(situation, max_rounds=1), (1, "f"), (2, "f"), made="x")
    assert plan_round(situation, max_rounds=1) == {(1, "f"): Compile(), (2, "f"): Compile()}


def test_forbidden_lists_functions_with_ranks_grouped_by_reason() -> None:
    situation = begin({0: (probe("miss"),), 1: (probe("hit", "a", key="l"),), 2: (probe("miss"),)})
    (miss,) = forbidden(situation, plan_round(situation, max_rounds=4))
    assert (miss.function, miss.reason, miss.ranks) == ("f", "not there", (0, 2))


def test_nothing_is_forbidden_where_nothing_compiles() -> None:
    situation = begin({0: (probe("hit", "a"),), 1: (probe("miss"),)})
    assert forbidden(situation, plan_round(situation, max_rounds=4)) == ()


@dataclass(frozen=True)
class Cluster:
    """A made-up cluster: what ranks ask for, what they hold, and which artifacts fit where."""

    nodes: dict[int, int]
    kinds: dict[Slot, int]
    keys: dict[Slot, str]
    held: dict[Slot, tuple[ProbeState, int]] = field(default_factory=dict)

    def probes(self) -> dict[int, tuple[FunctionProbe, ...]]:
        found: dict[int, list[FunctionProbe]] = {rank: [] for rank in self.nodes}
        for (rank, function), key in self.keys.items():
            state, kind = self.held.get((rank, function), ("miss", 0))
            digest = "" if state == "miss" else f"{function}{kind}"
            found[rank].append(probe(state, digest, function=function, key=key))
        return {rank: tuple(probes) for rank, probes in found.items()}

    def attempt(self, slot: Slot, plan: Mapping[Slot, Action]) -> Attempt:
        """An artifact fits where it is of the rank's own kind."""
        action = plan[slot]
        own = f"{slot[1]}{self.kinds[slot]}"
        if isinstance(action, Compile):
            return Attempt(ok=True, digest=own)
        leader = (action.leader, slot[1]) if isinstance(action, AwaitLeader) else None
        digest = f"{slot[1]}{self.kinds[leader]}" if leader else action.digest  # type: ignore[union-attr]
        return Attempt(ok=digest == own, digest=digest, reason="another kind")


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    num_ranks = draw(st.integers(1, 8))
    slots = [(rank, name) for rank in range(num_ranks) for name in ("f", "f[1]", "g")]
    state: st.SearchStrategy[ProbeState] = st.sampled_from(["hit", "adoptable", "miss"])
    return Cluster(
        nodes={rank: draw(st.integers(0, 2)) for rank in range(num_ranks)},
        kinds={slot: draw(st.integers(0, 3)) for slot in slots},
        keys={slot: draw(st.sampled_from(["k", "l"])) for slot in slots},
        held={slot: (draw(state), draw(st.integers(0, 3))) for slot in slots},
    )


def rounds_of(cluster: Cluster, max_rounds: int) -> list[tuple[Situation, dict[Slot, Action]]]:
    """Every situation and its plan, until nothing is wanted."""
    rounds = []
    situation = begin(cluster.probes())
    while situation.demands:
        plan = plan_round(situation, max_rounds=max_rounds, nodes=cluster.nodes)
        rounds.append((situation, plan))
        situation = advance(situation, plan, {slot: cluster.attempt(slot, plan) for slot in plan})
        assert len(rounds) <= max_rounds + 1, "the process does not end"
    return rounds


bounds = st.integers(1, 6)


@given(clusters(), bounds)
def test_every_launch_ends_within_its_rounds(cluster: Cluster, max_rounds: int) -> None:
    rounds_of(cluster, max_rounds)


@given(clusters(), bounds)
def test_every_demand_gets_exactly_one_action_each_round(cluster: Cluster, max_rounds: int) -> None:
    for situation, plan in rounds_of(cluster, max_rounds):
        assert Counter(plan.keys()) == Counter(demand.slot for demand in situation.demands)


@given(clusters(), bounds)
def test_leaders_are_members_of_their_class_and_compile(cluster: Cluster, max_rounds: int) -> None:
    for situation, plan in rounds_of(cluster, max_rounds):
        for (function, _), members in classes(situation.demands).items():
            ranks = {demand.rank for demand in members}
            for demand in members:
                action = plan[demand.slot]
                if isinstance(action, AwaitLeader):
                    assert action.leader in ranks
                    assert plan[action.leader, function] == Compile()


@given(clusters(), bounds)
def test_a_class_has_one_leader_until_the_last_round(cluster: Cluster, max_rounds: int) -> None:
    for situation, plan in rounds_of(cluster, max_rounds)[:max_rounds]:
        for members in classes(situation.demands).values():
            assert sum(plan[demand.slot] == Compile() for demand in members) <= 1


@given(clusters(), bounds)
def test_nothing_that_was_refused_is_offered_again(cluster: Cluster, max_rounds: int) -> None:
    for situation, plan in rounds_of(cluster, max_rounds):
        for demand in situation.demands:
            action = plan[demand.slot]
            if isinstance(action, Load | Adopt):
                assert action.digest not in demand.refused


@given(clusters())
def test_planning_twice_gives_the_same_plan(cluster: Cluster) -> None:
    situation = begin(cluster.probes())
    assert plan_round(situation, max_rounds=4, nodes=cluster.nodes) == plan_round(
        begin(dict(reversed(cluster.probes().items()))), max_rounds=4, nodes=cluster.nodes
    )


@given(st.integers(1, 8), st.integers(1, 4))
def test_equal_ranks_compile_each_function_once(num_ranks: int, max_rounds: int) -> None:
    slots = [(rank, name) for rank in range(num_ranks) for name in ("f", "g")]
    cluster = Cluster(
        nodes=dict.fromkeys(range(num_ranks), 0),
        kinds=dict.fromkeys(slots, 0),
        keys=dict.fromkeys(slots, "k"),
    )
    actions = [action for _, plan in rounds_of(cluster, max_rounds) for action in plan.values()]
    assert actions.count(Compile()) == 2


def test_thousands_of_equal_ranks_have_one_leader_for_each_function() -> None:
    num_ranks = 4096
    situation = functions_missed("f", "g", num_ranks=num_ranks)
    plan = plan_round(situation, max_rounds=4, nodes={rank: rank // 8 for rank in range(num_ranks)})
    assert Counter(type(action) for action in plan.values()) == {Compile: 2, AwaitLeader: 2 * num_ranks - 2}
