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

from warmrank.cache_store.backends.backend import new_document
from warmrank.cache_store.backends.places import Places
from warmrank.cache_store.errors import Conflict, NotInStore, StoreError, StoreUnavailable
from warmrank.cache_store.gc.inventory import references, restore
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


@dataclass(frozen=True, slots=True)
class Pin:
    """A pinned record; of a pin that cannot be read, the reason says what is wrong, and created is empty."""

    record: str
    reason: str
    created: str


def pin(places: Places, prefix: str, *, reason: str = "") -> tuple[Pin, ...]:
    """Pin the record, or all records of the launch key, that ``prefix`` begins.

    Raises:
        NotInStore: there is no such record, or it is not whole.
        Conflict: several launches or records begin so.
        Corrupt, NewerFormat: it cannot be read.
    """
    names = (info.name for kind in (LAUNCHES, DIRECTORIES) for info in places.list(kind))
    records = _choose(filter(is_record, names), prefix, what="record")
    data = _PinDocument(reason=reason, created=utc_now()).to_bytes()
    created = places.put_new([new_document(pin_name(name), data) for name in records])
    try:
        for record in records:
            _check_stands(places, record)
    except StoreError:
        _remove(places, created)
        raise
    return tuple(_read(places, name) for name in records)


def unpin(places: Places, prefix: str) -> tuple[str, ...]:
    """Remove pins from every place, and return their records, whose launch key or digest ``prefix`` begins.

    Raises:
        NotInStore: nothing pinned begins so.
        Conflict: several launches or records begin so.
    """
    chosen = _choose((pin.record for pin in read_pins(places)), prefix, what="pin")
    names = [pin_name(record) for record in chosen]
    _remove(places, names)
    if staying := sorted(places.stat(names)):
        raise StoreUnavailable(
            what=staying[0],
            where=", ".join(tier.name for tier in places.tiers if not tier.is_writable) or "the store",
            reason="the pin stands in a place that is not written from here",
            remedy="remove it where that place is writable",
        )
    return chosen


def read_pins(places: Places) -> tuple[Pin, ...]:
    """All pins, sorted by record."""
    names = (split_pin_name(info.name) for info in places.list(PINS))
    return tuple(_read(places, name) for name in sorted(name for name in names if name))


def short_name(record: str) -> str:
    """A record as people see it: kind, key and digest, each by its first characters."""
    parts = split_record_name(record)
    return f"{record.partition('/')[0]} {parts.key[:12]} {parts.sha256[:12]}" if parts else record


def _remove(places: Places, names: Iterable[str]) -> None:
    """Remove pins from every place, also where one fails."""
    failure: StoreUnavailable | None = None
    for place in places.alone():
        try:
            for name in names:
                place.move(name, None)
        except StoreUnavailable as error:
            failure = failure or error
    if failure:
        raise failure


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


def _check_stands(places: Places, record: str) -> None:
    """Bring a record back, and what it needs, if an evict took them meanwhile."""
    names: Sequence[str] = [record]
    while names:
        if missing := sorted(set(names) - restore(places, names)):
            remedy = "launch again, then pin what that commits"
            raise NotInStore(what=missing[0], where="the store or its trash", remedy=remedy)
        documents = [name for name in names if not name.startswith(BLOBS)]
        needs = (references(name, read_stored_form(places, name)).references for name in documents)
        names = [name for needed in needs for name in needed]


def _read(places: Places, record: str) -> Pin:
    name = pin_name(record)
    try:
        found = parse_document(_PinDocument, read_stored_form(places, name), what="pin", where=name)
    except NotInStore:
        return Pin(record, "(removed meanwhile)", "")
    except StoreUnavailable:
        raise
    except StoreError as error:
        return Pin(record, f"({error})", "")
    return Pin(record, found.reason, found.created)
