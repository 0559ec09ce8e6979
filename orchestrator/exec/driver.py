"""`warmrank exec`: warm caches on each node, the user's command there, what it added back to the store.

Invariants: a store that is away never keeps the command from starting, unless it is required; the first
failure stops the command everywhere; whatever ends this ends every process that it started. Output and
publishing have a thread each, so that neither a reader that stops nor a slow store keeps the driver from its
nodes, which would take it for gone. What a node raises is raised here; one that gives no answer in time, or
is gone, is lost. When an actor ends, by whatever, its command ends with it.
"""

from __future__ import annotations

import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, TypeVar

from warmrank.orchestrator.config.models import Config
from warmrank.orchestrator.errors import CannotStart
from warmrank.orchestrator.exec.node import ExecNode, HostGroup, Placement, When
from warmrank.orchestrator.exec.publish import Publisher, Say
from warmrank.orchestrator.gang import ray_session
from warmrank.orchestrator.gang.node_group import Lost, NodeGroup
from warmrank.orchestrator.gang.placement import nodes_of_ray, slots
from warmrank.orchestrator.nodes import Node, choose, this_node
from warmrank.orchestrator.reaper_client import Chunk, Stream
from warmrank.orchestrator.signals import noted, undisturbed
from warmrank.orchestrator.stores import decided

T = TypeVar("T")

EXIT_LOST = 1
_SIGNALLED = 128  # a command that a signal ended has this and the signal's number
_CLOSE_S = 60.0
_CALLS_AT_ONCE = 4  # A poll, a signal and a publish go on side by side
_LONGEST_LINE = 1 << 16  # bytes held back until a line ends; a progress bar or a binary file may have no end
_MAX_WAITING = 8  # polls of a node whose output waits for its reader; beyond that it stays with the command
_POLL_S = 0.1
_UNENDING_S = 30.0
_NEVER = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options for the run of a command."""

    here: bool = False  # on this node only, without Ray
    nodes: tuple[str, ...] = ()  # names; else as many as the ranks need
    when: When
    grace_s: float  # from SIGTERM to SIGKILL
    hosts: HostGroup | None = None  # that each run this, without Ray


class ExecNodes:
    """The nodes of a command: this one, without Ray, or those of a group, whose output is captured."""

    def __init__(self, nodes: tuple[Node, ...], on: ExecNode | NodeGroup) -> None:
        self.nodes, self._on = nodes, on
        self.captured = isinstance(on, NodeGroup)

    def ask(
        self, method: Callable[..., T], asked: Mapping[str, Sequence[Any]], *, timeout_s: float | None
    ) -> dict[str, T | Lost]:
        """Call a method of `ExecNode` on nodes, by their ids, all at once; raises what one of them does."""
        if isinstance(self._on, NodeGroup):
            return self._on.ask(method, asked, timeout_s=timeout_s)
        return {node_id: method(self._on, *given) for node_id, given in asked.items()}

    def ask_all(
        self, method: Callable[..., T], asked: Mapping[str, Sequence[Any]], *, timeout_s: float
    ) -> dict[str, T]:
        """As `ask`, before the command begins, when no node may be lost; `CannotStart` if one is."""
        found: dict[str, T] = {}
        answers = self.ask(method, asked, timeout_s=timeout_s)
        for node in self.nodes:
            if isinstance(answer := answers[node.node_id], Lost):
                msg = (
                    f"{node} has no place for the command, or was lost before it began: {answer.reason}; "
                    "wait until others end, or raise timeouts.start_s"
                )
                raise CannotStart(msg)
            found[node.node_id] = answer
        return found


@contextmanager
def _joined(config: Config, options: Options) -> Iterator[ExecNodes]:
    """The nodes of a command, which end there what they run.

    On a cluster an actor holds what the ranks of its node would get.

    Raises:
        CannotStart: the cluster cannot be joined, or the ranks do not fit.
        UnknownNode: a name fits no alive node, or several.
    """
    if options.here or ray_session.is_this_machine(config):
        choose((this_node(),), () if options.here else options.nodes)
        own = ExecNode(config)
        try:
            yield ExecNodes((replace(this_node(), address="127.0.0.1"),), own)
        finally:
            with undisturbed():
                own.close()
        return
    with ray_session.group_on(config, ExecNode, num_calls=_CALLS_AT_ONCE) as group:
        each = ray_session.rank_resources(config.ray, config.device)
        known = {found.node: found.resources for found in nodes_of_ray()}
        rooms = {node: slots(known[node], each) for node in choose(tuple(known), options.nodes)}
        nodes = choose_nodes(rooms, config.ranks, named=bool(options.nodes))
        resources = {name: amount * (config.ranks // len(nodes)) for name, amount in each.items()}
        try:
            for node in nodes:
                group.start(node.node_id, config, resources=resources)
            yield ExecNodes(nodes, group)
        finally:
            with undisturbed():
                group.end(ExecNode.close, timeout_s=_CLOSE_S)


def choose_nodes(rooms: Mapping[Node, int], num_ranks: int, *, named: bool) -> tuple[Node, ...]:
    """The fewest nodes on which the ranks fit, as many on each: the emptier of a big cluster stay free.

    ``rooms`` says how many ranks each node can hold; all of those that were ``named`` must be used. Raises
    `CannotStart` if the ranks do not fit.
    """
    roomy = sorted(rooms, key=lambda node: -rooms[node])  # stable: equal ones keep their order
    for count in [len(rooms)] if named else range(1, len(rooms) + 1):
        if count and num_ranks % count == 0 and rooms[roomy[count - 1]] >= num_ranks // count:
            return tuple(node for node in rooms if node in roomy[:count])
    there = ", ".join(f"{node.host} ({node.address}) holds {room}" for node, room in rooms.items())
    msg = (
        f"{num_ranks} ranks do not fit with as many on each node: {there or 'no node is there'}. Change "
        "ranks or ray.num_cpus_per_rank, or name nodes with --node"
    )
    raise CannotStart(msg)


@dataclass(slots=True, kw_only=True)
class NodeOutcome:
    """Outcome of the command on one node."""

    host: str
    address: str
    node_rank: int
    found: bool = False  # the store had the launch
    status: int | None = None  # of the command; None while it runs, and where the node was lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of the command."""

    exit_code: int  # warmrank's
    nodes: tuple[NodeOutcome, ...]
    record: str  # key of the launch record that was committed, empty for none
    problems: tuple[str, ...]  # of caches and store
    seconds: float  # from the command's start to its end


def execute(
    config: Config, words: Sequence[str], options: Options, *, say: Say, out: BinaryIO, err: BinaryIO
) -> Outcome:
    """Run a command, whose words may hold placeholders, to its end.

    ``say`` takes lines for people; ``out`` and ``err`` take what it prints on nodes of a cluster.

    Raises:
        CannotStart: the nodes could not be had.
        BadArgument: somebody listens at the port already, or a key of ``exec.keys`` is unknown.
        UnknownNode: a node that was named is not there.
        cache_store.errors.StoreError: a required place is away, or a cache directory cannot be used.
    """
    if config.store is not None:
        config = config.model_copy(update={"store": decided(config.store)})  # once, for all nodes
    with _joined(config, options) as nodes:
        return Run(config, nodes, options, say).run(tuple(words), out, err)


class Run:
    """One command on its nodes, which go by their ids."""

    def __init__(self, config: Config, nodes: ExecNodes, options: Options, say: Say) -> None:
        self._config, self._nodes, self._options, self._say = config, nodes, options, say
        hosts = options.hosts or HostGroup(nnodes=len(nodes.nodes), node_rank=0, run_id="")
        addresses = {node.node_id: (node.address,) for node in nodes.nodes}
        ports = nodes.ask_all(ExecNode.port, addresses, timeout_s=config.timeouts.start_s)
        first = nodes.nodes[0]
        self._placements, self._outcomes = dict[str, Placement](), dict[str, NodeOutcome]()
        for node_rank, node in enumerate(nodes.nodes, start=hosts.node_rank):
            self._placements[node.node_id] = Placement(
                node_rank=node_rank,
                nnodes=hosts.nnodes,
                nproc=config.ranks // hosts.nnodes,
                ranks=config.ranks,
                master_addr=hosts.master_addr or first.address,
                master_port=hosts.master_port or ports[first.node_id],
                cache_dir=str(config.cache_dir),
            )
            outcome = NodeOutcome(host=node.host, address=node.address, node_rank=node_rank)
            self._outcomes[node.node_id] = outcome
        self._problems: list[str] = []
        self._exit_code = 0
        self._running = set(self._outcomes)
        self._is_stopping = False

    def run(self, words: tuple[str, ...], out: BinaryIO, err: BinaryIO) -> Outcome:
        """Run it to its end; see `execute`."""
        options, timeouts = self._options, self._config.timeouts
        asked = {node_id: (placement,) for node_id, placement in self._placements.items()}
        fetched = self._nodes.ask_all(ExecNode.prepare, asked, timeout_s=timeouts.start_s + timeouts.fetch_s)
        for node_id, done in fetched.items():
            self._outcomes[node_id].found = done.found
            self._problems += done.problems
            for line in (*done.said, *done.problems):
                self._say(f"{self._name(node_id)}{line}")
        publisher = Publisher(
            self._config, self._nodes, options.hosts, self._say, is_wanted=options.when.kind != "none"
        )
        started_s = time.monotonic()
        with noted() as arrived:
            rest = options.when, options.grace_s, self._nodes.captured
            orders = {node_id: (words, placement, *rest) for node_id, placement in self._placements.items()}
            self._nodes.ask_all(ExecNode.start, orders, timeout_s=timeouts.start_s)
            names = {node_id: f"{node.node_rank} {node.host}" for node_id, node in self._outcomes.items()}
            output = Output(names, out, err)
            try:
                self._follow(publisher, output, arrived)
                self._finish(publisher, arrived)
                output.finish(lambda: bool(arrived))
            finally:
                output.stop()
        return Outcome(
            exit_code=self._exit_code,
            nodes=tuple(self._outcomes.values()),
            record=publisher.record,
            problems=(*self._problems, *publisher.problems),
            seconds=time.monotonic() - started_s,
        )

    def _follow(self, publisher: Publisher, output: Output, arrived: list[int]) -> None:
        """Until the command has ended everywhere: output, signals, publishing."""
        when, ready_s = self._options.when, self._config.timeouts.ready_s
        late_at = time.monotonic() + ready_s if when.kind in ("file", "port") else _NEVER
        give_up_at = _NEVER
        while self._running and time.monotonic() < give_up_at:
            if self._poll(output):
                late_at = _NEVER
                publisher.begin()
            while arrived:  # the second Ctrl-C or SIGTERM kills
                number = arrived.pop(0)
                if self._is_stopping:
                    self._say("killed")
                self._stop(signal.SIGKILL if self._is_stopping else number)
            if time.monotonic() > late_at and not self._is_stopping:
                self._say(
                    f"stopped: after {ready_s:g} s it is still not so that {when}; look at its output, "
                    "correct --publish-when, or raise timeouts.ready_s"
                )
                self._exit_code = self._exit_code or EXIT_LOST
                self._stop(signal.SIGTERM)
            if self._is_stopping and give_up_at == _NEVER:
                give_up_at = time.monotonic() + self._options.grace_s + _UNENDING_S
        for node_id in self._running:
            self._fail(node_id, EXIT_LOST, "processes of the command do not end, not even by SIGKILL")

    def _poll(self, output: Output) -> bool:
        """Take what the nodes say; return whether the command is ready on one of them."""
        asked = dict.fromkeys(self._running, (_POLL_S, not output.is_behind))
        answers = self._nodes.ask(ExecNode.poll, asked, timeout_s=self._config.watch.node_silent_s)
        failed: dict[str, tuple[int, str]] = {}
        is_ready = False
        for node_id, state in answers.items():
            if isinstance(state, Lost):
                failed[node_id] = EXIT_LOST, f"the node was lost: {state.reason}"
                self._running.discard(node_id)
                continue
            is_ready |= state.is_ready
            output.write(node_id, state.output)
            if state.status is not None:
                self._outcomes[node_id].status = state.status
                self._running.discard(node_id)
            if state.status:
                failed[node_id] = state.status, f"the command ended with status {state.status}"
        for node_id, (status, what) in failed.items():  # by now it is known where it still runs
            self._fail(node_id, status, what)
        return is_ready

    def _fail(self, node_id: str, status: int, what: str) -> None:
        """The first failure decides the exit code, and ends the command on the other nodes."""
        self._exit_code = self._exit_code or status
        if len(self._outcomes) > 1 and not self._is_stopping:
            self._say(f"{self._name(node_id)}{what}; it is stopped on the other nodes")
            self._stop(signal.SIGTERM)
        elif self._outcomes[node_id].status is None:
            self._say(f"{self._name(node_id)}{what}")

    def _stop(self, number: int) -> None:
        self._is_stopping = True
        asked = dict.fromkeys(self._running, (number,))
        self._nodes.ask(ExecNode.signal, asked, timeout_s=self._config.watch.node_silent_s)

    def _finish(self, publisher: Publisher, arrived: list[int]) -> None:
        """Bring what is under way to its end; a signal cuts it short."""
        when, commit_s = self._options.when, self._config.timeouts.commit_s
        if not publisher.has_begun and when.kind != "exit":
            publisher.give_up(f"the command ended, and never was it so that {when}")
        elif not publisher.has_begun and self._exit_code:
            remedy = "for a server that is stopped by a signal, name its port: --publish-when PORT"
            told = f" ({remedy})" if self._exit_code > _SIGNALLED else ""
            publisher.give_up(f"the command ended with status {self._exit_code}{told}")
        publisher.begin()
        deadline = time.monotonic() + commit_s
        while not publisher.is_over:
            publisher.finish(_POLL_S)
            if arrived:
                publisher.give_up("stopped")
            elif time.monotonic() > deadline:
                publisher.give_up(f"it took longer than timeouts.commit_s, {commit_s:g} s")

    def _name(self, node_id: str) -> str:
        node = self._outcomes[node_id]
        return f"{node.host} ({node.address}): " if len(self._outcomes) > 1 else ""


class Output(threading.Thread):
    """Writes what nodes print, in a thread: as it is from one node, line by line with names from several."""

    def __init__(self, names: Mapping[str, str], out: BinaryIO, err: BinaryIO) -> None:
        super().__init__(name="exec-output", daemon=True)
        width = max(map(len, names.values()))
        several = len(names) > 1
        self._prefixes = {node: f"{name:<{width}} | ".encode() for node, name in names.items() if several}
        self._files: Mapping[Stream, BinaryIO] = {"out": out, "err": err}
        self._begun: dict[tuple[str, Stream], bytes] = {}
        self._waiting: queue.SimpleQueue[tuple[str, Sequence[Chunk]] | None] = queue.SimpleQueue()
        self._max_waiting = _MAX_WAITING * len(names)
        self._error: Exception | None = None
        self.start()

    @property
    def is_behind(self) -> bool:
        """True while no more should be written."""
        return self._error is None and self._waiting.qsize() > self._max_waiting

    def write(self, node_id: str, chunks: Sequence[Chunk]) -> None:
        """Have it written, without waiting; raises what an earlier call met with."""
        if self._error is not None:
            raise self._error
        if chunks:
            self._waiting.put((node_id, chunks))

    def finish(self, is_over: Callable[[], bool]) -> None:
        """Wait until all is written, or for the word that it is over; raises what the writing met with."""
        self.stop()
        while self.is_alive() and not is_over():
            self.join(_POLL_S)
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Write what there is, and no more."""
        self._waiting.put(None)

    def run(self) -> None:
        """Write what comes, until `stop`."""
        try:
            while (item := self._waiting.get()) is not None:
                for stream, data in item[1]:
                    self._put(stream, self._lines(item[0], stream, data) if self._prefixes else data)
            for (node_id, stream), rest in self._begun.items():  # lines that never came to their end
                self._put(stream, self._prefixes[node_id] + rest + b"\n")
        except Exception as error:  # noqa: BLE001 - the thread's edge: raised where it is written to
            self._error = error

    def _lines(self, node_id: str, stream: Stream, data: bytes) -> bytes:
        """Whole lines with the node's name; the rest of one waits for its end, unless it is long."""
        *lines, rest = (self._begun.pop((node_id, stream), b"") + data).split(b"\n")
        if len(rest) > _LONGEST_LINE:
            lines.append(rest)
        elif rest:
            self._begun[node_id, stream] = rest
        return b"".join(self._prefixes[node_id] + line + b"\n" for line in lines)

    def _put(self, stream: Stream, data: bytes) -> None:
        self._files[stream].write(data)
        self._files[stream].flush()
