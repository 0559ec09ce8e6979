"""State of a launch's plan, and its step from round to round; pure and linear in ranks and functions.

Ranks whose requests and runtime state for a function are equal form a class. Guards see more than a request
does: ranks that refuse what a leader of their class compiled leave the class, and those that refuse it for
the same reasons form a class of their own, so that all classes that a first compile brings to light compile
side by side in the next round. An artifact that a rank cannot have at all (another node's disk, no store)
parts ranks by node, not by reason.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from warmrank.orchestrator.config.models import AuditMode
from warmrank.orchestrator.errors import ForbiddenCompile
from warmrank.worker.results import FunctionProbe

Slot = tuple[int, str]
"""A rank and a cached function."""

ClassKey = tuple[str, str, frozenset[str]]
"""Function, request key, and what parts this class from others that ask for the same."""


OF_THE_FUNCTION = frozenset({"FunctionRaised"})
"""Errors of the user's own code, by the names of `worker.errors`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Use the artifact of the rank's own partition."""

    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopt:
    """Use an artifact that another rank holds.

    Attributes:
        digest: the artifact's.
        from_rank: who made or holds it; None when no rank of this launch does.
        auditors: ranks whose own trace must be equal to the artifact's before; each of them traces now,
            unless it has before.
    """

    digest: str
    from_rank: int | None
    auditors: tuple[int, ...] = ()


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
    """A rank that has no artifact yet for a function.

    Attributes:
        rank: global rank.
        function: name of the cached function.
        request_key: what it asks for, with the runtime state that is declared for it; equal ones make a
            class.
        cost: what compiling it takes, as in `FunctionProbe`.
        held: digest that lies in the rank's own partition; empty for none.
        fits: digest from elsewhere that the probe found to fit; empty for none.
        reason: why nothing could be used so far.
        refused: digests that turned out not to fit.
        num_refused: how often it refused something.
        apart: what it refused of this launch's own leaders, and why.
        trace: digest of what this rank itself traced for an audit; empty while it has not.
        takes: digests whose guards hold here, and which are not adopted before an audit.
    """

    rank: int
    function: str
    request_key: str
    cost: int = 1
    held: str = ""
    fits: str = ""
    reason: str = ""
    refused: frozenset[str] = frozenset()
    num_refused: int = 0
    apart: frozenset[str] = frozenset()
    trace: str = ""
    takes: frozenset[str] = frozenset()

    @property
    def slot(self) -> Slot:
        """The rank and function."""
        return self.rank, self.function

    @property
    def class_key(self) -> ClassKey:
        """What the members of a class share."""
        return self.function, self.request_key, self.apart

    @property
    def own_key(self) -> ClassKey:
        """The class of a rank that compiles for itself."""
        return self.function, self.request_key, frozenset({f"rank {self.rank}"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """An artifact that members of a class may adopt.

    Attributes:
        function: what it is of.
        request_key: for whom.
        digest: its digest.
        from_rank: who made or holds it.
        is_new: a leader of this launch made it.
        trace: digest of the trace that it was made of; of a new one.
        audit: who has yet to trace the same before it is adopted: one rank, every rank, nobody.
    """

    function: str
    request_key: str
    digest: str
    from_rank: int | None
    is_new: bool = False
    trace: str = ""
    audit: AuditMode = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A leader that could not compile for its class; ``error``: name of the exception's type."""

    class_key: ClassKey
    rank: int
    reason: str
    error: str = ""

    @property
    def is_final(self) -> bool:
        """Whether another leader of the class would fail alike: the function itself raised."""
        return self.error in OF_THE_FUNCTION


@dataclass(frozen=True, slots=True, kw_only=True)
class Avoided:
    """Where a former attempt of the launch was lost while it compiled this.

    Attributes:
        function: what it compiled.
        request_key: for whom.
        rank: the rank that was lost, if it is on that node again; otherwise None.
        node: the node.
    """

    function: str
    request_key: str
    rank: int | None
    node: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanState:
    """Everything a round is planned from.

    Attributes:
        round: number of rounds carried out.
        demands: what is still wanted, by rank, then in call order.
        offers: what is known to exist, the best first.
        failed: leaders that could not compile.
        lost: demands that were given up.
        avoided: where compiles should rather not be tried again.
        audit: who traces what a leader compiles.
        suspects: functions, with what was asked, whose trace depends on a rank though no condition says so.
    """

    round: int
    demands: tuple[Demand, ...]
    offers: tuple[Offer, ...]
    failed: tuple[Failed, ...] = ()
    lost: tuple[Demand, ...] = ()
    avoided: tuple[Avoided, ...] = ()
    audit: AuditMode = "off"
    suspects: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What came of an action.

    Attributes:
        ok: the rank has its artifact.
        digest: what was used or refused; empty when there was nothing to use, because a compile failed.
        reason: why it is not ok.
        error: name of the type of the exception that was raised; empty for none.
        out_of_reach: the artifact could not be had on this rank's node; its guards were not asked.
        takes: not ok, because an audit is not through, or found a difference; the guards hold here.
        trace: digest of what the rank compiled, or traced for an audit; empty where it did not.
        difference: the first one between its own trace and the artifact's.
    """

    ok: bool
    digest: str
    reason: str = ""
    error: str = ""
    out_of_reach: bool = False
    takes: bool = False
    trace: str = ""
    difference: str = ""


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
    return PlanState(round=0, demands=demands, offers=offers, avoided=tuple(avoided), audit=audit)


def apply_round(
    state: PlanState,
    actions: Mapping[Slot, Action],
    attempts: Mapping[Slot, Attempt],
    *,
    nodes: Mapping[int, int] | None = None,
) -> PlanState:
    """The state after a round: whoever was refused stays, and what leaders made is offered first.

    Args:
        state: before it.
        actions: its plan, one action for every demand.
        attempts: what came of every action but `GiveUp`.
        nodes: node of every rank; when given, what is out of reach parts ranks by node.
    """
    changes = _Changes(
        new={offer.digest for offer in state.offers if offer.is_new},
        nodes=nodes or {},
        audit=state.audit,
    )
    witnesses = _Witnesses(suspects=set(state.suspects))
    for demand in state.demands:
        action, attempt = actions[demand.slot], attempts.get(demand.slot)
        changes.take(demand, action, attempt)
        if isinstance(action, Adopt | AwaitLeader):
            witnesses.hear(demand, attempt)
    return replace(
        state,
        round=state.round + 1,
        demands=tuple(changes.staying),
        offers=tuple(map(witnesses.audited, _distinct((*changes.made, *state.offers)))),
        suspects=frozenset(witnesses.suspects),
        failed=(*state.failed, *changes.failed),
        lost=(*state.lost, *changes.lost),
    )


def without(state: PlanState, misses: Iterable[ForbiddenCompile]) -> PlanState:
    """The state in which nobody wants what must not be compiled."""
    slots = {(rank, miss.function) for miss in misses for rank in miss.ranks}
    staying = tuple(demand for demand in state.demands if demand.slot not in slots)
    return replace(state, demands=staying)


def given_up(state: PlanState, may_wait: Collection[Slot]) -> tuple[Demand, ...]:
    """What was given up for good: not what may wait, and raised by itself."""
    raised = {failed.class_key for failed in state.failed if failed.is_final}
    return tuple(
        demand
        for demand in state.lost
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
        failed = Failed(class_key=key, rank=demand.rank, reason=attempt.reason, error=attempt.error)
        self.failed.append(failed)
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
