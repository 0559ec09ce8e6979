"""Seeds the nodes of a cluster, step by step: looks for nodes, starts what is due, collects what ended.

Invariants: a node is seeded once for as long as it is in the cluster; one that failed is tried again, if that
was asked for, later each time. In a wave one node, the source, reads the store and shares what it has; the
others start once it has everything, and no more at once than there are nodes to take it from. Nothing waits
here, so that one silent node keeps no other one back. The seeding of one node, `seed_here`, needs neither
torch nor Ray, so that it fits a boot script or an init container. `SeedLines` says how far all are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from rich.console import Console
from rich.text import Text

from warmrank.cache_store.errors import NoStoreYet
from warmrank.cache_store.fetch.blobs import FetchOptions
from warmrank.cache_store.parallel import Progress
from warmrank.cache_store.seed import SeedReport
from warmrank.orchestrator.config.models import launch_key
from warmrank.orchestrator.config.reading import Config
from warmrank.orchestrator.config.store import StoreConfig
from warmrank.orchestrator.errors import BadArgument
from warmrank.orchestrator.gang.node_artifacts import fetch_partitions, keeper_of
from warmrank.orchestrator.nodes import Node, NodeArtifacts, choose, distinct_names, is_called, this_node
from warmrank.orchestrator.stores import open_to_fetch
from warmrank.orchestrator.text import brief_names, count_text, seconds_text, size_text

FanOut = Literal["auto", "always", "never"]

LOOK_EVERY_S = 5.0
ADVANCE_EVERY_S = 1.0
FIRST_RETRY_S = 5.0
LONGEST_RETRY_S = 300.0
MIN_FAN_OUT = 8
"""Nodes at once from which a shared store is taken for the bottleneck, unless somebody says otherwise."""
RECEIVERS_PER_HOLDER = 2
"""Ray takes an object from any node that has it, so each node that has everything feeds so many more."""
STALLED_S = 30.0  # A receiver that got no further for so long makes room for the next
MAX_LOST_SOURCES = 3  # after so many sources in a row that failed, the nodes read the store by themselves


class SeedCluster(Protocol):
    """A cluster whose nodes can be seeded; no method waits for a node."""

    def nodes(self) -> tuple[Node, ...]:
        """The nodes that are alive."""

    def start(self, node: Node, *, source: Node | None = None, shares: bool = False) -> None:
        """Begin to seed a node from what a source shares; with ``shares`` it is one until it is stopped."""

    def ended(self) -> list[NodeSeed]:
        """The nodes that ended since the last call."""

    def progress(self) -> dict[str, Progress]:
        """Progress of running nodes by their ids, as far as it is known."""

    def stop(self, node: Node) -> None:
        """End what is running on a node, and let go of what it shares."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedPlan:
    """Options for seeding."""

    wanted: tuple[str, ...] = ()
    fan_out: FanOut = "auto"  # whether one node reads the store for the others
    verify: bool = False  # read again what is there already
    watch: bool = False  # seed nodes that join later too, and try those again that failed
    seeded: tuple[NodeSeed, ...] = ()  # known to be


@dataclass(slots=True, kw_only=True)
class NodeState:
    """A node of the cluster."""

    node: Node
    phase: Literal["waiting", "running", "ended"] = "waiting"
    due_s: float = 0.0  # when it waits no more, for the first time or the next
    attempts: int = 0
    source: Node | None = None  # where the last attempt gets its blobs, None for the store
    progress: Progress | None = None
    moved_s: float = 0.0  # when its progress got further last
    seed: NodeSeed | None = None  # outcome of the last attempt that ended


@dataclass(slots=True, kw_only=True)
class _Wave:
    """Nodes that take what one of them, the source, has read from the store."""

    source: Node
    num_holders: int = 0  # have everything, 0 while the source reads; halved for each that got nothing


class Seeding:
    """Seeds nodes; call `step` again and again. ``states`` are of the wanted nodes in the cluster, by id."""

    def __init__(
        self,
        cluster: SeedCluster,
        plan: SeedPlan,
        *,
        silent_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.states: dict[str, NodeState] = {}
        self._cluster, self._plan, self._silent_s, self._clock = cluster, plan, silent_s, clock
        self._wave: _Wave | None = None
        self._num_lost_sources = 0
        self._look_s: float | None = None
        self._advance_s = clock()

    @property
    def is_done(self) -> bool:
        """True once every node that was found has ended; never while new ones are waited for."""
        is_looked = self._look_s is not None
        return not self._plan.watch and is_looked and all(s.phase == "ended" for s in self.states.values())

    def step(self) -> None:
        """Do what is due now; raises `UnknownNode` if names fit no node or several, unless it watches."""
        now_s = self._clock()
        if self._look_s is None or (self._plan.watch and now_s >= self._look_s):
            self._look()
            self._look_s = now_s + LOOK_EVERY_S
        for seed in self._cluster.ended():
            self._end(seed)
        if now_s - self._advance_s >= ADVANCE_EVERY_S:
            self._advance_s = now_s
            self._advance(now_s)
        self._start(now_s)

    def _look(self) -> None:
        alive, names = self._cluster.nodes(), self._plan.wanted
        if self._plan.watch:
            nodes = tuple(n for n in alive if not names or any(is_called(n, name) for name in names))
        else:
            nodes = choose(alive, names)
        seeded = {seed.node: seed for seed in self._plan.seeded}
        for left in [state.node for state in self.states.values() if state.node not in nodes]:
            del self.states[left.node_id]
            self._cluster.stop(left)
            if self._wave is not None and self._wave.source == left:
                self._lose_source()
        for node in nodes:
            if node.node_id not in self.states and node in seeded:
                state = NodeState(node=node, phase="ended", seed=seeded[node], attempts=seeded[node].attempts)
                self.states[node.node_id] = state
            self.states.setdefault(node.node_id, NodeState(node=node))

    def _start(self, now_s: float) -> None:
        due = [s for s in self.states.values() if s.phase == "waiting" and now_s >= s.due_s]
        running = [s for s in self.states.values() if s.phase == "running"]
        if not due and not running:
            self._num_lost_sources = 0
            self._end_wave()
        elif self._wave is not None:
            num_busy = sum(now_s - state.moved_s < STALLED_S for state in running)
            num_free = RECEIVERS_PER_HOLDER * self._wave.num_holders - num_busy
            for state in due[: max(0, num_free)]:
                self._begin(state, now_s, source=self._wave.source)
        elif self._fans_out(len(due)):
            self._wave = _Wave(source=due[0].node)
            self._begin(due[0], now_s, shares=True)
        else:
            for state in due:
                self._begin(state, now_s)

    def _fans_out(self, num_due: int) -> bool:
        least = {"always": 2, "auto": MIN_FAN_OUT, "never": num_due + 1}[self._plan.fan_out]
        return num_due >= least and self._num_lost_sources < MAX_LOST_SOURCES

    def _begin(
        self, state: NodeState, now_s: float, *, source: Node | None = None, shares: bool = False
    ) -> None:
        self._cluster.start(state.node, source=source, shares=shares)
        state.phase, state.attempts, state.source = "running", state.attempts + 1, source
        state.progress, state.moved_s = None, now_s

    def _end(self, seed: NodeSeed) -> None:
        state = self.states.get(seed.node.node_id)
        if state is None or state.phase != "running":
            return  # it was given up before, and stopped then
        state.phase, state.seed = "ended", replace(seed, attempts=state.attempts)
        if self._plan.watch and seed.status != "seeded":
            state.phase, state.due_s = "waiting", self._clock() + retry_in_s(state.attempts)
        if self._wave is None or self._wave.source != seed.node:
            self._cluster.stop(seed.node)
        if self._wave is not None and self._wave.source in {seed.node, state.source}:
            self._end_in_wave(self._wave, seed)

    def _end_in_wave(self, wave: _Wave, seed: NodeSeed) -> None:
        is_source = wave.source == seed.node
        got_nothing = seed.bytes_from_store and not seed.bytes_from_nodes and not is_source
        if got_nothing:
            wave.num_holders //= 2
        elif seed.status == "seeded":
            wave.num_holders += 1
        if (got_nothing or is_source) and not wave.num_holders:
            self._lose_source()

    def _lose_source(self) -> None:
        """The next node that is due takes its place."""
        self._num_lost_sources += 1
        self._end_wave()

    def _end_wave(self) -> None:
        if self._wave is not None:
            self._cluster.stop(self._wave.source)
            self._wave = None

    def _advance(self, now_s: float) -> None:
        progress = self._cluster.progress()
        for state in [s for s in self.states.values() if s.phase == "running"]:
            found = progress.get(state.node.node_id, state.progress)
            if found != state.progress:
                state.progress, state.moved_s = found, now_s
            elif now_s - state.moved_s > self._silent_s:
                self._cluster.stop(state.node)
                why = f"it got no further for {self._silent_s:g} s (timeouts.start_s and fetch_s)"
                self._end(failed(state.node, why))


def retry_in_s(num_attempts: int) -> float:
    """Seconds from the end of an attempt that failed, or found nothing, to the next one."""
    doublings = min(num_attempts - 1, 16)  # beyond that the longest holds anyway
    return float(min(FIRST_RETRY_S * 2**doublings, LONGEST_RETRY_S))


Status = Literal["seeded", "miss", "faults"]


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
    try:
        store = open_to_fetch(check_store(config))
    except NoStoreYet as absent:
        if absent.required:
            raise
        return NodeSeed(node=node or this_node(), found=False, reason=str(absent))
    keeper = keeper_of(config)
    report = fetch_partitions(config, store, keeper, launch_key=launch_key(config), options=options)
    found = _outcome(node or this_node(), report)
    if not report.found and not report.faults:
        found = replace(found, reason=f"{report.reason}; warmrank explain names what differs")
    return replace(found, node_artifacts=keeper.report()) if keeper is not None else found


def check_store(config: Config) -> StoreConfig:
    """The config's store; raises `BadArgument` where it names none."""
    if config.store is None:
        msg = f"config {config.name} names no store to seed from; set store.path, which all nodes share"
        raise BadArgument(msg)
    return config.store


def _outcome(node: Node, report: SeedReport) -> NodeSeed:
    return NodeSeed(
        node=node,
        found=report.found,
        reason=report.reason,
        world_size=report.world_size,
        num_partitions=len(report.partitions),
        num_files=sum(part.num_files for part in report.partitions),
        num_already_there=sum(part.num_already_there for part in report.partitions),
        bytes_copied=report.bytes_copied,
        faults=report.faults,
        seconds=report.seconds,
        bytes_from_store=report.bytes_read,
        bytes_from_nodes=report.bytes_brought,
    )


MAX_HOSTS = 8
LINE_EVERY_S = 10.0
STYLES = {"seeded": "green", "miss": "yellow", "faults": "bold red"}


class SeedLines:
    """Prints a line for each change of a node, and how far all are.

    ``status`` shows how far all are, in a terminal; without it a line says so each `LINE_EVERY_S`. ``ended``
    hears of each node that ended.
    """

    def __init__(
        self,
        console: Console,
        *,
        status: Callable[[str], None] | None = None,
        ended: Callable[[NodeSeed], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console, self._status, self._ended, self._clock = console, status, ended, clock
        self._told_s = clock()
        self._before: dict[Node, NodeState] = {}

    def show(self, states: Iterable[NodeState]) -> None:
        """Say what changed since the last call."""
        before, now = self._before, {state.node: replace(state) for state in states}
        for node in before.keys() - now.keys():
            self.say(f"{node}: left the cluster")
        if joined := [node for node in now if node not in before]:
            names = distinct_names(now)
            found = brief_names((names[node] for node in joined), max_names=MAX_HOSTS)
            self.say(f"{count_text(len(joined), 'node')} found: {found}")
        for node, state in now.items():
            self._show_change(before.get(node, NodeState(node=node)), state)
        self._before = now
        if self._status is not None:
            self._status(_totals(now.values()))
        elif self._clock() - self._told_s >= LINE_EVERY_S and any(s.phase == "running" for s in now.values()):
            self.say(_totals(now.values()))

    def outcomes(self) -> tuple[NodeSeed, ...]:
        """The outcomes of the nodes that were shown last, by host."""
        found = (state.seed for state in self._before.values() if state.seed is not None)
        return tuple(sorted(found, key=lambda seed: (seed.node.host, seed.node.node_id)))

    def say(self, text: str, *, style: str = "") -> None:
        """Print a line."""
        self._told_s = self._clock()
        self._console.print(Text(text, style=style), soft_wrap=True)

    def _show_change(self, before: NodeState, now: NodeState) -> None:
        if now.attempts > before.attempts:
            origin = f"from {now.source.host}" if now.source is not None else "from the store"
            again = f", attempt {now.attempts}" if now.attempts > 1 else ""
            self.say(f"{now.node}: begun, {origin}{again}")
        if (seed := now.seed) is None or seed == before.seed:
            return
        text = f"{size_text(seed.bytes_copied)} copied, {seconds_text(seed.seconds)}"
        text = f"seeded, {text}" if seed.status == "seeded" else f"{seed.status}: {seed.reason}"
        retry = f"; tried again in {retry_in_s(now.attempts):.0f} s" if now.phase == "waiting" else ""
        self.say(f"{now.node}: {text}{retry}", style=STYLES[seed.status])
        self._ended(seed)


@contextmanager
def seed_lines(console: Console, ended: Callable[[NodeSeed], None] = lambda _: None) -> Iterator[SeedLines]:
    """Lines on a console for as long as the context lasts; a terminal also shows how far all are."""
    if not console.is_terminal:
        yield SeedLines(console, ended=ended)
        return
    with console.status("") as status:
        yield SeedLines(console, status=status.update, ended=ended)


def _totals(states: Iterable[NodeState]) -> str:
    """Number of nodes that are done, and of bytes of those that are not."""
    states = list(states)
    statuses = [state.seed.status for state in states if state.seed is not None]
    parts = [f"{statuses.count('seeded')} of {count_text(len(states), 'node')} seeded"]
    bad = (("miss", "without a launch"), ("faults", "with faults"))
    parts += [f"{statuses.count(status)} {text}" for status, text in bad if status in statuses]
    running = [s.progress for s in states if s.phase == "running" and s.progress is not None]
    if running:
        done, total = sum(p.done_bytes for p in running), sum(p.total_bytes for p in running)
        parts.append(f"{size_text(done)} of {size_text(total)}")
    return "; ".join(parts)
