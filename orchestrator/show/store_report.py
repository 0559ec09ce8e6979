"""What a launch had to do with its store, for its report: plain frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from warmrank.orchestrator.seats import Gang
from warmrank.worker.results import Published


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFetch:
    """What one node fetched from the store before its ranks were built.

    Attributes:
        node_rank: index of the node.
        host: its host name.
        found: a launch that fits was in the store.
        reason: why, in one line.
        num_partitions: partitions laid out.
        bytes_copied: bytes written to the node's cache directory.
        seconds: wall seconds.
    """

    node_rank: int
    host: str
    found: bool
    reason: str
    num_partitions: int
    bytes_copied: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeArtifacts:
    """What became of the node artifacts of one node, for a launch's report.

    Attributes:
        num_files: node artifacts that the node's first rank has in its manifest.
        size_bytes: their size.
        num_new: how many of them this launch added or changed.
        bytes_new: their size.
        num_fetched: how many came from the store.
        bytes_fetched: their size.
        num_placed: how many were written to where the node's tools look for them.
        num_there: how many lay there with the same bytes.
        skipped: why others were not fetched, placed or kept, one line each, cut short.
    """

    num_files: int = 0
    size_bytes: int = 0
    num_new: int = 0
    bytes_new: int = 0
    num_fetched: int = 0
    bytes_fetched: int = 0
    num_placed: int = 0
    num_there: int = 0
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """What became of the artifacts of one node.

    Attributes:
        node_rank: index of the node.
        host: its host name.
        artifacts: what became of them.
    """

    node_rank: int
    host: str
    artifacts: NodeArtifacts


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePublish:
    """What the ranks of one node published.

    Attributes:
        node_rank: index of the node.
        host: its host name.
        num_partitions: partitions that are in the store now.
        num_blobs_new: blobs that the store did not have.
        bytes_new: their size.
        num_queued: partitions that wait on the node's disk, because the store was away.
    """

    node_rank: int
    host: str
    num_partitions: int
    num_blobs_new: int
    bytes_new: int
    num_queued: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Nondeterministic:
    """A function that compiled to other bytes here than those that the store holds for the same request."""

    function: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """What the last stage left in the store, or waiting for it.

    Attributes:
        record: the launch record's key; empty when there is none in the store.
        publishes: every node whose ranks published or queued something, in order.
        nondeterministic: by function.
        queued_on: hosts on whose disks something waits to be published, in the order in which it must be.
    """

    record: str = ""
    publishes: tuple[NodePublish, ...] = ()
    nondeterministic: tuple[Nondeterministic, ...] = ()
    queued_on: tuple[str, ...] = ()


def by_node(gang: Gang, published: Mapping[int, Published]) -> tuple[NodePublish, ...]:
    """Sum up, for each node, what its ranks published."""
    members: dict[int, list[Published]] = {}
    for seat in gang.seats:
        if seat.rank in published:
            members.setdefault(seat.node_rank, []).append(published[seat.rank])
    return tuple(
        NodePublish(
            node_rank=seat.node_rank,
            host=seat.host,
            num_partitions=sum(part.ref is not None for part in members[seat.node_rank]),
            num_blobs_new=sum(part.num_blobs_new for part in members[seat.node_rank]),
            bytes_new=sum(part.bytes_new for part in members[seat.node_rank]),
            num_queued=sum(bool(part.queued) for part in members[seat.node_rank]),
        )
        for seat in gang.first_of_each_node()
        if seat.node_rank in members
    )


def nondeterministic(published: Mapping[int, Published]) -> tuple[Nondeterministic, ...]:
    """The functions whose compiles are not deterministic, each with its ranks."""
    ranks: dict[str, list[int]] = {}
    for rank, part in sorted(published.items()):
        for function in part.conflicts:
            ranks.setdefault(function, []).append(rank)
    return tuple(
        Nondeterministic(function=function, ranks=tuple(found)) for function, found in sorted(ranks.items())
    )
