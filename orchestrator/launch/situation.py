"""What a launch knows from round to round, and what its ranks may be told to do: plain values.

Ranks whose requests and runtime state for a function are equal form a class; what they refused of this
launch's own leaders parts them again (`orchestrator.launch.advance`).
"""

from __future__ import annotations

from dataclasses import dataclass

from warmrank.orchestrator.config.models import AuditMode

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
    """A leader that could not compile for its class."""

    class_key: ClassKey
    rank: int
    reason: str

    @property
    def kind(self) -> str:
        """Name of what was raised; empty where the reason is none of a raised error's."""
        kind, separator, _ = self.reason.partition(": ")
        return kind if separator and kind.isidentifier() else ""

    @property
    def is_final(self) -> bool:
        """Whether another leader of the class would fail alike: the function itself raised."""
        return self.kind in OF_THE_FUNCTION


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
class Situation:
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
        out_of_reach: the artifact could not be had on this rank's node; its guards were not asked.
        takes: not ok, because an audit is not through, or found a difference; the guards hold here.
        trace: digest of what the rank compiled, or traced for an audit; empty where it did not.
        difference: the first one between its own trace and the artifact's.
    """

    ok: bool
    digest: str
    reason: str = ""
    out_of_reach: bool = False
    takes: bool = False
    trace: str = ""
    difference: str = ""
