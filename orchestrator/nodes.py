"""The nodes of a cluster, by every name that people may use for them, and where ranks were placed there."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar

from warmrank.cache_store.text import count_text, grouped, size_text
from warmrank.orchestrator.errors import UnknownNode, about

K = TypeVar("K")
FanOut = Literal["auto", "always", "never"]
"""If one node reads the store for the others."""

_MIN_PREFIX = 6  # so many characters of a node's id name it


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node of the cluster, by every name that people may use for it."""

    node_id: str
    address: str
    host: str

    def __str__(self) -> str:
        return f"{self.host} ({self.address}, {self.node_id[:SHORT_ID]})" if self.node_id else self.host


def this_node() -> Node:
    """This machine, where no cluster names it."""
    return Node(node_id="", address="", host=socket.gethostname())


def choose(nodes: Sequence[Node], wanted: Iterable[str]) -> tuple[Node, ...]:
    """The nodes that names stand for, each once, or all; raises `UnknownNode` unless each name fits one."""
    chosen: list[Node] = []
    for name in wanted:
        matches = [node for node in nodes if name in (node.node_id, node.address, node.host)]
        matches = matches or [node for node in nodes if is_called(node, name)]
        if len(matches) != 1:
            what = f"{len(matches)} nodes are called" if matches else "no alive node is called"
            known = "\n".join(f"  {node}" for node in nodes)
            remedy = "name one by its node id" if matches else "expected a node id, an address or a host name"
            raise UnknownNode(f"{what} {name!r}; {remedy}. Alive nodes:\n{known}")
        chosen += matches
    return tuple(dict.fromkeys(chosen)) if chosen else tuple(nodes)


def is_called(node: Node, name: str) -> bool:
    """True if a name, or the beginning of an id, may stand for this node."""
    is_prefix = len(name) >= _MIN_PREFIX and node.node_id.startswith(name)
    return is_prefix or name in (node.node_id, node.address, node.host)


def distinct_names(nodes: Iterable[Node]) -> dict[Node, str]:
    """Each node's host, with the beginning of its id where another node has that host name."""
    return _distinct({node: (node.host, node.node_id) for node in nodes})


def _distinct(named: Mapping[K, tuple[str, str]]) -> dict[K, str]:
    ids = grouped(set(named.values()))
    return {
        key: f"{host} {node_id[:SHORT_ID]}" if len(ids[host]) > 1 else host
        for key, (host, node_id) in named.items()
    }


def in_order(host: str) -> tuple[tuple[int, str], ...]:
    """Sorts host names as people do: ``n2`` before ``n10``."""
    return tuple((int(part or 0), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", host))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeArtifacts:
    """Node artifacts of one node, for a launch's report."""

    num_files: Annotated[int, about("node artifacts that the node's first rank has in its manifest.")] = 0
    size_bytes: Annotated[int, about("their size.")] = 0
    num_new: Annotated[int, about("how many of them this launch added or changed.")] = 0
    bytes_new: Annotated[int, about("their size.")] = 0
    num_fetched: Annotated[int, about("how many came from the store.")] = 0
    bytes_fetched: Annotated[int, about("their size.")] = 0
    num_placed: Annotated[int, about("how many were written to where the node's tools look for them.")] = 0
    num_there: Annotated[int, about("how many lay there with the same bytes.")] = 0
    skipped: Annotated[tuple[str, ...], about("why others were not fetched, placed or kept.")] = ()

    def words(self) -> tuple[str, ...]:
        """Their outcome in lines; nothing where the node has none."""
        if self == NodeArtifacts():
            return ()
        own = f"{count_text(self.num_files, 'file')} of {size_text(self.size_bytes)}, {self.num_new} new"
        fetched = f"{self.num_fetched} fetched ({size_text(self.bytes_fetched)})"
        return (
            f"node artifacts: {own}; {fetched}, {self.num_placed} put in place, {self.num_there} were there",
            *(f"node artifact skipped: {reason}" for reason in self.skipped),
        )


SHORT_ID = 12  # characters of a node's id that people see


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlacement:
    """Placement of one rank."""

    rank: int
    local_rank: int
    local_world_size: int
    node_rank: int
    node_id: str  # never shared by two nodes; another one once Ray there was started anew
    host: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """All ranks of a launch, and where they meet."""

    placements: tuple[RankPlacement, ...]  # every rank, in order; ranks of one node follow each other
    master_addr: str  # address that every rank reaches rank 0's node by
    master_port: int  # port that was free there; 0 for ranks that make no process groups
    logs: str = ""  # pattern of the ranks' log files; empty when they run in the driver's process

    def by_node(self) -> dict[int, list[RankPlacement]]:
        """The placements of every node, in order."""
        return grouped((placement.node_rank, placement) for placement in self.placements)

    def log_of(self, rank: int) -> str:
        """The log file of one rank; empty when there is none."""
        return self.logs.replace("*", str(rank))


def distinct_hosts(placements: Iterable[RankPlacement]) -> dict[int, str]:
    """Each rank's host, named as in `distinct_names`."""
    return _distinct({placement.rank: (placement.host, placement.node_id) for placement in placements})


def straddle_text(axis: str, group_size: int, placements: Sequence[RankPlacement]) -> str:
    """Name the groups of consecutive ranks that are on more than one node, for people; empty for none."""
    starts = range(0, len(placements) - group_size + 1, group_size)
    groups = [placements[start : start + group_size] for start in starts]
    astray = [group for group in groups if len({placement.node_rank for placement in group}) > 1]
    if not astray:
        return ""
    first, hosts = astray[0], ", ".join(dict.fromkeys(placement.host for placement in astray[0]))
    return (
        f"{len(astray)} of {len(groups)} {axis} groups straddle nodes, such as ranks {first[0].rank}-"
        f"{first[-1].rank} on {hosts}: no node has room for a whole one. Their collectives take the network; "
        f"free or add nodes, or let ray.pack name the axis that is to stay together (now {axis})"
    )
