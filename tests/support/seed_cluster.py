"""A cluster whose nodes are seeded when a test says so, on a clock that a test moves."""

from __future__ import annotations

from collections.abc import Sequence

from warmrank.cache_store.progress import Progress
from warmrank.orchestrator.nodes import Node
from warmrank.orchestrator.seed.here import NodeSeed, failed


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def make_node(number: int) -> Node:
    return Node(node_id=f"{number:02d}ab" * 14, address=f"10.0.0.{number}", host=f"host{number}")


def seeded(node: Node, *, from_store: int = 0, from_nodes: int = 0) -> NodeSeed:
    return NodeSeed(
        node=node,
        found=True,
        reason="launch 0f of 2 ranks",
        bytes_from_store=from_store,
        bytes_from_nodes=from_nodes,
    )


class FakeSeedCluster:
    """A `SeedCluster`.

    Attributes:
        alive: the nodes.
        started: hosts that were started, each with that of its source, or ``shares`` where it is one.
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

    def start(self, node: Node, *, source: Node | None = None, shares: bool = False) -> None:
        self.started.append((node.host, "shares" if shares else source.host if source else ""))

    def ended(self) -> list[NodeSeed]:
        ended, self._ended = self._ended, []
        return ended

    def progress(self) -> dict[str, Progress]:
        return dict(self.states)

    def stop(self, node: Node) -> None:
        self.stopped.append(node.host)

    def end_well(self, *nodes: Node, from_store: int = 0, from_nodes: int = 0) -> None:
        self._ended += [seeded(node, from_store=from_store, from_nodes=from_nodes) for node in nodes]

    def end_badly(self, node: Node, why: str = "disk full") -> None:
        self._ended.append(failed(node, why))

    def end_with(self, seed: NodeSeed) -> None:
        self._ended.append(seed)

    def advance(self, node: Node, done_bytes: int) -> None:
        self.states[node.node_id] = Progress(
            done_bytes=done_bytes, total_bytes=10**9, done_files=0, total_files=1
        )
