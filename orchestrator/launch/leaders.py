"""Who compiles: one leader a class, spread over nodes and ranks, the longest compiles first; who audits.

Pure. A rank compiles one function after the other (a process has one tracer), the ranks of a node side by
side in as many lanes as the node has cores for. Leaders are chosen greedily: by falling cost, each where it
would be ready first (LPT; Graham, "Bounds on Multiprocessing Timing Anomalies", 1969: at most a third
longer than the best possible). Choosing is linear in the number of candidates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

Rating = tuple[bool, bool, bool, float, float, int, int]
"""Was tried here; was tried on this node; the node is full; when it would be ready; load; load; rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """Where a compile was tried in vain."""

    ranks: frozenset[int] = frozenset()
    nodes: frozenset[int] = frozenset()


NOWHERE = Tried()


class Leaders:
    """Hands out leaders; remembers who leads how much.

    Args:
        nodes: node of every rank; None when nothing is known of nodes, then the lowest rank leads.
        lanes: by node, how many leaders should work at a time; a node that is not named has a lane a rank.
        positions: index of every rank on each parallel axis.
    """

    def __init__(
        self,
        nodes: Mapping[int, int] | None,
        lanes: Mapping[int, int] | None = None,
        positions: Mapping[int, tuple[int, ...]] | None = None,
    ) -> None:
        self._nodes = nodes
        self._positions = positions or {}
        self._lanes = lanes or (Counter(nodes.values()) if nodes is not None else {})
        self._of_rank: Counter[int] = Counter()
        self._of_node: Counter[int] = Counter()
        self._num_leaders: Counter[int] = Counter()

    def choose(self, candidates: Collection[int], cost: int, tried: Tried = NOWHERE) -> int:
        """The best leader: never one that has tried if there is another, rather on another node."""
        nodes = self._nodes
        if nodes is None:
            return min(candidates, key=lambda rank: (rank in tried.ranks, rank))
        leader = min(candidates, key=lambda rank: self._rating(rank, nodes[rank], cost, tried))
        self.add(leader, cost)
        return leader

    def choose_auditor(self, candidates: Collection[int], leader: int, cost: int) -> int:
        """Who differs most from a leader, by node and parallel axes.

        Of several rather who has nothing to do, and whose indices are far off: code that treats ranks in two
        ways has rather a first or last one, or halves, than neighbours.
        """
        of_leader = self._place(leader)

        def rating(rank: int) -> tuple[int, int, int, int, int]:
            place = self._place(rank)
            distances = [abs(one - other) for one, other in zip(place, of_leader, strict=True)]
            own, on_node = self._of_rank.get(rank, 0), self._of_node.get(place[0], 0)
            return distances.count(0), own, on_node, -sum(distances), rank

        auditor = min(candidates, key=rating)
        self.add(auditor, cost)
        return auditor

    def _place(self, rank: int) -> tuple[int, ...]:
        node = self._nodes[rank] if self._nodes is not None else 0
        return (node, *self._positions.get(rank, ()))

    def add(self, leader: int, cost: int) -> None:
        """Note what a rank compiles as well."""
        if self._nodes is None:
            return
        node = self._nodes[leader]
        self._num_leaders[node] += not self._of_rank[leader]
        self._of_rank[leader] += cost
        self._of_node[node] += cost

    def _rating(self, rank: int, node: int, cost: int, tried: Tried) -> Rating:
        lanes = self._lanes.get(node, 1)
        own, on_node = self._of_rank.get(rank, 0), self._of_node.get(node, 0)
        is_full = not own and self._num_leaders.get(node, 0) >= lanes
        ready = max(own + cost, (on_node + cost) / lanes)
        share = on_node / lanes
        return rank in tried.ranks, node in tried.nodes, is_full, ready, share, own, rank


def lanes_of(nodes: Iterable[int], cpus_per_rank: float) -> dict[int, int]:
    """How many leaders may compile at a time on each node: what its ranks reserved, at most one each."""
    return {
        node: max(1, int(num_ranks * min(1.0, cpus_per_rank))) for node, num_ranks in Counter(nodes).items()
    }
