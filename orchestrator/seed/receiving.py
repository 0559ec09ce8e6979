"""A node's blobs in a fan-out: its own share out of the store, all others from the nodes that read them.

Each blob is one node's to read; the others take it from that one, chunk by chunk, while the rest of it is
still on its way. Invariants: nothing is believed, what comes is verified (`assembly`); whatever does not
come, because a node is gone, gets no further, or gives what is damaged, is left to the store, so the node is
seeded all the same.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from warmrank.cache_store.digests import Digest
from warmrank.cache_store.errors import StoreError, UnusableCache, is_final
from warmrank.cache_store.fetching.intake import Delivery
from warmrank.cache_store.fetching.pace import Pace
from warmrank.cache_store.parallel import each
from warmrank.orchestrator.errors import OrchestratorError
from warmrank.orchestrator.seed.assembly import Assembly
from warmrank.orchestrator.seed.chunks import Chunk, share_out
from warmrank.orchestrator.seed.peer import Peer
from warmrank.orchestrator.seed.serving import Answer, Serving

logger = logging.getLogger(__name__)

AT_A_TIME = 8
"""Chunks that a node takes at once, of different nodes where it can."""
FROM_ONE_AT_A_TIME = 2
"""Or all would wait at the one whose link is busiest, while the links of others stand idle."""
READS_AT_A_TIME = 2
"""Of the own share: more at once would end later each, and then others wait longer for the first chunk."""


class SourceGone(OrchestratorError):
    """The node that serves chunks gives no answer."""


class ChunkSource(Protocol):
    """A node that serves; every method raises `SourceGone`."""

    def offer(self, num_known: int, wanted: list[int]) -> Answer[Any]:
        """See `Serving.offer`."""

    def fetch(self, answer: Answer[Any]) -> bytes:
        """The bytes of the chunk in an answer; whether they are the right ones is for the caller to see."""


class Receiver:
    """Brings blobs; a `Supply`.

    Args:
        sources: the nodes that share the blobs among them, by their positions; this one is left out.
        num_sources: how many they are with this one.
        serving: passes on what this node has.
        pace: the bandwidth limit; None for none.
        clock: seconds, never going back.

    Attributes:
        problem: why not all came that was to come from others; empty when nothing went wrong.
    """

    def __init__(
        self,
        sources: Mapping[int, ChunkSource],
        num_sources: int,
        serving: Serving[Any],
        *,
        pace: Pace | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.problem = ""
        self._sources = sources
        self._num_sources = num_sources
        self._serving = serving
        self._pace = pace
        self._clock = clock

    def bring(self, delivery: Delivery) -> None:
        """See `Supply.bring`."""
        missing = {blob for blob in delivery.missing if blob.size_bytes}
        shares = share_out(delivery.every, self._num_sources)
        wanted = {position: missing.intersection(shares[position]) for position in self._sources}
        try:
            assembly = Assembly(set().union(*wanted.values()), delivery, self._pace)
        except UnusableCache as error:
            self._note(str(error))
            return
        peers = {
            position: Peer({blob.sha256 for blob in blobs}, self._clock(), lacks=assembly.lacks)
            for position, blobs in wanted.items()
        }
        try:
            self._run(delivery, _Taking(self._sources, peers, assembly, self._clock))
        except UnusableCache as error:
            self._note(str(error))
        finally:
            assembly.discard()
        for problem in (assembly.problem, *(peer.problem for peer in peers.values())):
            self._note(problem)

    def _run(self, delivery: Delivery, taking: _Taking) -> None:
        """Read the own share for all, and take the others'."""
        own = iter(self._own(delivery))
        jobs = [taking.run] * AT_A_TIME + [lambda: self._read(own, delivery, taking)] * READS_AT_A_TIME
        each(lambda job: job(), jobs, num_threads=len(jobs))

    def _own(self, delivery: Delivery) -> list[Digest]:
        """What this node reads from the store for all; what it has of its share is passed on as it is."""
        share, missing = self._serving.plan(delivery.every), set(delivery.missing)
        for blob in share:
            if delivery.arrivals.has(blob):
                self._serving.note(blob, delivery.arrivals.path(blob))
        return [blob for blob in share if blob in missing]

    def _read(self, blobs: Iterator[Digest], delivery: Delivery, taking: _Taking) -> None:
        for blob in blobs:  # several threads take the next one each
            if taking.is_stopped:
                return
            try:
                part = delivery.arrivals.part()
                self._serving.note(blob, part)
                delivery.read(blob, part)
                delivery.arrivals.keep(part, blob)
                self._serving.note(blob, delivery.arrivals.path(blob))
            except StoreError as error:
                self._serving.lose(blob)
                if is_final(error):
                    taking.stop()
                    raise
                logger.info("Not passed on: %s", error)  # asked for again, and told then

    def _note(self, problem: str) -> None:
        if problem and not self.problem:
            self.problem = problem
            logger.warning("What is missing comes from the store: %s", problem)


class _Taking:
    """Takes chunks from all that serve, whoever has one; `run` in several threads."""

    def __init__(
        self,
        sources: Mapping[int, ChunkSource],
        peers: Mapping[int, Peer],
        assembly: Assembly,
        clock: Callable[[], float],
    ) -> None:
        self.is_stopped = False
        self._sources = sources
        self._peers = peers
        self._assembly = assembly
        self._clock = clock
        self._changed = threading.Condition()

    def run(self) -> None:
        """Take chunks until no more come."""
        try:
            while (position := self._next()) is not None:
                self._take(position)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Let all threads end soon."""
        with self._changed:
            self.is_stopped = True
            self._changed.notify_all()

    def _next(self) -> int | None:
        """Whom to ask now; waits until it is time for one; None at the end."""
        with self._changed:
            while not self.is_stopped:
                now_s = self._clock()
                open_ones = [position for position, peer in self._peers.items() if not peer.is_over]
                if not open_ones:
                    return None
                free = [position for position in open_ones if self._is_free(self._peers[position])]
                due = [position for position in free if self._peers[position].due_s <= now_s]
                if due:
                    fewest = min(self._peers[position].num_taken for position in due)
                    rest = [position for position in due if self._peers[position].num_taken == fewest]
                    position = random.choice(rest)  # noqa: S311 - an order, not a secret
                    self._peers[position].is_asked = True
                    return position
                waits = [self._peers[position].due_s - now_s for position in free]
                self._changed.wait(min(waits, default=None))
            return None

    @staticmethod
    def _is_free(peer: Peer) -> bool:
        return not peer.is_asked and peer.num_taken < FROM_ONE_AT_A_TIME

    def _take(self, position: int) -> None:
        peer, source = self._peers[position], self._sources[position]
        try:
            answer = source.offer(len(peer.chunks), peer.wanted())
            with self._changed:
                peer.hear(answer, self._clock())
                peer.is_asked = False
                peer.num_taken += answer.index is not None
                self._changed.notify_all()
            if answer.index is not None:
                chunk: Chunk = peer.chunks[answer.index]
                data = source.fetch(answer)
                with self._changed:
                    peer.num_taken -= 1
                    self._changed.notify_all()
                self._assembly.put(chunk, data, peer.mine)
        except SourceGone as error:
            with self._changed:
                peer.problem = str(error)
                peer.is_asked = False
                self._changed.notify_all()
