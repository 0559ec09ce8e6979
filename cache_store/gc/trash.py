"""The trash, the marks of use, and the debris of killed publishers.

Layout: ``trash/<time of the evict>/<former name>``; ``used/<day>/<record>``, empty;
``tmp/<host>-<pid>-<random>/<file>``. Who relies on a name that is gone brings it back before writing what
refers to it, and looks again afterwards; a restored file counts as new. When a record was used is its mark's
age by the store's clock. A host sweeps its own dead processes' debris; only age tells of the others'.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from warmrank.cache_store.backends.backend import BlobBackend, FileInfo, new_document
from warmrank.cache_store.errors import StoreError, StoreUnavailable, is_final
from warmrank.cache_store.layout import PROBE, TMP, TRASH, split_trash_name, split_used_name, used_name

logger = logging.getLogger(__name__)
RESOLUTION_S = 86400.0
"""A mark stands for any time up to so much later, because the next is made on the next day only."""
DEBRIS_S = 86400.0
"""No publisher takes longer from the first byte of a batch to its names."""


def trashed(backend: BlobBackend) -> dict[str, tuple[FileInfo, ...]]:
    """Files in the trash by their former names, the last that came first."""
    found: dict[str, list[FileInfo]] = {}
    for info in backend.list(TRASH):
        if former := split_trash_name(info.name):
            found.setdefault(former[0], []).append(info)
    return {
        name: tuple(sorted(infos, key=lambda info: (-info.modified_s, info.name)))
        for name, infos in found.items()
    }


def restore(backend: BlobBackend, names: Iterable[str]) -> frozenset[str]:
    """Bring back those of ``names`` that lie in the trash, which is listed if any is gone.

    Return those that stand in the store now, whoever put them there.
    """
    wanted = frozenset(names)
    standing = frozenset(backend.stat(wanted)) if wanted else wanted
    gone = wanted - standing
    return standing | restore_from(backend, gone, trashed(backend)) if gone else standing


def restore_from(
    backend: BlobBackend, names: frozenset[str], contents: Mapping[str, tuple[FileInfo, ...]]
) -> frozenset[str]:
    """As `restore`, with the trash listed before."""
    for name in sorted(names & contents.keys()):
        # Of several evicts the last has the bytes that stood last; an older copy serves if that one is gone.
        if any(backend.move(info.name, name) for info in contents[name]):
            logger.info("Restored %s from the trash", name)
    return frozenset(backend.stat(names)) if names else names


def bring_back(backend: BlobBackend, names: Iterable[str]) -> frozenset[str]:
    """As `restore`; a store that cannot be written restores nothing, unless it is required."""
    wanted = frozenset(names)
    try:
        return restore(backend, wanted)
    except StoreUnavailable as error:
        if is_final(error):
            raise
        logger.warning("%d files cannot be looked for in the trash: %s", len(wanted), error)
        return frozenset()


def mark_used(backend: BlobBackend, record_name: str) -> str:
    """Note that a record was used; best effort, at most one write for a record and a day (UTC).

    Return why it was not noted, for a report; empty where it was.
    """
    name = used_name(record_name, datetime.now(UTC).date().isoformat())
    try:
        if not backend.stat([name]):
            backend.put_new([new_document(name, b"")])
    except StoreError as error:
        logger.debug("The use of %s was not noted: %s", record_name, error)
        return (
            f"use not noted, so an evict may take {record_name} for unused: {error}; "
            "`warmrank store pin` keeps it, from where the store is writable"
        )
    return ""


def last_uses(marks: Iterable[FileInfo]) -> dict[str, FileInfo]:
    """The newest mark of every record that has one, by the record's name."""
    newest: dict[str, FileInfo] = {}
    for mark in marks:
        parts = split_used_name(mark.name)
        if parts and (parts[0] not in newest or newest[parts[0]].modified_s < mark.modified_s):
            newest[parts[0]] = mark
    return newest


def list_debris(backend: BlobBackend) -> tuple[tuple[FileInfo, ...], str]:
    """The files on their way in, however old, and why some could not be listed, or nothing.

    These directories are private, so those of other users cannot be listed; that stops nothing.
    """
    found: list[FileInfo] = []
    try:
        for info in backend.list(TMP):
            if info.name != PROBE:
                found.append(info)  # noqa: PERF401 - what was listed before a failure counts
    except StoreUnavailable as error:
        return tuple(found), f"not all of {TMP} could be looked at: {error}"
    return tuple(found), ""
