"""When a record was last used: coarse, cheap, and never a reason for a launch to fail.

Layout: ``used/<day>/<record>``, an empty create-only file, so a record costs at most one small write a day
whatever the number of ranks. The day in the name only keeps days apart; *when* is the file's age by the
store's clock, so a node whose clock is off does no harm.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import UTC, date, datetime

from warmrank.cache_store.backends.backend import BlobBackend, FileInfo, NewFile
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import StoreError
from warmrank.cache_store.layout import split_used_name, used_name

logger = logging.getLogger(__name__)

RESOLUTION_S = 86400.0
"""A mark stands for any time up to so much later, because the next is made on the next day only."""

_EMPTY = digest_bytes(b"")


def mark_used(backend: BlobBackend, record_name: str, *, today: date | None = None) -> str:
    """Note that the record of that name was used; best effort, at most one write for a record and a day.

    Args:
        backend: the store.
        record_name: the record's name in it.
        today: the day; None takes that of this machine's clock, in UTC.

    Returns:
        Why it was not noted, for a report; empty where it was.
    """
    name = used_name(record_name, (today or datetime.now(UTC).date()).isoformat())
    try:
        if not backend.stat([name]):
            backend.put_new([NewFile(name=name, source=b"", expected=_EMPTY)])
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
