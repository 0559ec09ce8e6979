"""The process on each node that seeds it, and that serves chunks to others: an actor of Ray.

Invariants: it imports no torch; one node's failure is a value, never an exception that hides what became of
the others. Ray calls its methods in threads, several at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from warmrank.cache_store.errors import StoreError
from warmrank.cache_store.fetching.progress import Progress
from warmrank.orchestrator.config.reading import Config
from warmrank.orchestrator.errors import OrchestratorError, first_line
from warmrank.orchestrator.nodes import Node
from warmrank.orchestrator.seed.here import intake_of, seed_here
from warmrank.orchestrator.seed.options import SeedOptions
from warmrank.orchestrator.seed.outcome import NodeSeed, failed
from warmrank.orchestrator.seed.receiving import Receiver, SourceGone
from warmrank.orchestrator.seed.serving import Answer, Part, Serving

CHUNK_TIMEOUT_S = 60.0
"""How long a chunk may take. The source answers in milliseconds, and a chunk takes a tenth of a second at
1 Gbit/s; a node that is cut off is noticed by Ray only after a minute."""
CONCURRENCY = 16
"""Calls at once: `seed`, `progress`, and answers to others, which take milliseconds."""


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

    def seed(self, part: Part | None = None, others: Mapping[int, Any] | None = None) -> NodeSeed:
        """Seed the node.

        Args:
            part: its part in a fan-out; None for none.
            others: actors of the nodes that share the blobs among them, by their positions, without this one;
                None where this one has everything already, and only serves.
        """
        intake = replace(intake_of(self._options), held=self._serving.hold)
        receiver = None
        if part is not None:
            self._serving.begin(part)
        if part is not None and others is not None:
            sources = {position: RaySource(actor) for position, actor in others.items()}
            receiver = Receiver(sources, part.num_sources, self._serving, pace=intake.pace)
            intake = replace(intake, supply=receiver)
        try:
            found = seed_here(self._config, self._node, intake=intake, on_progress=self._hear)
        except (StoreError, OrchestratorError, OSError) as error:
            return failed(self._node, str(error))
        finally:
            self._serving.close()
        if receiver is not None and receiver.problem:
            found = replace(
                found, reason=f"{found.reason}; not all came from other nodes: {receiver.problem}"
            )
        return found

    def progress(self) -> Progress | None:
        """How far it is."""
        return self._progress

    def offer(self, num_known: int, wanted: list[int]) -> Answer[Any]:
        """See `Serving.offer`."""
        return self._serving.offer(num_known, wanted)

    def had(self, index: int) -> None:
        """See `Serving.had`."""
        self._serving.had(index)

    def _hear(self, progress: Progress) -> None:
        self._progress = progress
        self._serving.advance()


class RaySource:
    """A `ChunkSource` whose chunks lie in Ray's object store.

    Args:
        actor: the serving node's.
    """

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def offer(self, num_known: int, wanted: list[int]) -> Answer[Any]:
        """See `ChunkSource.offer`."""
        answer: Answer[Any] = _get(self._actor.offer.remote(num_known, wanted))
        return answer

    def fetch(self, answer: Answer[Any]) -> bytes:
        """See `ChunkSource.fetch`; the copy in this node's object store may serve others for a while."""
        data: bytes = _get(answer.refs[0])
        self._actor.had.remote(answer.index)
        return data


def in_short(error: Exception) -> str:
    """The first sentence of an error of Ray, whose others are about Ray."""
    return first_line(error).partition(". ")[0].removesuffix(".") or type(error).__name__


def _get(ref: Any) -> Any:
    import ray

    try:
        return ray.get(ref, timeout=CHUNK_TIMEOUT_S)
    except ray.exceptions.RayError as error:
        msg = f"a node that serves others is gone: {in_short(error)}"
        raise SourceGone(msg) from error


def _put(data: bytes) -> Any:
    import ray

    return ray.put(data)
