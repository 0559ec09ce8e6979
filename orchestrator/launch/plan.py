"""The plan of a launch: one action for every rank and function, round by round; pure.

A round goes: `plan_round`, the driver carries it out, `apply_round`. Ranks whose requests and runtime state
for a function are equal form a class. In a class a rank loads what it holds, else adopts what fits or is
offered, else one leader compiles, and the others adopt the result. Guards see more than requests: ranks that
refuse a new artifact for the same reasons form a class of their own in the next round, so that all classes
that a first compile brings to light compile side by side; an artifact out of reach (another node's disk, no
store) parts ranks by node instead. A class whose leader failed stays, too: another one tries, on another node
if there is one; a class whose second leader failed, or whose function itself raised, is given up, and nobody
else. The rounds end: each leaves every rank that stays one offer less, or its class one leader less, and a
rank that has refused ``max_rounds`` offers compiles for itself.

What a leader of this launch compiled is adopted only after an audit: another rank of the class traces as
well, beside the leader, and must come to the same (`Cluster.audit`). If it does not, but conditions of the
artifact keep it away, the artifact stays on offer, and a rank whose guards hold audits it in the next round.
If nothing kept it away, every rank traces before it adopts (`Offer.audit`).

A rank compiles one function after the other (a process has one tracer), the ranks of a node side by side in
as many lanes as the node has cores for. Leaders are chosen greedily: by falling cost, each where it would be
ready first (LPT; Graham, "Bounds on Multiprocessing Timing Anomalies", 1969: at most a third longer than
optimal). Linear in ranks times functions, but for sorting the classes that compile.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Literal, NamedTuple

from warmrank.cache_store.text import grouped
from warmrank.orchestrator.config.models import AuditMode
from warmrank.orchestrator.errors import OF_THE_FUNCTION, FailureKind
from warmrank.orchestrator.launch.events import ClassAction, RankClass
from warmrank.worker.results import FunctionProbe, function_of_unit

MAX_LEADERS = 2  # leaders that try to compile for a class before it is given up

Slot = tuple[int, str]  # A rank and a cached function

Asked = tuple[str, str]  # function and request key

ClassKey = tuple[str, str, frozenset[str]]
"""Function, request key, and what parts this class from others that ask for the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Everything about ranks that is the same in every round."""

    nodes: Mapping[int, int]  # of every rank
    max_rounds: int  # offers that a rank may refuse before it compiles for itself
    cpus_per_rank: float = 1.0  # reserved
    positions: Mapping[int, tuple[int, ...]] = field(default_factory=dict)  # on the parallel axes
    audit: AuditMode = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """A rank's part in a round for one function."""

    kind: ClassAction | Literal["give up"]  # "load" is from the rank's own partition, "adopt" from another's
    digest: str = ""  # of the artifact; empty for one that is made in this round
    from_rank: int | None = None  # who makes or holds it; None where no rank of this launch does
    auditor: int | None = None  # must trace the same before the rank adopts, unless it has before

    @property
    def leader(self) -> int | None:
        """The rank that compiles in this round what this one gets; None where nobody has to."""
        return None if self.digest else self.from_rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """A rank that has no artifact yet for a function; artifacts go by their digests."""

    rank: int
    function: str
    request_key: str  # with declared runtime state
    cost: int = 1
    held: str = ""  # in the rank's own partition
    fits: str = ""  # from elsewhere, and was found to fit
    reason: str = ""
    refused: frozenset[str] = frozenset()  # did not fit
    num_refused: int = 0
    apart: frozenset[str] = frozenset()  # what it refused of this launch's own leaders, and why
    trace: str = ""  # this rank's own
    takes: frozenset[str] = frozenset()  # wait for an audit: their guards hold here

    @property
    def slot(self) -> Slot:
        """The rank and function."""
        return self.rank, self.function

    @property
    def asked(self) -> Asked:
        """Function and request key."""
        return self.function, self.request_key

    def class_key(self, cluster: Cluster) -> ClassKey:
        """Properties that the members of a class share; of a rank that compiles for itself, its own."""
        is_alone = self.num_refused >= cluster.max_rounds
        return *self.asked, frozenset({f"rank {self.rank}"}) if is_alone else self.apart


class Offer(NamedTuple):
    """An artifact that members of a class may adopt."""

    asked: Asked
    digest: str
    from_rank: int | None  # made it or holds it
    trace: str = ""  # digest of the trace that it was made of
    audit: AuditMode = "off"  # who has yet to trace the same before it is adopted
    is_new: bool = False  # a leader of this launch made it


class Failed(NamedTuple):
    """A leader that could not compile for its class; ``error``: name of the exception's type."""

    class_key: ClassKey
    rank: int
    reason: str
    error: str = ""

    @property
    def is_final(self) -> bool:
        """Another leader would fail alike: the function itself raised."""
        return self.error == FailureKind.FUNCTION_RAISED

    @property
    def comes_again(self) -> bool:
        """The same rank would fail alike."""
        return self.is_final or self.error in OF_THE_FUNCTION


class Tried(NamedTuple):
    """A leader that failed at a function, or was lost, here or on a node of a former attempt."""

    function: str
    rank: int
    node: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanState:
    """Everything a round is planned from, after ``round`` others."""

    cluster: Cluster
    round: int
    demands: tuple[Demand, ...]  # still wanted, by rank, then in call order
    offers: tuple[Offer, ...]  # known to exist, the best first
    failed: tuple[Failed, ...] = ()  # leaders that could not compile
    lost: tuple[Demand, ...] = ()  # given up
    avoided: tuple[Tried, ...] = ()  # by leaders of former attempts
    suspects: frozenset[Asked] = frozenset()  # depend on a rank in their trace, though no condition says so


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The outcome of an action."""

    ok: bool
    digest: str  # used or refused; empty when a compile failed
    reason: str = ""
    error: str = ""  # name of the type of the exception
    out_of_reach: bool = False  # not to be had on this rank's node, so its guards were not asked
    takes: bool = False  # not ok because of an audit; the guards hold here
    trace: str = ""  # digest of what the rank compiled or traced
    difference: str = ""  # the first from the artifact's


def begin(
    probes: Mapping[int, Sequence[FunctionProbe]], cluster: Cluster, *, avoided: Iterable[Tried] = ()
) -> PlanState:
    """The state after the probe."""
    demands = tuple(
        Demand(
            rank=rank,
            function=probe.function,
            # Ranks with other runtime state refuse each other's artifacts, so they need no round to find out.
            request_key=f"{probe.request_key} {sorted(probe.runtime_state.items())}"
            if probe.runtime_state
            else probe.request_key,
            cost=probe.cost,
            held=probe.digest if probe.state == "hit" else "",
            fits=probe.digest if probe.state == "adoptable" else "",
            reason=probe.reason,
        )
        for rank in sorted(probes)
        for probe in probes[rank]
    )
    # Left behind by a launch that was cut off before its audits were through, or found at fault by them.
    traces = {probe.digest: probe.trace for found in probes.values() for probe in found if probe.trace}
    # First what a rank holds, then what only fits.
    offers = [Offer(demand.asked, demand.held, demand.rank) for demand in demands if demand.held]
    offers += [Offer(demand.asked, demand.fits, None) for demand in demands if demand.fits]
    offers = [
        offer._replace(trace=traces[offer.digest], audit=cluster.audit) if offer.digest in traces else offer
        for offer in offers
    ]
    return PlanState(
        cluster=cluster, round=0, demands=demands, offers=_distinct(offers), avoided=tuple(avoided)
    )


def plan_round(state: PlanState) -> dict[Slot, Action]:
    """One action for every demand; what compiles comes last, the longest first."""
    make = cache(Action)  # thousands of equal ones would take longer to make than to plan
    offers: dict[Asked, dict[str, Offer]] = {}
    for offer in state.offers:
        offers.setdefault(offer.asked, {})[offer.digest] = offer
    actions: dict[Slot, Action] = {}
    needy: dict[ClassKey, list[Demand]] = {}
    waiting: dict[Offer, list[Demand]] = {}
    for demand in state.demands:
        known = offers.get(demand.asked, {})
        digest = "" if demand.num_refused >= state.cluster.max_rounds else _digest_for(demand, known.values())
        found = known.get(digest)
        if not digest:
            needy.setdefault(demand.class_key(state.cluster), []).append(demand)
        elif digest == demand.held:
            actions[demand.slot] = make(kind="load", digest=digest)
        elif found and found.audit != "off" and digest != demand.fits and not demand.trace:
            waiting.setdefault(found, []).append(demand)
        else:
            from_rank = found.from_rank if found else None
            actions[demand.slot] = make(kind="adopt", digest=digest, from_rank=from_rank)
    failed = grouped((one.class_key, one) for one in state.failed)
    for key in [key for key, members in needy.items() if is_hopeless(members, failed.get(key, ()))]:
        actions |= dict.fromkeys((demand.slot for demand in needy.pop(key)), make(kind="give up"))
    spread = _Spread(state)
    leaders = spread.leaders(needy)
    parts = [(members, each.from_rank, each.audit, each.digest) for each, members in waiting.items()]
    parts += [(needy[key], leader, state.cluster.audit, "") for key, leader in leaders.items()]
    for members, maker, audit, digest in parts:
        auditor = spread.auditor(members, maker, takes=digest) if audit == "one" else None
        for demand in members:
            if not digest and demand.rank == maker:
                actions[demand.slot] = make(kind="compile", from_rank=maker)
                continue
            traces = demand.rank if audit == "all" else auditor
            actions[demand.slot] = make(kind="adopt", digest=digest, from_rank=maker, auditor=traces)
    return actions


def _digest_for(demand: Demand, offers: Iterable[Offer]) -> str:
    """The artifact that a rank gets without a compile; empty for none."""
    for own in (demand.held, demand.fits):
        if own and own not in demand.refused:
            return own
    for offer in offers:  # ends after at most one step more than it has refused
        is_traced_otherwise = demand.trace and offer.trace and demand.trace != offer.trace
        if offer.digest not in demand.refused and not is_traced_otherwise:
            return offer.digest
    return ""


def is_hopeless(members: Iterable[Demand], failed: Collection[Failed]) -> bool:
    """True for a class that has no leader left to try, or none that would not fail alike."""
    again = {one.rank for one in failed if one.comes_again}
    return (
        len(failed) >= MAX_LEADERS
        or any(one.is_final for one in failed)
        or all(demand.rank in again for demand in members)
    )


class _Spread:
    """Hands out a round's leaders and auditors; remembers who is how busy."""

    def __init__(self, state: PlanState) -> None:
        self._state, self._cluster = state, state.cluster
        num_ranks, cpus = Counter(self._cluster.nodes.values()), min(1.0, self._cluster.cpus_per_rank)
        self._lanes = {node: max(1, int(number * cpus)) for node, number in num_ranks.items()}
        self._of_rank: Counter[int] = Counter()
        self._of_node: Counter[int] = Counter()
        self._num_leaders: Counter[int] = Counter()
        self._auditor_of: dict[tuple[str, int | None], int] = {}

    def leaders(self, needy: Mapping[ClassKey, Sequence[Demand]]) -> dict[ClassKey, int]:
        """A leader for every class, the longest compiles first."""
        # Calls of one function have one leader: the artifact of the first may cover the others.
        families = grouped(((function_of_unit(key[0]), key[1], key[2]), key) for key in needy)
        costs = {family: sum(_cost(needy[key]) for key in keys) for family, keys in families.items()}
        nodes = self._cluster.nodes
        failed = (Tried(one.class_key[0], one.rank, nodes[one.rank]) for one in self._state.failed)
        at_ranks: defaultdict[str, set[int]] = defaultdict(set)
        at_nodes: defaultdict[str, set[int]] = defaultdict(set)
        for function, rank, node in (*failed, *self._state.avoided):
            at_nodes[function].add(node)
            if nodes.get(rank) == node:  # else it sits on another one now
                at_ranks[function].add(rank)
        found: dict[ClassKey, int] = {}
        for family in sorted(families, key=lambda family: -costs[family]):  # stable: equal ones in call order
            leader: int | None = None
            for key in families[family]:
                ranks = {demand.rank for demand in needy[key]}
                if leader is None or leader not in ranks - at_ranks[key[0]]:
                    leader = self._choose(ranks, _cost(needy[key]), at_ranks[key[0]], at_nodes[key[0]])
                self._add(leader, _cost(needy[key]))
                found[key] = leader
        return found

    def _choose(self, candidates: Iterable[int], cost: int, ranks: set[int], nodes: set[int]) -> int:
        """The best leader: never one of ``ranks`` if there is another, rather not on one of ``nodes``."""

        def rating(rank: int) -> tuple[bool, bool, bool, float, float, int, int]:
            node = self._cluster.nodes[rank]
            lanes = self._lanes[node]
            own, on_node = self._of_rank.get(rank, 0), self._of_node.get(node, 0)
            is_full = not own and self._num_leaders.get(node, 0) >= lanes
            ready = max(own + cost, (on_node + cost) / lanes)
            return rank in ranks, node in nodes, is_full, ready, on_node / lanes, own, rank

        return min(candidates, key=rating)

    def auditor(self, members: Sequence[Demand], maker: int | None, *, takes: str) -> int | None:
        """The rank that must trace the same before others adopt from ``maker``; None where nobody does.

        Of an artifact on offer, ``takes``, rather somebody whose guards are known to hold.
        """
        others = [demand for demand in members if demand.rank != maker]
        if not others:
            return None
        willing = [demand for demand in others if takes in demand.takes] or others
        candidates = {demand.rank for demand in willing}
        # Calls of one function have one auditor: what it traced for the first may cover the others.
        family = function_of_unit(others[0].function), maker
        auditor = self._auditor_of.get(family)
        if auditor not in candidates:
            auditor = self._choose_auditor(candidates, maker if maker is not None else others[0].rank)
            self._auditor_of[family] = auditor
            self._add(auditor, _cost(willing))
        return auditor

    def _choose_auditor(self, candidates: Iterable[int], leader: int) -> int:
        """The rank that differs most from a leader, by node and parallel axes.

        Of several rather who is idle, and whose indices are far off: code that treats ranks in two ways has
        rather a first or last one, or halves, than neighbours.
        """
        nodes, positions = self._cluster.nodes, self._cluster.positions

        def rating(rank: int) -> tuple[int, int, int, int, int]:
            places = zip(positions.get(rank, ()), positions.get(leader, ()), strict=True)
            distances = [abs(nodes[rank] - nodes[leader]), *(abs(one - other) for one, other in places)]
            own, on_node = self._of_rank.get(rank, 0), self._of_node.get(nodes[rank], 0)
            return distances.count(0), own, on_node, -sum(distances), rank

        return min(candidates, key=rating)

    def _add(self, rank: int, cost: int) -> None:
        """Note what a rank compiles or traces as well."""
        node = self._cluster.nodes[rank]
        self._num_leaders[node] += not self._of_rank[rank]
        self._of_rank[rank] += cost
        self._of_node[node] += cost


def _cost(members: Sequence[Demand]) -> int:
    return max(1, *(demand.cost for demand in members))


def auditing(state: PlanState, actions: Mapping[Slot, Action]) -> dict[int, list[str]]:
    """Functions that each rank traces for an audit, besides what it compiles, in the order of the plan."""
    traced = {demand.slot for demand in state.demands if demand.trace}
    return grouped(slot for slot, each in actions.items() if slot[0] == each.auditor and slot not in traced)


def forbidden(state: PlanState, actions: Mapping[Slot, Action]) -> list[Demand]:
    """The demands that the plan would compile for."""
    return [demand for demand in state.demands if actions[demand.slot].leader is not None]


def rank_classes(state: PlanState, actions: Mapping[Slot, Action]) -> tuple[RankClass, ...]:
    """The plan as people see it; what was given up is not in it."""
    found: dict[tuple[str, str, ClassAction, int | None], list[int]] = {}
    tracing = {(rank, name) for rank, names in auditing(state, actions).items() for name in names}
    for demand in state.demands:
        action = actions[demand.slot]
        if action.kind != "give up":
            kind = "compile" if action.leader is not None else action.kind
            found.setdefault((*demand.asked, kind, action.leader), []).append(demand.rank)
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


def apply_round(
    state: PlanState, actions: Mapping[Slot, Action], attempts: Mapping[Slot, Attempt]
) -> PlanState:
    """The state after a round: who was refused stays, and what leaders made is offered first.

    ``attempts`` has every action but those that give up.
    """
    cluster = state.cluster
    new = {offer.digest for offer in state.offers if offer.is_new}
    staying: list[Demand] = []
    made: list[Offer] = []
    failed, lost = list(state.failed), list(state.lost)
    equal: set[tuple[Asked, str]] = set()  # what somebody else traced the same
    suspects = set(state.suspects)
    for demand in state.demands:
        action, attempt = actions[demand.slot], attempts.get(demand.slot)
        if attempt is None:
            lost.append(demand)
        elif action.kind == "compile" and attempt.ok:
            trace, audit = attempt.trace, cluster.audit if attempt.trace else "off"
            made.append(Offer(demand.asked, attempt.digest, demand.rank, trace, audit, is_new=True))
        elif action.kind == "compile":
            failed.append(Failed(demand.class_key(cluster), demand.rank, attempt.reason, attempt.error))
            staying.append(demand)
        else:
            if action.kind == "adopt" and attempt.takes and attempt.difference:
                suspects.add(demand.asked)
            elif action.kind == "adopt" and attempt.trace and not attempt.difference:
                equal.add((demand.asked, attempt.digest))
            if not attempt.ok:
                is_new = action.leader is not None or attempt.digest in new
                staying.append(_refused(demand, attempt, is_new=is_new, node=cluster.nodes[demand.rank]))
    return replace(
        state,
        round=state.round + 1,
        demands=tuple(staying),
        offers=tuple(_audited(offer, equal, suspects) for offer in _distinct((*made, *state.offers))),
        suspects=frozenset(suspects),
        failed=tuple(failed),
        lost=tuple(lost),
    )


def _audited(offer: Offer, equal: Collection[tuple[Asked, str]], suspects: Collection[Asked]) -> Offer:
    """The offer, with what audits have yet to show of it."""
    if not offer.trace or offer.audit == "all":
        return offer
    if offer.asked in suspects:
        return offer._replace(audit="all")
    return offer._replace(audit="off") if (offer.asked, offer.digest) in equal else offer


def _refused(demand: Demand, attempt: Attempt, *, is_new: bool, node: int) -> Demand:
    """The demand of a rank that did not get what it was to adopt."""
    demand = replace(demand, trace=attempt.trace or demand.trace)
    if attempt.takes and not attempt.difference:
        return replace(demand, takes=demand.takes | {attempt.digest})
    if not attempt.digest:
        return demand  # its leader failed: it refused nothing, and waits for the next one
    short, apart = attempt.digest[:12], demand.apart
    refusal = f"{short} refused: {attempt.reason}"
    if attempt.takes:
        refusal = f"{short} is traced otherwise here: {attempt.difference}"
        apart |= {f"traces {attempt.trace}" if attempt.trace else refusal}
    elif is_new:
        apart |= {f"{short} out of reach of node {node}" if attempt.out_of_reach else refusal}
    return replace(
        demand,
        refused=demand.refused | {attempt.digest},
        num_refused=demand.num_refused + 1,
        apart=apart,
        reason=f"{demand.reason}; {refusal}" if demand.reason else refusal,
    )


def _distinct(offers: Iterable[Offer]) -> tuple[Offer, ...]:
    """Each digest of a class once; the first holder stands for all."""
    first = grouped(((offer.asked, offer.digest), offer) for offer in offers)
    return tuple(members[0] for members in first.values())
