"""Blobs that come in chunks: written where they belong, verified when their last byte has come.

Invariants: a blob is verified exactly as one from the store, and one that is damaged is thrown away; what is
not whole in the end is left to the store. What a fetch that was killed had of a blob is not asked for again,
and verified with the rest.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable

from warmrank.cache_store.digests import Digest
from warmrank.cache_store.errors import Corrupt
from warmrank.cache_store.fetching.begun import Begun
from warmrank.cache_store.fetching.intake import Delivery
from warmrank.cache_store.fetching.pace import Pace
from warmrank.orchestrator.seed.chunks import Chunk, Segment, size_of

logger = logging.getLogger(__name__)


class Assembly:
    """Blobs of which some bytes are here; any number of threads may put chunks.

    Args:
        blobs: those that come from other nodes.
        delivery: where to.
        pace: the bandwidth limit; None for none.

    Attributes:
        problem: what came damaged, the first; empty when nothing did.

    Raises:
        UnusableCache: there is no place for them.
    """

    def __init__(self, blobs: Iterable[Digest], delivery: Delivery, pace: Pace | None) -> None:
        self.problem = ""
        self._pace = pace
        self._arrivals = delivery.arrivals
        self._count = delivery.count
        self._blobs = {blob.sha256: blob for blob in blobs}
        self._begun: dict[str, Begun] = {}
        self._lock = threading.Lock()
        for blob in self._blobs.values():
            begun = self._begun[blob.sha256] = delivery.arrivals.begin(blob)
            self._count(begun.num_bytes)
            if begun.is_whole:
                self._accept(blob)

    def lacks(self, segment: Segment) -> bool:
        """Whether bytes have yet to come."""
        begun = self._begun.get(segment.sha256)
        return begun is not None and not begun.has(segment.offset, segment.num_bytes)

    def put(self, chunk: Chunk, data: bytes, mine: Collection[str]) -> None:
        """Pay for a chunk, and write what is wanted of it: of the blobs ``mine``, which come from one node.

        Raises:
            UnusableCache: it cannot be written.
        """
        if len(data) != size_of(chunk):
            self._note(f"a chunk of {size_of(chunk)} bytes came with {len(data)}")
            return
        start = 0
        for segment in chunk:
            piece = memoryview(data)[start : start + segment.num_bytes]
            start += segment.num_bytes
            if segment.sha256 in mine and self.lacks(segment):
                self._write(segment, piece)
            else:
                self._pay(len(piece))

    def discard(self) -> None:
        """Throw away what is not whole."""
        for begun in self._begun.values():
            self._count(-begun.num_bytes)
            begun.discard()
        self._begun.clear()

    def _write(self, segment: Segment, piece: memoryview) -> None:
        begun = self._begun[segment.sha256]
        # A chunk may take longer than others wait for a sign of life, where the limit is low.
        step = self._pace.piece_bytes if self._pace is not None else len(piece)
        for start in range(0, len(piece), step):
            part_of_it = piece[start : start + step]
            self._pay(len(part_of_it))
            self._count(begun.write(segment.offset + start, part_of_it))
        if begun.is_whole:
            self._accept(self._blobs[segment.sha256])

    def _pay(self, num_bytes: int) -> None:
        if self._pace is not None:
            self._pace.take(num_bytes)

    def _accept(self, blob: Digest) -> None:
        with self._lock:
            begun = self._begun.pop(blob.sha256, None)
        if begun is None:
            return  # another thread wrote the last but one piece, and saw this one
        try:
            self._arrivals.accept(begun.path, blob)
        except Corrupt as error:
            self._count(-blob.size_bytes)
            self._note(str(error))
        finally:
            begun.discard()

    def _note(self, problem: str) -> None:
        self.problem = self.problem or problem
        logger.warning("Damaged on its way from another node, so it comes from the store: %s", problem)
