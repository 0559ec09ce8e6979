"""Evicting: what no record needs goes into the trash, is looked at again, and is deleted by a later run.

Nothing gets into the trash, or out of it, before a grace is over. A record stays if it is pinned or among the
newest of its key, ranks and environment; records that no trusted key signed rank behind, because who can
write but not sign decides about nothing that others signed. After files went everything is marked again,
and what became needed comes back: so whoever refers to a file needs no lock. Any number of evicts may run
at once, each may end at any step. All times are the store's own clock's.

A nearer place is a cache, which may hold any part of a launch: what no document there needs goes by its age,
as a record does.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby
from typing import Literal, NamedTuple, TypeVar

from warmrank.cache_store.backends.backend import FileInfo, new_document
from warmrank.cache_store.backends.deadline import Tier, TierState
from warmrank.cache_store.backends.places import Places, in_each
from warmrank.cache_store.cache_dir.private_files import temporary_name
from warmrank.cache_store.errors import EvictRefused, NotInStore, StoreUnavailable
from warmrank.cache_store.gc.inventory import (
    DEBRIS_S,
    RESOLUTION_S,
    UNSIGNED,
    Inventory,
    restore,
    take_inventory,
)
from warmrank.cache_store.layout import BLOBS, MANIFESTS, is_record, split_trash_name, trash_name
from warmrank.cache_store.parallel import each
from warmrank.cache_store.records.documents import age
from warmrank.cache_store.signing.trust import Trust
from warmrank.cache_store.steps import Step, reached
from warmrank.cache_store.text import count_text

logger = logging.getLogger(__name__)
_T = TypeVar("_T")
_MOVERS = 8
DAY_S = 86400.0
QUARANTINE_S = 30 * DAY_S  # what was found bad is evidence for so long, at least for the grace
Kind = Literal["record", "manifest", "blob"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictPolicy:
    """Limits of an evict.

    Nothing younger than the grace goes, and the trash is emptied after so long; it is longer than the longest
    publish, the longest fetch, and any time for which a process may be stopped.
    """

    older_than_s: float | None = None  # records not used for so long go
    max_bytes: int | None = None  # least recently used records go until what stands has at most this size
    keep: int = 1  # newest records of each key, ranks and environment that stay in any case, trusted first
    grace_s: float = DAY_S
    expects_records: bool = True  # refuse a store of blobs and no record, which looks like half a listing

    def __post_init__(self) -> None:
        limits = (self.older_than_s, self.max_bytes, self.keep, self.grace_s)
        if any(limit is not None and limit < 0 for limit in limits):
            raise ValueError(f"a limit of an evict is not negative: {self}")


@dataclass(frozen=True, slots=True)
class Choice:
    """One file, and why it goes, or stays."""

    kind: Kind
    name: str
    stored_bytes: int
    reason: str


class Plan(NamedTuple):
    """Decisions of an evict."""

    take: tuple[Choice, ...]  # into the trash: records, then manifests, then blobs
    keep: tuple[Choice, ...]  # the records that stay
    restore: tuple[str, ...]  # former names of what lies in the trash and is needed
    delete: tuple[FileInfo, ...]  # for good: of the trash, the quarantine, the marks of use and ``tmp/``
    problems: tuple[str, ...]  # what is needed and nowhere, and what was left alone


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
    lost = [state for state in left_out if state.state == "away" and state.mode != "ro"]
    away = [state for state in lost if place in (None, state.location)]
    if not chosen and not away:
        remedy = f"writable are: {', '.join(tier.name for tier in writable) or 'none'}"
        what = f"a writable place {place or 'at all'}"
        raise NotInStore(what=what, where="the store's tiers", remedy=remedy)
    reports, errors = in_each(
        chosen, lambda tier, alone: evict(alone, policy, trust=trust, location=tier.name, dry_run=dry_run)
    )
    faults = (replace(tier.state, reason=str(error)) for tier, error in errors)
    return EvictOutcome(reports=tuple(reports), faults=(*faults, *away))


def evict(
    places: Places,
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
    inventory = take_inventory(places, clock() if dry_run else store_time_s(places), trust=trust)
    plan = plan_evict(inventory, policy)
    reached(Step.EVICT_MARKED)
    taken, deleted, restored = plan.take, plan.delete, plan.restore
    if not dry_run:
        restored = _restore(places, plan.restore, inventory)
        deleted = _in_threads(lambda info: _delete(places, info), plan.delete, _kind_in_trash)
        at = datetime.now(UTC)
        taken = _in_threads(lambda it: _take(places, it, at), plan.take, lambda choice: choice.kind)
    if taken and not dry_run:
        returned = _mark_again(places, inventory, policy, taken, trust=trust)
        taken = tuple(choice for choice in taken if choice.name not in returned)
        restored = (*restored, *sorted(returned))
    bytes_taken = sum(choice.stored_bytes for choice in taken)
    bytes_deleted = sum(info.stored_bytes for info in deleted)
    remaining_bytes = sum(info.stored_bytes for info in inventory.files.values()) - bytes_taken
    if not dry_run:
        said = "Evicted %d files, %d bytes, from %s; restored %d; deleted %d for good, %d bytes"
        logger.info(said, len(taken), bytes_taken, location, len(restored), len(deleted), bytes_deleted)
    return EvictReport(
        location=location,
        taken=taken,
        kept=plan.keep,
        restored=restored,
        bytes_taken=bytes_taken,
        num_deleted=len(deleted),
        bytes_deleted=bytes_deleted,
        remaining_bytes=remaining_bytes,
        over_bytes=0 if policy.max_bytes is None else max(remaining_bytes - policy.max_bytes, 0),
        problems=plan.problems,
    )


def store_time_s(places: Places) -> float:
    """The time by the store's clock: when a file was created that was just created."""
    name = trash_name(f"probe/{temporary_name()}", datetime.now(UTC))
    places.put_new([new_document(name, b"")])
    info = places.stat([name]).get(name)
    places.move(name, None)
    if info is None:
        reason = "a file that was just created is not there, so nothing can be said of the age of others"
        raise StoreUnavailable(what="clock", where=name, reason=reason)
    return info.modified_s


def _take(places: Places, choice: Choice, at: datetime) -> bool:
    """Move a file into the trash; False if it is gone."""
    moved = places.move(choice.name, trash_name(choice.name, at))
    reached(Step.EVICT_TRASHED)
    return moved


def _delete(places: Places, info: FileInfo) -> bool:
    """Remove a file for good, if it is still the one that was listed."""
    removed = places.stat([info.name]).get(info.name) == info and places.move(info.name, None)
    reached(Step.EVICT_DELETED)
    return removed


def _kind_in_trash(info: FileInfo) -> int:
    former = split_trash_name(info.name)
    return _blobs_first(former[0])[0] if former else -1


def _restore(places: Places, names: Iterable[str], inventory: Inventory) -> tuple[str, ...]:
    """Bring names back from the trash, what is needed before what needs it."""
    restored: list[str] = []
    for _, batch in groupby(sorted(names, key=_blobs_first), key=lambda name: _blobs_first(name)[0]):
        restored += sorted(restore(places, batch, inventory.trash))
    return tuple(restored)


def _mark_again(
    places: Places, before: Inventory, policy: EvictPolicy, taken: Sequence[Choice], *, trust: Trust
) -> frozenset[str]:
    """Bring back what became needed since it was marked; also records pinned or used since."""
    after = take_inventory(places, store_time_s(places), trust=trust)
    reached(Step.EVICT_CHECKED)
    # Whatever stands now is kept: to decide about it is for the next run.
    keep_all = replace(policy, older_than_s=None, max_bytes=None, expects_records=False)
    wanted = set(plan_evict(after, keep_all).restore)
    for name in (choice.name for choice in taken if choice.kind == "record"):
        if name in after.pins or after.uses.get(name) != before.uses.get(name):
            wanted |= before.closure([name]) - after.files.keys()
    returned = frozenset(_restore(places, wanted, after))
    reached(Step.EVICT_RESTORED)
    return returned


def _in_threads(
    act: Callable[[_T], bool], items: Sequence[_T], kind: Callable[[_T], object]
) -> tuple[_T, ...]:
    """Act on items, several of one kind at a time, one kind after the other; return those that it did."""
    done: list[_T] = []
    for _, batch in groupby(items, key=kind):
        group = list(batch)
        answers = each(act, group, num_threads=_MOVERS)
        done += (item for item, answer in zip(group, answers, strict=True) if answer)
    return tuple(done)


def plan_evict(inventory: Inventory, policy: EvictPolicy) -> Plan:
    """Decide; raises `EvictRefused` where the inventory looks like half a listing."""
    if inventory.is_farthest:
        _check_plausible(inventory, policy)
    files = inventory.files
    taken, kept = _choose_roots(inventory, policy)
    young = {name for name, info in files.items() if inventory.now_s - info.modified_s <= policy.grace_s}
    needed = inventory.closure(choice.name for choice in kept)
    # A young manifest may be named by a record that is about to be written.
    needed |= inventory.closure(name for name in young if name.startswith(MANIFESTS))
    spare = sorted(files.keys() - needed - young - {choice.name for choice in taken})
    take = [*taken, *(_choice(inventory, name, "nothing needs it") for name in spare)]
    missing = needed - files.keys()
    nowhere = (
        f"{name} is needed, and neither in the store nor in its trash"
        for name in sorted(missing - inventory.trash.keys())
        if inventory.is_farthest
    )
    return Plan(
        take=tuple(sorted(take, key=lambda choice: -_blobs_first(choice.name)[0])),
        keep=tuple(choice for choice in kept if choice.kind == "record"),
        restore=tuple(sorted(missing & inventory.trash.keys(), key=_blobs_first)),
        delete=tuple(_spent(inventory, policy, needed)),
        problems=(*nowhere, *inventory.problems),
    )


def _check_plausible(inventory: Inventory, policy: EvictPolicy) -> None:
    remedy = "check the path and the mount"
    if not inventory.files and not inventory.trash:
        reason = "it is empty, as that of a store that is not mounted"
    elif policy.expects_records and not any(map(is_record, inventory.files)) and inventory.files:
        reason = f"it has {count_text(len(inventory.files), 'file')} and not one record of a launch"
        remedy += "; if no launch was committed on purpose, use --no-records"
    else:
        return
    raise EvictRefused(what="the listing", where="the store", reason=reason, remedy=remedy)


def _choose_roots(inventory: Inventory, policy: EvictPolicy) -> tuple[list[Choice], list[Choice]]:
    """Roots that go, the least recently used first, and those that stay, the other way round.

    Each root counts with what no root before it needs, those of trusted keys first: what others wrote
    takes no room from them.
    """
    protected = _protected(inventory, policy)
    last_uses = {name: _last_use(inventory, name) for name in inventory.roots()}
    rank = {name: found.trust_rank for name, found in inventory.documents.items()}
    taken: list[Choice] = []
    kept: list[Choice] = []
    counted: set[str] = set()
    counted_bytes = 0

    def most_wanted_first(name: str) -> tuple[object, ...]:
        return -rank.get(name, UNSIGNED), name not in protected, last_uses[name].most_s, name

    for name in sorted(last_uses, key=most_wanted_first):
        last_use, reason = last_uses[name], protected.get(name, "")
        seconds = last_use.least_s
        if not reason and seconds <= policy.grace_s:
            perhaps = "perhaps " if last_use.most_s > policy.grace_s else ""
            reason = f"{last_use}, {perhaps}within the grace"
        if not reason and policy.older_than_s is not None and seconds > policy.older_than_s:
            taken.append(_choice(inventory, name, f"unused for {_age(seconds)}"))
            continue
        new = inventory.closure([name], besides=counted)
        counted |= new
        counted_bytes += sum(inventory.files[it].stored_bytes for it in new if it in inventory.files)
        over = 0 if policy.max_bytes is None else counted_bytes - policy.max_bytes
        if over > 0 and not reason:
            taken.append(_choice(inventory, name, f"{over} bytes too many, unused for {_age(seconds)}"))
        else:
            kept.append(_choice(inventory, name, reason or str(last_use)))
    return taken[::-1], kept


class _LastUse(NamedTuple):
    """Seconds since a record's last use, at least and at most: a mark stands for a whole day."""

    least_s: float
    most_s: float

    def __str__(self) -> str:
        least, most = _age(self.least_s), _age(self.most_s)
        if self.least_s == self.most_s:
            return f"used {most} ago"
        return f"used {least} to {most} ago" if self.least_s else f"used within the last {most}"


def _last_use(inventory: Inventory, record: str) -> _LastUse:
    made_s, used = inventory.files[record].modified_s, inventory.uses.get(record)
    if used is None:
        return _LastUse(inventory.now_s - made_s, inventory.now_s - made_s)
    latest_s = max(min(used.modified_s + RESOLUTION_S, inventory.now_s), made_s)
    return _LastUse(inventory.now_s - latest_s, inventory.now_s - max(used.modified_s, made_s))


def _protected(inventory: Inventory, policy: EvictPolicy) -> dict[str, str]:
    """Reasons for records that stay in any case."""
    documents = inventory.documents
    groups: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for name in filter(is_record, inventory.files):
        for group in documents[name].groups:
            groups[name.rpartition("/")[0], group].append(name)

    def newest_first(name: str) -> tuple[object, ...]:
        # Not the trusted only: who evicts without the keys must not take every newest record.
        return -documents[name].trust_rank, *age(inventory.files[name], documents[name].created_s)

    reasons: dict[str, str] = {}
    for names in groups.values():
        newest = sorted(names, key=newest_first)[: policy.keep]
        reasons.update(dict.fromkeys(newest, "among the newest of its key"))
    return reasons | {name: "pinned" for name in inventory.pins if name in inventory.files}


def _spent(inventory: Inventory, policy: EvictPolicy, needed: Collection[str]) -> Iterator[FileInfo]:
    """Files to remove for good; of the trash documents first, so that none outlives what it needs."""

    def is_older(info: FileInfo, limit_s: float) -> bool:
        return inventory.now_s - info.modified_s > max(limit_s, policy.grace_s)

    for name in sorted(inventory.trash, key=_blobs_first, reverse=True):
        if name not in needed or name in inventory.files:
            yield from (info for info in inventory.trash[name] if is_older(info, policy.grace_s))
    yield from (info for info in inventory.quarantine if is_older(info, QUARANTINE_S))
    yield from (info for info in inventory.debris if is_older(info, DEBRIS_S))
    yield from (info for info in inventory.spent if is_older(info, 0.0))


def _choice(inventory: Inventory, name: str, reason: str) -> Choice:
    kind: Kind = "record" if is_record(name) else "manifest" if name.startswith(MANIFESTS) else "blob"
    return Choice(kind, name, inventory.files[name].stored_bytes, reason)


def _age(seconds: float) -> str:
    for unit_s, unit in ((DAY_S, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= unit_s:
            return f"{seconds / unit_s:.1f} {unit}"
    return f"{max(seconds, 0.0):.0f} s"


def _blobs_first(name: str) -> tuple[int, str]:
    """Sorts names in the order in which they may appear: what is needed before what needs it."""
    return (0 if name.startswith(BLOBS) else 1 if name.startswith(MANIFESTS) else 2), name
