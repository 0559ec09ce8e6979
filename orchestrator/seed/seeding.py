"""Seeds the nodes of a cluster, step by step: looks for nodes, starts what is due, collects what ended.

Invariants: a node is seeded once for as long as it is in the cluster; one that failed is tried again, if that
was asked for, later each time; nodes that pass blobs on serve until all of their wave have ended; nothing
waits here, so that one silent node keeps no other one back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from warmrank.cache_store.fetching.progress import Progress
from warmrank.orchestrator.nodes import Node, choose, is_called
from warmrank.orchestrator.seed.events import Advanced, Began, Ended, Looked, Tell
from warmrank.orchestrator.seed.options import FanOut
from warmrank.orchestrator.seed.outcome import NodeSeed, failed, word
from warmrank.orchestrator.seed.waves import plan_wave, retry_in_s

LOOK_EVERY_S = 5.0
ADVANCE_EVERY_S = 1.0
Phase = Literal["waiting", "running", "ended"]


class SeedCluster(Protocol):
    """A cluster whose nodes can be seeded; no method waits for a node."""

    def nodes(self) -> tuple[Node, ...]:
        """The nodes that are alive."""

    def start(self, nodes: Sequence[Node], sources: Sequence[Node]) -> None:
        """Begin to seed nodes, from the store and, if any, from sources, which may be among them."""

    def ended(self) -> list[NodeSeed]:
        """What became of nodes that ended since the last call."""

    def progress(self) -> dict[str, Progress]:
        """How far running nodes are, by their ids, as far as that is known."""

    def stop(self, node: Node) -> None:
        """End what is running on a node, and let go of what it serves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedPlan:
    """What to do.

    Attributes:
        wanted: names of nodes; none for all.
        fan_out: whether nodes get their bytes from one of them.
        watch: seed nodes that join later too, and try those again that failed.
        silent_s: how long a running node may get no further.
        seeded: ids of nodes that are known to be seeded.
    """

    wanted: tuple[str, ...] = ()
    fan_out: FanOut = "auto"
    watch: bool = False
    silent_s: float = 600.0
    seeded: frozenset[str] = frozenset()


@dataclass(slots=True, kw_only=True)
class _Known:
    """A node, and how far it is."""

    node: Node
    phase: Phase = "waiting"
    due_s: float = 0.0
    attempts: int = 0
    moved_s: float = 0.0
    done_bytes: int = -1
    seed: NodeSeed | None = None


@dataclass(slots=True, kw_only=True)
class _FanOut:
    """Nodes that serve each other until the last of them has ended; ``running`` are ids."""

    nodes: tuple[Node, ...]
    running: set[str]


class Seeding:
    """Seeds nodes; call `step` again and again.

    Args:
        cluster: the cluster.
        plan: what to do.
        tell: hears of everything.
        clock: seconds, never going back.
    """

    def __init__(
        self,
        cluster: SeedCluster,
        plan: SeedPlan,
        *,
        tell: Tell,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._plan = plan
        self._tell = tell
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self._fan_out: _FanOut | None = None
        self._look_s: float | None = None
        self._advance_s = clock()

    @property
    def is_done(self) -> bool:
        """Whether every node that was found has ended; never while new ones are waited for."""
        is_looked = self._look_s is not None
        return not self._plan.watch and is_looked and all(k.phase == "ended" for k in self._known.values())

    def results(self) -> tuple[NodeSeed, ...]:
        """What became of the nodes so far, by host."""
        found = (known.seed for known in self._known.values() if known.seed is not None)
        return tuple(sorted(found, key=lambda seed: (seed.node.host, seed.node.node_id)))

    def step(self) -> None:
        """Do what is due now.

        Raises:
            UnknownNode: a wanted name fits no node, or several, and none are waited for.
        """
        now_s = self._clock()
        if self._look_s is None or (self._plan.watch and now_s >= self._look_s):
            self._look()
            self._look_s = now_s + LOOK_EVERY_S
        for seed in self._cluster.ended():
            self._end(seed)
        self._advance(now_s)
        self._start(now_s)

    def _look(self) -> None:
        alive = self._cluster.nodes()
        names = self._plan.wanted
        if self._plan.watch:
            nodes = tuple(n for n in alive if not names or any(is_called(n, name) for name in names))
        else:
            nodes = choose(alive, names)
        joined = tuple(node for node in nodes if node.node_id not in self._known)
        here = {node.node_id for node in nodes}
        left = tuple(known.node for node_id, known in self._known.items() if node_id not in here)
        for node in left:
            self._forget(node)
        for node in joined:
            is_seeded = node.node_id in self._plan.seeded
            self._known[node.node_id] = _Known(node=node, phase="ended" if is_seeded else "waiting")
        self._tell(Looked(nodes=nodes, joined=joined, left=left))

    def _forget(self, node: Node) -> None:
        known = self._known.pop(node.node_id)
        if known.phase == "running":
            self._cluster.stop(node)
        self._settle(node)

    def _start(self, now_s: float) -> None:
        if self._fan_out is not None:
            return  # one at a time: who is due meanwhile gets its bytes from nodes that are seeded then
        due = [k.node for k in self._known.values() if k.phase == "waiting" and now_s >= k.due_s]
        if not due:
            return
        seeded = [k.node for k in self._known.values() if k.seed is not None and word(k.seed) == "seeded"]
        wave = plan_wave(due, seeded, self._plan.fan_out)
        if wave.sources:
            nodes = tuple(dict.fromkeys((*wave.nodes, *wave.sources)))
            self._fan_out = _FanOut(nodes=nodes, running={node.node_id for node in wave.nodes})
        self._cluster.start(wave.nodes, wave.sources)
        for node in wave.nodes:
            known = self._known[node.node_id]
            known.phase, known.attempts = "running", known.attempts + 1
            known.moved_s, known.done_bytes = now_s, -1
            num_sources = len(set(wave.sources) - {node})
            self._tell(Began(node=node, attempt=known.attempts, num_sources=num_sources))

    def _end(self, seed: NodeSeed) -> None:
        known = self._known.get(seed.node.node_id)
        if known is not None and known.phase == "running":
            known.phase, known.seed = "ended", replace(seed, attempts=known.attempts)
            wait_s = None
            if self._plan.watch and word(seed) != "seeded":
                wait_s = retry_in_s(known.attempts)
                known.phase, known.due_s = "waiting", self._clock() + wait_s
            self._tell(Ended(seed=known.seed, retry_in_s=wait_s))
        if self._fan_out is None or seed.node not in self._fan_out.nodes:
            self._cluster.stop(seed.node)
        self._settle(seed.node)

    def _settle(self, node: Node) -> None:
        """Let go of those that serve once nobody is left whom they could serve."""
        fan_out = self._fan_out
        if fan_out is None:
            return
        fan_out.running.discard(node.node_id)
        if not fan_out.running:
            self._fan_out = None
            for other in fan_out.nodes:
                self._cluster.stop(other)

    def _advance(self, now_s: float) -> None:
        if now_s - self._advance_s < ADVANCE_EVERY_S:
            return
        self._advance_s = now_s
        progress = self._cluster.progress()
        for node_id, known in self._known.items():
            state = progress.get(node_id)
            if known.phase == "running" and state is not None and state.done_bytes != known.done_bytes:
                known.done_bytes, known.moved_s = state.done_bytes, now_s
        self._tell(Advanced(progress=progress))
        self._give_up_silent(now_s)

    def _give_up_silent(self, now_s: float) -> None:
        silent_s = self._plan.silent_s
        for known in [k for k in self._known.values() if k.phase == "running"]:
            if now_s - known.moved_s > silent_s:
                self._cluster.stop(known.node)
                why = f"it got no further for {silent_s:g} s (timeouts.start_s and fetch_s)"
                self._end(failed(known.node, why))
