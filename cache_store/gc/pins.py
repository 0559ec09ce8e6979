"""Pins: records that no evict takes.

Layout: ``pins/<record>`` with canonical JSON::

    {"format":1,"reason":"baseline of release 4","created":"2026-01-31T12:00:00.000000+00:00"}

That a pin *stands* is what counts, whatever its contents, so that a damaged one protects too; after it was
written its record is looked at again, because an evict may have been at work; of racing pinners the first
one's reason stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from warmrank.cache_store.backends.backend import BlobBackend, new_document
from warmrank.cache_store.backends.places import TieredBackend
from warmrank.cache_store.errors import Conflict, NotInStore, StoreError, StoreUnavailable
from warmrank.cache_store.gc.inventory import references
from warmrank.cache_store.gc.trash import restore
from warmrank.cache_store.layout import (
    BLOBS,
    DIRECTORIES,
    LAUNCHES,
    PINS,
    is_record,
    pin_name,
    split_pin_name,
    split_record_name,
)
from warmrank.cache_store.parsing import parse_document
from warmrank.cache_store.records.documents import read_stored_form
from warmrank.cache_store.records.manifest import Document, Utc, utc_now

_MIN_PREFIX = 6
"""Fewer characters of a key or digest could mean anything."""


class _PinDocument(Document):
    format: Literal[1] = 1
    reason: str
    created: Utc


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A pinned record; of a pin that cannot be read, the reason says what is wrong, and created is empty."""

    record: str
    reason: str
    created: str


def pin(view: TieredBackend, prefix: str, *, reason: str = "") -> tuple[Pin, ...]:
    """Pin the record, or all records of the launch key, that ``prefix`` begins.

    Raises:
        NotInStore: there is no such record, or it is not whole.
        Conflict: several launches or records begin so.
        Corrupt, NewerFormat: it cannot be read.
    """
    names = (info.name for place in (LAUNCHES, DIRECTORIES) for info in view.list(place))
    records = _choose(filter(is_record, names), prefix, what="record")
    data = _PinDocument(reason=reason, created=utc_now()).to_bytes()
    created = view.put_new([new_document(pin_name(name), data) for name in records])
    try:
        for record in records:
            _check_stands(view, record)
    except StoreError:
        _remove(view, created)
        raise
    return tuple(_read(view, name) for name in records)


def unpin(view: TieredBackend, prefix: str) -> tuple[str, ...]:
    """Remove pins from every place, and return their records, whose launch key or digest ``prefix`` begins.

    Raises:
        NotInStore: nothing pinned begins so.
        Conflict: several launches or records begin so.
    """
    pinned = (pin.record for pin in read_pins(view))
    chosen = {pin_name(name): name for name in _choose(pinned, prefix, what="pin")}
    removed = _remove(view, chosen)
    if staying := sorted(view.stat(chosen)):
        raise StoreUnavailable(
            what=staying[0],
            where=", ".join(tier.name for tier in view.tiers if not tier.is_writable) or "the store",
            reason="the pin stands in a place that is not written from here",
            remedy="remove it where that place is writable",
        )
    return tuple(record for name, record in chosen.items() if name in removed)


def read_pins(backend: BlobBackend) -> tuple[Pin, ...]:
    """All pins, sorted by record."""
    names = (split_pin_name(info.name) for info in backend.list(PINS))
    return tuple(_read(backend, name) for name in sorted(name for name in names if name))


def short_name(record: str) -> str:
    """A record as people see it: kind, key and digest, each by its first characters."""
    parts = split_record_name(record)
    return f"{record.partition('/')[0]} {parts.key[:12]} {parts.sha256[:12]}" if parts else record


def _remove(view: TieredBackend, names: Iterable[str]) -> set[str]:
    """Remove pins from every place, also where one fails; return those that were removed anywhere."""
    removed: set[str] = set()
    failure: StoreUnavailable | None = None
    for place in view.alone():
        try:
            removed.update(name for name in names if place.move(name, None))
        except StoreUnavailable as error:
            failure = failure or error
    if failure:
        raise failure
    return removed


def _choose(names: Iterable[str], prefix: str, *, what: str) -> tuple[str, ...]:
    if len(prefix) < _MIN_PREFIX:
        expected = f"at least {_MIN_PREFIX} characters of a launch key or record digest"
        remedy = "`warmrank ls` shows the launch keys"
        raise Conflict(what=what, where="the command", expected=expected, actual=repr(prefix), remedy=remedy)
    parts = {name: name.split("/") for name in names}
    by_digest = [name for name in parts if parts[name][-1].startswith(prefix)]
    by_key = [name for name in parts if parts[name][2:3] and parts[name][2].startswith(prefix)]
    groups = {name.rpartition("/")[0] for name in by_key} | set(by_digest)
    what = f"{what} {prefix}"
    if not groups:
        raise NotInStore(what=what, where="the store", remedy="see `warmrank ls` for what is there")
    if len(groups) > 1:
        actual, remedy = f"{len(groups)}: {', '.join(sorted(groups)[:4])}", "give more characters"
        raise Conflict(what=what, where="the store", expected="one", actual=actual, remedy=remedy)
    return tuple(sorted(by_key or by_digest))


def _check_stands(backend: BlobBackend, record: str) -> None:
    """Bring a record back, and what it needs, if an evict took them meanwhile."""
    names: Sequence[str] = [record]
    while names:
        if missing := sorted(set(names) - restore(backend, names)):
            remedy = "launch again, then pin what that commits"
            raise NotInStore(what=missing[0], where="the store or its trash", remedy=remedy)
        documents = [name for name in names if not name.startswith(BLOBS)]
        needs = (references(name, read_stored_form(backend, name)).references for name in documents)
        names = [name for needed in needs for name in needed]


def _read(backend: BlobBackend, record: str) -> Pin:
    name = pin_name(record)
    try:
        found = parse_document(_PinDocument, read_stored_form(backend, name), what="pin", where=name)
    except NotInStore:
        return Pin(record=record, reason="(removed meanwhile)", created="")
    except StoreUnavailable:
        raise
    except StoreError as error:
        return Pin(record=record, reason=f"({error})", created="")
    return Pin(record=record, reason=found.reason, created=found.created)
