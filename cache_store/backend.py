"""The port between the store and the place that keeps its bytes.

A name is a posix path relative to the store's root (`cache_store.layout` makes all of them).

Invariants every implementation keeps (``tests/contract/test_backend.py``): a name appears with all its
bytes or not at all, is never overwritten, and survives a power cut once `put_new` returned; correctness
rests on no lock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from cache_store.digests import Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFile:
    """A file to create.

    Attributes:
        name: where.
        source: its bytes, or the local file that holds them.
        expected: what the bytes must be.
    """

    name: str
    source: Path | bytes
    expected: Digest


class BlobBackend(Protocol):
    """Keeps immutable files under names."""

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
            StoreUnavailable: it cannot be read.
        """

    def size(self, name: str) -> int | None:
        """Size in bytes; None when there is no such file.

        Raises:
            StoreUnavailable: it cannot be looked at.
        """

    def list(self, prefix: str) -> Iterator[str]:
        """All names that start with ``prefix``, in any order; temporary and quarantined files are none.

        Raises:
            StoreUnavailable: the listing is not complete.
        """

    def quarantine(self, name: str, reason: str) -> None:
        """Move a file out of the way, with the reason beside it, so that it can be put again.

        A name that is gone already is no error: another process was faster.

        Raises:
            StoreUnavailable: it cannot be moved.
        """
