"""Where the ranks of a launch were placed, as plain values: whatever starts ranks makes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SHORT_ID = 12
"""Characters of a node's id that people see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Where one rank was placed.

    ``node_id``, unlike ``host``, is never shared by two nodes, and another one once Ray there was started
    anew.
    """

    rank: int
    local_rank: int
    local_world_size: int
    node_rank: int
    node_id: str
    host: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """All ranks of a launch, and where they meet.

    Attributes:
        seats: every rank, in order; ranks of one node follow each other.
        master_addr: address that every rank reaches rank 0's node by.
        master_port: port that was free there; 0 for ranks that make no process groups.
        logs: pattern of the ranks' log files; empty when they run in the driver's process.
    """

    seats: tuple[Seat, ...]
    master_addr: str
    master_port: int
    logs: str = ""

    def first_of_each_node(self) -> tuple[Seat, ...]:
        """The seat with local rank 0 of every node, in order."""
        return tuple(seat for seat in self.seats if seat.local_rank == 0)

    def by_node(self) -> dict[int, list[Seat]]:
        """The seats of every node, in order."""
        found: dict[int, list[Seat]] = {}
        for seat in self.seats:
            found.setdefault(seat.node_rank, []).append(seat)
        return found

    def log_of(self, rank: int) -> str:
        """The log file of one rank; empty when there is none."""
        return self.logs.replace("*", str(rank))


def distinct_hosts(seats: Sequence[Seat]) -> dict[int, str]:
    """Each rank's host, with the beginning of its node's id where another node has that host name."""
    nodes: dict[str, set[str]] = {}
    for seat in seats:
        nodes.setdefault(seat.host, set()).add(seat.node_id)
    return {
        seat.rank: f"{seat.host} {seat.node_id[:SHORT_ID]}" if len(nodes[seat.host]) > 1 else seat.host
        for seat in seats
    }


def straddling_groups(seats: Sequence[Seat], group_size: int) -> tuple[range, ...]:
    """The groups of ranks that follow each other which are on more than one node."""
    starts = range(0, len(seats) - group_size + 1, group_size)
    groups = (range(start, start + group_size) for start in starts)
    return tuple(group for group in groups if len({seats[rank].node_rank for rank in group}) > 1)


def straddle_text(axis: str, groups: Sequence[range], seats: Sequence[Seat]) -> str:
    """That groups are not on one node each, for people."""
    first = groups[0]
    hosts = ", ".join(dict.fromkeys(seats[rank].host for rank in first))
    return (
        f"{len(groups)} of {len(seats) // len(first)} {axis} groups straddle nodes, such as ranks {first[0]}-"
        f"{first[-1]} on {hosts}: no node has room for a whole one. Their collectives take the network; free "
        f"or add nodes, or let ray.pack name the axis that is to stay together (now {axis})"
    )
