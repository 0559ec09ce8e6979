"""`warmrank exec`: warm caches on each node, the user's command there, what it added back to the store.

Invariants: a store that is away never keeps the command from starting, unless it is required; the first
failure stops the command everywhere; whatever ends this ends every process that it started.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from warmrank.orchestrator.config.models import Config
from warmrank.orchestrator.errors import CannotStart
from warmrank.orchestrator.gang import ray_session
from warmrank.orchestrator.nodes import choose, this_node
from warmrank.orchestrator.serve.answers import Order, Prepared, State
from warmrank.orchestrator.serve.crew import Crew, LocalCrew, Lost
from warmrank.orchestrator.serve.outcome import NodeOutcome, Options, Outcome
from warmrank.orchestrator.serve.places import Place, place_in, places
from warmrank.orchestrator.serve.publisher import Publisher
from warmrank.orchestrator.serve.streams import Outlet, Streams
from warmrank.orchestrator.signals import kept, undisturbed
from warmrank.orchestrator.store.stores import decided

_HERE_WAIT_S, _RAY_WAIT_S = 0.1, 0.2
_LOOK_S = 1.0
_UNENDING_S = 30.0
EXIT_LOST = 1

Say = Callable[[str], None]
MakeStreams = Callable[[tuple[str, ...]], Streams]


def execute(
    config: Config, words: Sequence[str], options: Options, *, say: Say, streams: MakeStreams
) -> Outcome:
    """Run a command to its end.

    Raises:
        CannotRun: there is no such program on a node.
        CannotStart: the nodes could not be had.
        BadArgument: the condition holds before the command began, or a key of ``exec.keys`` is unknown.
        UnknownNode: a node that was named is not there.
        cache_store.errors.StoreError: a required place is away, or a cache directory cannot be used.
    """
    if config.store is not None:
        config = config.model_copy(update={"store": decided(config.store)})  # once, for all nodes
    crew = _crew(config, options)
    try:
        return _Run(config, crew, options, say).run(tuple(words), streams)
    finally:
        with undisturbed():
            crew.close()


def _crew(config: Config, options: Options) -> Crew:
    way = ray_session.way_in(config.ray, os.environ, initialized=False)
    if options.here:
        return LocalCrew(config)
    if way == "local":
        choose((this_node(),), options.nodes)
        return LocalCrew(config)
    from warmrank.orchestrator.serve.ray_crew import RayCrew

    return RayCrew(config, options.nodes, replicate=options.replicate)


class _Run:
    """One command on its nodes."""

    def __init__(self, config: Config, crew: Crew, options: Options, say: Say) -> None:
        self._config = config
        self._crew = crew
        self._options = options
        self._say = say
        self._problems: list[str] = []
        self._statuses: dict[int, int | None] = {}
        self._exit_code = 0
        self._silent_s = config.watch.node_silent_s
        self._is_stopping = False
        self._must_stop_others = False

    def run(self, words: tuple[str, ...], streams: MakeStreams) -> Outcome:
        where = self._places()
        prepared = self._prepare(where)
        first = [index for index, place in enumerate(where) if place.world == 0]
        publisher = Publisher(self._config, self._crew, first, self._say, world=self._options.world)
        started = time.monotonic()
        with _signals() as arrived:
            self._start(words, where)
            out = Outlet(streams(self._labels(where)))
            try:
                self._follow(publisher, out, arrived)
                self._finish(publisher, arrived)
                out.finish(lambda: bool(arrived))
            finally:
                out.stop()
        return Outcome(
            exit_code=self._exit_code,
            nodes=tuple(self._outcome(index, place, prepared) for index, place in enumerate(where)),
            record=publisher.record,
            problems=(*self._problems, *publisher.problems),
            seconds=time.monotonic() - started,
        )

    def _labels(self, where: tuple[Place, ...]) -> tuple[str, ...]:
        """Names of the nodes before their lines: short, and apart even where hosts have one name."""
        hosts = [host.host for host in self._crew.hosts]
        ranks = [place.world if self._options.replicate else place.node_rank for place in where]
        return tuple(f"{rank} {host}" for rank, host in zip(ranks, hosts, strict=True))

    def _outcome(self, index: int, place: Place, prepared: dict[int, Prepared]) -> NodeOutcome:
        host = self._crew.hosts[index]
        return NodeOutcome(
            host=host.host,
            address=host.address,
            world=place.world,
            node_rank=place.node_rank,
            found=prepared[index].found,
            status=self._statuses.get(index),
        )

    def _places(self) -> tuple[Place, ...]:
        hosts = self._crew.hosts
        asked = {index: (host.address,) for index, host in enumerate(hosts)}
        answers = self._all("port", asked, timeout_s=self._config.timeouts.start_s)
        if (world := self._options.world) is not None:
            return (place_in(world, self._config, address=hosts[0].address, port=answers[0]),)
        return places(
            hosts,
            num_ranks=self._config.ranks,
            ports=[answers[index] for index in range(len(hosts))],
            replicate=self._options.replicate,
            cache_dir=str(self._config.cache_dir),
        )

    def _prepare(self, where: tuple[Place, ...]) -> dict[int, Prepared]:
        timeouts = self._config.timeouts
        asked = {index: (place,) for index, place in enumerate(where)}
        prepared = self._all("prepare", asked, timeout_s=timeouts.start_s + timeouts.fetch_s)
        for index in sorted(prepared):
            for line in (*prepared[index].said, *prepared[index].problems):
                self._say(f"{self._name(index)}{line}")
            self._problems += prepared[index].problems
        return prepared

    def _start(self, words: tuple[str, ...], where: tuple[Place, ...]) -> None:
        orders = {
            index: (
                Order(
                    words=words,
                    place=place,
                    when=self._options.when,
                    grace_s=self._options.grace_s,
                    captured=self._crew.captured,
                ),
            )
            for index, place in enumerate(where)
        }
        self._all("start", orders, timeout_s=self._config.timeouts.start_s)

    def _all(self, method: str, asked: dict[int, Any], *, timeout_s: float) -> dict[int, Any]:
        """Answers of all nodes, none of which may be lost."""
        answers = self._crew.ask(method, asked, timeout_s=timeout_s)
        for index, answer in answers.items():
            if isinstance(answer, Lost):
                host = self._crew.hosts[index]
                msg = f"node {host.host} ({host.address}) was lost before the command began: {answer.reason}"
                raise CannotStart(msg)
        return answers

    def _follow(self, publisher: Publisher, out: Outlet, arrived: list[int]) -> None:
        """Until the command has ended everywhere: output, signals, publishing."""
        kind = self._options.when.kind
        if kind == "none":
            publisher.phase = "done"
        else:
            publisher.is_possible(self._config.store)
        running = set(range(len(self._crew.hosts)))
        next_look, give_up_at = 0.0, float("inf")
        late_at = time.monotonic() + self._config.timeouts.ready_s if kind in {"file", "port"} else give_up_at
        while running and time.monotonic() < give_up_at:
            is_ready = self._poll(running, out)
            self._forward(arrived, running)
            if self._is_stopping and give_up_at == float("inf"):
                give_up_at = time.monotonic() + self._options.grace_s + _UNENDING_S
            if is_ready:
                late_at = float("inf")
            elif time.monotonic() > late_at and not self._is_stopping:
                self._stop_late(running)
            if is_ready and publisher.phase == "waiting":
                publisher.begin()
            elif publisher.phase != "looking" or time.monotonic() >= next_look:
                next_look = time.monotonic() + _LOOK_S
                publisher.step(has_ended=False)
        for index in running:
            self._fail(index, EXIT_LOST, "processes of the command do not end, not even by SIGKILL")

    def _poll(self, running: set[int], out: Outlet) -> bool:
        """Take what the nodes say; whether the command is ready on one of them."""
        wait_s = _RAY_WAIT_S if self._crew.captured else _HERE_WAIT_S
        asked = dict.fromkeys(running, (wait_s, not out.is_behind))
        answers = self._crew.ask("poll", asked, timeout_s=self._silent_s)
        is_ready = False
        for index in sorted(answers):
            state = answers[index]
            if isinstance(state, Lost):
                running.discard(index)
                self._statuses[index] = None
                self._fail(index, EXIT_LOST, f"the node was lost: {state.reason}")
                continue
            assert isinstance(state, State)  # noqa: S101 - what `poll` returns
            out.write(index, state.output)
            is_ready = is_ready or state.is_ready
            if state.status is not None:
                running.discard(index)
                self._statuses[index] = state.status
                if state.status:
                    self._fail(index, state.status, f"the command ended with status {state.status}")
        if self._must_stop_others:
            self._must_stop_others = False
            self._send("signal", running, signal.SIGTERM)
        return is_ready

    def _fail(self, index: int, status: int, what: str) -> None:
        """The first failure decides the exit code, and ends the command on the other nodes."""
        if self._exit_code == 0:
            self._exit_code = status
        if len(self._crew.hosts) > 1 and not self._is_stopping:
            self._say(f"{self._name(index)}{what}; it is stopped on the other nodes")
            self._is_stopping = self._must_stop_others = True
        elif status == EXIT_LOST and self._statuses.get(index) is None:
            self._say(f"{self._name(index)}{what}")

    def _stop_late(self, running: set[int]) -> None:
        """End a command that is not ready in time."""
        self._say(
            f"stopped: after {self._config.timeouts.ready_s:g} s it is still not so that "
            f"{self._options.when}; look at its output, correct --publish-when, or raise timeouts.ready_s"
        )
        self._exit_code = self._exit_code or EXIT_LOST
        self._is_stopping = True
        self._send("signal", running, signal.SIGTERM)

    def _forward(self, arrived: list[int], running: set[int]) -> None:
        """Hand signals on; the second Ctrl-C or SIGTERM kills."""
        while arrived:
            number = arrived.pop(0)
            if self._is_stopping:
                self._say("killed")
                self._send("kill", running)
            else:
                self._send("signal", running, number)
                self._is_stopping = True

    def _send(self, method: str, running: set[int], *arguments: int) -> None:
        if running:
            self._crew.ask(method, dict.fromkeys(running, arguments), timeout_s=self._silent_s)

    def _finish(self, publisher: Publisher, arrived: list[int]) -> None:
        """Bring what is under way to its end; a signal cuts it short."""
        if publisher.phase == "waiting":
            when = self._options.when
            if when.kind != "exit":
                publisher.give_up(f"the command ended, and never was it so that {when}")
            elif self._exit_code:
                remedy = "for a server that is stopped by a signal, name its port: --publish-when PORT"
                publisher.give_up(f"the command ended with status {self._exit_code} ({remedy})")
            else:
                publisher.begin()
        deadline = time.monotonic() + self._config.timeouts.commit_s
        while publisher.phase != "done":
            publisher.step(has_ended=True)
            if arrived:
                publisher.give_up("stopped")
            elif time.monotonic() > deadline:
                publisher.give_up(
                    f"it took longer than timeouts.commit_s, {self._config.timeouts.commit_s:g} s"
                )
            elif publisher.phase in ("pushing", "publishing", "committing"):
                time.sleep(_HERE_WAIT_S)

    def _name(self, index: int) -> str:
        hosts = self._crew.hosts
        return f"{hosts[index].host} ({hosts[index].address}): " if len(hosts) > 1 else ""


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Signals to be handed on, in the order in which they came."""
    arrived: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        arrived.append(number)

    with kept(signal.SIGINT), kept(signal.SIGTERM):
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, note)
            signal.signal(signal.SIGTERM, note)
        yield arrived
