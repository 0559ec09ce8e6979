"""The node that others get their bytes from: chunks of its verified files, put where all can take them.

Invariants: a chunk is put once, and forgotten as soon as all receivers have had it, which frees it on every
node; at most ``room_bytes`` are kept, the least recently wanted goes first and is put again if need be. What
is served is verified by whoever gets it, so a file that changed meanwhile does no harm.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from cache_store.backends.backend import NewFile
from cache_store.digests import Digest
from cache_store.node.private_files import open_private, os_errors_are_unusable
from orchestrator.seed.chunks import CHUNK_BYTES, Chunk, Segment, plan_chunks, size_of

Ref = TypeVar("Ref")

ROOM_BYTES = 256 << 20
BEGIN_TIMEOUT_S = 30.0


@dataclass(slots=True, kw_only=True)
class _Put(Generic[Ref]):
    """A chunk that stands where all can take it."""

    ref: Ref
    num_bytes: int
    num_had: int = 0


class Serving(Generic[Ref]):
    """Serves the blobs of one node; any number of threads may ask.

    Args:
        put: puts bytes where all nodes can take them; what it returns keeps them there.
        chunk_bytes: size of a chunk.
    """

    def __init__(self, put: Callable[[bytes], Ref], *, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._put = put
        self._chunk_bytes = chunk_bytes
        self._paths: dict[Digest, Path] = {}
        self._by_sha256: dict[str, Path] = {}
        self._chunks: tuple[Chunk, ...] = ()
        self._num_receivers = 0
        self._room_bytes = ROOM_BYTES
        self._there: OrderedDict[int, _Put[Ref]] = OrderedDict()
        self._lock = threading.Lock()
        self._begun = threading.Event()

    def hold(self, copies: Sequence[NewFile]) -> None:
        """Take note of verified local copies of blobs."""
        self._paths |= {copy.expected: copy.source for copy in copies if isinstance(copy.source, Path)}

    def begin(self, num_receivers: int, *, room_bytes: int = ROOM_BYTES) -> int:
        """Serve what is held by now; returns the number of chunks."""
        with self._lock:
            self._chunks = plan_chunks(self._paths, chunk_bytes=self._chunk_bytes)
            self._by_sha256 = {digest.sha256: path for digest, path in self._paths.items()}
            self._num_receivers, self._room_bytes = num_receivers, room_bytes
            self._there.clear()
        self._begun.set()
        return len(self._chunks)

    def plan(self) -> tuple[Chunk, ...]:
        """The chunks, in their order; none where it did not `begin` within `BEGIN_TIMEOUT_S`."""
        self._begun.wait(BEGIN_TIMEOUT_S)
        return self._chunks

    def chunk(self, index: int) -> Ref:
        """A chunk, put where all can take it.

        Raises:
            UnusableCache: a file of it cannot be read.
        """
        with self._lock:
            put = self._there.get(index)
            if put is None:
                self._make_room(size_of(self._chunks[index]))
                data = self._read(self._chunks[index])
                put = self._there[index] = _Put(ref=self._put(data), num_bytes=len(data))
            self._there.move_to_end(index)
            return put.ref

    def had(self, index: int) -> None:
        """A receiver has the chunk; once all have it, it is forgotten."""
        with self._lock:
            put = self._there.get(index)
            if put is None:
                return
            put.num_had += 1
            if put.num_had >= self._num_receivers:
                del self._there[index]

    @property
    def kept_bytes(self) -> int:
        """Bytes that are kept for receivers now."""
        with self._lock:
            return sum(put.num_bytes for put in self._there.values())

    def _make_room(self, num_bytes: int) -> None:
        kept = sum(put.num_bytes for put in self._there.values())
        while self._there and kept + num_bytes > self._room_bytes:
            _, put = self._there.popitem(last=False)
            kept -= put.num_bytes

    def _read(self, chunk: Chunk) -> bytes:
        return b"".join(map(self._read_segment, chunk))

    def _read_segment(self, segment: Segment) -> bytes:
        path = self._by_sha256[segment.sha256]
        with os_errors_are_unusable("file", path), open_private(path) as file:
            file.seek(segment.offset)
            return file.read(segment.num_bytes)
