"""Which bytes go from node to node together, and which node passes on which: pure values of a list of blobs.

Invariants: each node has one plan for what it passes on, so that each chunk is put into the object store
once for all; a chunk holds small blobs together and parts of large ones, at most `CHUNK_BYTES` in all.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from warmrank.cache_store.digests import Digest

CHUNK_BYTES = 8 << 20
"""5 to 20 MB were measured as best; the less, the more of them a small object store holds."""
MIN_CHUNK_BYTES = 1 << 20
CHUNKS_OF_A_SHARE = 16
"""So many at least, if they are not too small: a chunk is passed on only once it is there as a whole."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Bytes of one blob.

    Attributes:
        sha256: the blob's.
        offset: where in the blob they begin.
        num_bytes: how many.
    """

    sha256: str
    offset: int
    num_bytes: int


Chunk = tuple[Segment, ...]
"""Segments, one after the other."""


def plan_chunks(blobs: Iterable[Digest], *, chunk_bytes: int = CHUNK_BYTES) -> tuple[Chunk, ...]:
    """All bytes of ``blobs``, each blob once, in chunks of at most ``chunk_bytes``."""
    chunks: list[Chunk] = []
    segments: list[Segment] = []
    room = chunk_bytes
    for blob in dict.fromkeys(blobs):
        offset = 0
        while offset < blob.size_bytes:
            num_bytes = min(room, blob.size_bytes - offset)
            segments.append(Segment(blob.sha256, offset, num_bytes))
            offset += num_bytes
            room -= num_bytes
            if not room:
                chunks.append(tuple(segments))
                segments, room = [], chunk_bytes
    return (*chunks, tuple(segments)) if segments else tuple(chunks)


def size_of(chunk: Chunk) -> int:
    """Bytes of a chunk."""
    return sum(segment.num_bytes for segment in chunk)


def share_out(blobs: Iterable[Digest], num_nodes: int) -> tuple[tuple[Digest, ...], ...]:
    """Which node passes on which blobs: about as many bytes each, large blobs first.

    Every node that is given the same blobs, in whatever order, finds the same; so nobody needs to tell.
    """
    shares: list[list[Digest]] = [[] for _ in range(num_nodes)]
    loads = [(0, number) for number in range(num_nodes)]
    for blob in sorted(set(blobs), key=lambda blob: (-blob.size_bytes, blob.sha256)):
        load, number = heapq.heappop(loads)
        shares[number].append(blob)
        heapq.heappush(loads, (load + blob.size_bytes, number))
    return tuple(map(tuple, shares))


def chunk_bytes_of(share: Iterable[Digest]) -> int:
    """The size of chunks of a share: the less there is, the smaller, so that passing on begins early."""
    size_bytes = sum(blob.size_bytes for blob in share)
    return max(MIN_CHUNK_BYTES, min(CHUNK_BYTES, size_bytes // CHUNKS_OF_A_SHARE))
