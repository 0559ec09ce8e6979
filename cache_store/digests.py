"""SHA-256 digests of bytes, files and streams.

Invariants: a digest is 64 lowercase hex characters and a size; a file is never read whole into memory.
SHA-256 because REAPI and OCI use it and the standard library has it; its name stands in the store's format.
"""

from __future__ import annotations

import functools
import hashlib
import queue
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

CHUNK_BYTES = 1 << 20
_MAX_WAITING = 2
_NUM_SHORT = 4  # chunks of a file that is hashed before a thread would have begun
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)


class Readable(Protocol):
    """What a copy reads from."""

    def read(self, size: int, /) -> bytes:
        """Return at most ``size`` bytes, none at the end."""


class Writable(Protocol):
    """What a copy writes to; it must take every chunk whole, as a buffered file does."""

    def write(self, data: bytes, /) -> object:
        """Take all of ``data``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """Identity of bytes.

    Attributes:
        sha256: 64 lowercase hex characters.
        size_bytes: length.
    """

    sha256: str
    size_bytes: int

    def __post_init__(self) -> None:
        if not is_sha256(self.sha256):
            raise ValueError(f"a sha256 is 64 lowercase hex characters, not {self.sha256!r}")
        if self.size_bytes < 0:
            raise ValueError(f"a size is not negative: {self.size_bytes}")

    def __str__(self) -> str:
        return f"sha256 {self.sha256[:12]} ({self.size_bytes} bytes)"


class TooLong(ValueError):
    """A stream held more bytes than announced; reading stopped there."""


def is_sha256(text: str) -> bool:
    """Whether ``text`` is a SHA-256 in the one spelling used here."""
    return _SHA256.fullmatch(text) is not None


def digest_bytes(data: bytes) -> Digest:
    """Digest of ``data``."""
    return Digest(sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))


def digest_file(path: Path) -> Digest:
    """Digest of the file at ``path``; raises ``OSError`` like `open`."""
    with path.open("rb") as file:
        return digest_stream(file)


def digest_stream(source: Readable, *, limit_bytes: int | None = None) -> Digest:
    """Digest of all that ``source`` still holds.

    Raises:
        TooLong: ``source`` holds more than ``limit_bytes``.
    """
    return _pump(source, None, limit_bytes)


def copy_and_digest(src_file: Readable, dst_file: Writable, *, limit_bytes: int | None = None) -> Digest:
    """Copy a stream and return the digest of exactly the bytes that were written.

    Raises:
        TooLong: ``src_file`` holds more than ``limit_bytes``; no more than those were written.
    """
    return _pump(src_file, dst_file.write, limit_bytes)


def _pump(source: Readable, write: Callable[[bytes], object] | None, limit_bytes: int | None) -> Digest:
    size_bytes = 0
    with _Hashing(side_by_side=write is not None) as hashing:
        while chunk := source.read(CHUNK_BYTES):
            size_bytes += len(chunk)
            if limit_bytes is not None and size_bytes > limit_bytes:
                raise TooLong(f"more than {limit_bytes} bytes")
            hashing.update(chunk)
            if write is not None:
                write(chunk)
    return Digest(sha256=hashing.hasher.hexdigest(), size_bytes=size_bytes)


class _Hashing:
    """SHA-256 of chunks; of a long file's in a thread of its own, while they are written and others are read.

    Both give up the GIL. At most `_MAX_WAITING` chunks wait for it.
    """

    def __init__(self, *, side_by_side: bool) -> None:
        self.hasher = hashlib.sha256()
        self._side_by_side = side_by_side
        self._num_chunks = 0
        self._thread: threading.Thread | None = None
        self._waiting: queue.Queue[bytes | None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None and self._waiting is not None:
            self._waiting.put(None)
            self._thread.join()

    def update(self, chunk: bytes) -> None:
        """Take the next chunk."""
        self._num_chunks += 1
        if not self._side_by_side or self._num_chunks <= _NUM_SHORT:
            self.hasher.update(chunk)
            return
        if self._waiting is None:
            self._waiting = queue.Queue(_MAX_WAITING)
            work = functools.partial(_hash_all, self.hasher, self._waiting)
            self._thread = threading.Thread(target=work, name="store-hash", daemon=True)
            self._thread.start()
        self._waiting.put(chunk)


def _hash_all(hasher: hashlib._Hash, waiting: queue.Queue[bytes | None]) -> None:
    while (chunk := waiting.get()) is not None:
        hasher.update(chunk)
