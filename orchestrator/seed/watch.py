"""`warmrank preseed --watch`: seeds nodes as they join, for as long as it runs.

Ray ends a process whose cluster's head was away for a minute, and a call may hang for as long. So the watch
itself does not touch Ray: a child process does (`watch_child`), and is started again when it ended or fell
silent. Invariants: what the nodes became survives the child; a cluster that is away is said so once, asked
again later each time, and said so when it is back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from warmrank.orchestrator.nodes import Node
from warmrank.orchestrator.seed.events import Away, Back, Ended, Looked, SeedEvent, Tell
from warmrank.orchestrator.seed.outcome import NodeSeed, word

SILENT_S = 20.0
"""Without a sign of life from the child, which gives one a second, the cluster is said to be away."""
HUNG_S = 90.0
"""After so long the child is ended: Ray itself gives up after 60 s."""
FIRST_WAIT_S = 2.0
LONGEST_WAIT_S = 30.0


class Child(Protocol):
    """A process that seeds the nodes of the cluster and says what happens."""

    def events(self) -> list[SeedEvent]:
        """What happened since the last call."""

    def is_alive(self) -> bool:
        """Whether it runs; what it said before it ended is still in `events`."""

    def stop(self) -> None:
        """End it, and all that it started on nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Until:
    """When a watch ends by itself; None for never.

    Attributes:
        seconds: after so many.
        num_nodes: once so many nodes of the cluster are seeded.
    """

    seconds: float | None = None
    num_nodes: int | None = None


class Watch:
    """Keeps a child running; call `step` again and again, and `stop` at the end.

    Args:
        start: starts a child, given the ids of nodes that are seeded.
        until: when it is over.
        tell: hears of everything that happens.
        clock: seconds, never going back.
    """

    def __init__(
        self,
        start: Callable[[frozenset[str]], Child],
        until: Until,
        *,
        tell: Tell,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._start_child = start
        self._until = until
        self._tell = tell
        self._clock = clock
        self._child: Child | None = None
        self._began_s = self._heard_s = clock()
        self._start_s = 0.0
        self._num_failures = 0
        self._away_s: float | None = None
        self._reason = ""
        self._nodes: dict[str, Node] = {}
        self._seeds: dict[str, NodeSeed] = {}

    @property
    def is_done(self) -> bool:
        """Whether what it was to wait for has come."""
        seconds, num_nodes = self._until.seconds, self._until.num_nodes
        if seconds is not None and self._clock() - self._began_s >= seconds:
            return True
        return num_nodes is not None and len(self._seeded()) >= num_nodes

    def results(self) -> tuple[NodeSeed, ...]:
        """What became of the nodes that are in the cluster now, or were when it last answered, by host."""
        found = (self._seeds[node_id] for node_id in self._nodes if node_id in self._seeds)
        return tuple(sorted(found, key=lambda seed: (seed.node.host, seed.node.node_id)))

    def step(self) -> None:
        """Start a child if it is time, and pass on what it says."""
        now_s = self._clock()
        if self._child is None:
            if now_s >= self._start_s:
                self._child, self._heard_s = self._start_child(self._seeded()), now_s
            return
        is_alive = self._child.is_alive()  # before the events: what it says last must not be lost
        for event in self._child.events():
            self._hear(event, now_s)
        if not is_alive:
            self._lose(now_s, self._reason or "the process that watches it ended; Ray ends it without a head")
        elif now_s - self._heard_s >= HUNG_S:
            self._lose(now_s, f"no answer for {HUNG_S:g} s")
        elif now_s - self._heard_s >= SILENT_S:
            self._be_away(now_s, f"no answer for {SILENT_S:g} s")

    def stop(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.stop()
            self._child = None

    def _hear(self, event: SeedEvent, now_s: float) -> None:
        self._heard_s = now_s
        if isinstance(event, Away):
            self._reason = event.reason
            return
        if self._away_s is not None:
            self._tell(Back(after_s=now_s - self._away_s))
            self._away_s = None
        self._num_failures, self._reason = 0, ""
        if isinstance(event, Looked):
            event = self._look(event)
        elif isinstance(event, Ended):
            self._seeds[event.seed.node.node_id] = event.seed
        self._tell(event)

    def _look(self, event: Looked) -> Looked:
        """The event without the nodes that another child knew before."""
        before = self._nodes
        self._nodes = {node.node_id: node for node in event.nodes}
        return Looked(
            nodes=event.nodes,
            joined=tuple(node for node in event.nodes if node.node_id not in before),
            left=tuple(node for node_id, node in before.items() if node_id not in self._nodes),
        )

    def _lose(self, now_s: float, why: str) -> None:
        self.stop()
        wait_s = min(FIRST_WAIT_S * 2.0 ** min(self._num_failures, 16), LONGEST_WAIT_S)
        self._num_failures += 1
        self._start_s = now_s + wait_s
        self._be_away(now_s, why)

    def _be_away(self, now_s: float, why: str) -> None:
        if self._away_s is None:
            self._away_s = now_s
            self._tell(Away(reason=why))

    def _seeded(self) -> frozenset[str]:
        here = (self._seeds[node_id] for node_id in self._nodes if node_id in self._seeds)
        return frozenset(seed.node.node_id for seed in here if word(seed) == "seeded")
