"""The plan of a round: one action for every rank and function; pure.

A round goes: `plan_round`, the driver carries it out, `apply_round`. In a class a rank loads what it holds,
else adopts what fits or is offered, else one leader compiles, and the others adopt the result. Who refuses an
offer (its guards do not hold there) stays for the next round, and so does a class whose leader failed:
another one tries, on another node if there is one; a class whose second leader failed, or whose function
itself raised, is given up, and nobody else. The rounds end: each leaves every rank that stays one offer less,
or its class one leader less, and a rank that has refused ``max_rounds`` offers compiles for itself.

What a leader of this launch compiled is adopted only after an audit: another rank of the class traces as
well, beside the leader, and must come to the same (`PlanState.audit`). If it does not, but conditions of the
artifact keep it away, the artifact stays on offer, and a rank whose guards hold audits it in the next round.
If nothing kept it away, every rank traces before it adopts (`Offer.audit`).

A rank compiles one function after the other (a process has one tracer), the ranks of a node side by side in
as many lanes as the node has cores for. Leaders are chosen greedily: by falling cost, each where it would be
ready first (LPT; Graham, "Bounds on Multiprocessing Timing Anomalies", 1969: at most a third longer than
optimal). Linear in ranks times functions, but for sorting the classes that compile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from warmrank.orchestrator.config.models import AuditMode
from warmrank.orchestrator.errors import ForbiddenCompile, forbidden_compiles
from warmrank.orchestrator.launch.events import ClassAction, RankClass
from warmrank.orchestrator.launch.plan_state import (
    Action,
    Adopt,
    Asked,
    AwaitLeader,
    ClassKey,
    Compile,
    Demand,
    GiveUp,
    Load,
    Offer,
    PlanState,
    Slot,
)
from warmrank.orchestrator.text import grouped
from warmrank.worker.results import function_of_unit

MAX_LEADERS = 2  # leaders that try to compile for a class before it is given up

Tried = tuple[set[int], set[int]]  # ranks and nodes on which a compile was tried in vain


class Leaders:
    """Hands out leaders and auditors; remembers who is how busy. For arguments see `plan_round`."""

    def __init__(
        self, nodes: Mapping[int, int], lanes: Mapping[int, int], positions: Mapping[int, tuple[int, ...]]
    ) -> None:
        self._nodes, self._lanes, self._positions = nodes, lanes, positions
        self._of_rank: Counter[int] = Counter()
        self._of_node: Counter[int] = Counter()
        self._num_leaders: Counter[int] = Counter()

    def choose(self, candidates: Collection[int], cost: int, tried: Tried) -> int:
        """The best leader: never one that has tried if there is another, rather on another node."""

        def rating(rank: int) -> tuple[bool, bool, bool, float, float, int, int]:
            node = self._nodes[rank]
            lanes = self._lanes.get(node, 1)
            own, on_node = self._of_rank.get(rank, 0), self._of_node.get(node, 0)
            is_full = not own and self._num_leaders.get(node, 0) >= lanes
            ready = max(own + cost, (on_node + cost) / lanes)
            return rank in tried[0], node in tried[1], is_full, ready, on_node / lanes, own, rank

        leader = min(candidates, key=rating)
        self.add(leader, cost)
        return leader

    def choose_auditor(self, candidates: Collection[int], leader: int, cost: int) -> int:
        """The rank that differs most from a leader, by node and parallel axes.

        Of several rather who is idle, and whose indices are far off: code that treats ranks in two ways has
        rather a first or last one, or halves, than neighbours.
        """

        def place_of(rank: int) -> tuple[int, ...]:
            return self._nodes[rank], *self._positions.get(rank, ())

        of_leader = place_of(leader)

        def rating(rank: int) -> tuple[int, int, int, int, int]:
            place = place_of(rank)
            distances = [abs(one - other) for one, other in zip(place, of_leader, strict=True)]
            own, on_node = self._of_rank.get(rank, 0), self._of_node.get(place[0], 0)
            return distances.count(0), own, on_node, -sum(distances), rank

        auditor = min(candidates, key=rating)
        self.add(auditor, cost)
        return auditor

    def add(self, leader: int, cost: int) -> None:
        """Note what a rank compiles as well."""
        node = self._nodes[leader]
        self._num_leaders[node] += not self._of_rank[leader]
        self._of_rank[leader] += cost
        self._of_node[node] += cost


def lanes_of(nodes: Iterable[int], cpus_per_rank: float) -> dict[int, int]:
    """Number of leaders that may compile at once on a node: by what its ranks reserved, at most one each."""
    return {
        node: max(1, int(num_ranks * min(1.0, cpus_per_rank))) for node, num_ranks in Counter(nodes).items()
    }


def plan_round(
    state: PlanState,
    *,
    max_rounds: int,
    nodes: Mapping[int, int],
    lanes: Mapping[int, int] | None = None,
    positions: Mapping[int, tuple[int, ...]] | None = None,
) -> dict[Slot, Action]:
    """One action for every demand; what compiles comes last, the longest first.

    A rank that has refused ``max_rounds`` offers compiles for itself. Leaders are spread over ``nodes`` (of
    every rank), with so many ``lanes`` on each (one a rank, by default); auditors differ from leaders in
    ``positions`` on the parallel axes.
    """
    offers = _with_actions(state.offers)
    loads = {demand.held: Load(digest=demand.held) for demand in state.demands if demand.held}
    num_failed = Counter(failed.class_key for failed in state.failed)
    hopeless = {failed.class_key for failed in state.failed if failed.is_final}
    actions: dict[Slot, Action] = {}
    needy: dict[ClassKey, list[Demand]] = {}
    waiting: dict[tuple[Asked, str], list[Demand]] = {}
    for demand in state.demands:
        alone = demand.num_refused >= max_rounds
        action = None if alone else _without_compiling(demand, loads, offers.get(demand.asked, {}))
        key = demand.own_key if alone else demand.class_key
        if isinstance(action, Offer):
            waiting.setdefault((demand.asked, action.digest), []).append(demand)
        elif action is not None:
            actions[demand.slot] = action
        elif key in hopeless or num_failed[key] >= MAX_LEADERS:
            actions[demand.slot] = GiveUp()
        else:
            needy.setdefault(key, []).append(demand)
    candidates = Leaders(nodes, lanes or Counter(nodes.values()), positions or {})
    actions |= {demand.slot: GiveUp() for demand in _without_leader(needy, state)}
    leaders = _choose_leaders(needy, _tried(state, nodes), candidates)
    chosen: dict[tuple[str, int | None], int] = {}
    for (asked, digest), members in waiting.items():
        offer, _ = offers[asked][digest]
        of_rank = _auditors(members, offer.from_rank, offer.audit, candidates, chosen, takes=digest)
        for demand in members:
            auditors = of_rank(demand.rank)
            actions[demand.slot] = Adopt(digest=digest, from_rank=offer.from_rank, auditors=auditors)
    for key, leader in leaders.items():
        of_rank = _auditors(needy[key], leader, state.audit, candidates, chosen)
        for demand in needy[key]:
            if demand.rank == leader:
                actions[demand.slot] = Compile(alone=demand.num_refused >= max_rounds)
            else:
                actions[demand.slot] = AwaitLeader(leader=leader, auditors=of_rank(demand.rank))
    return actions


def auditing(state: PlanState, actions: Mapping[Slot, Action]) -> dict[int, list[str]]:
    """Functions that each rank traces for an audit, besides what it compiles, in the order of the plan."""
    traced = {demand.slot for demand in state.demands if demand.trace}
    return grouped(
        slot
        for slot, action in actions.items()
        if isinstance(action, Adopt | AwaitLeader) and slot[0] in action.auditors and slot not in traced
    )


def forbidden(state: PlanState, actions: Mapping[Slot, Action]) -> tuple[ForbiddenCompile, ...]:
    """Every function that the plan would compile, with its ranks grouped by reason."""
    return forbidden_compiles(
        (demand.function, demand.reason, demand.rank)
        for demand in state.demands
        if isinstance(actions[demand.slot], Compile | AwaitLeader)
    )


def rank_classes(state: PlanState, actions: Mapping[Slot, Action]) -> tuple[RankClass, ...]:
    """The plan as people see it; what was given up is not in it."""
    found: dict[tuple[str, str, ClassAction, int | None], list[int]] = {}
    tracing = {(rank, name) for rank, names in auditing(state, actions).items() for name in names}
    for demand in state.demands:
        kind: ClassAction = "compile"
        leader: int | None = None
        match actions[demand.slot]:
            case GiveUp():
                continue
            case Load():
                kind = "load"
            case Adopt():
                kind = "adopt"
            case Compile():
                leader = demand.rank
            case AwaitLeader() as action:
                leader = action.leader
        found.setdefault((*demand.asked, kind, leader), []).append(demand.rank)
    return tuple(
        RankClass(
            round=state.round,
            function=function,
            request_key=key,
            ranks=tuple(ranks),
            action=kind,
            leader=leader,
            auditors=tuple(rank for rank in ranks if (rank, function) in tracing),
        )
        for (function, key, kind, leader), ranks in found.items()
    )


def _without_compiling(
    demand: Demand, loads: Mapping[str, Load], offers: Mapping[str, tuple[Offer, Adopt]]
) -> Load | Adopt | Offer | None:
    """The action without a compile; an offer stands for itself where an audit comes first."""
    if demand.held and demand.held not in demand.refused:
        return loads[demand.held]
    if demand.fits and demand.fits not in demand.refused:
        known = offers.get(demand.fits)
        return known[1] if known is not None else Adopt(digest=demand.fits, from_rank=None)
    for digest, (offer, adopt) in offers.items():  # ends after at most one step more than it has refused
        is_traced_otherwise = demand.trace and offer.trace and demand.trace != offer.trace
        if digest not in demand.refused and not is_traced_otherwise:
            return adopt if offer.audit == "off" or demand.trace else offer
    return None


def _auditors(
    members: Sequence[Demand],
    maker: int | None,
    mode: AuditMode,
    candidates: Leaders,
    chosen: dict[tuple[str, int | None], int],
    *,
    takes: str = "",
) -> Callable[[int], tuple[int, ...]]:
    """Auditor of each member: it must trace the same before the member adopts from ``maker``.

    ``chosen`` collects the round's auditors. Of an artifact on offer, ``takes``, rather somebody is the
    auditor whose guards are known to hold.
    """
    others = [demand for demand in members if demand.rank != maker]
    if mode == "off" or not others:
        return lambda _rank: ()
    if mode == "all":
        return lambda rank: (rank,)
    willing = [demand for demand in others if takes in demand.takes] or others
    ranks = {demand.rank for demand in willing}
    # Calls of one function have one auditor: what it traced for the first may cover the others.
    family = function_of_unit(others[0].function), maker
    auditor = chosen.get(family)
    if auditor not in ranks:
        leader = maker if maker is not None else others[0].rank
        auditor = chosen[family] = candidates.choose_auditor(ranks, leader, _cost(willing))
    return lambda _rank: (auditor,)


def _choose_leaders(
    needy: Mapping[ClassKey, Sequence[Demand]], tried: Mapping[Asked, Tried], leaders: Leaders
) -> dict[ClassKey, int]:
    """A leader for every class, the longest compiles first."""
    # Calls of one function have one leader: the artifact of the first may cover the others.
    families = grouped(((function_of_unit(key[0]), key[1], key[2]), key) for key in needy)
    costs = {family: sum(_cost(needy[key]) for key in keys) for family, keys in families.items()}
    found: dict[ClassKey, int] = {}
    for family in sorted(families, key=lambda family: -costs[family]):  # stable: equal ones in call order
        leader: int | None = None
        for key in families[family]:
            ranks = {demand.rank for demand in needy[key]}
            where = tried.get(key[:2], (set(), set()))
            if leader is None or leader not in ranks or leader in where[0]:
                leader = leaders.choose(ranks, _cost(needy[key]), where)
            else:
                leaders.add(leader, _cost(needy[key]))
            found[key] = leader
    return found


def _without_leader(needy: dict[ClassKey, list[Demand]], state: PlanState) -> list[Demand]:
    """Take out the classes of which each rank would fail once more."""
    again = {(failed.class_key, failed.rank) for failed in state.failed if failed.comes_again}
    alike = [key for key, members in needy.items() if all((key, each.rank) in again for each in members)]
    return [demand for key in alike for demand in needy.pop(key)]


def _with_actions(offers: Iterable[Offer]) -> dict[Asked, dict[str, tuple[Offer, Adopt]]]:
    """Offers with the action of all that take them: thousands apart take longer to make than to plan."""
    found: dict[Asked, dict[str, tuple[Offer, Adopt]]] = {}
    for offer in offers:
        adopt = Adopt(digest=offer.digest, from_rank=offer.from_rank)
        found.setdefault((offer.function, offer.request_key), {})[offer.digest] = offer, adopt
    return found


def _cost(members: Sequence[Demand]) -> int:
    return max(1, *(demand.cost for demand in members))


def _tried(state: PlanState, nodes: Mapping[int, int]) -> dict[Asked, Tried]:
    """Ranks and nodes that failed at this request, in this attempt of the launch and before."""
    found: dict[Asked, Tried] = {}
    for failed in state.failed:
        ranks, places = found.setdefault(failed.class_key[:2], (set(), set()))
        ranks.add(failed.rank)
        places.add(nodes[failed.rank])
    for avoided in state.avoided:
        ranks, places = found.setdefault((avoided.function, avoided.request_key), (set(), set()))
        places.add(avoided.node)
        if avoided.rank is not None:
            ranks.add(avoided.rank)
    return found
