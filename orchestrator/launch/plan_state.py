"""State of a launch's plan, and its step from round to round; pure and linear in ranks and functions.

Ranks whose requests and runtime state for a function are equal form a class. Guards see more than requests:
ranks that refuse a new artifact for the same reasons form a class of their own, so that all classes that a
first compile brings to light compile side by side. An artifact out of reach (another node's disk, no store)
parts ranks by node instead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from warmrank.orchestrator.causes import OF_THE_FUNCTION, FailureKind
from warmrank.orchestrator.config.models import AuditMode
from warmrank.orchestrator.errors import ForbiddenCompile
from warmrank.worker.results import FunctionProbe

Slot = tuple[int, str]  # A rank and a cached function

Asked = tuple[str, str]  # function and request key

ClassKey = tuple[str, str, frozenset[str]]
"""Function, request key, and what parts this class from others that ask for the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Use the artifact of the rank's own partition."""

    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopt:
    """Use an artifact of another rank."""

    digest: str
    from_rank: int | None  # None where no rank of this launch holds it
    auditors: tuple[int, ...] = ()  # must trace the same first, unless they have before


@dataclass(frozen=True, slots=True, kw_only=True)
class Compile:
    """Make the artifact; ``alone``: for this rank only, which has refused as much as a rank may."""

    alone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitLeader:
    """Adopt what this rank compiles in the same round; ``auditors`` as of `Adopt`."""

    leader: int
    auditors: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """Do nothing: two leaders failed to compile it, or one whose failure is final."""


Action = Load | Adopt | Compile | AwaitLeader | GiveUp


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

    @property
    def class_key(self) -> ClassKey:
        """Properties that the members of a class share."""
        return self.function, self.request_key, self.apart

    @property
    def own_key(self) -> ClassKey:
        """The class of a rank that compiles for itself."""
        return self.function, self.request_key, frozenset({f"rank {self.rank}"})

    def offer(self, digest: str, from_rank: int | None) -> Offer:
        """An artifact for all that ask for the same."""
        return Offer(function=self.function, request_key=self.request_key, digest=digest, from_rank=from_rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """An artifact that members of a class may adopt."""

    function: str
    request_key: str
    digest: str
    from_rank: int | None  # made it or holds it
    is_new: bool = False  # a leader of this launch made it
    trace: str = ""  # digest of the trace that it was made of
    audit: AuditMode = "off"  # who has yet to trace the same before it is adopted


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Avoided:
    """Node that a former attempt lost while it compiled this; ``rank``: if it is on that node again."""

    function: str
    request_key: str
    rank: int | None
    node: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanState:
    """Everything a round is planned from, after ``round`` others."""

    round: int
    demands: tuple[Demand, ...]  # still wanted, by rank, then in call order
    offers: tuple[Offer, ...]  # known to exist, the best first
    failed: tuple[Failed, ...] = ()  # leaders that could not compile
    lost: tuple[Demand, ...] = ()  # given up
    avoided: tuple[Avoided, ...] = ()
    audit: AuditMode = "off"
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
    probes: Mapping[int, Sequence[FunctionProbe]],
    *,
    avoided: Iterable[Avoided] = (),
    audit: AuditMode = "off",
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
    held = [demand.offer(demand.held, demand.rank) for demand in demands if demand.held]
    fitting = [demand.offer(demand.fits, None) for demand in demands if demand.fits]
    offers = tuple(
        replace(offer, trace=traces[offer.digest], audit=audit)
        if audit != "off" and offer.digest in traces
        else offer
        for offer in _distinct([*held, *fitting])
    )
    return PlanState(round=0, demands=demands, offers=offers, avoided=tuple(avoided), audit=audit)


def apply_round(
    state: PlanState,
    actions: Mapping[Slot, Action],
    attempts: Mapping[Slot, Attempt],
    *,
    nodes: Mapping[int, int],
) -> PlanState:
    """The state after a round: who was refused stays, and what leaders made is offered first.

    ``attempts`` has every action but `GiveUp`; ``nodes`` gives each rank's node: what is out of reach parts
    ranks by node.
    """
    new = {offer.digest for offer in state.offers if offer.is_new}
    staying: list[Demand] = []
    made: list[Offer] = []
    failed, lost = list(state.failed), list(state.lost)
    equal: set[tuple[str, str, str]] = set()  # what somebody else traced the same
    suspects = set(state.suspects)
    for demand in state.demands:
        action, attempt = actions[demand.slot], attempts.get(demand.slot)
        if isinstance(action, GiveUp) or attempt is None:
            lost.append(demand)
        elif isinstance(action, Compile) and attempt.ok:
            audit = state.audit if attempt.trace else "off"
            offer = demand.offer(attempt.digest, demand.rank)
            made.append(replace(offer, is_new=True, trace=attempt.trace, audit=audit))
        elif isinstance(action, Compile):
            key = demand.own_key if action.alone else demand.class_key
            failed.append(Failed(class_key=key, rank=demand.rank, reason=attempt.reason, error=attempt.error))
            staying.append(demand)
        else:
            if not isinstance(action, Load) and attempt.takes and attempt.difference:
                suspects.add(demand.asked)
            elif not isinstance(action, Load) and attempt.trace and not attempt.difference:
                equal.add((*demand.asked, attempt.digest))
            if not attempt.ok:
                is_new = isinstance(action, AwaitLeader) or attempt.digest in new
                staying.append(_refused(demand, attempt, is_new=is_new, node=nodes[demand.rank]))
    return replace(
        state,
        round=state.round + 1,
        demands=tuple(staying),
        offers=tuple(_audited(offer, equal, suspects) for offer in _distinct((*made, *state.offers))),
        suspects=frozenset(suspects),
        failed=tuple(failed),
        lost=tuple(lost),
    )


def _audited(offer: Offer, equal: Collection[tuple[str, str, str]], suspects: Collection[Asked]) -> Offer:
    """The offer, with what audits have yet to show of it."""
    asked = offer.function, offer.request_key
    if not offer.trace or offer.audit == "all":
        return offer
    if asked in suspects:
        return replace(offer, audit="all")
    return replace(offer, audit="off") if (*asked, offer.digest) in equal else offer


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
        where = f"{short} out of reach of node {node}"
        apart |= {where if attempt.out_of_reach else refusal}
    return replace(
        demand,
        refused=demand.refused | {attempt.digest},
        num_refused=demand.num_refused + 1,
        apart=apart,
        reason=f"{demand.reason}; {refusal}" if demand.reason else refusal,
    )


def without(state: PlanState, misses: Iterable[ForbiddenCompile]) -> PlanState:
    """The state in which nobody wants what must not be compiled."""
    slots = {(rank, miss.function) for miss in misses for rank in miss.ranks}
    return replace(state, demands=tuple(demand for demand in state.demands if demand.slot not in slots))


def given_up(state: PlanState, may_wait: Collection[Slot]) -> tuple[Demand, ...]:
    """The demands given up for good: not what may wait, and raised by itself."""
    raised = {failed.class_key for failed in state.failed if failed.is_final}
    return tuple(
        demand
        for demand in state.lost
        if demand.slot not in may_wait or raised.isdisjoint({demand.class_key, demand.own_key})
    )


def _distinct(offers: Iterable[Offer]) -> tuple[Offer, ...]:
    """Each digest of a class once; the first holder stands for all."""
    first: dict[tuple[str, str, str], Offer] = {}
    for offer in offers:
        first.setdefault((offer.function, offer.request_key, offer.digest), offer)
    return tuple(first.values())
