"""SHA-256 digests of bytes, files and streams.

SHA-256 because REAPI and OCI use it and the standard library has it; its name stands in the store's format. A
file is never read whole into memory.
"""

from __future__ import annotations

import hashlib
import itertools
import queue
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol, Self

CHUNK_BYTES = 1 << 20
_MAX_WAITING = 2
_NUM_SHORT = 4  # chunks of a file that is hashed before a thread would have begun
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)


class Readable(Protocol):
    """Source of a copy."""

    def read(self, size: int, /) -> bytes:
        """Return at most ``size`` bytes, none at the end."""


class Writable(Protocol):
    """Target of a copy; it must take every chunk whole, as a buffered file does."""

    def write(self, data: bytes, /) -> object:
        """Take all of ``data``."""


class _Digest(NamedTuple):
    sha256: str
    size_bytes: int


class Digest(_Digest):
    """Identity of bytes: 64 lowercase hex characters of their SHA-256, and their number."""

    __slots__ = ()

    def __new__(cls, sha256: str, size_bytes: int) -> Self:
        """Check both; raises ``ValueError``."""
        if not is_sha256(sha256):
            raise ValueError(f"a sha256 is 64 lowercase hex characters, not {sha256!r}")
        if size_bytes < 0:
            raise ValueError(f"a size is not negative: {size_bytes}")
        return super().__new__(cls, sha256, size_bytes)

    def __str__(self) -> str:
        return f"sha256 {self.sha256[:12]} ({self.size_bytes} bytes)"


class TooLong(ValueError):
    """A stream held more bytes than announced; reading stopped there."""


def is_sha256(text: str) -> bool:
    """Return True for a SHA-256 in the one spelling used here."""
    return _SHA256.fullmatch(text) is not None


def digest_bytes(data: bytes) -> Digest:
    """Digest of ``data``."""
    return Digest(sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))


def digest_file(path: Path) -> Digest:
    """Digest of the file at ``path``; raises ``OSError`` like `open`."""
    with path.open("rb") as file:
        return digest_stream(file)


def digest_stream(source: Readable, *, limit_bytes: int | None = None) -> Digest:
    """Digest of all that ``source`` still holds; raises `TooLong` beyond ``limit_bytes``."""
    hasher, size_bytes = hashlib.sha256(), 0
    for chunk in _chunks(source, limit_bytes):
        hasher.update(chunk)
        size_bytes += len(chunk)
    return Digest(sha256=hasher.hexdigest(), size_bytes=size_bytes)


def copy_and_digest(src_file: Readable, dst_file: Writable, *, limit_bytes: int | None = None) -> Digest:
    """Copy a stream and return the digest of exactly the bytes that were written.

    Raises `TooLong` where ``src_file`` holds more than ``limit_bytes``; no more than those were written.
    """
    hasher, size_bytes = hashlib.sha256(), 0
    chunks = _chunks(src_file, limit_bytes)
    for chunk in itertools.islice(chunks, _NUM_SHORT):
        hasher.update(chunk)
        dst_file.write(chunk)
        size_bytes += len(chunk)
    for first in chunks:  # a long file
        with _hashing(hasher) as update:
            for chunk in itertools.chain([first], chunks):
                update(chunk)
                dst_file.write(chunk)
                size_bytes += len(chunk)
    return Digest(sha256=hasher.hexdigest(), size_bytes=size_bytes)


def _chunks(source: Readable, limit_bytes: int | None) -> Iterator[bytes]:
    # A buffer of a MiB would be mapped and unmapped for each of thousands of small files.
    most_bytes = CHUNK_BYTES if limit_bytes is None else min(CHUNK_BYTES, limit_bytes + 1)
    size_bytes = 0
    while chunk := source.read(most_bytes):
        size_bytes += len(chunk)
        if limit_bytes is not None and size_bytes > limit_bytes:
            raise TooLong(f"more than {limit_bytes} bytes")
        yield chunk


@contextmanager
def _hashing(hasher: hashlib._Hash) -> Iterator[Callable[[bytes], None]]:
    """Hash a long file in a thread of its own while it is written and read on; both give up the GIL."""
    waiting: queue.Queue[bytes | None] = queue.Queue(_MAX_WAITING)

    def work() -> None:
        while (chunk := waiting.get()) is not None:
            hasher.update(chunk)

    thread = threading.Thread(target=work, name="store-hash", daemon=True)
    thread.start()
    try:
        yield waiting.put
    finally:
        waiting.put(None)
        thread.join()
