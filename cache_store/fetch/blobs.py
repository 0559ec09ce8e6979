"""Manifests and blobs out of the store, these into private files: looked for, copied and verified.

A file that these functions leave behind is whole. It never shares an inode with another, but its blocks where
the file system can (a reflink), after which the private file is read once to verify it. Nothing is flushed: a
load verifies every byte, so a copy that a power cut tore is a miss.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar

from warmrank.cache_store.backends.backend import BlobBackend, NewFile
from warmrank.cache_store.backends.durability import EarlyWriter
from warmrank.cache_store.backends.places import read_from_any
from warmrank.cache_store.cache_dir.marks import Permit
from warmrank.cache_store.cache_dir.private_files import create_private, open_private, os_errors_are_unusable
from warmrank.cache_store.digests import (
    CHUNK_BYTES,
    Digest,
    TooLong,
    copy_and_digest,
    digest_stream,
)
from warmrank.cache_store.errors import (
    Corrupt,
    NotInStore,
    StoreError,
    StoreUnavailable,
    is_final,
    os_errors_are_unavailable,
    outcome_of,
)
from warmrank.cache_store.gc.trash import bring_back
from warmrank.cache_store.layout import blob_name, manifest_name
from warmrank.cache_store.parallel import OnProgress, each, nothing
from warmrank.cache_store.records.documents import READERS, Documents, StandingManifest, quarantine_if_damaged
from warmrank.cache_store.records.manifest import MAX_FILE_BYTES, PartitionRef

logger = logging.getLogger(__name__)
T = TypeVar("T")
_FICLONE = 0x40049409  # linux/fs.h: _IOW(0x94, 9, int)
_CLONE_BYTES = 64 << 20  # a multiple of every block size, so that all of a file can be shared


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOptions:
    """Options of a fetch; none of them changes what is laid out."""

    # Opens a blob that another node shares, by its name, or raises `NotInStore`; asked before the store.
    shared: Callable[[str], BinaryIO] | None = None
    held: Callable[[Sequence[NewFile]], None] = nothing  # told of a verified private copy of each blob
    reread: bool = False  # read and verify what is there, though nothing says that it changed
    on_progress: OnProgress | None = None
    beat: Callable[[], None] = nothing  # called now and then, for whoever waits for the cache directory


def missing_blobs(backend: BlobBackend, digests: Iterable[Digest]) -> dict[Digest, StoreError]:
    """Errors of the blobs that are neither there nor in the trash; raises only for a required place.

    Whether the others are whole is seen when they are copied.
    """
    wanted = {blob_name(digest.sha256): digest for digest in digests}
    try:
        gone = wanted.keys() - backend.stat(wanted).keys() if wanted else set[str]()
        missing = gone - bring_back(backend, gone) if gone else gone
    except StoreUnavailable as error:
        if is_final(error):
            raise
        return dict.fromkeys(wanted.values(), error)
    return {wanted[name]: NotInStore(what=f"{wanted[name]}", where=name) for name in missing}


@dataclass(frozen=True, slots=True, kw_only=True)
class Blobs:
    """Blobs of a store, on their way into one directory of this node."""

    backend: BlobBackend
    permit: Permit  # where copies may go
    shared: Callable[[str], BinaryIO] | None = None  # asked before the store
    count: Callable[[int], object] = nothing  # told of all bytes that are copied
    is_flushed: bool = False  # the copies are to be flushed, so the disk begins with each at once
    unshared: set[int] = field(default_factory=set)  # devices of places from which no reflink can be made
    brought: set[Digest] = field(default_factory=set)  # blobs that ``shared`` gave

    def copy(self, sha256: str, size_bytes: int | None, path: Path) -> Digest:
        """Copy a blob into the new private file ``path``, below where it may go, verified.

        Its directory exists; ``size_bytes`` is None where nobody said it. It comes from where it is shared,
        or else from the store. A damaged blob goes into quarantine, and is asked for once more: another place
        may hold a good one. One that its place cannot read is asked of the next.

        Raises:
            NotInStore: there is no such blob.
            Corrupt: its bytes are not what its name says; it is in quarantine.
        """
        name = blob_name(sha256)
        assert self.permit.covers(path)  # noqa: S101 - another directory bears no marks of it
        if self.shared is not None and (digest := self._copy_shared(self.shared, name, size_bytes, path)):
            self.brought.add(digest)
            return digest
        first: Corrupt | None = None
        while True:
            try:
                return read_from_any(
                    self.backend, name, lambda file: self._write(file, name, size_bytes, path)
                )
            except NotInStore as error:
                raise first or error from None
            except Corrupt as error:
                quarantine_if_damaged(self.backend, name, error)
                if first is not None:
                    raise
                first = error

    def _copy_shared(
        self, shared: Callable[[str], BinaryIO], name: str, size_bytes: int | None, path: Path
    ) -> Digest | None:
        """Copy a blob that another node shares; None where it has none, or a damaged one."""
        try:
            with shared(name) as file:
                return self._write(file, name, size_bytes, path)
        except NotInStore:
            return None
        except (Corrupt, StoreUnavailable) as error:
            logger.warning("Read from the store instead: %s", error)
            return None

    def _write(self, file: BinaryIO, name: str, size_bytes: int | None, path: Path) -> Digest:
        # A place that compresses tells no size.
        limit_bytes = MAX_FILE_BYTES if size_bytes is None else size_bytes
        reader = _StoreReader(file=file, name=name, count=self.count)
        with _gone_on_failure(path):
            try:
                with os_errors_are_unusable("file", path), create_private(path) as target:
                    if self._share_blocks(file, target):
                        # Of the private file, not of the store's, which another process could change.
                        with open_private(path) as reader.file:
                            actual = digest_stream(reader, limit_bytes=limit_bytes)
                    else:
                        writer = EarlyWriter(target) if self.is_flushed else target
                        actual = copy_and_digest(reader, writer, limit_bytes=limit_bytes)
                found = str(actual)
                if blob_name(actual.sha256) == name and size_bytes in (None, actual.size_bytes):
                    return actual
            except TooLong as error:
                found = str(error)
            size = f"at most {limit_bytes}" if size_bytes is None else f"{size_bytes}"
            expected = f"sha256 {name.rpartition('/')[2][:12]} ({size} bytes)"
            raise Corrupt(what="artifact", where=name, expected=expected, actual=found)

    def _share_blocks(self, file: BinaryIO, target: io.BufferedWriter) -> bool:
        """Make the empty ``target`` a reflink of a whole plain file, where one file system can."""
        try:
            source = file.fileno()
        except io.UnsupportedOperation:
            return False
        device = os.fstat(source).st_dev
        if device in self.unshared:
            return False
        try:
            fcntl.ioctl(target.fileno(), _FICLONE, source)
        except OSError:
            self.unshared.add(device)
            return False  # then it is copied, which meets whatever is wrong
        return True


def clone(source: Path, target: Path, count: Callable[[int], object] = nothing) -> None:
    """Copy a private file into the new private file ``target``, in the kernel where that is possible.

    Raises `UnusableCache` where one of the two cannot be read or written; ``target`` is not there then.
    """
    with (
        _gone_on_failure(target),
        os_errors_are_unusable("file", target),
        open_private(source) as reader,
        create_private(target) as writer,
    ):
        with contextlib.suppress(OSError):  # then it is copied below, which meets whatever is wrong
            while num_bytes := os.copy_file_range(reader.fileno(), writer.fileno(), _CLONE_BYTES):
                count(num_bytes)
        while chunk := reader.read(CHUNK_BYTES):  # the rest, where the kernel could not
            writer.write(chunk)
            count(len(chunk))


@dataclass(slots=True, kw_only=True)
class _StoreReader:
    """Keeps a fault of the store apart from one of the local disk, which the same copy can meet."""

    file: BinaryIO
    name: str
    count: Callable[[int], object]

    def read(self, size: int, /) -> bytes:
        with os_errors_are_unavailable("blob", self.name):
            chunk = self.file.read(size)
        self.count(len(chunk))
        return chunk


@contextlib.contextmanager
def _gone_on_failure(path: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        # What cannot be removed lies in staging, goes with it or after it, and must not hide the first fault.
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned(Generic[T]):
    """Results of reading manifests, in the order asked for, errors of others, and ids of the signers."""

    kept: dict[PartitionRef, T]
    errors: dict[PartitionRef, StoreError]
    signers: frozenset[str] = frozenset()


def take_pinned(
    documents: Documents, refs: Sequence[PartitionRef], keep: Callable[[PartitionRef, StandingManifest], T]
) -> Pinned[T]:
    """Read the manifests of several references, each once, a few at a time.

    What an evict just took away is brought back from the trash. Of several references to one key, as those of
    launches before and after it was published again, one that can be taken is enough. ``keep`` says what to
    keep of a manifest; thousands of whole ones would not fit into memory.
    """
    signers: set[str] = set()

    def take(ref: PartitionRef) -> T:
        standing = documents.take_manifest(ref.manifest_key, expected_sha256=ref.manifest_sha256)
        signers.add(standing.signer_id)
        return keep(ref, standing)

    def take_each(some: Sequence[PartitionRef]) -> dict[PartitionRef, T | StoreError]:
        found = each(lambda ref: outcome_of(lambda: take(ref)), some, num_threads=READERS, size_bytes=0)
        return dict(zip(some, found, strict=True))

    answers = take_each(list(dict.fromkeys(refs)))
    gone = [ref for ref, answer in answers.items() if isinstance(answer, NotInStore)]
    back = bring_back(documents.backend, (manifest_name(ref.manifest_key) for ref in gone))
    answers |= take_each([ref for ref in gone if manifest_name(ref.manifest_key) in back])
    kept = {ref: answer for ref, answer in answers.items() if not isinstance(answer, StoreError)}
    taken = {ref.manifest_key for ref in kept}
    return Pinned(
        kept=kept,
        errors={
            ref: answer
            for ref, answer in answers.items()
            if isinstance(answer, StoreError) and ref.manifest_key not in taken
        },
        signers=frozenset(signers - {""}),
    )


def standing_refs(documents: Documents, keys: Sequence[str]) -> dict[str, PartitionRef]:
    """References, as in a launch record, to the manifests under ``keys``; absent ones are left out."""
    refs: dict[str, PartitionRef] = {}
    for key in keys:
        with contextlib.suppress(NotInStore):
            refs[key] = documents.take_manifest(key).ref(key)
    return refs
