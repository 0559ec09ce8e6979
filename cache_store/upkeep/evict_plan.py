"""What an evict takes away, and why: pure functions of an inventory and a policy.

Invariants: nothing younger than the grace goes, by the store's clock; a record goes only if it is neither
pinned nor among the newest of its key, and of an environment that it has; who can write but not sign decides
about nothing that others signed: under every policy a record that no trusted key signed ranks behind those
that one did, one that nobody signed comes last, and neither their bytes nor those that nothing needs push out
one of the highest rank that there is; a manifest goes only if no remaining record needs it, a blob
only if no remaining manifest or listing needs it; what a remaining document needs comes back from the trash.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from warmrank.cache_store.backends.backend import FileInfo
from warmrank.cache_store.errors import EvictRefused
from warmrank.cache_store.layout import MANIFESTS
from warmrank.cache_store.records.age import age, dated_ahead
from warmrank.cache_store.retention.debris import DEBRIS_S
from warmrank.cache_store.retention.inventory import Inventory
from warmrank.cache_store.retention.last_use import RESOLUTION_S
from warmrank.cache_store.retention.marks import is_record, record_group
from warmrank.cache_store.upkeep.room import Room, blobs_first

DAY_S = 86400.0
Kind = Literal["record", "manifest", "blob"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictPolicy:
    """What may go.

    Attributes:
        older_than_s: records not used for so long go; None keeps them whatever their age.
        max_bytes: least recently used records go until what stands has at most this size; None is no limit.
        keep: so many of the newest records of each key and environment stay in any case, trusted ones first.
        grace_s: nothing younger goes, and the trash is emptied after so long; longer than the longest
            publish, the longest fetch, and any time for which a process may be stopped.
        quarantine_s: what was found bad is kept for so long as evidence, at least for the grace.
        expects_records: refuse a store that has blobs and no record, which looks like half a listing.
    """

    older_than_s: float | None = None
    max_bytes: int | None = None
    keep: int = 1
    grace_s: float = DAY_S
    quarantine_s: float = 30 * DAY_S
    expects_records: bool = True

    def __post_init__(self) -> None:
        limits = (self.older_than_s, self.max_bytes, self.keep, self.grace_s, self.quarantine_s)
        if any(limit is not None and limit < 0 for limit in limits):
            raise ValueError(f"a limit of an evict is not negative: {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One file, what becomes of it, and why.

    Attributes:
        kind: what it is.
        name: its name.
        stored_bytes: the room that it takes.
        reason: why it goes, or stays.
    """

    kind: Kind
    name: str
    stored_bytes: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do.

    Attributes:
        take: what goes into the trash: records, then manifests, then blobs.
        keep: the records that stay, and why.
        restore: former names of what lies in the trash and is needed: blobs, then manifests.
        delete: files to remove for good: of the trash, the quarantine, the marks of use and ``tmp/``.
        remaining_bytes: size of what stands afterwards; the trash is not counted.
        problems: what remaining documents need and is nowhere, and what was left alone, one line each.
    """

    take: tuple[Choice, ...]
    keep: tuple[Choice, ...]
    restore: tuple[str, ...]
    delete: tuple[FileInfo, ...]
    remaining_bytes: int
    problems: tuple[str, ...] = ()


def plan_evict(inventory: Inventory, policy: EvictPolicy) -> Plan:
    """Decide.

    Raises:
        EvictRefused: the inventory looks like half a listing.
    """
    _check_plausible(inventory, policy)
    room = Room(inventory, policy.grace_s)
    taken, kept = _choose_records(inventory, policy, room)
    taken += (_choice(inventory, name, "nothing needs it") for name in room.unreferenced())
    needed = room.needed()
    restore = [name for name in needed if name not in inventory.files and name in inventory.trash]
    missing = [name for name in needed if name not in inventory.files and name not in inventory.trash]
    nowhere = (f"{name} is needed, and neither in the store nor in its trash" for name in missing)
    return Plan(
        take=tuple(taken),
        keep=tuple(kept),
        restore=tuple(sorted(restore, key=blobs_first)),
        delete=tuple(_spent(inventory, policy, needed)),
        remaining_bytes=room.remaining_bytes,
        problems=(*nowhere, *inventory.problems, *_dated_ahead(inventory)),
    )


def _dated_ahead(inventory: Inventory) -> tuple[str, ...]:
    dates = {name: item.created_s for name, item in inventory.documents.items() if is_record(name)}
    return dated_ahead(inventory.files, dates)


def last_use_s(inventory: Inventory, record: str) -> float:
    """When a record was used last, or later: a mark stands for a whole day."""
    used = inventory.uses.get(record)
    marked_s = min(used.modified_s + RESOLUTION_S, inventory.now_s) if used else 0.0
    return max(marked_s, inventory.files[record].modified_s)


def _check_plausible(inventory: Inventory, policy: EvictPolicy) -> None:
    if not inventory.files and not inventory.trash:
        what, reason = "the listing", "it is empty, as that of a store that is not mounted"
    elif policy.expects_records and not any(map(is_record, inventory.files)) and inventory.files:
        what, reason = "the listing", f"it has {len(inventory.files)} files and not one record of a launch"
    else:
        return
    raise EvictRefused(
        what=what,
        where="the store",
        reason=reason,
        remedy="check the path and the mount; if no launch was committed on purpose, use --no-records",
    )


def _choose_records(
    inventory: Inventory, policy: EvictPolicy, room: Room
) -> tuple[list[Choice], list[Choice]]:
    protected = _protected(inventory, policy)
    taken: list[Choice] = []
    kept: list[Choice] = []
    unused = {
        name: inventory.now_s - last_use_s(inventory, name) for name in inventory.files if is_record(name)
    }
    rank = {name: inventory.documents[name].trust_rank for name in unused}
    for name in sorted(unused, key=lambda name: (rank[name], -unused[name], name)):
        reason = protected.get(name, "")
        if not reason and unused[name] <= policy.grace_s:
            reason = f"used {_age(unused[name])} ago, within the grace"
        if reason:
            kept.append(_choice(inventory, name, reason))
        elif policy.older_than_s is not None and unused[name] > policy.older_than_s:
            taken.append(_choice(inventory, name, f"unused for {_age(unused[name])}"))
            room.take(name)
        elif policy.max_bytes is not None and (over := room.counted_bytes(name) - policy.max_bytes) > 0:
            taken.append(_choice(inventory, name, f"{over} bytes too many, unused for {_age(unused[name])}"))
            room.take(name)
        else:
            kept.append(_choice(inventory, name, f"used {_age(unused[name])} ago"))
    return taken, kept


def _protected(inventory: Inventory, policy: EvictPolicy) -> dict[str, str]:
    """Why records stay in any case."""
    documents = inventory.documents
    groups: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for name in filter(is_record, inventory.files):
        for environment in documents[name].environments:
            groups[record_group(name), environment].append(name)
    reasons: dict[str, str] = {}
    for names in groups.values():
        # Not the trusted only: who evicts without the keys must not take every newest record.
        names.sort(
            key=lambda name: (
                -documents[name].trust_rank,
                age(inventory.files[name], documents[name].created_s),
            )
        )
        reasons.update(dict.fromkeys(names[: policy.keep], "among the newest of its key"))
    return reasons | {name: "pinned" for name in inventory.pins if name in inventory.files}


def _spent(inventory: Inventory, policy: EvictPolicy, needed: frozenset[str]) -> Iterator[FileInfo]:
    """What is removed for good; of the trash documents first, so that none outlives what it needs."""

    def is_older(info: FileInfo, limit_s: float) -> bool:
        return inventory.now_s - info.modified_s > max(limit_s, policy.grace_s)

    for name in sorted(inventory.trash, key=blobs_first, reverse=True):
        if name not in needed or name in inventory.files:
            yield from (info for info in inventory.trash[name] if is_older(info, policy.grace_s))
    yield from (info for info in inventory.quarantine if is_older(info, policy.quarantine_s))
    yield from (info for info in inventory.debris if is_older(info, DEBRIS_S))
    newest = {info.name for record, info in inventory.uses.items() if record in inventory.files}
    yield from (info for info in inventory.marks if info.name not in newest and is_older(info, 0.0))


def _choice(inventory: Inventory, name: str, reason: str) -> Choice:
    kind: Kind = "record" if is_record(name) else "manifest" if name.startswith(MANIFESTS) else "blob"
    return Choice(kind=kind, name=name, stored_bytes=inventory.files[name].stored_bytes, reason=reason)


def _age(seconds: float) -> str:
    for unit_s, unit in ((DAY_S, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= unit_s:
            return f"{seconds / unit_s:.1f} {unit}"
    return f"{max(seconds, 0.0):.0f} s"


def total_bytes(choices: Iterable[Choice]) -> int:
    """Size of all."""
    return sum(choice.stored_bytes for choice in choices)
