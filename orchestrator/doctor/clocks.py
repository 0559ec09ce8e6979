"""Checks on clocks. Pure functions.

Nothing that decides correctness reads a clock. What does read one, and how far clocks may be apart: the order
of launch records, newest first, is by the clocks of the drivers that made them (seconds); object stores
refuse signed requests whose time is 15 minutes off (S3: RequestTimeTooSkewed); what dead processes left is
swept after 24 hours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from warmrank.orchestrator.doctor.findings import Finding, ok

SOME_SECONDS = 5.0
"""Two launches of one thing within this time may be taken in the wrong order; nobody launches faster."""

REFUSED_S = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Another clock, as this node sees it.

    Attributes:
        check: the name of the check, such as ``clocks.store``.
        name: whose it is, for people.
        ahead_s: seconds that it is ahead of this node's, negative if behind; the nearest value that the
            measurement allows, so 0 where it cannot tell.
    """

    check: str
    name: str
    ahead_s: float


def check(clocks: Iterable[Clock], newest_ahead_s: float | None = None) -> Iterator[Finding]:
    """All findings on clocks; ``newest_ahead_s`` is how far the store's newest record lies in the future."""
    for clock in clocks:
        yield _clock(clock)
    if newest_ahead_s is not None:
        yield _newest(newest_ahead_s)


def _clock(clock: Clock) -> Finding:
    off = abs(clock.ahead_s)
    side = "ahead of" if clock.ahead_s > 0 else "behind"
    if off <= SOME_SECONDS:
        return ok(clock.check, f"the clock of {clock.name} is within {SOME_SECONDS:g} s of this node's")
    return Finding(
        check=clock.check,
        level="error" if off >= REFUSED_S else "warning",
        what=f"the clock of {clock.name} is {side} this node's",
        expected=f"within {SOME_SECONDS:g} s",
        # Coarse, so that nodes with the same trouble have the same finding.
        actual=f"about {_coarse(off)} {side.partition(' ')[0]}",
        remedy="synchronise both (chronyc tracking, timedatectl): which launch record is the newest is "
        "decided by clocks, and object stores refuse requests that are 15 minutes off",
    )


def _newest(ahead_s: float) -> Finding:
    if ahead_s <= SOME_SECONDS:
        return ok("clocks.records", "the newest launch record of the store lies in the past")
    return Finding(
        check="clocks.records",
        level="warning",
        what="the newest launch record of the store lies in the future, so it counts as newer than what "
        "comes now",
        expected="a time before now",
        actual=f"about {_coarse(ahead_s)} from now",
        remedy="synchronise the clock of this node, or of the one that made it; then evict that record, or "
        "wait",
    )


def _coarse(seconds: float) -> str:
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
