"""What verify and evict did: plain, picklable values."""

from __future__ import annotations

from dataclasses import dataclass, replace

from warmrank.cache_store.upkeep.evict_plan import Choice


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """Outcome of reading the whole store; what stands in two of its places was read twice, and counts twice.

    Attributes:
        num_blobs: blobs read and hashed.
        num_manifests: manifests looked at.
        num_launches: launch records looked at.
        num_listings: listings of other tools' directories looked at.
        bytes_hashed: size of all blobs read.
        faults: one line each; empty for a whole store.
        repairs: what was done about them, one line each.
    """

    num_blobs: int
    num_manifests: int
    num_launches: int
    num_listings: int
    bytes_hashed: int
    faults: tuple[str, ...]
    repairs: tuple[str, ...] = ()

    def named(self, location: str) -> VerifyReport:
        """The same, each line with the place that it is about."""
        return replace(
            self,
            faults=tuple(f"{location}: {line}" for line in self.faults),
            repairs=tuple(f"{location}: {line}" for line in self.repairs),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceFault:
    """A place of a store in which nothing could be done, and why."""

    location: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictReport:
    """Outcome of evicting from one place of a store, or, of a dry run, what it would be.

    Attributes:
        location: the place.
        taken: what went into the trash, and why; records, then manifests, then blobs.
        kept: the records that stay, and why.
        restored: names that came back from the trash, because something needs them.
        bytes_taken: size of what went into the trash.
        num_deleted: files removed for good: of the trash, the quarantine, the marks of use, and what dead
            publishers left in ``tmp/``.
        bytes_deleted: their size.
        remaining_bytes: size of what stands; the trash is not counted.
        over_bytes: how much that is above the limit, because the rest must stay.
        problems: what is needed and was found nowhere, and what was left alone, one line each.
    """

    location: str
    taken: tuple[Choice, ...]
    kept: tuple[Choice, ...]
    restored: tuple[str, ...]
    bytes_taken: int
    num_deleted: int
    bytes_deleted: int
    remaining_bytes: int
    over_bytes: int
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictOutcome:
    """Outcome of evicting from the places of a store, the farthest first.

    Attributes:
        reports: of the places where it was done.
        faults: the other places.
    """

    reports: tuple[EvictReport, ...]
    faults: tuple[PlaceFault, ...]
