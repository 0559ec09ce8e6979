"""SHA-256 digests of bytes, files and streams.

Invariants: a digest is 64 lowercase hex characters and a size; a file is never read whole into memory.
SHA-256 because REAPI and OCI use it and the standard library has it; its name stands in the store's format.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

CHUNK_BYTES = 1 << 20
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
    hasher = hashlib.sha256()
    size_bytes = 0
    while chunk := source.read(CHUNK_BYTES):
        size_bytes += len(chunk)
        if limit_bytes is not None and size_bytes > limit_bytes:
            raise TooLong(f"more than {limit_bytes} bytes")
        hasher.update(chunk)
        if write is not None:
            write(chunk)
    return Digest(sha256=hasher.hexdigest(), size_bytes=size_bytes)
