"""Seeding on a Ray cluster: one actor on each node that is being seeded, gone when nobody needs it any more.

Invariants: an actor imports no torch; one node's failure is a value, never an exception that hides the
outcome of the others.

Shared blobs lie in Ray's object store: put there by the node that read them, verified by whoever opens them
as what a store gives is. What cannot be had any more is left to the store, and nobody waits for it twice.
"""

from __future__ import annotations

import functools
import io
import logging
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, BinaryIO

from warmrank.cache_store.backends.backend import ChunkFile, NewFile
from warmrank.cache_store.cache_dir.private_files import open_private
from warmrank.cache_store.errors import NotInStore, StoreError, StoreUnavailable, UnusableCache
from warmrank.cache_store.fetch.blobs import FetchOptions
from warmrank.cache_store.parallel import Progress
from warmrank.orchestrator.config.reading import Config
from warmrank.orchestrator.errors import OrchestratorError, first_line
from warmrank.orchestrator.gang import ray_session
from warmrank.orchestrator.gang.eligible import nodes_of_ray
from warmrank.orchestrator.gang.node_group import NodeGroup
from warmrank.orchestrator.nodes import Node
from warmrank.orchestrator.seed.seeding import (
    ADVANCE_EVERY_S,
    NodeSeed,
    NodeState,
    Seeding,
    SeedLines,
    SeedPlan,
    failed,
    seed_here,
)
from warmrank.orchestrator.signals import undisturbed

logger = logging.getLogger(__name__)

PIECE_BYTES = 8 << 20
"""5 to 20 MB were measured as best; the less, the more of them a small object store holds."""
_PIECES_KEPT = 8  # small blobs lie together in a piece, and a fetch opens them one after the other


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Blobs, one after the other, cut into pieces."""

    pieces: tuple[Any, ...]  # what `put` gave, all but the last of `PIECE_BYTES`
    places: Mapping[str, tuple[int, int]]  # by a blob's name: its begin, its size in bytes


def share(copies: Iterable[NewFile], put: Callable[[bytes], Any], *, room_bytes: int) -> Share:
    """Put private copies of blobs where others can get them, large ones first, as a fetch asks for them.

    Those that cannot be read, and those beyond ``room_bytes`` in all, are left out.
    """
    pieces: list[Any] = []
    places: dict[str, tuple[int, int]] = {}
    buffer, total = bytearray(), 0
    for copy in sorted(copies, key=lambda copy: -copy.expected.size_bytes):
        if copy.name in places or total + copy.expected.size_bytes > room_bytes:
            continue
        begin, left = total, copy.expected.size_bytes
        try:
            assert isinstance(copy.source, Path)  # noqa: S101 - a fetch leaves files
            with open_private(copy.source) as file:
                while left and (data := file.read(min(left, PIECE_BYTES - len(buffer)))):
                    buffer += data
                    left, total = left - len(data), total + len(data)
                    if len(buffer) == PIECE_BYTES:
                        pieces.append(put(bytes(buffer)))
                        buffer.clear()
        except (OSError, UnusableCache) as error:
            logger.warning("Not shared: %s", error)
            continue
        places[copy.name] = begin, copy.expected.size_bytes
    if buffer:
        pieces.append(put(bytes(buffer)))
    return Share(pieces=tuple(pieces), places=places)


class SharedBlobs:
    """Opens the blobs of a share, for any number of threads.

    ``get`` gives back what was put, and raises `StoreUnavailable` where that is gone.
    """

    def __init__(self, shared: Share, get: Callable[[Any], bytes]) -> None:
        self._share = shared
        self._get = get
        self._is_gone = threading.Event()
        self._piece = functools.lru_cache(_PIECES_KEPT)(self._get_piece)

    def open(self, name: str) -> BinaryIO:
        """Open a blob by its name; raises `NotInStore` where the share has none such."""
        if name not in self._share.places or self._is_gone.is_set():
            raise NotInStore(what=name, where="another node")
        return io.BufferedReader(ChunkFile(self._chunks(*self._share.places[name])))

    def _chunks(self, begin: int, num_bytes: int) -> Iterator[bytes]:
        end = begin + num_bytes
        while begin < end and (
            data := self._piece(begin // PIECE_BYTES)[begin % PIECE_BYTES :][: end - begin]
        ):
            yield data
            begin += len(data)

    def _get_piece(self, number: int) -> bytes:
        if self._is_gone.is_set():
            raise StoreUnavailable(what="blob", where="another node", reason="that node is gone")
        if number >= len(self._share.pieces):
            return b""  # a file was shorter than it should be, so this is no blob
        try:
            return self._get(self._share.pieces[number])
        except StoreUnavailable:
            self._is_gone.set()
            raise


GET_TIMEOUT_S = 60.0
"""Time-out for a piece: a tenth of a second at 1 Gbit/s. Ray notices a lost node only after a minute."""
ROOM_SHARE = 4
"""A source shares at most a quarter of its object store, so that nothing spills beside a launch."""
STEP_S = 0.1
_NODE_CALLS = 2  # at once: `seed` and `progress`


def preseed(config: Config, plan: SeedPlan, *, show: Callable[[Iterable[NodeState]], None]) -> None:
    """Seed every alive node of the config's cluster, or those that the plan names; show how far they are.

    Raises `UnknownNode` where a name fits no alive node, or several; `CannotStart` where the cluster cannot
    be joined.
    """
    with seeding_on_ray(config, plan) as seeding:
        while not seeding.is_done:
            seeding.step()
            show(seeding.states.values())
            time.sleep(STEP_S)


def is_this_machine(config: Config) -> bool:
    """True if the config names no cluster, and so launches on this machine."""
    return ray_session.way_in(config.ray, os.environ, initialized=False) == "local"


@contextmanager
def seeding_on_ray(config: Config, plan: SeedPlan) -> Iterator[Seeding]:
    """Seed a config's cluster, which is joined meanwhile; raises `CannotStart` where it cannot be."""
    session = ray_session.enter(config.ray, timeout_s=config.timeouts.start_s)
    try:
        environ = ray_session.rank_environ(config.ray, config.device, session.way_in)
        cluster = RaySeedCluster(config, environ, verify=plan.verify)
        yield Seeding(cluster, plan, silent_s=config.timeouts.start_s + config.timeouts.fetch_s)
    finally:
        ray_session.leave(session)


class NodeSeeder:
    """The actor that seeds the node it runs on; ``verify``: it reads what is there already again."""

    def __init__(self, config: Config, node: Node, *, verify: bool) -> None:
        self._config = config
        self._node = node
        self._verify = verify
        self._progress: Progress | None = None

    def seed(self, shared: Share | None, room_bytes: int) -> tuple[NodeSeed, Share | None]:
        """Seed the node from what another one shares, if anything.

        Returns:
            The outcome, and what of its blobs the node shares: ``room_bytes`` at most.
        """
        copies: list[NewFile] = []
        options = FetchOptions(
            shared=SharedBlobs(shared, _get).open if shared is not None else None,
            held=copies.extend,
            reread=self._verify,
            on_progress=functools.partial(setattr, self, "_progress"),
        )
        try:
            found = seed_here(self._config, self._node, options=options)
        except (StoreError, OrchestratorError, OSError) as error:
            return failed(self._node, str(error)), None
        import ray

        with suppress(ray.exceptions.RayError):  # the object store is full; the others read the store
            return found, share(copies, ray.put, room_bytes=room_bytes) if room_bytes else None
        return found, None

    def progress(self) -> Progress | None:
        """Its progress."""
        return self._progress


class RaySeedCluster:
    """A `SeedCluster`: the one that this process is on; actors are of the class ``seeder``."""

    def __init__(
        self,
        config: Config,
        environ: Mapping[str, str],
        *,
        verify: bool = False,
        seeder: type[NodeSeeder] = NodeSeeder,
    ) -> None:
        self._config = config
        self._verify = verify
        self._seeder = seeder
        self._group = NodeGroup(seeder, {"env_vars": dict(environ)}, num_calls=_NODE_CALLS)
        self._room_bytes: dict[str, int] = {}
        self._shares: dict[str, Any] = {}
        self._running: dict[Any, Node] = {}
        self._asked: dict[Any, str] = {}
        self._progress: dict[str, Progress] = {}

    def nodes(self) -> tuple[Node, ...]:
        """See `SeedCluster.nodes`."""
        found = nodes_of_ray()
        for known in found:
            store_bytes = int(known.resources.get("object_store_memory", 0))
            self._room_bytes[known.node.node_id] = store_bytes // ROOM_SHARE
        return tuple(known.node for known in found)

    def start(self, node: Node, *, source: Node | None = None, shares: bool = False) -> None:
        """See `SeedCluster.start`."""
        self.stop(node)
        self._group.start(node.node_id, self._config, node, verify=self._verify)
        shared = self._shares.get(source.node_id) if source is not None else None
        room_bytes = self._room_bytes.get(node.node_id, 0) if shares else 0
        self._running[self._group.call(node.node_id, self._seeder.seed, shared, room_bytes)] = node

    def ended(self) -> list[NodeSeed]:
        """See `SeedCluster.ended`."""
        return [self._answer(ref, self._running.pop(ref)) for ref in _ready(self._running)]

    def progress(self) -> dict[str, Progress]:
        """See `SeedCluster.progress`."""
        import ray

        for ref in _ready(self._asked):
            node_id = self._asked.pop(ref)
            try:
                if (progress := ray.get(ref)) is not None:
                    self._progress[node_id] = progress
            except ray.exceptions.RayError:
                pass  # its `seed` says why
        waiting, running = set(self._asked.values()), {node.node_id for node in self._running.values()}
        for node_id in running - waiting:
            self._asked[self._group.call(node_id, self._seeder.progress)] = node_id
        return {node_id: state for node_id, state in self._progress.items() if node_id in running}

    def stop(self, node: Node) -> None:
        """See `SeedCluster.stop`."""
        self._running = {ref: other for ref, other in self._running.items() if other != node}
        self._progress.pop(node.node_id, None)
        self._shares.pop(node.node_id, None)
        self._group.stop(node.node_id)

    def _answer(self, ref: Any, node: Node) -> NodeSeed:
        import ray

        outcome: NodeSeed
        try:
            outcome, shared = ray.get(ref)
        except ray.exceptions.RayError as error:
            return failed(node, f"the seeding process on the node failed: {_in_short(error)}")
        if shared is not None:
            self._shares[node.node_id] = ray.put(shared)  # once for all that get it
        return outcome


def _ready(refs: Mapping[Any, Any]) -> list[Any]:
    import ray

    if not refs:
        return []
    ready: list[Any] = ray.wait(list(refs), num_returns=len(refs), timeout=0)[0]
    return ready


def _get(ref: Any) -> bytes:
    import ray

    try:
        data: bytes = ray.get(ref, timeout=GET_TIMEOUT_S)
    except ray.exceptions.RayError as error:
        where, reason = "another node", f"what it shared is gone: {_in_short(error)}"
        raise StoreUnavailable(what="blob", where=where, reason=reason) from error
    return data


def _in_short(error: Exception) -> str:
    """The first sentence of an error of Ray, whose others are about Ray."""
    return first_line(error).partition(". ")[0].removesuffix(".") or type(error).__name__


HUNG_S = 90.0
"""Without a sign of life for so long the child, which gives one a second, is ended. Ray gives up after 60."""
FIRST_WAIT_S = 2.0
LONGEST_WAIT_S = 30.0
_STOP_S = 10.0

Start = Callable[[tuple[NodeSeed, ...]], AbstractContextManager[Any]]


class Watch:
    """Keeps a child running until so many seconds have passed, or so many nodes of the cluster are seeded.

    ``start`` makes a child for as long as its context lasts, given the nodes that are seeded: a connection,
    over which come the states of all nodes, or why it ends.
    """

    def __init__(
        self,
        start: Start,
        lines: SeedLines,
        *,
        seconds: float | None = None,
        num_nodes: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._start, self._lines, self._clock, self._sleep = start, lines, clock, sleep
        self._end_s = clock() + (float("inf") if seconds is None else seconds)
        self._num_nodes = float("inf") if num_nodes is None else num_nodes
        self._num_failures = 0
        self._away_s: float | None = None

    def run(self) -> None:
        """Watch until it is over."""
        while not self._is_over():
            with self._start(self._seeded()) as child:
                why = self._follow(child)
            if self._is_over():
                return
            if self._away_s is None:
                self._away_s = self._clock()
                self._lines.say(
                    f"the cluster is away, and asked again until it is back: {why}", style="yellow"
                )
            wait_s = min(FIRST_WAIT_S * 2.0 ** min(self._num_failures, 16), LONGEST_WAIT_S)
            self._num_failures += 1
            self._sleep(min(wait_s, self._end_s - self._clock()))

    def _follow(self, child: Any) -> str:
        """Show what a child says; returns why it is of no more use."""
        why, heard_s = "the process that watches it ended; Ray ends it without a head", self._clock()
        while not self._is_over():
            try:
                heard = child.recv() if child.poll(STEP_S) else None
            except (EOFError, OSError):
                break
            if isinstance(heard, str):
                why = heard
            elif heard is not None:
                heard_s, self._num_failures = self._clock(), 0
                if self._away_s is not None:
                    self._lines.say(
                        f"the cluster is back after {heard_s - self._away_s:.0f} s", style="green"
                    )
                    self._away_s = None
                self._lines.show(heard)
            elif self._clock() - heard_s >= HUNG_S:
                return f"no answer for {HUNG_S:g} s"
        return why

    def _is_over(self) -> bool:
        return self._clock() >= self._end_s or len(self._seeded()) >= self._num_nodes

    def _seeded(self) -> tuple[NodeSeed, ...]:
        return tuple(seed for seed in self._lines.outcomes() if seed.status == "seeded")


@contextmanager
def seeding_process(config: Config, plan: SeedPlan, seeded: tuple[NodeSeed, ...]) -> Iterator[Connection]:
    """A process that seeds by a plan, for as long as the context lasts."""
    context = multiprocessing.get_context("spawn")  # a fork would take this process's threads along
    connection, theirs = context.Pipe()
    arguments = (theirs, config, replace(plan, watch=True, seeded=seeded))
    process = context.Process(target=_seed, args=arguments, daemon=True, name="watch")
    with undisturbed():  # which it inherits, so that no Ctrl-C ends it while it starts
        process.start()
    theirs.close()
    try:
        yield connection
    finally:
        with undisturbed():
            connection.close()
            process.join(_STOP_S)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()


def _seed(connection: Connection, config: Config, plan: SeedPlan) -> None:
    """Seed until the parent closes its end of the pipe; Ctrl-C and SIGTERM are the parent's to act on."""
    # What Ray's core would print into the parent's terminal when a head is away is said there in words.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    with undisturbed(), redirect_stdout(sys.stderr):
        try:
            with seeding_on_ray(config, plan) as seeding:
                told_s = float("-inf")
                while not connection.poll(STEP_S):  # its end of file is something to read, too
                    seeding.step()
                    if time.monotonic() - told_s >= ADVANCE_EVERY_S:
                        told_s = time.monotonic()
                        connection.send(tuple(seeding.states.values()))
        except (BrokenPipeError, EOFError):
            return
        except (OrchestratorError, OSError) as error:
            connection.send(str(error))
