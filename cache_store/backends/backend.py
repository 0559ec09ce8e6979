"""The port between the store and the place that keeps its bytes.

A name is a posix path relative to the store's root (`cache_store.layout` makes all of them).

Invariants every implementation keeps (``tests/contract/test_backend.py``): a name appears with all its
bytes or not at all, is never overwritten, and survives a power cut once `put_new` returned; correctness
rests on no lock. Any number of threads may call one backend at once; a forked child opens its own, where
that is possible (`objects.connection`).
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from warmrank.cache_store.cache_dir.private_files import open_owned, open_private, os_errors_are_unusable
from warmrank.cache_store.digests import Digest
from warmrank.cache_store.errors import StoreUnavailable
from warmrank.cache_store.paths import path_fault

# Most names, at a tenth of the time that `path_fault` takes, which has the last word on all others.
_PLAIN_NAME = re.compile(r"[0-9a-z]{1,64}(?:/[0-9a-z]{1,64}){0,4}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFile:
    """A file to create.

    Attributes:
        name: where.
        source: its bytes, or the local file that holds them.
        expected: what the bytes must be.
        is_private: a local file must be private to this user (0600); otherwise it is enough that nobody else
            could have written it, as with what other tools make.
    """

    name: str
    source: Path | bytes
    expected: Digest
    is_private: bool = True

    def open(self) -> BinaryIO:
        """Open the source for reading; what is returned raises `UnusableCache` where it cannot be read.

        Raises:
            UnusableCache: it is not there, or others could have written it: what another user wrote must not
                be published under this user's signature.
        """
        if isinstance(self.source, bytes):
            return io.BytesIO(self.source)
        with os_errors_are_unusable("file", self.source):
            file = open_private(self.source) if self.is_private else open_owned(self.source)
        return _SourceFile(file, self.source)


class _SourceFile(io.BufferedReader):
    """Keeps a fault of the local disk apart from one of the store, which the same copy can meet."""

    def __init__(self, file: io.BufferedReader, path: Path) -> None:
        super().__init__(file.detach())
        self._path = path

    def read(self, size: int | None = -1, /) -> bytes:
        with os_errors_are_unusable("file", self._path):
            return super().read(size)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """What can be said of a file without reading it.

    Attributes:
        name: its name.
        stored_bytes: the room that it takes.
        content_bytes: the number of bytes that `BlobBackend.open` gives; None where only reading tells,
            because the place keeps it compressed.
        modified_s: when it was created or moved here, in seconds since the epoch by the *place's* clock.
        written_s: when its bytes were written, by that clock; where a move copies them, as `modified_s`.
        is_regular: it is a file; something else, which somebody put there, can only be moved or removed.
    """

    name: str
    stored_bytes: int
    content_bytes: int | None
    modified_s: float
    written_s: float
    is_regular: bool = True


def name_fault(name: str) -> str | None:
    """Say why no file of a store can have that name; None when one can."""
    return None if _PLAIN_NAME.fullmatch(name) else path_fault(name)


def check_name(name: str, *, where: str) -> None:
    """Refuse what `name_fault` finds fault with.

    Raises:
        StoreUnavailable: so that whoever goes on without the store does so.
    """
    if fault := name_fault(name):
        raise StoreUnavailable(
            what=f"name {name!r}",
            where=where,
            reason=f"it {fault}",
            remedy="no file of a store has such a name; remove it by hand",
        )


class BlobBackend(Protocol):
    """Keeps immutable files under names.

    A name that `name_fault` finds fault with is refused with `StoreUnavailable`, and never listed.
    """

    def put_new(self, files: Sequence[NewFile]) -> tuple[str, ...]:
        """Create those of ``files`` whose names are free.

        Their bytes are verified while they are copied, and all are durable before the first name appears. On
        return all names are durable, also those that existed. Of racing callers exactly one creates a name. A
        name that exists is left alone, and its source is not read.

        Returns:
            The names that this call created.

        Raises:
            Corrupt: a source does not hold the expected bytes; no name was created.
            UnusableCache: a source is not there, or not private to this user; no name was created.
            StoreUnavailable: nothing is promised; to try again is safe.
        """

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading.

        Raises:
            NotInStore: there is none.
            Corrupt: something else than a file stands there.
            StoreUnavailable: it cannot be read.
        """

    def stat(self, names: Iterable[str]) -> dict[str, FileInfo]:
        """Look at files without reading them; absent ones are left out of the answer.

        Raises:
            StoreUnavailable: one of them cannot be looked at.
        """

    def list(self, prefix: str) -> Iterator[FileInfo]:
        """All files whose names start with ``prefix``, in any order; what is on its way in is none.

        Raises:
            StoreUnavailable: the listing is not complete.
        """

    def move(self, name: str, target: str | None) -> bool:
        """Give a file another name, or remove it for good where ``target`` is None; durable on return.

        A target that exists is not replaced: then nothing happens.

        Returns:
            Whether it was moved; False also where it is gone, because another process was faster.

        Raises:
            StoreUnavailable: it cannot be moved.
        """
