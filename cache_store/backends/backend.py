"""The port between the store and the place that keeps its bytes.

A name is a posix path relative to the store's root (`cache_store.layout` makes all of them). Every
implementation keeps (``tests/contract/test_backend.py``): a name appears with all its bytes or not at all, is
never overwritten, and survives a power cut once `put_new` returned; correctness rests on no lock. Any number
of threads may call one backend at once; a forked child opens its own (`object_client`).
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol, Self

from warmrank.cache_store.cache_dir.private_files import open_owned, open_private, os_errors_are_unusable
from warmrank.cache_store.digests import Digest, digest_bytes
from warmrank.cache_store.errors import Corrupt, OsErrors, StoreUnavailable
from warmrank.cache_store.layout import FORMAT_FILE, TOP_LEVEL
from warmrank.cache_store.parallel import nothing
from warmrank.cache_store.parsing import Strict, parse_document
from warmrank.cache_store.paths import path_fault

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

STORE_FORMAT: Final = 1
# Most names, at a tenth of the time that `path_fault` takes, which has the last word on all others.
_PLAIN_NAME = re.compile(r"[0-9a-z]{1,64}(?:/[0-9a-z]{1,64}){0,4}", re.ASCII)


class GuardedFile:
    """A file for reading whose faults become ``errors``, so that the store's are told from the local disk's.

    ``count`` is told how many bytes each read gave.
    """

    def __init__(self, file: BinaryIO, errors: OsErrors, count: Callable[[int], object] = nothing) -> None:
        self._file, self._errors, self._count = file, errors, count

    def read(self, size: int = -1, /) -> bytes:
        """Read at most ``size`` bytes, or the rest."""
        with self._errors:
            data = self._file.read(size)
        self._count(len(data))
        return data

    def fileno(self) -> int:
        """Descriptor of a plain file; raises ``OSError`` for any other."""
        return self._file.fileno()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFile:
    """A file to create; a source that is not private must at least be writable by nobody else."""

    name: str
    source: Path | bytes
    expected: Digest
    is_private: bool = True

    def open(self) -> GuardedFile:
        """Open the source for reading.

        Opening and reading raise `UnusableCache` where it is absent, or others could have written it: what
        another user wrote must not be published under this user's signature.
        """
        if isinstance(self.source, bytes):
            return GuardedFile(io.BytesIO(self.source), os_errors_are_unusable("file", "memory"))
        errors = os_errors_are_unusable("file", self.source)
        with errors:
            file = open_private(self.source) if self.is_private else open_owned(self.source)
        return GuardedFile(file, errors)

    def fault(self, actual: str) -> Corrupt:
        """The error for a source that is not what was expected."""
        return Corrupt(
            what=f"source of {self.name}",
            where="memory" if isinstance(self.source, bytes) else str(self.source),
            expected=str(self.expected),
            actual=actual,
            remedy="it changed after it was made; compile again",
        )


def new_document(name: str, data: bytes) -> NewFile:
    """A file to create with these bytes."""
    return NewFile(name=name, source=data, expected=digest_bytes(data))


class ChunkFile(io.RawIOBase):
    """A file for reading what an iterator gives; closing it closes the iterator."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Fill ``buffer`` with what there is next; 0 at the end."""
        if not self._rest:
            self._rest = memoryview(next((chunk for chunk in self._chunks if chunk), b""))
        target = memoryview(buffer).cast("B")
        size = min(len(target), len(self._rest))
        target[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size

    def readall(self) -> bytes:
        """Read the rest; the default would take it in small pieces."""
        rest, self._rest = self._rest, memoryview(b"")
        return b"".join([rest, *self._chunks])

    def close(self) -> None:
        """Let go of the iterator, and so of the connection behind it."""
        self._chunks = iter(())
        self._rest = memoryview(b"")
        super().close()


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """A file's status, told without reading it; times are epoch seconds by the *place's* clock."""

    name: str
    stored_bytes: int  # the space that it takes
    content_bytes: int | None  # its length as read; None where the place compresses it
    modified_s: float  # when it was created or moved here
    written_s: float  # when its bytes were written; where a move copies them, as `modified_s`
    is_regular: bool = True  # anything but a file can only be moved or removed


def name_fault(name: str) -> str | None:
    """Reason why no file of a store can have that name; None when one can."""
    return None if _PLAIN_NAME.fullmatch(name) else path_fault(name)


def check_name(name: str, *, where: str) -> None:
    """Refuse what `name_fault` finds, with `StoreUnavailable`, so that a launch goes on without the store."""
    if fault := name_fault(name):
        remedy = "no file of a store has such a name; remove it by hand"
        raise StoreUnavailable(what=f"name {name!r}", where=where, reason=f"it {fault}", remedy=remedy)


def check_format(model: type[Strict], data: bytes, *, where: str, remedy: str) -> None:
    """Make sure that a store's FORMAT is one that this release reads; a damaged one is `Corrupt`."""
    try:
        parse_document(model, data, what="store", where=where)
    except Corrupt as error:
        raise error.but(remedy=remedy) from error


def not_empty(names: Iterable[str], *, where: str) -> StoreUnavailable | None:
    """Error for a place without FORMAT that is not made into a store: it has names that no store has."""
    if stranger := next((name for name in names if name not in TOP_LEVEL), None):
        reason = f"holds {stranger!r} but no {FORMAT_FILE}, so it is no store"
        return StoreUnavailable(what="store", where=where, reason=reason)
    return None


class BlobBackend(Protocol):
    """Keeps immutable files under names.

    A name with a `name_fault` is refused with `StoreUnavailable`, and never listed.
    """

    def put_new(self, files: Sequence[NewFile]) -> tuple[str, ...]:
        """Create those of ``files`` whose names are free, and return their names.

        Bytes are verified while they are copied, and all are durable before the first name appears. On return
        all names are durable, also those that existed. Of racing callers exactly one creates a name. A name
        that exists is left alone, and its source is not read.

        Raises:
            Corrupt: a source does not hold the expected bytes; no name was created.
            UnusableCache: a source is absent, or not private to this user; no name was created.
            StoreUnavailable: nothing is promised; to try again is safe.
        """

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading.

        Raises:
            NotInStore: there is none.
            Corrupt: something other than a file stands there.
            StoreUnavailable: it cannot be read.
        """

    def stat(self, names: Iterable[str]) -> dict[str, FileInfo]:
        """Status of files by name, without absent ones; raises `StoreUnavailable`."""

    def list(self, prefix: str) -> Iterator[FileInfo]:
        """All files whose names start with ``prefix``, unsorted, without what is on its way in.

        Raises `StoreUnavailable` where the listing is not complete.
        """

    def move(self, name: str, target: str | None) -> bool:
        """Rename a file, or remove it for good where ``target`` is None; durable on return.

        False where the target exists, which is not replaced, or the file is gone; raises `StoreUnavailable`.
        """
