"""From one situation of a launch to the next: after the probe, and after each round; pure.

Guards see more than a request does: ranks that refuse what a leader of their class compiled leave the class,
and those that refuse it for the same reasons form a class of their own, so that all classes that a first
compile brings to light compile side by side in the next round. An artifact that a rank cannot have at all
(another node's disk, no store) parts ranks by node, not by reason.

All of it is linear in the number of ranks and functions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from warmrank.orchestrator.config.models import AuditMode
from warmrank.orchestrator.errors import ForbiddenCompile
from warmrank.orchestrator.launch.situation import (
    Action,
    Adopt,
    Attempt,
    Avoided,
    AwaitLeader,
    Compile,
    Demand,
    Failed,
    GiveUp,
    Offer,
    Situation,
    Slot,
)
from warmrank.worker.results import FunctionProbe


def begin(
    probes: Mapping[int, Sequence[FunctionProbe]],
    *,
    avoided: Iterable[Avoided] = (),
    audit: AuditMode = "off",
) -> Situation:
    """The situation after the probe."""
    demands = tuple(
        Demand(
            rank=rank,
            function=probe.function,
            request_key=_wanted(probe),
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
    traces = {} if audit == "off" else traces
    offers = tuple(
        replace(offer, trace=traces[offer.digest], audit=audit) if offer.digest in traces else offer
        for offer in _found(demands)
    )
    return Situation(round=0, demands=demands, offers=offers, avoided=tuple(avoided), audit=audit)


def advance(
    situation: Situation,
    actions: Mapping[Slot, Action],
    attempts: Mapping[Slot, Attempt],
    *,
    nodes: Mapping[int, int] | None = None,
) -> Situation:
    """The situation after a round: whoever was refused stays, and what leaders made is offered first.

    Args:
        situation: before it.
        actions: its plan, one action for every demand.
        attempts: what came of every action but `GiveUp`.
        nodes: node of every rank; when given, what is out of reach parts ranks by node.
    """
    changes = _Changes(
        new={offer.digest for offer in situation.offers if offer.is_new},
        nodes=nodes or {},
        audit=situation.audit,
    )
    witnesses = _Witnesses(suspects=set(situation.suspects))
    for demand in situation.demands:
        action, attempt = actions[demand.slot], attempts.get(demand.slot)
        changes.take(demand, action, attempt)
        if isinstance(action, Adopt | AwaitLeader):
            witnesses.hear(demand, attempt)
    return replace(
        situation,
        round=situation.round + 1,
        demands=tuple(changes.staying),
        offers=tuple(map(witnesses.audited, _distinct((*changes.made, *situation.offers)))),
        suspects=frozenset(witnesses.suspects),
        failed=(*situation.failed, *changes.failed),
        lost=(*situation.lost, *changes.lost),
    )


def without(situation: Situation, misses: Iterable[ForbiddenCompile]) -> Situation:
    """The situation in which nobody wants what must not be compiled."""
    slots = {(rank, miss.function) for miss in misses for rank in miss.ranks}
    staying = tuple(demand for demand in situation.demands if demand.slot not in slots)
    return replace(situation, demands=staying)


def given_up(situation: Situation, may_wait: Collection[Slot]) -> tuple[Demand, ...]:
    """What was given up for good: not what may wait, and raised by itself."""
    raised = {failed.class_key for failed in situation.failed if failed.is_final}
    return tuple(
        demand
        for demand in situation.lost
        if demand.slot not in may_wait or raised.isdisjoint({demand.class_key, demand.own_key})
    )


@dataclass(slots=True, kw_only=True)
class _Changes:
    """What one round changes, gathered demand by demand."""

    new: set[str]
    nodes: Mapping[int, int]
    audit: AuditMode
    staying: list[Demand] = field(default_factory=list)
    made: list[Offer] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    lost: list[Demand] = field(default_factory=list)

    def take(self, demand: Demand, action: Action, attempt: Attempt | None) -> None:
        """Sort one demand in; only what was given up has no attempt."""
        if isinstance(action, GiveUp) or attempt is None:
            self.lost.append(demand)
        elif isinstance(action, Compile):
            self._take_compile(demand, action, attempt)
        elif not attempt.ok:
            demand = replace(demand, trace=attempt.trace or demand.trace)
            if attempt.takes and not attempt.difference:
                demand = replace(demand, takes=demand.takes | {attempt.digest})
            elif attempt.digest:
                demand = self._refuse(demand, action, attempt)
            # Without a digest its leader failed: it refused nothing, and waits for the next one.
            self.staying.append(demand)

    def _take_compile(self, demand: Demand, action: Compile, attempt: Attempt) -> None:
        if attempt.ok:
            offer = _offer(demand, attempt.digest, demand.rank)
            audit = self.audit if attempt.trace else "off"
            self.made.append(replace(offer, is_new=True, trace=attempt.trace, audit=audit))
            return
        key = demand.own_key if action.alone else demand.class_key
        self.failed.append(Failed(class_key=key, rank=demand.rank, reason=attempt.reason))
        self.staying.append(demand)

    def _refuse(self, demand: Demand, action: Action, attempt: Attempt) -> Demand:
        refusal = f"{attempt.digest[:12]} refused: {attempt.reason}"
        apart = demand.apart
        if attempt.takes:
            refusal = f"{attempt.digest[:12]} is traced otherwise here: {attempt.difference}"
            apart |= {f"traces {attempt.trace}" if attempt.trace else refusal}
        elif isinstance(action, AwaitLeader) or attempt.digest in self.new:
            where = f"{attempt.digest[:12]} out of reach of node {self.nodes.get(demand.rank, '')}"
            apart |= {where if attempt.out_of_reach else refusal}
        return replace(
            demand,
            refused=demand.refused | {attempt.digest},
            num_refused=demand.num_refused + 1,
            apart=apart,
            reason=f"{demand.reason}; {refusal}" if demand.reason else refusal,
        )


@dataclass(slots=True, kw_only=True)
class _Witnesses:
    """What audits showed in a round.

    Attributes:
        equal: function, request and digest of artifacts that somebody else traced the same.
        suspects: function and request of those that somebody traced otherwise, though its guards hold there.
    """

    equal: set[tuple[str, str, str]] = field(default_factory=set)
    suspects: set[tuple[str, str]] = field(default_factory=set)

    def hear(self, demand: Demand, attempt: Attempt | None) -> None:
        """Take in what a rank showed that was to adopt something."""
        if attempt is None:
            return
        asked = demand.function, demand.request_key
        if attempt.takes and attempt.difference:
            self.suspects.add(asked)
        elif attempt.trace and not attempt.difference:
            self.equal.add((*asked, attempt.digest))

    def audited(self, offer: Offer) -> Offer:
        """An offer, with what audits have yet to show of it."""
        asked = offer.function, offer.request_key
        if not offer.trace or offer.audit == "all":
            return offer
        if asked in self.suspects:
            return replace(offer, audit="all")
        return replace(offer, audit="off") if (*asked, offer.digest) in self.equal else offer


def _wanted(probe: FunctionProbe) -> str:
    """Ranks with other runtime state refuse each other's artifacts, so they need no round to find out."""
    if not probe.runtime_state:
        return probe.request_key
    return f"{probe.request_key} {sorted(probe.runtime_state.items())}"


def _offer(demand: Demand, digest: str, from_rank: int | None) -> Offer:
    return Offer(function=demand.function, request_key=demand.request_key, digest=digest, from_rank=from_rank)


def _found(demands: Sequence[Demand]) -> tuple[Offer, ...]:
    """What the probe found, each digest of a class once: first what a rank holds, then what only fits."""
    offers: dict[tuple[str, str, str], Offer] = {}
    for demand in demands:
        held = demand.function, demand.request_key, demand.held
        if demand.held and held not in offers:
            offers[held] = _offer(demand, demand.held, demand.rank)
    for demand in demands:
        fits = demand.function, demand.request_key, demand.fits
        if demand.fits and fits not in offers:
            offers[fits] = _offer(demand, demand.fits, None)
    return tuple(offers.values())


def _distinct(offers: Iterable[Offer]) -> tuple[Offer, ...]:
    """Each digest of a class once; the first holder stands for all."""
    first: dict[tuple[str, str, str], Offer] = {}
    for offer in offers:
        first.setdefault((offer.function, offer.request_key, offer.digest), offer)
    return tuple(first.values())
