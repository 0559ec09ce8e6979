"""Whether the blobs that a fetch needs are all there, before the first one is copied.

Invariants: nothing is read, only looked at; a blob of another size than its manifest says goes into
quarantine; what is gone is looked for in the trash, because an evict may have taken it a moment ago.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from warmrank.cache_store.backends.backend import BlobBackend, FileInfo
from warmrank.cache_store.digests import Digest
from warmrank.cache_store.errors import Corrupt, NotInStore, StoreError, StoreUnavailable, is_final
from warmrank.cache_store.layout import blob_name
from warmrank.cache_store.records.documents import quarantine_if_damaged
from warmrank.cache_store.retention import trash

logger = logging.getLogger(__name__)


def blob_faults(backend: BlobBackend, digests: Iterable[Digest]) -> dict[Digest, StoreError]:
    """Why blobs cannot be had; those that can are left out.

    Raises:
        StoreUnavailable: of a place of the store that is required.
    """
    wanted = dict.fromkeys(digests)
    if not wanted:
        return {}
    try:
        return _faults(backend, list(wanted))
    except StoreUnavailable as error:
        if is_final(error):
            raise
        return dict.fromkeys(wanted, error)


def bring_back(backend: BlobBackend, names: Iterable[str]) -> frozenset[str]:
    """Restore from the trash what an evict took; a store that cannot be written restores nothing.

    Returns:
        Those of ``names`` that stand in the store now.

    Raises:
        StoreUnavailable: of a place of the store that is required.
    """
    wanted = frozenset(names)
    if not wanted:
        return wanted
    try:
        return trash.restore(backend, wanted)
    except StoreUnavailable as error:
        if is_final(error):
            raise
        logger.warning("%d files cannot be looked for in the trash: %s", len(wanted), error)
        return frozenset()


def _faults(backend: BlobBackend, wanted: list[Digest]) -> dict[Digest, StoreError]:
    found = _stat(backend, wanted)
    damaged: dict[Digest, StoreError] = {}
    for digest in wanted:
        if fault := _size_fault(digest, found):
            quarantine_if_damaged(backend, fault.where, fault)
            damaged[digest] = fault
    if damaged:
        found |= _stat(backend, damaged)  # another tier may hold a good one
        damaged = {digest: fault for digest, fault in damaged.items() if not _is_whole(digest, found)}
    gone = [digest for digest in wanted if _name(digest) not in found]
    back = bring_back(backend, map(_name, gone))
    missing = (digest for digest in gone if _name(digest) not in back)
    return damaged | {digest: NotInStore(what=f"{digest}", where=_name(digest)) for digest in missing}


def _stat(backend: BlobBackend, digests: Iterable[Digest]) -> dict[str, FileInfo]:
    return backend.stat(map(_name, digests))


def _size_fault(digest: Digest, found: dict[str, FileInfo]) -> Corrupt | None:
    info = found.get(_name(digest))
    if info is None or info.content_bytes in (None, digest.size_bytes):
        return None
    expected, actual = f"{digest.size_bytes} bytes", f"{info.content_bytes} bytes"
    return Corrupt(what="blob", where=info.name, expected=expected, actual=actual)


def _is_whole(digest: Digest, found: dict[str, FileInfo]) -> bool:
    return _name(digest) in found and not _size_fault(digest, found)


def _name(digest: Digest) -> str:
    return blob_name(digest.sha256)
