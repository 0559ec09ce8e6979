"""The planner, on made-up clusters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.tracing import in_mode
from warmrank.inference import cache_compile
from warmrank.orchestrator.config.reading import parse
from warmrank.orchestrator.errors import TIMEOUT, WorkerFailure
from warmrank.orchestrator.gang.launcher import Launcher
from warmrank.orchestrator.gang.rank_host import RankHost
from warmrank.orchestrator.launch.events import silence
from warmrank.orchestrator.launch.plan import (
    Action,
    Attempt,
    Cluster,
    Demand,
    Failed,
    PlanState,
    Slot,
    Tried,
    apply_round,
    begin,
    plan_round,
)
from warmrank.orchestrator.launch.run import Run
from warmrank.orchestrator.nodes import Gang
from warmrank.worker.rank.units import TracePrint, first_difference, print_of
from warmrank.worker.results import FunctionProbe, ProbeState
from warmrank.worker.runtime.function import CachedFunction


def digest_of(function: str, kind: object) -> str:
    """Ranks of one kind write the same bytes; calls of one function, other ones."""
    return f"{function}/{kind}"


def probe(
    state: ProbeState, digest: str = "", *, function: str = "f", key: str = "k", **more: Any
) -> FunctionProbe:
    return FunctionProbe(
        function=function, request_key=key, components={}, state=state, reason="not there", digest=digest,
        **more,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PlannedWorld:
    """A cluster whose guards decide.

    Attributes:
        nodes: node of every rank.
        kinds: the true class of a rank for a function: artifacts of this kind fit, and no other.
        keys: what it asks for.
        held: what its probe finds, and of which kind.
        broken: slots whose compile fails.
        reason: why an artifact of one kind does not fit another.
    """

    nodes: Mapping[int, int]
    kinds: Mapping[Slot, int]
    keys: Mapping[Slot, str]
    held: Mapping[Slot, tuple[ProbeState, int]] = field(default_factory=dict)
    broken: frozenset[Slot] = frozenset()
    reason: Callable[[int, int], str] = lambda made, own: f"{made} was burned in, found {own}"

    def probes(self) -> dict[int, tuple[FunctionProbe, ...]]:
        """What every rank finds."""
        found: dict[int, list[FunctionProbe]] = {rank: [] for rank in self.nodes}
        for slot, key in self.keys.items():
            state, kind = self.held.get(slot, ("miss", 0))
            digest = "" if state == "miss" else digest_of(slot[1], kind)
            found[slot[0]].append(probe(state, digest, function=slot[1], key=key))
        return {rank: tuple(probes) for rank, probes in found.items()}

    def attempt(self, slot: Slot, actions: Mapping[Slot, Action]) -> Attempt:
        """What comes of an action."""
        action, own = actions[slot], digest_of(slot[1], self.kinds[slot])
        if action.kind == "compile":
            if slot in self.broken:
                return Attempt(ok=False, digest="", reason="it does not compile")
            return Attempt(ok=True, digest=own)
        digest = action.digest
        if action.leader is not None:
            leader = (action.leader, slot[1])
            if leader in self.broken:
                return Attempt(ok=False, digest="")
            digest = digest_of(slot[1], self.kinds[leader])
        made = int(digest.rpartition("/")[2])
        return Attempt(ok=digest == own, digest=digest, reason=self.reason(made, self.kinds[slot]))


@dataclass(kw_only=True)
class Course:
    """A whole launch: every round's state and plan, what each slot got, who was given up."""

    rounds: list[tuple[PlanState, dict[Slot, Action]]] = field(default_factory=list)
    got: dict[Slot, str] = field(default_factory=dict)
    end: PlanState

    def compiled(self) -> Counter[str]:
        """How often each artifact was compiled."""
        return Counter(
            self.got[slot]
            for _, actions in self.rounds
            for slot, action in actions.items()
            if action.kind == "compile" and slot in self.got
        )


def carried_out(world: PlannedWorld, *, max_rounds: int) -> Course:
    """Plan and carry out until nobody wants anything.

    Raises:
        AssertionError: it does not end: each rank refuses at most so many offers, waits for two leaders for
            each of these, and is told.
    """
    course = Course(end=begin(world.probes(), Cluster(nodes=world.nodes, max_rounds=max_rounds)))
    while course.end.demands:
        state = course.end
        actions = plan_round(state)
        attempts = {
            slot: world.attempt(slot, actions) for slot, action in actions.items() if action.kind != "give up"
        }
        course.rounds.append((state, actions))
        course.got |= {slot: attempt.digest for slot, attempt in attempts.items() if attempt.ok}
        course.end = apply_round(state, actions, attempts)
        assert len(course.rounds) <= 3 * (max_rounds + 1), "the launch does not end"
    return course


pytestmark = pytest.mark.usefixtures("fresh_process")


ONE_NODE = Cluster(nodes=dict.fromkeys(range(8), 0), max_rounds=4)


def compiled_by(rank: int, leader: int) -> Action:
    return Action(kind="compile" if rank == leader else "adopt", from_rank=leader)


def plan_of(*probes: FunctionProbe) -> dict[Slot, Action]:
    return plan_round(begin({rank: (found,) for rank, found in enumerate(probes)}, ONE_NODE))


def refused(state: PlanState, actions: dict[Slot, Action], *slots: Slot, made: str = "") -> PlanState:
    """The next state, when these slots refuse what the plan gives them."""
    attempts = {
        slot: Attempt(ok=slot not in slots, digest=action.digest or made, reason="guard")
        for slot, action in actions.items()
    }
    return apply_round(state, actions, attempts)


def test_ranks_of_other_runtime_state_neither_wait_for_nor_adopt_from_each_other() -> None:
    one, other = {"blocks": "1"}, {"blocks": "2"}
    assert plan_of(*(probe("miss", runtime_state=state) for state in (one, other, one))) == {
        (0, "f"): compiled_by(0, 0),
        (1, "f"): compiled_by(1, 1),
        (2, "f"): compiled_by(2, 0),
    }
    held, wanted = probe("hit", "a", runtime_state=one), probe("miss", runtime_state=other)
    assert plan_of(held, wanted)[1, "f"] == compiled_by(1, 1)


def test_leader_that_was_lost_with_its_place_leads_again_where_it_is_elsewhere_now() -> None:
    cluster = Cluster(nodes={0: 1, 1: 0}, max_rounds=4)
    probes = {rank: (probe("miss"),) for rank in cluster.nodes}
    avoided = [Tried("f", rank=0, node=0)]
    assert plan_round(begin(probes, cluster, avoided=avoided))[0, "f"] == compiled_by(0, 0)


class Key(str):
    """A request's key that counts how often one is compared."""

    __slots__ = ()
    __hash__ = str.__hash__
    num_compared = 0

    def __eq__(self, other: object) -> bool:
        Key.num_compared += 1
        return str.__eq__(self, other)


def test_plan_compares_no_more_where_many_leaders_failed() -> None:
    ranks = range(4096)
    demands = tuple(Demand(rank=rank, function="decode", request_key=Key(rank // 2)) for rank in ranks)
    cluster = Cluster(nodes={rank: rank // 8 for rank in ranks}, max_rounds=3)
    state = PlanState(cluster=cluster, round=1, demands=demands, offers=())
    failed = tuple(Failed(demand.class_key(cluster), demand.rank, "timeout") for demand in demands[::2])
    for each in (state, replace(state, failed=failed)):
        Key.num_compared = 0
        assert sum(action.kind == "compile" for action in plan_round(each).values()) == len(ranks) // 2
        assert len(ranks) // 2 <= Key.num_compared < 50 * len(ranks)


def test_ranks_that_refused_every_offer_get_a_leader_among_them() -> None:
    state = begin({rank: (probe("miss"),) for rank in range(4)}, ONE_NODE)
    state = refused(state, plan_round(state), (2, "f"), (3, "f"), made="x")
    assert plan_round(state) == {(2, "f"): compiled_by(2, 2), (3, "f"): compiled_by(3, 2)}


@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.integers(1, 5))
def test_no_rank_works_longer_than_four_thirds_of_the_best(costs: list[int], num_ranks: int) -> None:
    nodes = {rank: rank for rank in range(num_ranks)}
    asked = tuple(probe("miss", function=str(index), cost=cost) for index, cost in enumerate(costs))
    plan = plan_round(begin(dict.fromkeys(nodes, asked), Cluster(nodes=nodes, max_rounds=4)))
    leaders = {int(function): rank for (rank, function), each in plan.items() if each.kind == "compile"}
    load = dict.fromkeys(nodes, 0)
    for index, cost in enumerate(costs):
        load[leaders[index]] += cost
    ordered = sorted(costs, reverse=True)
    pair = sum(ordered[num_ranks - 1 : num_ranks + 1]) if len(costs) > num_ranks else 0
    best = max(sum(costs) / num_ranks, ordered[0], pair)
    # Graham's bound, over a lower bound of the best: list scheduling by falling cost.
    assert max(load.values()) <= best + ordered[min(num_ranks, len(costs) - 1)] * (num_ranks - 1) / num_ranks


ASKED = ("f", "f[1]", "g")
STATES: st.SearchStrategy[ProbeState] = st.sampled_from(["hit", "adoptable", "miss"])


@st.composite
def worlds(draw: st.DrawFn, *, cold: bool = False, breaks: bool = True) -> PlannedWorld:
    num_ranks = draw(st.integers(1, 8))
    slots = [(rank, name) for rank in range(num_ranks) for name in ASKED]
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
            assert not action.digest or action.digest not in demand.refused


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
    leaders = {slot[0] // 8 for _, plan in course.rounds for slot in plan if plan[slot].kind == "compile"}
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
    assert {each.kind for _, plan in course.rounds for each in plan.values()} <= {"load", "adopt"}
    assert not any(each.leader is not None for _, plan in course.rounds for each in plan.values())


class Sliced(torch.nn.Module):
    def __init__(self, size: int, name: str = "") -> None:
        super().__init__()
        self.size, self.name = size, name

    def head(self, x: torch.Tensor) -> torch.Tensor:
        return x[: self.size] * 2 if not self.name else x + 1


def outlined(cache: Path, *, size: int = 2, name: str = "", rows: int = 4, **options: Any) -> TracePrint:
    function = cache_compile(Sliced(size, name).head, cache_dir=str(cache), **options)
    assert isinstance(function, CachedFunction)
    return print_of(function.outline((torch.ones(rows),), {}))


@pytest.mark.slow  # it calls the C++ compiler
@pytest.mark.parametrize("dynamic", [True, False])
def test_outline_is_what_a_compile_with_kernels_traces(tmp_path: Path, dynamic: bool) -> None:
    config = in_mode("max-autotune")
    function = cache_compile(Sliced(2).head, cache_dir=str(tmp_path), config=config, dynamic=dynamic)
    variant = function.compile((torch.ones(4),), {}, reason="")
    outline = outlined(tmp_path, config=config, dynamic=dynamic)
    assert first_difference(print_of(variant.stored.artifact), outline) == ""


@pytest.mark.parametrize("dynamic", [True, False])
def test_outline_makes_no_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dynamic: bool) -> None:
    config = in_mode("max-autotune")
    monkeypatch.setenv("PATH", "")  # so that there is no compiler
    found = outlined(tmp_path, config=config, dynamic=dynamic)
    assert any("mul" in line for line in found.parts["graph"])


def test_sizes_of_the_very_call_are_no_part_of_a_dynamic_outline_with_kernels(tmp_path: Path) -> None:
    config = in_mode("max-autotune")
    four, five = (outlined(tmp_path, config=config, dynamic=True, rows=rows) for rows in (4, 5))
    assert first_difference(four, five) == ""


class Late(Launcher):
    """The store fails rank 0; rank 1 answers, rank 2 does not; all that takes a while."""

    def __init__(self, took_s: float) -> None:
        self.now_s, self._took_s = 0.0, took_s

    def start(self, num_ranks: int, *, timeout_s: float) -> Gang:
        raise NotImplementedError

    def release(self) -> None:
        """Nothing was started."""

    def call(
        self, stage: str, method: str, arguments: Mapping[int, tuple[Any, ...]], *, timeout_s: float
    ) -> Iterator[tuple[int, Any]]:
        del method, arguments, timeout_s
        self.now_s += self._took_s
        yield 0, WorkerFailure(rank=0, stage=stage, kind="StoreError", message="no space", store_fault=True)
        yield 1, "done"


@pytest.mark.parametrize(("took_s", "silent"), [(600.0, {2}), (1.0, set())])
def test_rank_that_let_the_whole_time_pass_is_late_although_the_store_failed_another(
    took_s: float, silent: set[int]
) -> None:
    ranks = Late(took_s)
    config = parse({"workload": {"entrypoint": "a:b"}, "ranks": 3, "parallel": {"dp": 3}})
    run = Run(config, ranks, silence, clock=lambda: ranks.now_s)
    answers: dict[int, Any] = run.try_ask("fetch", RankHost.fetch, dict.fromkeys(range(3), ()))
    late = {rank for rank, found in answers.items() if getattr(found, "kind", "") == TIMEOUT}
    assert late == silent
    assert answers[1] == "done"
