"""Upkeep of a store in several places: each by itself, with its own files, its own times and its own faults.

Invariants: what one place refuses, or does not answer, is said beside what was done in the others; each is
supervised alone, so one that falls silent takes nothing from what the others report. Only the farthest place
holds every launch whole: what a nearer one lacks is no fault.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from warmrank.cache_store.backends.deadline import Deadline
from warmrank.cache_store.backends.places import Tier, TieredBackend, TierState
from warmrank.cache_store.errors import NotInStore, StoreError, is_final
from warmrank.cache_store.gc.evict import EvictOutcome, PlaceFault, evict
from warmrank.cache_store.gc.evict_plan import EvictPolicy
from warmrank.cache_store.gc.verify import Elsewhere, VerifyReport, verify_store
from warmrank.cache_store.progress import OnProgress, while_asked
from warmrank.cache_store.records.documents import Documents
from warmrank.cache_store.signing.trust import Trust

T = TypeVar("T")


def evict_places(
    tiers: Sequence[Tier],
    policy: EvictPolicy,
    *,
    trust: Trust,
    place: str | None = None,
    dry_run: bool = False,
    left_out: Sequence[TierState] = (),
) -> EvictOutcome:
    """Evict from every writable place of a store, the farthest first, or from one of them.

    Args:
        tiers: the places, nearest first.
        policy: what may go.
        trust: with which records are judged.
        place: only this one.
        dry_run: only say what would go, and why.
        left_out: places that are not asked; of those that are away it is said.

    Raises:
        NotInStore: there is no such writable place.
        EvictRefused, StoreUnavailable: as `evict.evict`, where it is the only place.
    """
    writable = [tier for tier in tiers if tier.is_writable]
    chosen = [tier for tier in writable if place in (None, tier.name)]
    away = [
        PlaceFault(location=state.location, reason=state.reason)
        for state in left_out
        if state.state == "away" and state.mode != "ro" and place in (None, state.location)
    ]
    if not chosen and not away:
        raise NotInStore(
            what=f"a writable place {place or 'at all'}",
            where="the store's tiers",
            remedy=f"writable are: {', '.join(tier.name for tier in writable) or 'none'}",
        )
    reports, errors = _in_each(
        chosen, lambda tier, view: evict(view, policy, trust=trust, location=tier.name, dry_run=dry_run)
    )
    faults = tuple(PlaceFault(location=tier.name, reason=str(error)) for tier, error in errors)
    return EvictOutcome(reports=tuple(reports), faults=(*faults, *away))


def verify_places(
    tiers: Sequence[Tier],
    trust: Trust,
    *,
    repair: bool = False,
    cache_root: Path | None = None,
    left_out: Sequence[TierState] = (),
    on_progress: OnProgress | None = None,
) -> VerifyReport:
    """Read every place of a store again, the farthest first; where there are several, faults name theirs.

    Args:
        tiers: the places, nearest first.
        trust: with which documents are judged.
        repair: repair what can be; see `verify.verify_store`.
        cache_root: a cache directory, from which a repair takes what is good there; None for none.
        left_out: places that are not asked; those that are away are faults.
        on_progress: told now and then how far each place is.

    Raises:
        StoreUnavailable: a place that is required cannot be read, or the only one.
    """

    def verify(tier: Tier, view: TieredBackend) -> VerifyReport:
        report = verify_store(
            Documents(backend=view, trust=trust),
            repair=repair and tier.is_writable,
            is_whole=tier is tiers[-1],
            is_writable=tier.is_writable,
            elsewhere=Elsewhere(
                places=[TieredBackend([other]) for other in tiers if other is not tier], cache_root=cache_root
            ),
            on_progress=while_asked(on_progress, view),
        )
        return report if len(tiers) == 1 else report.named(tier.name)

    reports, errors = _in_each(tiers, verify)
    for _, error in errors:
        if is_final(error):
            raise error
    away = [f"{state.location}: {state.reason}" for state in left_out if state.state == "away"]
    return _in_all(reports, further=[*(f"{tier.name}: {error}" for tier, error in errors), *away])


def _in_all(reports: Sequence[VerifyReport], *, further: Sequence[str]) -> VerifyReport:
    """One report on all places, with further faults."""
    return VerifyReport(
        num_blobs=sum(report.num_blobs for report in reports),
        num_manifests=sum(report.num_manifests for report in reports),
        num_launches=sum(report.num_launches for report in reports),
        num_listings=sum(report.num_listings for report in reports),
        bytes_hashed=sum(report.bytes_hashed for report in reports),
        faults=(*(line for report in reports for line in report.faults), *further),
        repairs=tuple(line for report in reports for line in report.repairs),
    )


def _in_each(
    tiers: Sequence[Tier], verb: Callable[[Tier, TieredBackend], T]
) -> tuple[list[T], list[tuple[Tier, StoreError]]]:
    """Do ``verb`` in each place, the farthest first; what it returned, and the places where it failed."""
    done: list[T] = []
    errors: list[tuple[Tier, StoreError]] = []
    for tier in reversed(tiers):
        try:
            done.append(_alone(tier, verb))
        except StoreError as error:
            if len(tiers) == 1:
                raise
            errors.append((tier, error))
    return done, errors


def _alone(tier: Tier, verb: Callable[[Tier, TieredBackend], T]) -> T:
    return Deadline([tier]).run(lambda view: verb(tier, view))
