"""A `SeedCluster` of Ray: one actor on each node that is being seeded, gone when nobody needs it any more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from warmrank.cache_store.fetching.progress import Progress
from warmrank.orchestrator.config.reading import Config
from warmrank.orchestrator.gang.on_node import options_on
from warmrank.orchestrator.nodes import Node, alive
from warmrank.orchestrator.seed.node_actor import CONCURRENCY, NodeSeeder, in_short
from warmrank.orchestrator.seed.options import SeedOptions
from warmrank.orchestrator.seed.outcome import NodeSeed, failed
from warmrank.orchestrator.seed.serving import Part
from warmrank.orchestrator.seed.shelf import ROOM_BYTES

ROOM_SHARE = 4
"""A node passes on from a quarter of its object store at most: a launch beside it needs the rest."""


class RaySeedCluster:
    """The cluster that this process is on.

    Args:
        config: the launch.
        options: how each node is seeded.
        environ: environment variables of the actors.
        seeder: the actors' class; a test's counts what it reads.
    """

    def __init__(
        self,
        config: Config,
        options: SeedOptions,
        environ: Mapping[str, str],
        *,
        seeder: type[NodeSeeder] = NodeSeeder,
    ) -> None:
        self._config = config
        self._options = options
        self._environ = dict(environ)
        self._seeder = seeder
        self._room_bytes: dict[str, int] = {}
        self._actors: dict[str, Any] = {}
        self._running: dict[Any, Node] = {}
        self._asked: dict[Any, str] = {}
        self._progress: dict[str, Progress] = {}

    def nodes(self) -> tuple[Node, ...]:
        """See `SeedCluster.nodes`."""
        import ray

        found = ray.nodes()  # type: ignore[no-untyped-call]
        for node in found:
            store_bytes = node.get("Resources", {}).get("object_store_memory", ROOM_BYTES)
            self._room_bytes[node["NodeID"]] = min(ROOM_BYTES, int(store_bytes) // ROOM_SHARE)
        return alive(found)

    def start(self, nodes: Sequence[Node], sources: Sequence[Node]) -> None:
        """See `SeedCluster.start`."""
        for node in dict.fromkeys((*nodes, *sources)):
            self._discard(node)
            self._actors[node.node_id] = self._actor(node)
        for node in sources:
            if node not in nodes:  # it has everything already, and finds that again before it serves
                self._actors[node.node_id].seed.remote(self._part(node, nodes, sources))
        for node in nodes:
            actor = self._actors[node.node_id]
            if sources:
                others = {
                    position: self._actors[source.node_id]
                    for position, source in enumerate(sources)
                    if source != node
                }
                ref = actor.seed.remote(self._part(node, nodes, sources), others)
            else:
                ref = actor.seed.remote()
            self._running[ref] = node

    def ended(self) -> list[NodeSeed]:
        """See `SeedCluster.ended`."""
        import ray

        if not self._running:
            return []
        ready, _ = ray.wait(list(self._running), num_returns=len(self._running), timeout=0)
        seeds: list[NodeSeed] = []
        for ref in ready:
            node = self._running.pop(ref)
            seeds.append(_answer(ref, node))
        return seeds

    def progress(self) -> dict[str, Progress]:
        """See `SeedCluster.progress`."""
        import ray

        if self._asked:
            ready, _ = ray.wait(list(self._asked), num_returns=len(self._asked), timeout=0)
            for ref in ready:
                self._hear(self._asked.pop(ref), ref)
        waiting = set(self._asked.values())
        for node in self._running.values():
            if node.node_id not in waiting and node.node_id in self._actors:
                self._asked[self._actors[node.node_id].progress.remote()] = node.node_id
        running = {node.node_id for node in self._running.values()}
        return {node_id: state for node_id, state in self._progress.items() if node_id in running}

    def stop(self, node: Node) -> None:
        """See `SeedCluster.stop`."""
        self._running = {ref: other for ref, other in self._running.items() if other != node}
        self._discard(node)

    def _hear(self, node_id: str, ref: Any) -> None:
        import ray

        try:
            progress: Progress | None = ray.get(ref)
        except ray.exceptions.RayError:
            return  # what became of its node is said by what the node was asked for first
        if progress is not None:
            self._progress[node_id] = progress

    def _actor(self, node: Node) -> Any:
        import ray

        return (
            ray.remote(self._seeder)
            .options(
                **options_on(node.node_id, {"env_vars": self._environ}),
                max_restarts=0,
                max_concurrency=CONCURRENCY,
            )
            .remote(self._config, node, self._options)
        )

    def _part(self, node: Node, nodes: Sequence[Node], sources: Sequence[Node]) -> Part:
        return Part(
            num_sources=len(sources),
            position=sources.index(node) if node in sources else None,
            num_receivers=len(set(nodes) - {node}),
            room_bytes=self._room_bytes.get(node.node_id, ROOM_BYTES),
        )

    def _discard(self, node: Node) -> None:
        import ray

        actor = self._actors.pop(node.node_id, None)
        self._progress.pop(node.node_id, None)
        if actor is not None:
            ray.kill(actor)


def _answer(ref: Any, node: Node) -> NodeSeed:
    import ray

    try:
        answer: NodeSeed = ray.get(ref)
    except ray.exceptions.RayError as error:
        return failed(node, f"the seeding process on the node failed: {in_short(error)}")
    return answer
