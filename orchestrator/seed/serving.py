"""A node that others get bytes from: chunks of its share of the blobs, as soon as it has them.

A share is planned before the node has any of it, and a chunk of a blob is given while the rest of the blob
still comes out of the store. Invariants: nobody waits in here, who asks for what is not there yet asks again;
what is given is verified by whoever gets it, so a file that changed meanwhile, or a blob that turns out
damaged, does no harm.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from warmrank.cache_store.backends.backend import NewFile
from warmrank.cache_store.digests import Digest
from warmrank.cache_store.errors import UnusableCache
from warmrank.cache_store.node.private_files import open_private
from warmrank.orchestrator.seed.chunks import Chunk, chunk_bytes_of, plan_chunks, share_out, size_of
from warmrank.orchestrator.seed.shelf import ROOM_BYTES, Shelf

Ref = TypeVar("Ref")

LOOK_AT_MOST = 16
"""Chunks that are looked for on the disk for one answer; blobs come in about the order of the plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A node's part in a fan-out.

    Attributes:
        num_sources: nodes that share the blobs among them, each passing on its own.
        position: which of these the node is; None where it only receives.
        num_receivers: other nodes that receive.
        room_bytes: how much of the object store may be taken.
    """

    num_sources: int
    position: int | None
    num_receivers: int
    room_bytes: int = ROOM_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(Generic[Ref]):
    """What a node says when it is asked for chunks.

    Attributes:
        news: chunks of its plan that the asker does not know yet, in their order.
        index: of the chunk that it gives; None for none now.
        refs: where that chunk lies; in a tuple, so that it does not come along.
        lost: of the chunks asked for, those that never come.
        is_closed: the plan is complete, and what is not there by now never comes.
        moves: another number than before if the node got on.
    """

    news: tuple[Chunk, ...] = ()
    index: int | None = None
    refs: tuple[Ref, ...] = ()
    lost: tuple[int, ...] = ()
    is_closed: bool = False
    moves: int = 0


class Serving(Generic[Ref]):
    """Serves a node's share; any number of threads may ask.

    Args:
        put: puts bytes where all nodes can take them; what it returns keeps them there.
        chunk_bytes: size of a chunk; None for one that fits the share.
        clock: seconds, never going back.
    """

    def __init__(
        self,
        put: Callable[[bytes], Ref],
        *,
        chunk_bytes: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._shelf = Shelf(put, clock=clock)
        self._chunk_bytes = chunk_bytes
        self._part: Part | None = None
        self._chunks: list[Chunk] = []
        self._planned: set[Digest] = set()
        self._paths: dict[str, Path] = {}
        self._lost: set[int] = set()
        self._is_closed = False
        self._moves = 0
        self._lock = threading.Lock()

    def begin(self, part: Part) -> None:
        """Serve what is planned from now on."""
        with self._lock:
            self._part = part
            self._shelf.num_takers, self._shelf.room_bytes = part.num_receivers, part.room_bytes

    def plan(self, every: Iterable[Digest]) -> tuple[Digest, ...]:
        """Pass on, of these blobs, this node's share; returns that."""
        with self._lock:
            if self._part is None or self._part.position is None:
                return ()
            share = share_out(every, self._part.num_sources)[self._part.position]
            new = [blob for blob in share if blob not in self._planned]
            self._planned.update(new)
            self._chunks += plan_chunks(new, chunk_bytes=self._chunk_bytes or chunk_bytes_of(new))
        return share

    def note(self, blob: Digest, path: Path) -> None:
        """A file holds a blob, or as much of it as has come so far."""
        with self._lock:
            self._paths[blob.sha256] = path

    def lose(self, blob: Digest) -> None:
        """A blob does not come."""
        with self._lock:
            self._paths.pop(blob.sha256, None)
            self._lost.update(
                index
                for index, chunk in enumerate(self._chunks)
                if any(segment.sha256 == blob.sha256 for segment in chunk)
            )

    def hold(self, copies: Sequence[NewFile]) -> None:
        """Take note of verified local copies of all blobs of a fetch, at the places where they stay."""
        held = {copy.expected: copy.source for copy in copies if isinstance(copy.source, Path)}
        for blob, path in held.items():
            self.note(blob, path)
        self.plan(held)

    def advance(self) -> None:
        """Say that the node gets on, so that others wait for longer."""
        self._moves += 1

    def close(self) -> None:
        """The node has all that it gets."""
        self._is_closed = True

    def offer(self, num_known: int, wanted: Sequence[int]) -> Answer[Ref]:
        """One chunk of those wanted, if any is there.

        Args:
            num_known: how many chunks of the plan the asker knows.
            wanted: numbers of chunks of the plan.
        """
        with self._lock:
            is_closed = self._is_closed  # before it is looked for
            lost = {index for index in wanted if index in self._lost}
            num_looked = 0

            def read(index: int) -> bytes | None:
                nonlocal num_looked
                if num_looked >= LOOK_AT_MOST:
                    return None
                num_looked += 1
                data = self._read(self._chunks[index])
                if data is None and is_closed:
                    lost.add(index)
                return data

            sizes = {index: size_of(self._chunks[index]) for index in wanted if index not in lost}
            given = self._shelf.give(sizes, read)
            return Answer(
                news=tuple(self._chunks[num_known:]),
                index=given[0] if given else None,
                refs=(given[1],) if given else (),
                lost=tuple(sorted(lost)),
                is_closed=is_closed,
                moves=self._moves,
            )

    def had(self, index: int) -> None:
        """Somebody has the chunk."""
        with self._lock:
            self._shelf.had(index)

    @property
    def kept_bytes(self) -> int:
        """Bytes that are kept for others now."""
        with self._lock:
            return self._shelf.kept_bytes

    def _read(self, chunk: Chunk) -> bytes | None:
        """Its bytes; None where not all of them are there."""
        pieces: list[bytes] = []
        for segment in chunk:
            path = self._paths.get(segment.sha256)
            if path is None:
                return None
            try:
                with open_private(path) as file:
                    if os.fstat(file.fileno()).st_size < segment.offset + segment.num_bytes:
                        return None
                    file.seek(segment.offset)
                    pieces.append(file.read(segment.num_bytes))
            except (OSError, UnusableCache):
                return None  # on its way from one place to another, or gone
        return b"".join(pieces)
