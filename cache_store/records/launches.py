"""Launch records as they are read: many as summaries, few whole.

Each is returned only after its envelope was judged and its bytes are those that its name announces. A summary
says nothing about the partitions, so a record may turn out unusable when it is read whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict

from warmrank.cache_store.backends.backend import FileInfo
from warmrank.cache_store.errors import Corrupt
from warmrank.cache_store.layout import LAUNCHES, launch_prefix, split_launch_name
from warmrank.cache_store.parsing import parse_document
from warmrank.cache_store.records.documents import (
    Documents,
    age,
    check_sha256,
    dated_ahead,
    seconds_of,
    take_usable,
)
from warmrank.cache_store.records.manifest import (
    FORMAT,
    NEWEST_FORMAT,
    Components,
    LaunchRecord,
    Sha256,
    Utc,
    WorldSize,
    parse_launch_record,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLaunch:
    """A launch record and its name in the store."""

    name: str
    record: LaunchRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSummary:
    """What a launch is chosen by: its name in the store, and some fields of its record."""

    name: str
    world_size: int
    environments: tuple[Mapping[str, str], ...]
    created: str


class _Other(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")
    environment: Components


class _Head(BaseModel):
    """A launch record without its partitions, whose validation takes nine tenths of the time."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    format: Literal[1, 2]
    launch_key: Sha256
    world_size: WorldSize
    environment: Components
    others: tuple[_Other, ...] = ()
    created: Utc


R = TypeVar("R", LaunchRecord, _Head)


def read_launch(documents: Documents, name: str) -> LaunchRecord:
    """Read one record without touching it; raises as `Documents.read`."""
    return _read(documents, name, parse_launch_record)


def read_launches(
    documents: Documents, launch_key: str | None, problems: list[str]
) -> tuple[StoredLaunch, ...]:
    """Read all records, or those of one key, newest first.

    A record that cannot be used is skipped, logged, and described in ``problems``; a damaged one goes into
    quarantine. Raises `StoreUnavailable` where the store cannot be listed.
    """
    infos = _infos(documents, launch_key)
    found = take_launches(documents, list(infos), problems)
    order = _newest_first(infos, {stored.name: stored.record.created for stored in found}, problems)
    return tuple(sorted(found, key=lambda stored: order[stored.name]))


def take_launches(
    documents: Documents, names: Sequence[str], problems: list[str]
) -> tuple[StoredLaunch, ...]:
    """Read records whole, in the order of ``names``; what cannot be used is skipped as by `read_launches`."""

    def read(name: str) -> StoredLaunch:
        return StoredLaunch(name=name, record=read_launch(documents, name))

    return take_usable(documents.backend, names, read, problems)


def summarize_launches(
    documents: Documents, launch_key: str, problems: list[str]
) -> tuple[LaunchSummary, ...]:
    """Summaries of the records of one key, newest first; skips what cannot be used, as `read_launches`."""
    infos = _infos(documents, launch_key)
    found = take_usable(documents.backend, list(infos), lambda name: _summarize(documents, name), problems)
    order = _newest_first(infos, {item.name: item.created for item in found}, problems)
    return tuple(sorted(found, key=lambda item: order[item.name]))


def launch_keys(documents: Documents) -> tuple[str, ...]:
    """All keys under which records stand, sorted."""
    names = (split_launch_name(info.name) for info in documents.backend.list(LAUNCHES))
    return tuple(sorted({parts[0] for parts in names if parts}))


def _infos(documents: Documents, launch_key: str | None) -> dict[str, FileInfo]:
    prefix = LAUNCHES if launch_key is None else launch_prefix(launch_key)
    return {info.name: info for info in documents.backend.list(prefix)}


def _newest_first(
    infos: Mapping[str, FileInfo], created: Mapping[str, str], problems: list[str]
) -> dict[str, tuple[float, float, str]]:
    dates = {name: seconds_of(date) for name, date in created.items()}
    problems += dated_ahead(infos, dates)
    return {name: age(infos[name], date) for name, date in dates.items()}


def _summarize(documents: Documents, name: str) -> LaunchSummary:
    head = _read(documents, name, _parse_head)
    environments = head.environment, *(other.environment for other in head.others)
    return LaunchSummary(
        name=name, world_size=head.world_size, environments=environments, created=head.created
    )


def _parse_head(data: bytes, where: str) -> _Head:
    return parse_document(
        _Head, data, supported_format=NEWEST_FORMAT, what="launch record", where=where, oldest_format=FORMAT
    )


def _read(documents: Documents, name: str, parse: Callable[[bytes, str], R]) -> R:
    """Read the record that a name announces."""
    expected, actual, parts = "a name of the layout", "another", split_launch_name(name)
    if parts is not None:
        payload, _ = documents.read("launch", parts[0], name)
        check_sha256("launch record", name, payload, parts[1])
        record = parse(payload, name)
        expected, actual = parts[0], record.launch_key
        if actual == expected:
            return record
    raise Corrupt(what="launch record", where=name, expected=expected, actual=actual)
