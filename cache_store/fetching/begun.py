"""A blob that comes in pieces, in any order: the file, and a list of which bytes of it have come.

Layout, in a directory of `Arrivals`: ``<sha256>.begun`` holds the bytes, ``<sha256>.spans`` one line for each
piece, its offset and its length, appended once the piece is written. So what a fetch that was killed had of a
large blob is known to the next one.

Invariants: the list saves work only; the digest of the whole file has the last word, so a list that says too
much, as after a power cut, costs a copy, and never lets a wrong byte through.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import re
import threading
from collections.abc import Iterable
from pathlib import Path

from warmrank.cache_store.digests import Digest
from warmrank.cache_store.node.private_files import (
    check_private,
    create_private,
    os_errors_are_unusable,
    read_private,
)

BEGUN = ".begun"
SPANS = ".spans"

_LINE = re.compile(rb"([0-9]{1,18}) ([0-9]{1,18})", re.ASCII)


class Spans:
    """Which bytes of a file are there: disjoint ranges, in their order."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, start: int, end: int) -> int:
        """Add the bytes from ``start`` to before ``end``; returns how many of them are new."""
        first, last = bisect.bisect_left(self._ends, start), bisect.bisect_right(self._starts, end)
        before = sum(self._ends[n] - self._starts[n] for n in range(first, last))
        if first < last:
            start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
        self._starts[first:last], self._ends[first:last] = [start], [end]
        self.num_bytes += end - start - before
        return end - start - before

    def has(self, start: int, end: int) -> bool:
        """Whether all of these are there."""
        number = bisect.bisect_right(self._starts, start) - 1
        return number >= 0 and end <= self._ends[number]


class Begun:
    """A blob of which some bytes are there; any number of threads may write.

    Args:
        path: its file, which exists.
        blob: what it is to become.
        there: ranges that have come.
    """

    def __init__(self, path: Path, blob: Digest, there: Iterable[tuple[int, int]] = ()) -> None:
        self.path = path
        self._blob = blob
        self._spans = Spans()
        self._lock = threading.Lock()
        for start, end in there:
            self._spans.add(start, end)

    @property
    def num_bytes(self) -> int:
        """How many bytes have come."""
        return self._spans.num_bytes

    @property
    def is_whole(self) -> bool:
        """Whether all have; they are yet to be verified."""
        return self._spans.num_bytes == self._blob.size_bytes

    def has(self, offset: int, num_bytes: int) -> bool:
        """Whether a piece has come."""
        with self._lock:
            return self._spans.has(offset, offset + num_bytes)

    def write(self, offset: int, piece: memoryview) -> int:
        """Write a piece and note it; returns how many bytes are new.

        Raises:
            UnusableCache: it cannot be written.
        """
        end = offset + len(piece)
        line = b"%d %d\n" % (offset, len(piece))
        with os_errors_are_unusable("file", self.path):
            _write_at(self.path, offset, piece)
            _append(_list_of(self.path), line)
        with self._lock:
            return self._spans.add(offset, end)

    def discard(self) -> None:
        """Remove file and list, as far as they are there; what cannot be removed costs space only."""
        discard(self.path)


def begin(path: Path, blob: Digest) -> Begun:
    """A blob of which nothing has come.

    Raises:
        UnusableCache: its files cannot be made.
    """
    with os_errors_are_unusable("file", path):
        create_private(path).close()
        create_private(_list_of(path)).close()
    return Begun(path, blob)


def take_over(left: Path, path: Path, blob: Digest) -> Begun:
    """What an earlier fetch left of a blob, now at ``path``.

    Raises:
        UnusableCache: it cannot be read or moved, or is not this user's alone.
    """
    check_private(left)
    lines = read_private(_list_of(left)).splitlines()
    found = (match for line in lines if (match := _LINE.fullmatch(line)))
    spans = ((int(match[1]), int(match[1]) + int(match[2])) for match in found)
    with os_errors_are_unusable("file", path):
        num_there = left.stat().st_size
        _list_of(left).replace(_list_of(path))
        left.replace(path)
    return Begun(path, blob, ((a, b) for a, b in spans if a < b <= min(num_there, blob.size_bytes)))


def discard(path: Path) -> None:
    """Remove what was begun at ``path``, as far as it is there."""
    for file in (path, _list_of(path)):
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)


def _list_of(path: Path) -> Path:
    return path.with_suffix(SPANS)


def _write_at(path: Path, offset: int, piece: memoryview) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        while piece:
            num_bytes = os.pwrite(descriptor, piece, offset)
            piece, offset = piece[num_bytes:], offset + num_bytes
    finally:
        os.close(descriptor)


def _append(path: Path, line: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.write(descriptor, line)  # one short line is written whole, beside those of other threads
    finally:
        os.close(descriptor)
