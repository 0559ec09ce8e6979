"""Seeds the nodes of a cluster, step by step: looks for nodes, starts what is due, collects what ended.

Invariants: a node is seeded once for as long as it is in the cluster; one that failed is tried again, if that
was asked for, later each time; a node whose source is gone gets everything from the store; nothing waits
here, so that one silent node keeps no other one back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from cache_store.fetching.progress import Progress
from orchestrator.seed.events import Advanced, Began, Ended, Looked, Tell
from orchestrator.seed.nodes import Node, choose, is_called
from orchestrator.seed.options import FanOut
from orchestrator.seed.outcome import NodeSeed, failed, word
from orchestrator.seed.waves import plan_wave, retry_in_s

LOOK_EVERY_S = 5.0
ADVANCE_EVERY_S = 1.0
Phase = Literal["waiting", "queued", "running", "ended"]


class SeedCluster(Protocol):
    """A cluster whose nodes can be seeded; no method waits for a node."""

    def nodes(self) -> tuple[Node, ...]:
        """The nodes that are alive."""

    def start(self, nodes: Sequence[Node], source: Node | None) -> None:
        """Begin to seed nodes, from the store or from a node that ended well and was not stopped since."""

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
class _Source:
    """A node that others get their bytes from; ``waiting`` is None once they were started."""

    node: Node
    since_s: float
    waiting: tuple[Node, ...] | None
    receivers: set[str] = field(default_factory=set)


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
        self._source: _Source | None = None
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
        if self._source is not None:
            return  # one fan-out at a time: who is due meanwhile gets its bytes from the same source
        due = [k.node for k in self._known.values() if k.phase == "waiting" and now_s >= k.due_s]
        if not due:
            return
        seeded = [k.node for k in self._known.values() if k.seed is not None and word(k.seed) == "seeded"]
        wave = plan_wave(due, seeded, self._plan.fan_out)
        if wave.source is None:
            self._begin(wave.others, None)
            return
        self._source = _Source(node=wave.source, since_s=now_s, waiting=wave.others)
        for node in wave.others:
            self._known[node.node_id].phase = "queued"
        self._begin((wave.source,), None)

    def _begin(self, nodes: Sequence[Node], source: Node | None) -> None:
        self._cluster.start(nodes, source)
        for node in nodes:
            known = self._known[node.node_id]
            if known.seed is not None and word(known.seed) == "seeded":
                continue  # it only makes ready to serve
            known.phase, known.attempts = "running", known.attempts + 1
            known.moved_s, known.done_bytes = self._clock(), -1
            self._tell(Began(node=node, attempt=known.attempts, source=source))

    def _end(self, seed: NodeSeed) -> None:
        known = self._known.get(seed.node.node_id)
        if known is not None and known.phase == "running":
            known.phase, known.seed = "ended", replace(seed, attempts=known.attempts)
            wait_s = None
            if self._plan.watch and word(seed) != "seeded":
                wait_s = retry_in_s(known.attempts)
                known.phase, known.due_s = "waiting", self._clock() + wait_s
            self._tell(Ended(seed=known.seed, retry_in_s=wait_s))
        if self._source is None or self._source.node != seed.node:
            self._cluster.stop(seed.node)
        self._settle(seed.node, is_seeded=word(seed) == "seeded")

    def _settle(self, node: Node, *, is_seeded: bool = False) -> None:
        """Go on with who waited for a node, or served it."""
        source = self._source
        if source is None:
            return
        if node == source.node and source.waiting is not None:
            waiting = tuple(n for n in source.waiting if n.node_id in self._known)
            source.waiting, source.receivers = None, {n.node_id for n in waiting}
            if waiting:
                self._begin(waiting, node if is_seeded else None)
        source.receivers.discard(node.node_id)
        if source.waiting is None and not source.receivers:
            self._cluster.stop(source.node)
            self._source = None

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
        source = self._source
        silent_s = self._plan.silent_s
        if source is not None and source.waiting is not None and now_s - source.since_s > silent_s:
            known = self._known.get(source.node.node_id)
            if known is None or known.phase != "running":
                self._settle(source.node)
        for known in [k for k in self._known.values() if k.phase == "running"]:
            if now_s - known.moved_s > silent_s:
                self._cluster.stop(known.node)
                why = f"it got no further for {silent_s:g} s (timeouts.start_s and fetch_s)"
                self._end(failed(known.node, why))
