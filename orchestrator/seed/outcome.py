"""What became of seeding one node: a plain value that crosses Ray and goes into JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from warmrank.cache_store.seed import SeedReport
from warmrank.orchestrator.nodes import Node, NodeArtifacts

Word = Literal["seeded", "miss", "faults"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeed:
    """What became of one node.

    Attributes:
        node: the node.
        found: a launch with this node's environment is in the store.
        reason: which launch, or why none.
        world_size: that launch's number of ranks; 0 when none was found.
        num_partitions: partitions that now lie in the cache directory, verified.
        num_files: artifacts in them.
        num_already_there: of these, artifacts that lay there before.
        bytes_copied: bytes written to the node's cache directory.
        faults: what could not be used; empty when all is well.
        seconds: wall time on the node.
        node_artifacts: what became of the node's own artifacts; None on a node without node caches.
        bytes_from_store: bytes of partitions that were read from the store.
        bytes_from_nodes: bytes of partitions that came from another node.
        bytes_resumed: bytes of partitions that a preseed which did not end had left, verified again.
        attempts: how often it was tried.
    """

    node: Node
    found: bool
    reason: str
    world_size: int = 0
    num_partitions: int = 0
    num_files: int = 0
    num_already_there: int = 0
    bytes_copied: int = 0
    faults: tuple[str, ...] = ()
    seconds: float = 0.0
    node_artifacts: NodeArtifacts | None = None
    bytes_from_store: int = 0
    bytes_from_nodes: int = 0
    bytes_resumed: int = 0
    attempts: int = 1


def word(seed: NodeSeed) -> Word:
    """What became of a node, in a word."""
    if seed.faults:
        return "faults"
    return "seeded" if seed.found else "miss"


def worst(seeds: Iterable[NodeSeed]) -> Word:
    """The worst of what became of several nodes."""
    words = {word(seed) for seed in seeds}
    return "faults" if "faults" in words else "miss" if "miss" in words else "seeded"


def failed(node: Node, why: str) -> NodeSeed:
    """A node that could not be seeded at all."""
    return NodeSeed(node=node, found=False, reason=why, faults=(why,))


def summary(node: Node, report: SeedReport) -> NodeSeed:
    """What the node's report says, without what only the node needs."""
    return NodeSeed(
        node=node,
        found=report.found,
        reason=report.reason,
        world_size=report.world_size,
        num_partitions=len(report.partitions),
        num_files=sum(part.num_files for part in report.partitions),
        num_already_there=sum(part.num_already_there for part in report.partitions),
        bytes_copied=sum(part.bytes_copied for part in report.partitions),
        faults=report.faults,
        seconds=report.seconds,
        bytes_from_store=report.bytes_read,
        bytes_from_nodes=report.bytes_brought,
        bytes_resumed=report.bytes_resumed,
    )
