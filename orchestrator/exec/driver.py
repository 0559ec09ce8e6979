"""`warmrank exec`: warm caches on each node, the user's command there, what it added back to the store.

Invariants: a store that is away never keeps the command from starting, unless it is required; the first
failure stops the command everywhere; whatever ends this ends every process that it started. Output and
publishing have a thread each, so that neither a reader that stops nor a slow store keeps the driver from its
nodes, which would take it for gone. What a node raises is raised here; one that gives no answer in time, or
is gone, is lost. When an actor ends, by whatever, its command ends with it.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, Protocol, TypeVar

from warmrank.orchestrator.config.models import Config
from warmrank.orchestrator.errors import CannotStart
from warmrank.orchestrator.exec.node import ExecNode, State
from warmrank.orchestrator.exec.placement import HostGroup, When, choose_nodes, num_fitting, placements
from warmrank.orchestrator.exec.publish import Publisher, Say
from warmrank.orchestrator.gang import ray_session
from warmrank.orchestrator.gang.node_group import Lost, NodeGroup
from warmrank.orchestrator.nodes import Node, alive, choose, this_node
from warmrank.orchestrator.reaper_client import Chunk, Stream
from warmrank.orchestrator.signals import noted, undisturbed
from warmrank.orchestrator.store.stores import decided

T = TypeVar("T")

_CLOSE_S = 60.0
_CALLS_AT_ONCE = 4
"""A poll, a signal and a publish go on side by side."""


class ExecNodes(Protocol):
    """Nodes by their position in ``nodes``; ``ports`` has a free port of each."""

    nodes: tuple[Node, ...]
    ports: tuple[int, ...]
    captured: bool
    """True if the command's output comes through `ExecNode.poll`."""

    def ask(
        self, method: Callable[..., T], arguments: Mapping[int, Sequence[Any]], *, timeout_s: float | None
    ) -> dict[int, T | Lost]:
        """Call a method of `ExecNode` on nodes, all at once; raises what one of them does."""

    def close(self) -> None:
        """End what the nodes still run."""


class LocalNode:
    """This node alone, without Ray."""

    captured = False

    def __init__(self, config: Config) -> None:
        self.nodes: tuple[Node, ...] = (replace(this_node(), address="127.0.0.1"),)
        self._node = ExecNode(config)
        self.ports: tuple[int, ...] = (self._node.port("127.0.0.1"),)

    def ask(
        self, method: Callable[..., T], arguments: Mapping[int, Sequence[Any]], *, timeout_s: float | None
    ) -> dict[int, T | Lost]:
        """See `ExecNodes.ask`; nothing here needs the time-out."""
        del timeout_s
        return {index: method(self._node, *given) for index, given in arguments.items()}

    def close(self) -> None:
        """See `ExecNodes.close`."""
        self._node.close()


class RayNodes:
    """Nodes of the config's cluster: an actor on each holds what the ranks there would get.

    Args:
        config: the launch.
        wanted: names of nodes; none for as many as the ranks need.

    Raises:
        CannotStart: the cluster cannot be joined, or the ranks do not fit.
        UnknownNode: a name fits no alive node, or several.
    """

    captured = True

    def __init__(self, config: Config, wanted: Sequence[str]) -> None:
        self.nodes: tuple[Node, ...] = ()
        self.ports: tuple[int, ...] = ()
        self._group: NodeGroup | None = None
        self._session = ray_session.enter(config.ray, timeout_s=config.timeouts.start_s)
        try:
            self._start(config, wanted)
        except BaseException:
            self.close()
            raise

    def _start(self, config: Config, wanted: Sequence[str]) -> None:
        import ray

        each = ray_session.rank_resources(config.ray, config.device)
        known = ray.nodes()  # type: ignore[no-untyped-call]
        resources = {node["NodeID"]: node["Resources"] for node in known}
        rooms = {node: num_fitting(resources[node.node_id], each) for node in choose(alive(known), wanted)}
        self.nodes = choose_nodes(rooms, config.ranks, named=bool(wanted))
        needed = {name: amount * (config.ranks // len(self.nodes)) for name, amount in each.items()}
        environ = ray_session.rank_environ(config.ray, config.device, self._session.way_in)
        self._group = NodeGroup(ExecNode, {"env_vars": environ}, num_calls=_CALLS_AT_ONCE)
        for node in self.nodes:
            self._group.start(node.node_id, config, resources=needed)
        addresses = {index: (node.address,) for index, node in enumerate(self.nodes)}
        ports = self.ask(ExecNode.port, addresses, timeout_s=config.timeouts.start_s)
        for index, port in ports.items():
            if isinstance(port, Lost):
                amounts = ", ".join(f"{amount:g} {name}" for name, amount in needed.items())
                msg = (
                    f"{self.nodes[index]}: no place for the command: {port.reason} (it wants {amounts}); "
                    "wait until others end, or raise timeouts.start_s"
                )
                raise CannotStart(msg)
        self.ports = tuple(port for _, port in sorted(ports.items()) if not isinstance(port, Lost))

    def ask(
        self, method: Callable[..., T], arguments: Mapping[int, Sequence[Any]], *, timeout_s: float | None
    ) -> dict[int, T | Lost]:
        """See `ExecNodes.ask`."""
        assert self._group is not None  # noqa: S101 - `_start` made it
        asked = {self.nodes[index].node_id: given for index, given in arguments.items()}
        answers = self._group.ask(method, asked, timeout_s=timeout_s)
        return {index: answers[self.nodes[index].node_id] for index in arguments}

    def close(self) -> None:
        """See `ExecNodes.close`."""
        import ray

        with undisturbed():
            if self._group is not None:
                refs = [self._group.call(node.node_id, ExecNode.close) for node in self.nodes]
                ray.wait(refs, num_returns=len(refs), timeout=_CLOSE_S)
                self._group.stop_all()
                self._group = None
            ray_session.leave(self._session)


EXIT_LOST = 1
LONGEST_LINE = 1 << 16
"""Bytes of a line that are held back until its end comes; a progress bar or a binary file may have none."""
MAX_WAITING = 8
"""Polls of a node whose output waits for its reader; beyond that it stays with the command."""

_POLL_S = 0.1
_UNENDING_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options for the run of a command.

    Attributes:
        here: on this node only, without Ray.
        nodes: names of the nodes; none for as many as the ranks need.
        when: what the command added is published.
        grace_s: seconds from SIGTERM to SIGKILL.
        hosts: the hosts that each run this, without Ray; None for this one alone.
    """

    here: bool = False
    nodes: tuple[str, ...] = ()
    when: When
    grace_s: float
    hosts: HostGroup | None = None


@dataclass(slots=True, kw_only=True)
class NodeOutcome:
    """Outcome of the command on one node.

    Attributes:
        host: the node's name.
        address: the node's.
        node_rank: the node's, in the world of ranks.
        found: the store had the launch.
        status: exit status of the command; None while it runs, and where the node was lost.
    """

    host: str
    address: str
    node_rank: int
    found: bool = False
    status: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of the command.

    Attributes:
        exit_code: of warmrank.
        nodes: each node.
        record: key of the launch record that was committed; empty for none.
        problems: what went wrong with caches and store.
        seconds: from the command's start to its end.
    """

    exit_code: int
    nodes: tuple[NodeOutcome, ...]
    record: str
    problems: tuple[str, ...]
    seconds: float


def execute(
    config: Config, words: Sequence[str], options: Options, *, say: Say, out: BinaryIO, err: BinaryIO
) -> Outcome:
    """Run a command to its end.

    Args:
        config: the launch.
        words: the command, with its placeholders.
        options: how it is run.
        say: takes lines for people.
        out: takes the command's output from nodes of a cluster.
        err: takes its errors likewise.

    Raises:
        CannotStart: the nodes could not be had.
        BadArgument: somebody listens at the port already, or a key of ``exec.keys`` is unknown.
        UnknownNode: a node that was named is not there.
        cache_store.errors.StoreError: a required place is away, or a cache directory cannot be used.
    """
    if config.store is not None:
        config = config.model_copy(update={"store": decided(config.store)})  # once, for all nodes
    nodes: ExecNodes
    if options.here:
        nodes = LocalNode(config)
    elif ray_session.way_in(config.ray, os.environ, initialized=False) == "local":
        choose((this_node(),), options.nodes)
        nodes = LocalNode(config)
    else:
        nodes = RayNodes(config, options.nodes)
    try:
        return Run(config, nodes, options, say).run(tuple(words), out, err)
    finally:
        with undisturbed():
            nodes.close()


class Run:
    """One command on its nodes."""

    def __init__(self, config: Config, nodes: ExecNodes, options: Options, say: Say) -> None:
        self._config = config
        self._nodes = nodes
        self._options = options
        self._say = say
        addresses = [node.address for node in nodes.nodes]
        self._placements = placements(config, addresses, nodes.ports, options.hosts)
        self._outcomes = [
            NodeOutcome(host=node.host, address=node.address, node_rank=placement.node_rank)
            for node, placement in zip(nodes.nodes, self._placements, strict=True)
        ]
        self._problems: list[str] = []
        self._exit_code = 0
        self._running = set(range(len(nodes.nodes)))
        self._is_stopping = False

    def run(self, words: tuple[str, ...], out: BinaryIO, err: BinaryIO) -> Outcome:
        """Run it to its end; see `execute`."""
        options, timeouts = self._options, self._config.timeouts
        self._prepare(timeouts.start_s + timeouts.fetch_s)
        is_wanted = options.when.kind != "none"
        publisher = Publisher(self._config, self._nodes, options.hosts, self._say, is_wanted=is_wanted)
        started_s = time.monotonic()
        with noted() as arrived:
            rest = (options.when, options.grace_s, self._nodes.captured)
            orders = {index: (words, placement, *rest) for index, placement in enumerate(self._placements)}
            self._all(ExecNode.start, orders, timeout_s=timeouts.start_s)
            output = Output([f"{node.node_rank} {node.host}" for node in self._outcomes], out, err)
            try:
                self._follow(publisher, output, arrived)
                self._finish(publisher, arrived)
                output.finish(lambda: bool(arrived))
            finally:
                output.stop()
        return Outcome(
            exit_code=self._exit_code,
            nodes=tuple(self._outcomes),
            record=publisher.record,
            problems=(*self._problems, *publisher.problems),
            seconds=time.monotonic() - started_s,
        )

    def _prepare(self, timeout_s: float) -> None:
        """Fetch on each node."""
        asked = {index: (placement,) for index, placement in enumerate(self._placements)}
        for index, (found, synced) in self._all(ExecNode.prepare, asked, timeout_s=timeout_s).items():
            self._outcomes[index].found = found
            for line in (*synced.said, *synced.problems):
                self._say(f"{self._name(index)}{line}")
            self._problems += synced.problems

    def _all(self, method: Callable[..., T], asked: Mapping[int, Any], *, timeout_s: float) -> dict[int, T]:
        """Answers of all nodes, none of which may be lost."""
        answers = self._nodes.ask(method, asked, timeout_s=timeout_s)
        for index, answer in answers.items():
            if isinstance(answer, Lost):
                node = self._outcomes[index]
                msg = f"node {node.host} ({node.address}) was lost before the command began: {answer.reason}"
                raise CannotStart(msg)
        return {index: answer for index, answer in answers.items() if not isinstance(answer, Lost)}

    def _follow(self, publisher: Publisher, output: Output, arrived: list[int]) -> None:
        """Until the command has ended everywhere: output, signals, publishing."""
        when, ready_s, never = self._options.when, self._config.timeouts.ready_s, float("inf")
        late_at = time.monotonic() + ready_s if when.kind in ("file", "port") else never
        give_up_at = never
        while self._running and time.monotonic() < give_up_at:
            if self._poll(output):
                late_at = never
                if not publisher.has_begun:
                    publisher.begin()
            self._forward(arrived)
            if time.monotonic() > late_at and not self._is_stopping:
                self._say(
                    f"stopped: after {ready_s:g} s it is still not so that {when}; look at its output, "
                    "correct --publish-when, or raise timeouts.ready_s"
                )
                self._exit_code = self._exit_code or EXIT_LOST
                self._stop(signal.SIGTERM)
            if self._is_stopping and give_up_at == never:
                give_up_at = time.monotonic() + self._options.grace_s + _UNENDING_S
        for index in self._running:
            self._fail(index, EXIT_LOST, "processes of the command do not end, not even by SIGKILL")

    def _poll(self, output: Output) -> bool:
        """Take what the nodes say; return whether the command is ready on one of them."""
        asked = dict.fromkeys(self._running, (_POLL_S, not output.is_behind))
        answers = self._nodes.ask(ExecNode.poll, asked, timeout_s=self._config.watch.node_silent_s)
        failed: dict[int, tuple[int, str]] = {}
        for index, state in answers.items():
            if isinstance(state, Lost):
                failed[index] = EXIT_LOST, f"the node was lost: {state.reason}"
                self._running.discard(index)
                continue
            output.write(index, state.output)
            if state.status is not None:
                self._outcomes[index].status = state.status
                self._running.discard(index)
            if state.status:
                failed[index] = state.status, f"the command ended with status {state.status}"
        for index, (status, what) in failed.items():  # by now it is known where it still runs
            self._fail(index, status, what)
        return any(isinstance(state, State) and state.is_ready for state in answers.values())

    def _fail(self, index: int, status: int, what: str) -> None:
        """The first failure decides the exit code, and ends the command on the other nodes."""
        self._exit_code = self._exit_code or status
        if len(self._outcomes) > 1 and not self._is_stopping:
            self._say(f"{self._name(index)}{what}; it is stopped on the other nodes")
            self._stop(signal.SIGTERM)
        elif self._outcomes[index].status is None:
            self._say(f"{self._name(index)}{what}")

    def _forward(self, arrived: list[int]) -> None:
        """Hand signals on; the second Ctrl-C or SIGTERM kills."""
        while arrived:
            number = arrived.pop(0)
            if self._is_stopping:
                self._say("killed")
                number = signal.SIGKILL
            self._stop(number)

    def _stop(self, number: int) -> None:
        self._is_stopping = True
        if self._running:
            asked = dict.fromkeys(self._running, (number,))
            self._nodes.ask(ExecNode.signal, asked, timeout_s=self._config.watch.node_silent_s)

    def _finish(self, publisher: Publisher, arrived: list[int]) -> None:
        """Bring what is under way to its end; a signal cuts it short."""
        when, commit_s = self._options.when, self._config.timeouts.commit_s
        if not publisher.has_begun:
            if when.kind != "exit":
                publisher.give_up(f"the command ended, and never was it so that {when}")
            elif self._exit_code:
                remedy = "for a server that is stopped by a signal, name its port: --publish-when PORT"
                publisher.give_up(f"the command ended with status {self._exit_code} ({remedy})")
            else:
                publisher.begin()
        deadline = time.monotonic() + commit_s
        while not publisher.is_over:
            publisher.finish(_POLL_S)
            if arrived:
                publisher.give_up("stopped")
            elif time.monotonic() > deadline:
                publisher.give_up(f"it took longer than timeouts.commit_s, {commit_s:g} s")

    def _name(self, index: int) -> str:
        node = self._outcomes[index]
        return f"{node.host} ({node.address}): " if len(self._outcomes) > 1 else ""


class Output:
    """Writes what nodes print, in a thread: as it is from one node, line by line with names from several.

    Args:
        names: of the nodes, which stand before each line where there are several.
        out: where standard output goes.
        err: where standard error goes.
    """

    def __init__(self, names: Sequence[str], out: BinaryIO, err: BinaryIO) -> None:
        width = max(map(len, names), default=0)
        self._prefixes = [f"{name:<{width}} | ".encode() for name in names] if len(names) > 1 else []
        self._files: Mapping[Stream, BinaryIO] = {"out": out, "err": err}
        self._begun: dict[tuple[int, Stream], bytes] = {}
        self._waiting: queue.SimpleQueue[tuple[int, Sequence[Chunk]] | None] = queue.SimpleQueue()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="exec-output", daemon=True)
        self._thread.start()

    @property
    def is_behind(self) -> bool:
        """True while no more should be written."""
        return self._error is None and self._waiting.qsize() > MAX_WAITING * max(1, len(self._prefixes))

    def write(self, node: int, chunks: Sequence[Chunk]) -> None:
        """Have it written, without waiting; raises what an earlier call met with."""
        if self._error is not None:
            raise self._error
        if chunks:
            self._waiting.put((node, chunks))

    def finish(self, is_over: Callable[[], bool]) -> None:
        """Wait until all is written, or for the word that it is over; raises what the writing met with."""
        self.stop()
        while self._thread.is_alive() and not is_over():
            self._thread.join(_POLL_S)
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Write what there is, and no more."""
        self._waiting.put(None)

    def _run(self) -> None:
        try:
            while (item := self._waiting.get()) is not None:
                for stream, data in item[1]:
                    self._put(stream, self._lines(item[0], stream, data) if self._prefixes else data)
            for (node, stream), rest in self._begun.items():  # lines that never came to their end
                self._put(stream, self._prefixes[node] + rest + b"\n")
        except Exception as error:  # noqa: BLE001 - the thread's edge: raised where it is written to
            self._error = error

    def _lines(self, node: int, stream: Stream, data: bytes) -> bytes:
        """Whole lines with the node's name; the rest of one waits for its end, unless it is long."""
        *lines, rest = (self._begun.pop((node, stream), b"") + data).split(b"\n")
        if len(rest) > LONGEST_LINE:
            lines.append(rest)
        elif rest:
            self._begun[node, stream] = rest
        return b"".join(self._prefixes[node] + line + b"\n" for line in lines)

    def _put(self, stream: Stream, data: bytes) -> None:
        if data:
            self._files[stream].write(data)
            self._files[stream].flush()
