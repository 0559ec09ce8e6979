"""Seeds this node from the store, or decides which nodes of a cluster are seeded when, and from where.

`seed_here` needs neither torch nor Ray, so that it fits a boot script or an init container. `Seeding` seeds a
node once for as long as it is in the cluster, and waits for none: one node's failure hides no other's outcome
and keeps nobody back. In a wave one node, the source, reads the store and shares what it has; the others
start once it has everything, and no more at once than there are nodes to take it from.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol

from warmrank.cache_store.errors import NoStoreYet
from warmrank.cache_store.fetch.blobs import FetchOptions
from warmrank.cache_store.text import brief_names, count_text, seconds_text, size_text
from warmrank.orchestrator.config.reading import Config
from warmrank.orchestrator.config.store import StoreConfig
from warmrank.orchestrator.errors import BadArgument
from warmrank.orchestrator.gang.node_artifacts import NodeKeeper
from warmrank.orchestrator.nodes import (
    FanOut,
    Node,
    NodeArtifacts,
    choose,
    distinct_names,
    is_called,
    this_node,
)
from warmrank.orchestrator.stores import open_to_fetch

Status = Literal["seeded", "miss", "faults"]
STYLES: dict[Status, str] = {"seeded": "green", "miss": "yellow", "faults": "bold red"}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeed:
    """Outcome of seeding one node; crosses Ray, and goes into JSON."""

    node: Node
    found: bool  # a launch with this node's environment is in the store
    reason: str  # which launch, or why none, or why the node failed
    world_size: int = 0
    num_partitions: int = 0
    num_files: int = 0  # artifacts that lie in the cache directory now, verified
    num_already_there: int = 0
    bytes_copied: int = 0
    faults: tuple[str, ...] = ()  # what could not be used
    seconds: float = 0.0
    node_artifacts: NodeArtifacts | None = None
    bytes_from_store: int = 0
    bytes_from_nodes: int = 0
    attempts: int = 1

    @property
    def status(self) -> Status:
        """The outcome in a word."""
        if self.faults:
            return "faults"
        return "seeded" if self.found else "miss"


def failed(node: Node, why: str) -> NodeSeed:
    """A node that could not be seeded at all."""
    return NodeSeed(node=node, found=False, reason=why, faults=(why,))


def seed_here(config: Config, node: Node | None = None, *, options: FetchOptions | None = None) -> NodeSeed:
    """Seed this node; ``node`` is this one, where it is one of a cluster. No store yet is a miss.

    Raises:
        BadArgument: the config names no store.
        StoreUnavailable: the store cannot be read, or a required one is not there yet.
        UnusableCache: the cache directory cannot be used.
    """
    here = node or this_node()
    try:
        store = open_to_fetch(check_store(config))
    except NoStoreYet as absent:
        if absent.required:
            raise
        return NodeSeed(node=here, found=False, reason=str(absent))
    keeper = NodeKeeper(config)
    report = keeper.fetch(store, options=options)
    is_cut_off = not report.found or store.farthest.state == "away"
    faults = tuple(dict.fromkeys((*(store.problems if is_cut_off else ()), *report.faults)))
    is_plain_miss = not report.found and not faults
    return NodeSeed(
        node=here,
        found=report.found,
        reason=report.reason + ("; warmrank explain names what differs" if is_plain_miss else ""),
        world_size=report.world_size,
        num_partitions=len(report.partitions),
        num_files=sum(part.num_files for part in report.partitions),
        num_already_there=sum(part.num_already_there for part in report.partitions),
        bytes_copied=report.bytes_copied,
        faults=faults,
        seconds=report.seconds,
        node_artifacts=keeper.report(),
        bytes_from_store=report.bytes_read,
        bytes_from_nodes=report.bytes_brought,
    )


def check_store(config: Config) -> StoreConfig:
    """The config's store; raises `BadArgument` where it names none."""
    if config.store is None:
        msg = f"config {config.name} names no store to seed from; set store.path, which all nodes share"
        raise BadArgument(msg)
    return config.store


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedPlan:
    """Options for seeding."""

    wanted: tuple[str, ...] = ()
    fan_out: FanOut = "auto"  # whether one node reads the store for the others
    verify: bool = False  # read again what is there already
    watch: bool = False  # seed nodes that join later too, and try those again that failed


class Told(NamedTuple):
    """A line on what happened, empty for nothing; of a node that ended, or left, its outcome, or itself."""

    line: str = ""
    style: str = ""
    seed: NodeSeed | None = None
    left: Node | None = None


class Outcomes:
    """The latest outcome of every node; passes lines on, with their style, and outcomes."""

    def __init__(
        self, say: Callable[[str, str], object], ended: Callable[[NodeSeed], object] = lambda _: None
    ) -> None:
        self.say, self._ended = say, ended
        self._found: dict[Node, NodeSeed] = {}

    def take(self, told: Told) -> None:
        """Take in what a seeding tells."""
        if told.line:
            self.say(told.line, told.style)
        if told.left is not None:
            self._found.pop(told.left, None)
        if told.seed is not None:
            self._found[told.seed.node] = told.seed
            self._ended(told.seed)

    def all(self) -> tuple[NodeSeed, ...]:
        """The outcomes, by host."""
        return tuple(sorted(self._found.values(), key=lambda seed: (seed.node.host, seed.node.node_id)))

    def num_seeded(self) -> int:
        """The number of nodes that are seeded."""
        return sum(seed.status == "seeded" for seed in self._found.values())


class SeedCluster(Protocol):
    """A cluster whose nodes can be seeded; no method waits for a node."""

    def nodes(self) -> tuple[Node, ...]:
        """The nodes that are alive."""

    def start(self, node: Node, *, source: Node | None = None, shares: bool = False) -> None:
        """Begin to seed a node from what a source shares; with ``shares`` it is one until it is stopped."""

    def ended(self) -> list[NodeSeed]:
        """The nodes that ended since the last call."""

    def stop(self, node: Node) -> None:
        """End what is running on a node, and let go of what it shares."""


LOOK_EVERY_S = 5.0
FIRST_RETRY_S = 5.0
LONGEST_RETRY_S = 300.0
MIN_FAN_OUT = 8
"""Nodes at once from which a shared store is taken for the bottleneck, unless somebody says otherwise."""
RECEIVERS_PER_HOLDER = 2
"""Ray takes an object from any node that has it, so each node that has everything feeds so many more."""
MAX_LOST_SOURCES = 3  # after so many sources in a row that failed, the nodes read the store by themselves


@dataclass(slots=True, kw_only=True)
class NodeState:
    """A node of the cluster."""

    node: Node
    phase: Literal["waiting", "running", "ended"] = "waiting"
    due_s: float = 0.0  # when it waits no more, for the first time or the next
    began_s: float = 0.0
    attempts: int = 0
    source: Node | None = None  # where the last attempt gets its blobs, None for the store
    seed: NodeSeed | None = None  # outcome of the last attempt that ended


class Seeding:
    """Seeds nodes; call `step` again and again. ``states`` are of the wanted nodes in the cluster, by id.

    A node that takes longer than ``limit_s`` has failed.
    """

    def __init__(
        self,
        cluster: SeedCluster,
        plan: SeedPlan,
        *,
        limit_s: float,
        tell: Callable[[Told], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.states: dict[str, NodeState] = {}
        self._cluster, self._plan, self._limit_s = cluster, plan, limit_s
        self._tell, self._clock = tell, clock
        self._source: Node | None = None
        self._num_holders = 0  # nodes with all that the source has; 0 while it reads
        self._num_lost_sources = 0
        self._next_look_s = float("-inf")

    @property
    def is_done(self) -> bool:
        """True once every node that was found has ended; never while new ones are waited for."""
        return self._next_look_s == float("inf") and not self._in("waiting") and not self._in("running")

    def step(self) -> None:
        """Do what is due now; raises `UnknownNode` if names fit no node or several, unless it watches."""
        now_s = self._clock()
        if now_s >= self._next_look_s:
            self._look()
            self._next_look_s = now_s + LOOK_EVERY_S if self._plan.watch else float("inf")
        for seed in self._cluster.ended():
            self._end(seed, now_s)
        for state in self._in("running"):
            if now_s - state.began_s > self._limit_s:
                why = f"it took longer than {self._limit_s:g} s (timeouts.start_s and fetch_s)"
                self._end(failed(state.node, why), now_s)
        self._start(now_s)

    def _in(self, phase: str) -> list[NodeState]:
        return [state for state in self.states.values() if state.phase == phase]

    def _look(self) -> None:
        alive, names = self._cluster.nodes(), self._plan.wanted
        if self._plan.watch:
            nodes = tuple(n for n in alive if not names or any(is_called(n, name) for name in names))
        else:
            nodes = choose(alive, names)
        for left in [state.node for state in self.states.values() if state.node not in nodes]:
            del self.states[left.node_id]
            self._cluster.stop(left)
            if self._source == left:
                self._lose_source()
            self._tell(Told(f"{left}: left the cluster", left=left))
        joined = [node for node in nodes if node.node_id not in self.states]
        self.states |= {node.node_id: NodeState(node=node) for node in joined}
        if joined:
            hosts = distinct_names(nodes)
            found = brief_names((hosts[node] for node in joined), max_names=8)
            self._tell(Told(f"{count_text(len(joined), 'node')} found: {found}"))

    def _start(self, now_s: float) -> None:
        due = [state for state in self._in("waiting") if now_s >= state.due_s]
        num_running = len(self._in("running"))
        least = {"always": 2, "auto": MIN_FAN_OUT, "never": len(due) + 1}[self._plan.fan_out]
        if not due and not num_running:
            self._num_lost_sources = 0
            self._end_wave()
        elif self._source is not None:
            num_free = RECEIVERS_PER_HOLDER * self._num_holders - num_running
            due = due[: max(0, num_free)]
        elif len(due) >= least and self._num_lost_sources < MAX_LOST_SOURCES:
            self._num_holders, due = 0, due[:1]
            self._begin(due.pop(), now_s, shares=True)
        for state in due:
            self._begin(state, now_s)

    def _begin(self, state: NodeState, now_s: float, *, shares: bool = False) -> None:
        source = self._source
        self._cluster.start(state.node, source=source, shares=shares)
        state.phase, state.source, state.began_s = "running", source, now_s
        state.attempts += 1
        origin = f"from {source.host}" if source is not None else "from the store"
        again = f", attempt {state.attempts}" if state.attempts > 1 else ""
        self._tell(Told(f"{state.node}: begun, {origin}{again}"))
        if shares:
            self._source = state.node

    def _end(self, seed: NodeSeed, now_s: float) -> None:
        state = self.states.get(seed.node.node_id)
        if state is None or state.phase != "running":
            return  # it was given up before, and stopped then
        state.phase, state.seed = "ended", replace(seed, attempts=state.attempts)
        again = ""
        if self._plan.watch and seed.status != "seeded":
            wait_s = min(FIRST_RETRY_S * 2.0 ** min(state.attempts - 1, 16), LONGEST_RETRY_S)
            state.phase, state.due_s, again = "waiting", now_s + wait_s, f"; tried again in {wait_s:.0f} s"
        is_source = self._source == seed.node
        if not is_source:
            self._cluster.stop(seed.node)
        if is_source or (self._source is not None and state.source == self._source):
            self._end_in_wave(seed, is_source=is_source)
        said = f"{size_text(seed.bytes_copied)} copied, {seconds_text(seed.seconds)}"
        said = f"seeded, {said}" if seed.status == "seeded" else f"{seed.status}: {seed.reason}"
        num_ended = sum(each.seed is not None for each in self.states.values())
        line = f"{seed.node}: {said}{again} ({num_ended} of {len(self.states)})"
        self._tell(Told(line, STYLES[seed.status], seed=state.seed))

    def _end_in_wave(self, seed: NodeSeed, *, is_source: bool) -> None:
        got_nothing = seed.bytes_from_store and not seed.bytes_from_nodes and not is_source
        if got_nothing:
            self._num_holders //= 2  # so a source that gives nothing is given up soon
        elif seed.status == "seeded":
            self._num_holders += 1
        if (got_nothing or is_source) and not self._num_holders:
            self._lose_source()

    def _lose_source(self) -> None:
        """The next node that is due takes its place."""
        self._num_lost_sources += 1
        self._end_wave()

    def _end_wave(self) -> None:
        if self._source is not None:
            self._cluster.stop(self._source)
            self._source = None
