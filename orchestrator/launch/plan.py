"""The plan of a launch: pure functions from what ranks found to one action for every rank and function.

A round goes: `plan_round`, the driver carries it out, `advance`. Ranks whose requests and runtime state for
a function are equal form a class. Within a class a rank loads what it holds, else adopts what fits or is
offered, else one leader compiles and the others wait for it, to adopt the result. Whoever refuses an offer
(its guards do not hold there) stays for the next round. The rounds end: each gives every rank that stays one
offer less, and where no offer is left a leader is satisfied; after ``max_rounds`` each rank that stays
compiles for itself.

Nothing here does I/O, and no rank decides anything alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.errors import ForbiddenCompile
from worker.results import FunctionProbe

Slot = tuple[int, str]
"""A rank and a cached function."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Use the artifact of the rank's own partition."""

    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopt:
    """Use an artifact that another rank holds; ``from_rank`` is None when no rank of this launch holds it."""

    digest: str
    from_rank: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Compile:
    """Make the artifact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitLeader:
    """Adopt what this rank compiles in the same round."""

    leader: int


Action = Load | Adopt | Compile | AwaitLeader


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """A rank that has no artifact yet for a function.

    Attributes:
        rank: global rank.
        function: name of the cached function.
        request_key: what it asks for, with the runtime state that is declared for it; equal ones make a
            class.
        held: digest that lies in the rank's own partition; empty for none.
        fits: digest from elsewhere that the probe found to fit; empty for none.
        reason: why nothing could be used so far.
        refused: digests that turned out not to fit.
    """

    rank: int
    function: str
    request_key: str
    held: str = ""
    fits: str = ""
    reason: str = ""
    refused: frozenset[str] = frozenset()

    @property
    def slot(self) -> Slot:
        """The rank and function."""
        return self.rank, self.function

    @property
    def class_key(self) -> tuple[str, str]:
        """What the members of a class share."""
        return self.function, self.request_key


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """An artifact that members of a class may adopt."""

    function: str
    request_key: str
    digest: str
    from_rank: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Everything a round is planned from.

    Attributes:
        round: number of rounds carried out.
        demands: what is still wanted, by rank, then in call order.
        offers: what is known to exist, the best first.
    """

    round: int
    demands: tuple[Demand, ...]
    offers: tuple[Offer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What came of an action: the digest that was used or refused, and why."""

    ok: bool
    digest: str
    reason: str = ""


def begin(probes: Mapping[int, Sequence[FunctionProbe]]) -> Situation:
    """The situation after the probe."""
    demands = tuple(
        Demand(
            rank=rank,
            function=probe.function,
            request_key=_wanted(probe),
            held=probe.digest if probe.state == "hit" else "",
            fits=probe.digest if probe.state == "adoptable" else "",
            reason=probe.reason,
        )
        for rank in sorted(probes)
        for probe in probes[rank]
    )
    held = (_offer(demand, demand.held, demand.rank) for demand in demands if demand.held)
    fits = (_offer(demand, demand.fits, None) for demand in demands if demand.fits)
    return Situation(round=0, demands=demands, offers=_distinct((*held, *fits)))


def classes(demands: Iterable[Demand]) -> dict[tuple[str, str], list[Demand]]:
    """Demands by function and request key, in order of their first member."""
    found: dict[tuple[str, str], list[Demand]] = {}
    for demand in demands:
        found.setdefault(demand.class_key, []).append(demand)
    return found


def plan_round(
    situation: Situation, *, max_rounds: int, nodes: Mapping[int, int] | None = None
) -> dict[Slot, Action]:
    """One action for every demand.

    Args:
        situation: what is wanted and what exists.
        max_rounds: from this round on each rank compiles for itself.
        nodes: node of every rank; when given, leaders are spread over nodes, then over a node's ranks;
            otherwise the lowest rank of a class leads it.
    """
    if situation.round >= max_rounds:
        return {demand.slot: Compile() for demand in situation.demands}
    offers = _offers_by_class(situation.offers)
    actions: dict[Slot, Action] = {}
    leaders: dict[tuple[str, str], int] = {}
    for key, members in classes(situation.demands).items():
        for demand in members:
            action = _without_compiling(demand, offers.get(key, ()))
            if action is not None:
                actions[demand.slot] = action
        needy = [demand.rank for demand in members if demand.slot not in actions]
        if needy:
            # Calls of one function have one leader: the artifact of the first may cover the others.
            family = (key[0].partition("[")[0], key[1])
            leader = leaders.get(family, -1)
            if leader not in needy:
                leader = leaders[family] = _leader(needy, leaders.values(), nodes)
            for rank in needy:
                actions[rank, key[0]] = Compile() if rank == leader else AwaitLeader(leader=leader)
    return actions


def advance(
    situation: Situation, actions: Mapping[Slot, Action], attempts: Mapping[Slot, Attempt]
) -> Situation:
    """The situation after a round: whoever was refused stays, and what leaders made is offered first."""
    made = [
        _offer(demand, attempts[demand.slot].digest, demand.rank)
        for demand in situation.demands
        if isinstance(actions[demand.slot], Compile) and attempts[demand.slot].ok
    ]
    return Situation(
        round=situation.round + 1,
        demands=tuple(
            _refuse(demand, attempts[demand.slot])
            for demand in situation.demands
            if not attempts[demand.slot].ok
        ),
        offers=_distinct((*made, *situation.offers)),
    )


def forbidden(situation: Situation, actions: Mapping[Slot, Action]) -> tuple[ForbiddenCompile, ...]:
    """Every function that the plan would compile, with its ranks grouped by reason."""
    ranks: dict[tuple[str, str], list[int]] = {}
    for demand in situation.demands:
        if isinstance(actions[demand.slot], Compile | AwaitLeader):
            ranks.setdefault((demand.function, demand.reason), []).append(demand.rank)
    return tuple(
        ForbiddenCompile(function=function, reason=reason, ranks=tuple(members))
        for (function, reason), members in ranks.items()
    )


def _without_compiling(demand: Demand, offers: Sequence[Offer]) -> Load | Adopt | None:
    if demand.held and demand.held not in demand.refused:
        return Load(digest=demand.held)
    if demand.fits and demand.fits not in demand.refused:
        holder = next((offer.from_rank for offer in offers if offer.digest == demand.fits), None)
        return Adopt(digest=demand.fits, from_rank=holder)
    for offer in offers:
        if offer.digest not in demand.refused:
            return Adopt(digest=offer.digest, from_rank=offer.from_rank)
    return None


def _leader(needy: Sequence[int], leaders: Iterable[int], nodes: Mapping[int, int] | None) -> int:
    """The lowest rank of those that lead least, on the node that leads least."""
    if nodes is None:
        return min(needy)
    led = Counter(leaders)
    led_by_node = Counter(nodes[rank] for rank in led.elements())
    return min(needy, key=lambda rank: (led_by_node[nodes[rank]], led[rank], rank))


def _wanted(probe: FunctionProbe) -> str:
    """Ranks with other runtime state refuse each other's artifacts, so they need no round to find out."""
    state = sorted(probe.runtime_state.items())
    return f"{probe.request_key} {state}" if state else probe.request_key


def _offer(demand: Demand, digest: str, from_rank: int | None) -> Offer:
    return Offer(function=demand.function, request_key=demand.request_key, digest=digest, from_rank=from_rank)


def _distinct(offers: Iterable[Offer]) -> tuple[Offer, ...]:
    """Each digest of a class once; the first holder stands for all."""
    first: dict[tuple[str, str, str], Offer] = {}
    for offer in offers:
        first.setdefault((offer.function, offer.request_key, offer.digest), offer)
    return tuple(first.values())


def _offers_by_class(offers: Iterable[Offer]) -> dict[tuple[str, str], list[Offer]]:
    found: dict[tuple[str, str], list[Offer]] = {}
    for offer in offers:
        found.setdefault((offer.function, offer.request_key), []).append(offer)
    return found


def _refuse(demand: Demand, attempt: Attempt) -> Demand:
    refusal = f"{attempt.digest[:12]} refused: {attempt.reason}"
    return replace(
        demand,
        refused=demand.refused | {attempt.digest},
        reason=f"{demand.reason}; {refusal}" if demand.reason else refusal,
    )
