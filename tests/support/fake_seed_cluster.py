"""A cluster whose nodes are seeded when a test says so, on a clock that a test moves."""

from __future__ import annotations

from collections.abc import Sequence

from warmrank.cache_store.fetching.progress import Progress
from warmrank.orchestrator.nodes import Node
from warmrank.orchestrator.seed.outcome import NodeSeed, failed


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def make_node(number: int) -> Node:
    return Node(node_id=f"{number:02d}ab" * 14, address=f"10.0.0.{number}", host=f"host{number}")


def seeded(node: Node) -> NodeSeed:
    return NodeSeed(node=node, found=True, reason="launch 0f of 2 ranks")


class FakeSeedCluster:
    """A `SeedCluster`.

    Attributes:
        alive: the nodes.
        started: what was started, each with the hosts of its sources.
        stopped: hosts whose process was ended, in order.
        states: how far nodes are.
    """

    def __init__(self, alive: Sequence[Node]) -> None:
        self.alive = list(alive)
        self.started: list[tuple[str, str]] = []
        self.stopped: list[str] = []
        self.states: dict[str, Progress] = {}
        self._ended: list[NodeSeed] = []

    def nodes(self) -> tuple[Node, ...]:
        return tuple(self.alive)

    def start(self, nodes: Sequence[Node], sources: Sequence[Node]) -> None:
        self.started += [(node.host, " ".join(source.host for source in sources)) for node in nodes]

    def ended(self) -> list[NodeSeed]:
        ended, self._ended = self._ended, []
        return ended

    def progress(self) -> dict[str, Progress]:
        return dict(self.states)

    def stop(self, node: Node) -> None:
        self.stopped.append(node.host)

    def end_well(self, *nodes: Node) -> None:
        self._ended += [seeded(node) for node in nodes]

    def end_badly(self, node: Node, why: str = "disk full") -> None:
        self._ended.append(failed(node, why))

    def end_with(self, seed: NodeSeed) -> None:
        self._ended.append(seed)

    def advance(self, node: Node, done_bytes: int) -> None:
        self.states[node.node_id] = Progress(
            done_bytes=done_bytes, total_bytes=10**9, done_files=0, total_files=1
        )
