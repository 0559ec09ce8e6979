"""The process on each node that seeds it, and that serves chunks to others: an actor of Ray.

Invariants: it imports no torch; one node's failure is a value, never an exception that hides what became of
the others. Ray calls its methods in threads, several at once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cache_store.errors import StoreError
from cache_store.fetching.progress import Progress
from orchestrator.config.reading import Config
from orchestrator.errors import OrchestratorError
from orchestrator.seed.chunks import Chunk
from orchestrator.seed.here import intake_of, seed_here
from orchestrator.seed.nodes import Node
from orchestrator.seed.options import SeedOptions
from orchestrator.seed.outcome import NodeSeed, failed
from orchestrator.seed.receiving import Receiver, SourceGone
from orchestrator.seed.serving import Serving

CHUNK_TIMEOUT_S = 60.0
"""How long a chunk may take. The source answers in milliseconds, and a chunk takes a tenth of a second at
1 Gbit/s; a node that is cut off is noticed by Ray only after a minute."""
CONCURRENCY = 16
"""Calls at once: `seed`, `progress`, and two chunks of each of several receivers; others wait their turn."""


class NodeSeeder:
    """Seeds the node it runs on.

    Args:
        config: the launch.
        node: this node.
        options: how it is seeded.
    """

    def __init__(self, config: Config, node: Node, options: SeedOptions) -> None:
        self._config = config
        self._node = node
        self._options = options
        self._progress: Progress | None = None
        self._serving: Serving[Any] = Serving(_put)

    def seed(self, source: Node | None = None, serving: list[Any] | None = None) -> NodeSeed:
        """Seed the node.

        Args:
            source: the node that bytes come from; None for the store.
            serving: that node's actor, in a list, because Ray would else wait for it.
        """
        intake = replace(intake_of(self._options), held=self._serving.hold)
        receiver = None
        if serving:
            receiver = Receiver(RaySource(serving[0]), pace=intake.pace)
            intake = replace(intake, supply=receiver)
        try:
            found = seed_here(self._config, self._node, intake=intake, on_progress=self._hear)
        except (StoreError, OrchestratorError, OSError) as error:
            return failed(self._node, str(error))
        if receiver is not None and receiver.problem:
            reason = f"{found.reason}; not all came from {source}: {receiver.problem}"
            return replace(found, source=source, reason=reason)
        return replace(found, source=source)

    def progress(self) -> Progress | None:
        """How far it is."""
        return self._progress

    def serve(self, num_receivers: int, room_bytes: int) -> int:
        """See `Serving.begin`."""
        return self._serving.begin(num_receivers, room_bytes=room_bytes)

    def plan(self) -> tuple[Chunk, ...]:
        """See `Serving.plan`."""
        return self._serving.plan()

    def chunk(self, index: int) -> list[Any]:
        """See `Serving.chunk`; in a list, so that the chunk itself does not come along."""
        return [self._serving.chunk(index)]

    def had(self, index: int) -> None:
        """See `Serving.had`."""
        self._serving.had(index)

    def _hear(self, progress: Progress) -> None:
        self._progress = progress


class RaySource:
    """A `ChunkSource` whose chunks lie in Ray's object store.

    Args:
        actor: the serving node's.
    """

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def plan(self) -> tuple[Chunk, ...]:
        """See `ChunkSource.plan`."""
        chunks: tuple[Chunk, ...] = _get(self._actor.plan.remote())
        return chunks

    def take(self, index: int) -> bytes:
        """See `ChunkSource.take`."""
        refs = _get(self._actor.chunk.remote(index))
        data: bytes = _get(refs[0])
        del refs
        self._actor.had.remote(index)
        return data


def in_short(error: Exception) -> str:
    """The first sentence of an error of Ray, whose others are about Ray."""
    line = str(error).strip().partition("\n")[0]
    return line.partition(". ")[0].removesuffix(".") or type(error).__name__


def _get(ref: Any) -> Any:
    import ray

    try:
        return ray.get(ref, timeout=CHUNK_TIMEOUT_S)
    except ray.exceptions.RayError as error:
        msg = f"the node that serves others is gone, or cannot read what it serves: {in_short(error)}"
        raise SourceGone(msg) from error


def _put(data: bytes) -> Any:
    import ray

    return ray.put(data)
