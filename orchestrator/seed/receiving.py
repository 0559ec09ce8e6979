"""A node that gets its bytes from another one, chunk by chunk in an order of its own, one or two at a time.

Invariants: a blob is verified when its last byte has come, exactly as one from the store, and one that is
damaged is thrown away; whatever does not come, because the source is gone, or is damaged, is left to the
store. Nothing here raises: without the source the node is seeded all the same.
"""

from __future__ import annotations

import logging
import os
import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from cache_store.digests import Digest
from cache_store.errors import Corrupt, UnusableCache
from cache_store.fetching.arrivals import Arrivals
from cache_store.fetching.pace import Pace
from cache_store.node.private_files import create_private, os_errors_are_unusable
from cache_store.parallel import each
from orchestrator.errors import OrchestratorError
from orchestrator.seed.chunks import Chunk, Segment, shuffled, size_of

logger = logging.getLogger(__name__)

AT_A_TIME = 2


class SourceGone(OrchestratorError):
    """The node that serves chunks gives no answer, or cannot read what it serves."""


class ChunkSource(Protocol):
    """Where chunks come from; every method raises `SourceGone`."""

    def plan(self) -> tuple[Chunk, ...]:
        """The chunks that there are."""

    def take(self, index: int) -> bytes:
        """The bytes of one of them; whether they are the right ones is for the caller to find out."""


class Receiver:
    """Brings blobs from one source; a `Supply`.

    Args:
        source: where chunks come from.
        pace: the bandwidth limit; None for none.
        rng: gives the order.

    Attributes:
        problem: why not all came; empty when nothing went wrong.
    """

    def __init__(self, source: ChunkSource, *, pace: Pace | None, rng: random.Random | None = None) -> None:
        self.problem = ""
        self._source = source
        self._pace = pace
        self._rng = rng or random.Random()  # noqa: S311 - an order, not a secret

    def bring(self, digests: Sequence[Digest], arrivals: Arrivals, count: Callable[[int], None]) -> None:
        """See `Supply.bring`."""
        incoming = _Incoming(digests, arrivals, count, self._pace)
        try:
            chunks = self._source.plan()
            wanted = [index for index, chunk in enumerate(chunks) if incoming.wants(chunk)]

            def take(index: int) -> None:
                incoming.put(chunks[index], self._source.take(index))

            each(take, shuffled(wanted, self._rng), num_threads=AT_A_TIME)
        except (SourceGone, UnusableCache) as error:
            self.problem = str(error)
            logger.warning("The rest comes from the store: %s", error)
        finally:
            incoming.discard()
        self.problem = self.problem or incoming.problem


class _Incoming:
    """Blobs of which some bytes are here."""

    def __init__(
        self,
        digests: Sequence[Digest],
        arrivals: Arrivals,
        count: Callable[[int], None],
        pace: Pace | None,
    ) -> None:
        self.problem = ""
        self._pace = pace
        self._wanted = {digest.sha256: digest for digest in digests}
        self._arrivals = arrivals
        self._count = count
        self._parts: dict[str, Path] = {}
        self._num_left = {digest.sha256: digest.size_bytes for digest in digests}
        self._lock = threading.Lock()

    def wants(self, chunk: Chunk) -> bool:
        return any(segment.sha256 in self._wanted for segment in chunk)

    def put(self, chunk: Chunk, data: bytes) -> None:
        """Pay for a chunk, and write what is wanted of it; a blob that is whole then is verified."""
        if len(data) != size_of(chunk):
            self._note(f"a chunk of {size_of(chunk)} bytes came with {len(data)}")
            return
        start = 0
        for segment in chunk:
            piece = memoryview(data)[start : start + segment.num_bytes]
            start += segment.num_bytes
            if segment.sha256 in self._wanted:
                self._write(segment, piece)
            else:
                self._pay(len(piece))

    def discard(self) -> None:
        """Throw away what is not whole."""
        for sha256, part in self._parts.items():
            self._count(self._num_left[sha256] - self._wanted[sha256].size_bytes)
            part.unlink(missing_ok=True)
        self._parts.clear()

    def _write(self, segment: Segment, piece: memoryview) -> None:
        part, is_whole = self._part(segment.sha256), False
        with os_errors_are_unusable("file", part):
            descriptor = os.open(part, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                # A chunk may take longer than others wait for a sign of life, where the limit is low.
                step = self._pace.piece_bytes if self._pace is not None else max(1, len(piece))
                for start in range(0, len(piece), step):
                    part_of_it = piece[start : start + step]
                    self._pay(len(part_of_it))
                    _write_all(descriptor, part_of_it, segment.offset + start)
                    is_whole = self._came(segment.sha256, len(part_of_it))
            finally:
                os.close(descriptor)
        if is_whole:
            self._accept(self._wanted[segment.sha256], part)

    def _came(self, sha256: str, num_bytes: int) -> bool:
        """Count bytes that were written; whether those were the last of their blob."""
        self._count(num_bytes)
        with self._lock:
            self._num_left[sha256] -= num_bytes
            return not self._num_left[sha256]

    def _pay(self, num_bytes: int) -> None:
        if self._pace is not None:
            self._pace.take(num_bytes)

    def _accept(self, digest: Digest, part: Path) -> None:
        with self._lock:
            del self._parts[digest.sha256]
        try:
            self._arrivals.accept(part, digest)
        except Corrupt as error:
            self._count(-digest.size_bytes)
            self._note(str(error))

    def _part(self, sha256: str) -> Path:
        with self._lock:
            if sha256 not in self._parts:
                part = self._arrivals.part()
                with os_errors_are_unusable("file", part):
                    create_private(part).close()
                self._parts[sha256] = part
            return self._parts[sha256]

    def _note(self, problem: str) -> None:
        self.problem = self.problem or problem
        logger.warning("Damaged on its way from another node, so it comes from the store: %s", problem)


def _write_all(descriptor: int, piece: memoryview, offset: int) -> None:
    while piece:
        num_bytes = os.pwrite(descriptor, piece, offset)
        piece, offset = piece[num_bytes:], offset + num_bytes
