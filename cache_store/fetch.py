"""Fetching: bytes out of the store into a node's cache directory.

Invariants: every byte is hashed while it is copied, and nothing gets its name before all of a partition is
verified; what is in the cache directory already is verified, and not copied; a blob that is not what its
name says goes into quarantine. A file lock keeps the ranks of a node from copying the same partition at
once, which saves work only: without it the result is the same.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock, Timeout

from cache_store.backend import BlobBackend
from cache_store.digests import Digest
from cache_store.documents import quarantine_if_damaged
from cache_store.errors import Corrupt, NotInStore, os_errors_are_unavailable
from cache_store.layout import blob_name
from cache_store.local import (
    add_variant_stream,
    ensure_cache_dir,
    find_variant,
    mark_unverified,
    place,
    stage,
)
from cache_store.manifest import ArtifactEntry, PartitionManifest
from cache_store.private_files import (
    make_private_directories,
    os_errors_are_unusable,
    sweep_debris,
    temporary_name,
)
from cache_store.reports import FetchReport

logger = logging.getLogger(__name__)

LOCK_TIMEOUT_S = 60.0
_STAGING = ".tmp-"


def fetch_blob(backend: BlobBackend, sha256: str, function_dir: Path) -> Path:
    """Add one blob to a function's variants.

    Raises:
        NotInStore: there is no such blob.
        Corrupt: its bytes are not what its name says; it is in quarantine.
        UnusableCache: the function's directory cannot be written.
    """
    name = blob_name(sha256)
    info = backend.stat([name]).get(name)
    if info is None:
        raise NotInStore(what=f"blob {sha256[:12]}", where=name)
    expected = Digest(sha256=sha256, size_bytes=info.content_bytes or 0)
    with _verified(backend, name) as stream:
        return add_variant_stream(function_dir, stream, expected=expected, source=name)


def fetch_partition(
    backend: BlobBackend,
    key: str,
    manifest: PartitionManifest,
    cache_root: Path,
    *,
    verified: bool,
    lock_timeout_s: float,
) -> FetchReport:
    """Lay out all artifacts of ``manifest``, stored under ``key``, below ``cache_root``.

    Args:
        backend: the store.
        key: the partition's key.
        manifest: the partition.
        cache_root: the cache directory.
        verified: the policy asked for a signature of ``manifest``; otherwise the directory is marked so
            before the first copy.
        lock_timeout_s: how long to wait for another fetch of it.

    Raises:
        NotInStore: blobs are missing (all are named); nothing was laid out.
        Corrupt: a blob is damaged, and now in quarantine; nothing was laid out.
        UnusableCache: ``cache_root`` cannot be used.
    """
    started = time.perf_counter()
    ensure_cache_dir(cache_root)
    with _single_flight(cache_root, key, lock_timeout_s):
        absent = [entry for entry in manifest.artifacts if not _is_there(entry, cache_root)]
        _check_complete(backend, manifest.partition, absent)
        if absent and not verified:
            mark_unverified(cache_root)
        _lay_out(backend, absent, cache_root)
    report = FetchReport(
        partition=manifest.partition,
        num_files=len(manifest.artifacts),
        bytes_copied=sum(entry.size_bytes for entry in absent),
        num_already_there=len(manifest.artifacts) - len(absent),
        seconds=time.perf_counter() - started,
    )
    logger.info(
        "Fetched %s: %d files, %d bytes copied, %.3f s",
        report.partition,
        report.num_files,
        report.bytes_copied,
        report.seconds,
    )
    return report


def _is_there(entry: ArtifactEntry, cache_root: Path) -> bool:
    return find_variant(_function_dir(entry, cache_root), entry.digest) is not None


def _check_complete(backend: BlobBackend, partition: str, entries: Sequence[ArtifactEntry]) -> None:
    missing: list[str] = []
    damaged: list[Corrupt] = []
    for sha256, entry in {entry.sha256: entry for entry in entries}.items():
        name = blob_name(sha256)
        info = backend.stat([name]).get(name)
        if info is None:
            missing.append(f"{sha256[:12]} of {entry.function}")
        elif info.content_bytes not in (None, entry.size_bytes):
            expected, actual = f"{entry.size_bytes} bytes", f"{info.content_bytes} bytes"
            damaged.append(
                Corrupt(what=f"blob of {entry.function}", where=name, expected=expected, actual=actual)
            )
            quarantine_if_damaged(backend, name, damaged[-1])
    if damaged:
        raise damaged[0]
    if missing:
        raise NotInStore(what=f"blobs {', '.join(missing)}", where=partition)


def _lay_out(backend: BlobBackend, entries: Sequence[ArtifactEntry], cache_root: Path) -> None:
    with _staging(cache_root) as staging:
        staged = [_stage(backend, entry, staging) for entry in entries]
        for item in staged:
            place(_function_dir(item.entry, cache_root), item.path, item.entry.digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Staged:
    entry: ArtifactEntry
    path: Path


def _stage(backend: BlobBackend, entry: ArtifactEntry, staging: Path) -> _Staged:
    name = blob_name(entry.sha256)
    with _verified(backend, name) as stream:
        path, _ = stage(staging, stream, expected=entry.digest, source=name)
    return _Staged(entry=entry, path=path)


@contextlib.contextmanager
def _staging(cache_root: Path) -> Iterator[Path]:
    sweep_debris(cache_root, _STAGING)
    path = cache_root / f"{_STAGING}{temporary_name()}"
    with os_errors_are_unusable("directory", path):
        make_private_directories(path)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _single_flight(cache_root: Path, key: str, timeout_s: float) -> Iterator[None]:
    locks = cache_root / ".locks"
    with os_errors_are_unusable("directory", locks):
        make_private_directories(locks)
    # A soft lock would outlive its holder.
    lock = FileLock(locks / f"{key}.lock", timeout=timeout_s, mode=0o600, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        logger.warning("%s was held for %.0f s; fetching beside its holder", lock.lock_file, timeout_s)
    except (OSError, NotImplementedError) as error:
        logger.warning("Fetching without a lock, which may copy twice: %s", error)
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _verified(backend: BlobBackend, name: str) -> Iterator[_StoreReader]:
    with backend.open(name) as file:
        try:
            yield _StoreReader(file=file, name=name)
        except Corrupt as error:
            quarantine_if_damaged(backend, name, error)
            raise


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoreReader:
    """Keeps a fault of the store apart from one of the local disk, which the same copy can meet."""

    file: BinaryIO
    name: str

    def read(self, size: int, /) -> bytes:
        with os_errors_are_unavailable("blob", self.name):
            return self.file.read(size)


def _function_dir(entry: ArtifactEntry, cache_root: Path) -> Path:
    return (cache_root / entry.path).parent
