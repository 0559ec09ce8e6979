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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Generic, NamedTuple, TypeVar

from warmrank.cache_store.backends.backend import GuardedFile, NewFile
from warmrank.cache_store.backends.places import Places
from warmrank.cache_store.cache_dir.marks import Permit
from warmrank.cache_store.cache_dir.private_files import (
    create_private,
    open_private,
    os_errors_are_unusable,
    temporary_path,
)
from warmrank.cache_store.digests import (
    CHUNK_BYTES,
    Digest,
    Readable,
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
from warmrank.cache_store.gc.inventory import bring_back
from warmrank.cache_store.layout import blob_name, manifest_name
from warmrank.cache_store.parallel import OnProgress, each, nothing
from warmrank.cache_store.records.documents import READERS, Documents, StandingManifest
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


def missing_blobs(places: Places, digests: Iterable[Digest]) -> dict[Digest, StoreError]:
    """Errors of the blobs that are neither there nor in the trash; raises only for a required place.

    Whether the others are whole is seen when they are copied.
    """
    wanted = {blob_name(digest.sha256): digest for digest in digests}
    try:
        gone = wanted.keys() - places.stat(wanted).keys()
        missing = gone - bring_back(places, gone) if gone else gone
    except StoreUnavailable as error:
        if is_final(error):
            raise
        return dict.fromkeys(wanted.values(), error)
    return {wanted[name]: NotInStore(what=f"{wanted[name]}", where=name) for name in missing}


class _Counted(NamedTuple):
    source: Readable
    tell: Callable[[int], object]

    def read(self, size: int, /) -> bytes:
        """Read, and tell how much."""
        chunk = self.source.read(size)
        self.tell(len(chunk))
        return chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class Blobs:
    """Blobs of a store, on their way into one directory of this node."""

    places: Places
    permit: Permit  # where copies may go
    scratch: Path | None = None  # where they are made, as one may be left behind; else where they go
    shared: Callable[[str], BinaryIO] | None = None  # asked before the store
    count: Callable[[int], object] = nothing  # told of all bytes that are copied
    unshared: set[int] = field(default_factory=set)  # devices of places from which no reflink can be made
    brought: set[Digest] = field(default_factory=set)  # blobs that ``shared`` gave

    def copy(self, sha256: str, size_bytes: int | None, path: Path) -> Digest:
        """Copy a blob into the new private file ``path``, below where it may go, verified.

        Its directory exists; ``size_bytes`` is None where nobody said it. It comes from where it is shared,
        or else from the store.

        Raises:
            NotInStore: there is no such blob.
            Corrupt: its bytes are not what its name says; it is in quarantine.
        """
        name = blob_name(sha256)
        assert self.permit.covers(path)  # noqa: S101 - another directory bears no marks of it
        copied = self._copy_shared(name, size_bytes, path) if self.shared is not None else None
        if copied is not None:
            self.brought.add(copied[1])
        own, digest = copied or self.places.read(
            name, lambda file: self._write(file, name, size_bytes, self.scratch or path.parent)
        )
        with os_errors_are_unusable("file", path):
            own.rename(path)
        return digest

    def _copy_shared(self, name: str, size_bytes: int | None, path: Path) -> tuple[Path, Digest] | None:
        """Copy a blob that another node shares; None where it has none, or a damaged one."""
        assert self.shared is not None  # noqa: S101 - as was just looked at
        try:
            with self.shared(name) as file:
                guarded = GuardedFile(file, os_errors_are_unavailable("blob", name))
                return self._write(guarded, name, size_bytes, self.scratch or path.parent)
        except NotInStore:
            return None
        except (Corrupt, StoreUnavailable) as error:
            logger.warning("Read from the store instead: %s", error)
            return None

    def _write(
        self, file: GuardedFile, name: str, size_bytes: int | None, directory: Path
    ) -> tuple[Path, Digest]:
        """Copy a file under a name that no other try has: one may be left behind, and go on much later."""
        # A place that compresses tells no size.
        limit_bytes = MAX_FILE_BYTES if size_bytes is None else size_bytes
        path = temporary_path(directory)
        try:
            try:
                actual = self._copied(file, path, limit_bytes)
            except TooLong as error:
                found = str(error)
            else:
                if blob_name(actual.sha256) == name and size_bytes in (None, actual.size_bytes):
                    return path, actual
                found = str(actual)
            size = f"at most {limit_bytes}" if size_bytes is None else f"{size_bytes}"
            expected = f"sha256 {name.rpartition('/')[2][:12]} ({size} bytes)"
            fault = Corrupt(what="artifact", where=name, expected=expected, actual=found)
        except BaseException:
            _discard(path)
            raise
        _discard(path)
        raise fault

    def _copied(self, file: GuardedFile, path: Path, limit_bytes: int) -> Digest:
        with os_errors_are_unusable("file", path), create_private(path) as target:
            if self._share_blocks(file, target):
                # Of the private file, not of the store's, which another process could change.
                with open_private(path) as copy:
                    return digest_stream(_Counted(copy, self.count), limit_bytes=limit_bytes)
            return copy_and_digest(_Counted(file, self.count), target, limit_bytes=limit_bytes)

    def _share_blocks(self, file: GuardedFile, target: io.BufferedWriter) -> bool:
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
    try:
        with (
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
    except BaseException:
        _discard(target)
        raise


def _discard(path: Path) -> None:
    # What cannot be removed lies in staging, goes with it or after it, and must not hide the first fault.
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


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
        standing = documents.manifest(ref.manifest_key, expected_sha256=ref.manifest_sha256)
        signers.add(standing.signer_id)
        return keep(ref, standing)

    def take_each(some: Sequence[PartitionRef]) -> dict[PartitionRef, T | StoreError]:
        found = each(lambda ref: outcome_of(lambda: take(ref)), some, num_threads=READERS, size_bytes=0)
        return dict(zip(some, found, strict=True))

    answers = take_each(list(dict.fromkeys(refs)))
    if gone := [ref for ref, answer in answers.items() if isinstance(answer, NotInStore)]:
        back = bring_back(documents.places, (manifest_name(ref.manifest_key) for ref in gone))
        answers |= take_each([ref for ref in gone if manifest_name(ref.manifest_key) in back])
    kept = {ref: answer for ref, answer in answers.items() if not isinstance(answer, StoreError)}
    taken = {ref.manifest_key for ref in kept}
    errors = {ref: answer for ref, answer in answers.items() if isinstance(answer, StoreError)}
    return Pinned(
        kept=kept,
        errors={ref: error for ref, error in errors.items() if ref.manifest_key not in taken},
        signers=frozenset(signers - {""}),
    )


def standing_refs(documents: Documents, keys: Sequence[str]) -> dict[str, PartitionRef]:
    """References, as in a launch record, to the manifests under ``keys``; absent ones are left out."""
    refs: dict[str, PartitionRef] = {}
    for key in keys:
        with contextlib.suppress(NotInStore):
            refs[key] = documents.manifest(key).ref(key)
    return refs
