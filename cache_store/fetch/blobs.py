"""Blobs out of the store into private files: looked for, copied and verified; more copies from the first.

A file that these functions leave behind is whole. It never shares an inode with another, but its blocks where
the file system can (a reflink), after which the private file is read once to verify it. Nothing is flushed: a
load verifies every byte, so a copy that a power cut tore is a miss.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol

from warmrank.cache_store.backends.backend import BlobBackend, FileInfo, NewFile
from warmrank.cache_store.backends.durability import EarlyWriter
from warmrank.cache_store.backends.places import read_from_any
from warmrank.cache_store.cache_dir.marks import Permit
from warmrank.cache_store.cache_dir.private_files import create_private, open_private, os_errors_are_unusable
from warmrank.cache_store.digests import CHUNK_BYTES, Digest, TooLong, copy_and_digest, digest_stream
from warmrank.cache_store.errors import (
    Corrupt,
    NotInStore,
    StoreError,
    StoreUnavailable,
    is_final,
    os_errors_are_unavailable,
)
from warmrank.cache_store.gc.trash import restore
from warmrank.cache_store.layout import blob_name
from warmrank.cache_store.progress import OnProgress
from warmrank.cache_store.records.documents import quarantine_if_damaged
from warmrank.cache_store.records.manifest import MAX_FILE_BYTES

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
        return restore(backend, wanted)
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


MAX_BLOB_BYTES = MAX_FILE_BYTES
"""What a blob of unknown size, because the place keeps it compressed, can fill a disk with at most."""
_FICLONE = 0x40049409  # linux/fs.h: _IOW(0x94, 9, int)
_CLONE_BYTES = 64 << 20  # a multiple of every block size, so that all of a file can be shared
_CANNOT_CLONE = frozenset(
    {errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL, errno.EPERM, errno.ETXTBSY}
)
CountBytes = Callable[[int], None]


class BlobReader(Protocol):
    """Opens blobs by name, as a store does; whoever reads one verifies it."""

    def open(self, name: str) -> BinaryIO:
        """Open a blob for reading.

        Raises:
            NotInStore: there is none.
            StoreUnavailable: it cannot be had; reading may raise that, too.
        """


def _nobody_waits() -> None:
    """Where nobody asks whether a fetch gets on."""


def _nobody_shares(copies: Sequence[NewFile]) -> None:
    """Where nobody else is to get the blobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOptions:
    """How a fetch is done; none of it changes what is laid out.

    Attributes:
        shared: blobs that another node shares, asked before the store.
        held: told of a verified private copy of each blob that the node has after a fetch.
        reread: read and verify what is there already, though nothing says that it changed.
        on_progress: told now and then how far it is.
        beat: called now and then, for whoever waits for the cache directory.
    """

    shared: BlobReader | None = None
    held: Callable[[Sequence[NewFile]], None] = _nobody_shares
    reread: bool = False
    on_progress: OnProgress | None = None
    beat: Callable[[], None] = _nobody_waits


@dataclass(frozen=True, slots=True, kw_only=True)
class Blobs:
    """Blobs of a store, on their way into one directory of this node.

    Attributes:
        backend: the store.
        permit: where copies may go.
        shared: asked before the store; None for nobody.
        is_flushed: the copies are to be flushed, so the disk begins with each at once.
        unshared: devices of places from which no reflink could be made, so that it is not tried for each.
        brought: blobs that ``shared`` gave.
    """

    backend: BlobBackend
    permit: Permit
    shared: BlobReader | None = None
    is_flushed: bool = False
    unshared: set[int] = field(default_factory=set)
    brought: set[Digest] = field(default_factory=set)

    def copy(self, digest: Digest, path: Path, count: CountBytes) -> Digest:
        """Copy a blob of known size; see `copy_blob`."""
        source = BlobSource(blobs=self, sha256=digest.sha256, size_bytes=digest.size_bytes)
        if self.shared is not None and _copy_shared(self.shared, source, path, count):
            self.brought.add(digest)
            return digest
        return copy_blob(source, path, count)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobSource:
    """A blob of a store.

    Attributes:
        blobs: whose it is one of.
        sha256: the blob's name.
        size_bytes: its size, None where nobody has said it.
    """

    blobs: Blobs
    sha256: str
    size_bytes: int | None


def copy_blob(source: BlobSource, path: Path, count: CountBytes) -> Digest:
    """Copy a blob into the new private file ``path``, below where it may go, verified.

    A damaged blob goes into quarantine, and is asked for once more: another place may hold a good one. One
    that its place cannot read is asked of the next.

    Args:
        source: the blob.
        path: where to; its directory exists.
        count: told of all bytes copied, and of those taken back with a minus sign.

    Raises:
        NotInStore: there is no such blob.
        Corrupt: its bytes are not what its name says; it is in quarantine.
        StoreUnavailable: it cannot be read.
        UnusableCache: ``path`` cannot be written.
    """
    name = blob_name(source.sha256)
    assert source.blobs.permit.covers(path)  # noqa: S101 - another directory bears no marks of it
    first: Corrupt | None = None
    while True:
        try:
            return read_from_any(
                source.blobs.backend, name, lambda file: _copy_file(file, source, path, count)
            )
        except NotInStore as error:
            raise first or error from None
        except Corrupt as error:
            quarantine_if_damaged(source.blobs.backend, name, error)
            if first is not None:
                raise
            first = error


def clone(source: Path, target: Path, count: CountBytes) -> None:
    """Copy a private file into the new private file ``target``, in the kernel where that is possible.

    Raises:
        UnusableCache: one of the two cannot be read or written; ``target`` is not there.
    """
    done = 0

    def advance(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        count(num_bytes)

    try:
        with (
            os_errors_are_unusable("file", target),
            open_private(source) as reader,
            create_private(target) as writer,
        ):
            while num_bytes := _clone_some(reader.fileno(), writer.fileno(), offset=done):
                advance(num_bytes)
            reader.seek(done)
            writer.seek(done)
            while chunk := reader.read(CHUNK_BYTES):
                writer.write(chunk)
                advance(len(chunk))
    except BaseException:
        count(-done)
        _give_up(target)
        raise


def _clone_some(reader: int, writer: int, *, offset: int) -> int:
    """Copy the next bytes in the kernel; 0 at the end, and where the kernel cannot."""
    try:
        return os.copy_file_range(reader, writer, _CLONE_BYTES, offset, offset)
    except OSError as error:
        if error.errno in _CANNOT_CLONE:
            return 0
        raise


def _give_up(path: Path) -> None:
    # What cannot be removed lies in staging, goes with it or after it, and must not hide the first fault.
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def _copy_shared(shared: BlobReader, source: BlobSource, path: Path, count: CountBytes) -> bool:
    """Copy a blob that another node shares; False where it has to come from the store."""
    try:
        with shared.open(blob_name(source.sha256)) as file:
            _copy_file(file, source, path, count)
    except NotInStore:
        return False
    except (Corrupt, StoreUnavailable) as error:
        logger.warning("Read from the store instead: %s", error)
        return False
    return True


def _copy_file(file: BinaryIO, source: BlobSource, path: Path, count: CountBytes) -> Digest:
    reader = _StoreReader(file=file, name=blob_name(source.sha256), count=count)
    try:
        return _pour(reader, source, path)
    except BaseException:
        count(-reader.num_bytes)
        _give_up(path)
        raise


def _pour(reader: _StoreReader, source: BlobSource, path: Path) -> Digest:
    try:
        with os_errors_are_unusable("file", path), create_private(path) as target:
            if _share_blocks(reader.file, target, source.blobs.unshared):
                actual = _digest_of_clone(reader, path, limit_bytes=_limit_bytes(source))
            else:
                writer = EarlyWriter(target) if source.blobs.is_flushed else target
                actual = copy_and_digest(reader, writer, limit_bytes=_limit_bytes(source))
    except TooLong as error:
        raise _not_as_named(source, str(error)) from error
    if actual.sha256 != source.sha256 or source.size_bytes not in (None, actual.size_bytes):
        raise _not_as_named(source, str(actual))
    return actual


def _share_blocks(file: BinaryIO, target: io.BufferedWriter, unshared: set[int]) -> bool:
    """Make the empty ``target`` a reflink of a whole plain file, where one file system holds both and can."""
    if not (isinstance(file, io.BufferedReader) and isinstance(file.raw, io.FileIO)):
        return False
    device = os.fstat(file.fileno()).st_dev
    if device in unshared:
        return False
    try:
        fcntl.ioctl(target.fileno(), _FICLONE, file.fileno())
    except OSError:
        unshared.add(device)
        return False  # then it is copied, which meets whatever is wrong
    return True


def _digest_of_clone(reader: _StoreReader, path: Path, *, limit_bytes: int) -> Digest:
    """Digest of the private file that was made, not of the store's: another process could change that."""
    with open_private(path) as clone_file:
        reader.file = clone_file
        return digest_stream(reader, limit_bytes=limit_bytes)


def _limit_bytes(source: BlobSource) -> int:
    return MAX_BLOB_BYTES if source.size_bytes is None else source.size_bytes


def _not_as_named(source: BlobSource, actual: str) -> Corrupt:
    size = f"at most {MAX_BLOB_BYTES}" if source.size_bytes is None else f"{source.size_bytes}"
    return Corrupt(
        what="artifact",
        where=blob_name(source.sha256),
        expected=f"sha256 {source.sha256[:12]} ({size} bytes)",
        actual=actual,
    )


@dataclass(slots=True, kw_only=True)
class _StoreReader:
    """Keeps a fault of the store apart from one of the local disk, which the same copy can meet."""

    file: BinaryIO
    name: str
    count: CountBytes
    num_bytes: int = 0

    def read(self, size: int, /) -> bytes:
        with os_errors_are_unavailable("blob", self.name):
            chunk = self.file.read(size)
        self.num_bytes += len(chunk)
        self.count(len(chunk))
        return chunk
