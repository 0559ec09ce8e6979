"""Evicting: what no record needs goes into the trash, is looked at again, and is deleted by a later run.

The trash is the only way out, and nothing leaves it before a grace is over. After files went there everything
is marked again, and what became needed comes back: so whoever refers to a file needs no lock. Any number of
evicts may run at once, each may end at any step. All times are the store's own clock's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby
from typing import TypeVar

from warmrank.cache_store.backends.backend import BlobBackend, FileInfo, new_document
from warmrank.cache_store.backends.deadline import in_each
from warmrank.cache_store.backends.places import Tier, TierState
from warmrank.cache_store.cache_dir.private_files import temporary_name
from warmrank.cache_store.errors import NotInStore, StoreUnavailable
from warmrank.cache_store.gc.evict_plan import Choice, EvictPolicy, Plan, blobs_first, plan_evict, total_bytes
from warmrank.cache_store.gc.inventory import Inventory, take_inventory
from warmrank.cache_store.gc.trash import restore_from
from warmrank.cache_store.layout import split_trash_name, trash_name
from warmrank.cache_store.parallel import each
from warmrank.cache_store.signing.trust import Trust
from warmrank.cache_store.steps import Step, reached

logger = logging.getLogger(__name__)
_T = TypeVar("_T")
_MOVERS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictReport:
    """Outcome of evicting from one place of a store, or, of a dry run, what it would be."""

    location: str
    taken: tuple[Choice, ...]  # into the trash; records, then manifests, then blobs
    kept: tuple[Choice, ...]  # the records that stay
    restored: tuple[str, ...]  # names that came back from the trash, because something needs them
    bytes_taken: int
    num_deleted: int  # for good: of trash, quarantine, marks of use, and what dead publishers left
    bytes_deleted: int
    remaining_bytes: int  # what stands; the trash is not counted
    over_bytes: int  # how much that is above the limit, because the rest must stay
    problems: tuple[str, ...]  # what is needed and was found nowhere, and what was left alone


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictOutcome:
    """Outcome of evicting from the places of a store, the farthest first; faults are why others did not."""

    reports: tuple[EvictReport, ...]
    faults: tuple[TierState, ...]


def evict_places(
    tiers: Sequence[Tier],
    policy: EvictPolicy,
    *,
    trust: Trust,
    place: str | None = None,
    dry_run: bool = False,
    left_out: Sequence[TierState] = (),
) -> EvictOutcome:
    """Evict from every writable place of a store, the farthest first, or from the one named ``place``.

    Each by itself, with its own files, times and faults; of ``left_out`` those that are away are told.

    Raises:
        NotInStore: there is no such writable place.
        EvictRefused, StoreUnavailable: as `evict`, where it is the only place.
    """
    writable = [tier for tier in tiers if tier.is_writable]
    chosen = [tier for tier in writable if place in (None, tier.name)]
    away = [
        state
        for state in left_out
        if state.state == "away" and state.mode != "ro" and place in (None, state.location)
    ]
    if not chosen and not away:
        raise NotInStore(
            what=f"a writable place {place or 'at all'}",
            where="the store's tiers",
            remedy=f"writable are: {', '.join(tier.name for tier in writable) or 'none'}",
        )
    reports, errors = in_each(
        chosen, lambda tier, view: evict(view, policy, trust=trust, location=tier.name, dry_run=dry_run)
    )
    faults = (replace(tier.state, reason=str(error)) for tier, error in errors)
    return EvictOutcome(reports=tuple(reports), faults=(*faults, *away))


def evict(
    backend: BlobBackend,
    policy: EvictPolicy,
    *,
    trust: Trust,
    location: str,
    dry_run: bool = False,
    clock: Callable[[], float] = time.time,
) -> EvictReport:
    """Take away from one place of a store, called ``location``, what the policy does not keep.

    A dry run writes nothing, so it goes by ``clock`` (epoch seconds): to ask the store's own takes a write.

    Raises:
        EvictRefused: a document cannot be read, or the listing is implausible; nothing was taken away.
    """
    inventory = take_inventory(backend, clock() if dry_run else store_time_s(backend), trust=trust)
    plan = plan_evict(inventory, policy)
    reached(Step.EVICT_MARKED)
    if dry_run:
        return _report(location, policy, plan, taken=plan.take, deleted=plan.delete, restored=plan.restore)
    restored = _restore(backend, plan.restore, inventory)
    deleted = _delete(backend, plan.delete)
    taken = _take(backend, plan.take)
    returned = _mark_again(backend, inventory, policy, taken, trust=trust) if taken else frozenset()
    gone = tuple(choice for choice in taken if choice.name not in returned)
    restored = (*restored, *sorted(returned))
    report = _report(location, policy, plan, taken=gone, deleted=deleted, restored=restored)
    logger.info(
        "Evicted %d files, %d bytes, from %s; restored %d; deleted %d for good, %d bytes",
        len(report.taken),
        report.bytes_taken,
        location,
        len(report.restored),
        report.num_deleted,
        report.bytes_deleted,
    )
    return report


def store_time_s(backend: BlobBackend) -> float:
    """The time by the store's clock: when a file was created that was just created."""
    name = trash_name(f"probe/{temporary_name()}", datetime.now(UTC))
    backend.put_new([new_document(name, b"")])
    info = backend.stat([name]).get(name)
    backend.move(name, None)
    if info is None:
        reason = "a file that was just created is not there, so nothing can be said of the age of others"
        raise StoreUnavailable(what="clock", where=name, reason=reason)
    return info.modified_s


def _take(backend: BlobBackend, choices: Sequence[Choice]) -> tuple[Choice, ...]:
    """Move files into the trash, records before manifests before blobs; what is gone is left out."""
    at = datetime.now(UTC)

    def take(choice: Choice) -> bool:
        moved = backend.move(choice.name, trash_name(choice.name, at))
        reached(Step.EVICT_TRASHED)
        return moved

    moved = _in_threads(take, choices, lambda choice: choice.kind)
    return tuple(choice for choice, done in moved if done)


def _delete(backend: BlobBackend, infos: Sequence[FileInfo]) -> tuple[FileInfo, ...]:
    """Remove files for good, if they are still those that were listed."""

    def delete(info: FileInfo) -> bool:
        removed = backend.stat([info.name]).get(info.name) == info and backend.move(info.name, None)
        reached(Step.EVICT_DELETED)
        return removed

    def kind(info: FileInfo) -> int:
        former = split_trash_name(info.name)
        return blobs_first(former[0])[0] if former else -1

    removed = _in_threads(delete, infos, kind)
    return tuple(info for info, done in removed if done)


def _restore(backend: BlobBackend, names: Iterable[str], inventory: Inventory) -> tuple[str, ...]:
    """Bring names back from the trash, what is needed before what needs it."""
    restored: list[str] = []
    for _, batch in groupby(sorted(names, key=blobs_first), key=lambda name: blobs_first(name)[0]):
        restored += sorted(restore_from(backend, frozenset(batch), inventory.trash))
    return tuple(restored)


def _mark_again(
    backend: BlobBackend, before: Inventory, policy: EvictPolicy, taken: Sequence[Choice], *, trust: Trust
) -> frozenset[str]:
    """Bring back what became needed since it was marked; also records pinned or used since."""
    after = take_inventory(backend, store_time_s(backend), trust=trust, earlier=before)
    reached(Step.EVICT_CHECKED)
    # Whatever stands now is kept: to decide about it is for the next run.
    keep_all = replace(policy, older_than_s=None, max_bytes=None, expects_records=False)
    wanted = set(plan_evict(after, keep_all).restore)
    for choice in taken:
        name = choice.name
        if choice.kind == "record" and (name in after.pins or after.uses.get(name) != before.uses.get(name)):
            wanted |= _closure(name, before) - after.files.keys()
    returned = frozenset(_restore(backend, wanted, after))
    reached(Step.EVICT_RESTORED)
    return returned


def _closure(record: str, inventory: Inventory) -> set[str]:
    manifests = [name for name in inventory.documents[record].references if name in inventory.documents]
    blobs = (name for manifest in manifests for name in inventory.documents[manifest].references)
    return {record, *inventory.documents[record].references, *blobs}


def _in_threads(
    act: Callable[[_T], bool], items: Sequence[_T], kind: Callable[[_T], object]
) -> Iterator[tuple[_T, bool]]:
    """Act on items, several of one kind at a time, one kind after the other."""
    for _, batch in groupby(items, key=kind):
        group = list(batch)
        yield from zip(group, each(act, group, num_threads=_MOVERS), strict=True)


def _report(
    location: str,
    policy: EvictPolicy,
    plan: Plan,
    *,
    taken: Sequence[Choice],
    deleted: Sequence[FileInfo],
    restored: Sequence[str],
) -> EvictReport:
    returned_bytes = total_bytes(plan.take) - total_bytes(taken)
    remaining_bytes = plan.remaining_bytes + returned_bytes
    over_bytes = 0 if policy.max_bytes is None else max(remaining_bytes - policy.max_bytes, 0)
    return EvictReport(
        location=location,
        taken=tuple(taken),
        kept=plan.keep,
        restored=tuple(restored),
        bytes_taken=total_bytes(taken),
        num_deleted=len(deleted),
        bytes_deleted=sum(info.stored_bytes for info in deleted),
        remaining_bytes=remaining_bytes,
        over_bytes=over_bytes,
        problems=plan.problems,
    )
