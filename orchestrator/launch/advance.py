"""From one situation of a launch to the next: after the probe, and after each round; pure.

Guards see more than a request does: ranks that refuse what a leader of their class compiled leave the class,
and those that refuse it for the same reasons form a class of their own, so that all classes that a first
compile brings to light compile side by side in the next round. An artifact that a rank cannot have at all
(another node's disk, no store) parts ranks by node, not by reason.

All of it is linear in the number of ranks and functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from orchestrator.launch.situation import (
    Action,
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
from worker.results import FunctionProbe


def begin(probes: Mapping[int, Sequence[FunctionProbe]], *, avoided: Iterable[Avoided] = ()) -> Situation:
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
    return Situation(round=0, demands=demands, offers=_found(demands), avoided=tuple(avoided))


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
    changes = _Changes(new={offer.digest for offer in situation.offers if offer.is_new}, nodes=nodes or {})
    for demand in situation.demands:
        changes.take(demand, actions[demand.slot], attempts.get(demand.slot))
    return replace(
        situation,
        round=situation.round + 1,
        demands=tuple(changes.staying),
        offers=_distinct((*changes.made, *situation.offers)),
        failed=(*situation.failed, *changes.failed),
        lost=(*situation.lost, *changes.lost),
    )


@dataclass(slots=True, kw_only=True)
class _Changes:
    """What one round changes, gathered demand by demand."""

    new: set[str]
    nodes: Mapping[int, int]
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
            # Without a digest its leader failed: it refused nothing, and waits for the next one.
            self.staying.append(self._refuse(demand, action, attempt) if attempt.digest else demand)

    def _take_compile(self, demand: Demand, action: Compile, attempt: Attempt) -> None:
        if attempt.ok:
            self.made.append(replace(_offer(demand, attempt.digest, demand.rank), is_new=True))
            return
        key = demand.own_key if action.alone else demand.class_key
        self.failed.append(Failed(class_key=key, rank=demand.rank, reason=attempt.reason))
        self.staying.append(demand)

    def _refuse(self, demand: Demand, action: Action, attempt: Attempt) -> Demand:
        refusal = f"{attempt.digest[:12]} refused: {attempt.reason}"
        apart = demand.apart
        if isinstance(action, AwaitLeader) or attempt.digest in self.new:
            where = f"{attempt.digest[:12]} out of reach of node {self.nodes.get(demand.rank, '')}"
            apart |= {where if attempt.out_of_reach else refusal}
        return replace(
            demand,
            refused=demand.refused | {attempt.digest},
            num_refused=demand.num_refused + 1,
            apart=apart,
            reason=f"{demand.reason}; {refusal}" if demand.reason else refusal,
        )


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
