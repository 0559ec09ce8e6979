"""Seeding on a Ray cluster: an actor on each node that is being seeded, gone when nobody needs it any more.

An actor imports no torch. Shared blobs lie in Ray's object store: put there by the node that read them,
verified by whoever opens them as what a store gives is. What cannot be had any more is left to the store, and
nobody waits for it twice.
"""

from __future__ import annotations

import io
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, BinaryIO

from warmrank.cache_store.backends.backend import ChunkFile, NewFile
from warmrank.cache_store.cache_dir.private_files import open_private
from warmrank.cache_store.errors import NotInStore, StoreError, StoreUnavailable, UnusableCache
from warmrank.cache_store.fetch.blobs import FetchOptions
from warmrank.orchestrator.config.reading import Config
from warmrank.orchestrator.errors import OrchestratorError, first_line
from warmrank.orchestrator.gang import ray_session
from warmrank.orchestrator.gang.node_group import NodeGroup
from warmrank.orchestrator.gang.placement import nodes_of_ray
from warmrank.orchestrator.nodes import Node
from warmrank.orchestrator.seed.seeding import NodeSeed, Outcomes, Seeding, SeedPlan, Told, failed, seed_here
from warmrank.orchestrator.signals import undisturbed

logger = logging.getLogger(__name__)

PIECE_BYTES = 8 << 20
"""5 to 20 MB were measured as best; the less, the more of them a small object store holds."""
_GET_TIMEOUT_S = 60.0
"""Time-out for a piece: a tenth of a second at 1 Gbit/s. Ray notices a lost node only after a minute."""
_ROOM_SHARE = 4
"""A source shares at most a quarter of its object store, so that nothing spills beside a launch."""
_STEP_S = 0.1
_HUNG_S = 90.0
"""Without a sign of life for so long the child of a watch is ended. Ray gives up after 60."""
_FIRST_WAIT_S = 2.0
_LONGEST_WAIT_S = 30.0
_STOP_S = 10.0

Share = Mapping[str, tuple[Any, ...]]
"""By a blob's name: what ``put`` gave for each of its pieces, in order."""


def share(copies: Iterable[NewFile], put: Callable[[bytes], Any], *, room_bytes: int) -> Share:
    """Put private copies of blobs where others can get them, large ones first.

    Those that cannot be read, and those beyond ``room_bytes`` in all, are left out.
    """
    shared: dict[str, tuple[Any, ...]] = {}
    for copy in sorted(copies, key=lambda copy: -copy.expected.size_bytes):
        if copy.name in shared or copy.expected.size_bytes > room_bytes:
            continue
        try:
            assert isinstance(copy.source, Path)  # noqa: S101 - a fetch leaves files
            with open_private(copy.source) as file:
                shared[copy.name] = tuple(put(data) for data in iter(partial(file.read, PIECE_BYTES), b""))
        except (OSError, UnusableCache) as error:
            logger.warning("Not shared: %s", error)
        else:
            room_bytes -= copy.expected.size_bytes
    return shared


class SharedBlobs:
    """Opens the blobs of a share, for any number of threads.

    ``get`` gives back what was put, and raises `StoreUnavailable` where that is gone; it is asked no more
    then.
    """

    def __init__(self, shared: Share, get: Callable[[Any], bytes]) -> None:
        self._shared, self._get = shared, get
        self._is_gone = False

    def open(self, name: str) -> BinaryIO:
        """Open a blob by its name; raises `NotInStore` where the share has none such."""
        if name not in self._shared or self._is_gone:
            raise NotInStore(what=name, where="another node")
        return io.BufferedReader(ChunkFile(map(self._piece, self._shared[name])))

    def _piece(self, piece: Any) -> bytes:
        if self._is_gone:
            raise StoreUnavailable(what="blob", where="another node", reason="that node is gone")
        try:
            return self._get(piece)
        except StoreUnavailable:
            self._is_gone = True
            raise


class NodeSeeder:
    """The actor that seeds the node it runs on; ``verify``: it reads what is there already again."""

    def __init__(self, config: Config, node: Node, *, verify: bool) -> None:
        self._config, self._node, self._verify = config, node, verify

    def seed(self, shared: Share | None, room_bytes: int) -> tuple[NodeSeed, Share | None]:
        """Seed the node from what another one shares, if anything.

        Returns:
            The outcome, and what of its blobs the node shares: ``room_bytes`` at most.
        """
        import ray

        copies: list[NewFile] = []
        opened = SharedBlobs(shared, _get).open if shared is not None else None
        options = FetchOptions(shared=opened, held=copies.extend, reread=self._verify)
        try:
            found = seed_here(self._config, self._node, options=options)
        except (StoreError, OrchestratorError, OSError) as error:
            return failed(self._node, str(error)), None
        with suppress(ray.exceptions.RayError):  # the object store is full; the others read the store
            return found, share(copies, ray.put, room_bytes=room_bytes) if room_bytes else None
        return found, None


def _get(piece: Any) -> bytes:
    import ray

    try:
        data: bytes = ray.get(piece, timeout=_GET_TIMEOUT_S)
    except ray.exceptions.RayError as error:
        reason = f"what it shared is gone: {first_line(error)}"
        raise StoreUnavailable(what="blob", where="another node", reason=reason) from error
    return data


class RaySeedCluster:
    """A `SeedCluster`: the one that this process is on; ``group`` is of `NodeSeeder`."""

    def __init__(self, config: Config, group: NodeGroup, *, verify: bool = False) -> None:
        self._config, self._group, self._verify = config, group, verify
        self._room_bytes: dict[str, int] = {}
        self._shares: dict[Node, Any] = {}
        self._running: dict[Any, Node] = {}

    def nodes(self) -> tuple[Node, ...]:
        """See `SeedCluster.nodes`."""
        known = nodes_of_ray()
        self._room_bytes = {
            each.node.node_id: int(each.resources.get("object_store_memory", 0)) // _ROOM_SHARE
            for each in known
        }
        return tuple(each.node for each in known)

    def start(self, node: Node, *, source: Node | None = None, shares: bool = False) -> None:
        """See `SeedCluster.start`."""
        self.stop(node)
        self._group.start(node.node_id, self._config, node, verify=self._verify)
        shared = self._shares.get(source) if source is not None else None
        room_bytes = self._room_bytes.get(node.node_id, 0) if shares else 0
        self._running[self._group.call(node.node_id, NodeSeeder.seed, shared, room_bytes)] = node

    def ended(self) -> list[NodeSeed]:
        """See `SeedCluster.ended`."""
        import ray

        refs, found = list(self._running), list[NodeSeed]()
        for ref in ray.wait(refs, num_returns=len(refs), timeout=0)[0] if refs else []:
            node = self._running.pop(ref)
            try:
                outcome, shared = ray.get(ref)
            except ray.exceptions.RayError as error:
                why = f"the seeding process on the node failed: {first_line(error)}"
                outcome, shared = failed(node, why), None
            found.append(outcome)
            if shared is not None:
                self._shares[node] = ray.put(shared)  # once for all that get it
        return found

    def stop(self, node: Node) -> None:
        """See `SeedCluster.stop`."""
        self._running = {ref: other for ref, other in self._running.items() if other != node}
        self._shares.pop(node, None)
        self._group.stop(node.node_id)


@contextmanager
def _seeding(config: Config, plan: SeedPlan, tell: Callable[[Told], object]) -> Iterator[Seeding]:
    """Seed a config's cluster, which is joined meanwhile; raises `CannotStart` where it cannot be."""
    with ray_session.group_on(config, NodeSeeder) as group:
        limit_s = config.timeouts.start_s + config.timeouts.fetch_s
        yield Seeding(RaySeedCluster(config, group, verify=plan.verify), plan, limit_s=limit_s, tell=tell)


def seed_cluster(config: Config, plan: SeedPlan, tell: Callable[[Told], object]) -> None:
    """Seed every alive node of the config's cluster, or those that the plan names.

    Raises `UnknownNode` where a name fits no alive node, or several; `CannotStart` where the cluster cannot
    be joined.
    """
    with _seeding(config, plan, tell) as seeding:
        while not seeding.is_done:
            seeding.step()
            time.sleep(_STEP_S)


def watch_cluster(
    config: Config, plan: SeedPlan, outcomes: Outcomes, *, seconds: float | None, num_nodes: int | None
) -> None:
    """Seed nodes as they join, until so many seconds have passed, or so many nodes are seeded.

    A child does it, which Ray ends when the cluster's head is away; then there is another. Raises
    `BadArgument` as of `ray_session.refuse_shadow`.
    """
    ray_session.refuse_shadow()
    end_s = time.monotonic() + (float("inf") if seconds is None else seconds)
    away_s, wait_s = None, _FIRST_WAIT_S

    def is_over() -> bool:
        is_enough = num_nodes is not None and outcomes.num_seeded() >= num_nodes
        return is_enough or time.monotonic() >= end_s

    while not is_over():
        why = "the process that watches it ended or hangs; Ray ends it without a head"
        heard_s = time.monotonic()
        with _child(config, plan) as child:
            while not is_over() and time.monotonic() - heard_s < _HUNG_S:
                try:
                    if not child.poll(_STEP_S):
                        continue
                    told, heard_s = child.recv(), time.monotonic()
                except (EOFError, OSError):
                    break
                if isinstance(told, str):
                    why = told
                    continue
                wait_s = _FIRST_WAIT_S
                if away_s is not None:
                    outcomes.say(f"the cluster is back after {time.monotonic() - away_s:.0f} s", "green")
                    away_s = None
                outcomes.take(told)
        if away_s is None and not is_over():
            away_s = time.monotonic()
            outcomes.say(f"the cluster is away, and asked again until it is back: {why}", "yellow")
        time.sleep(0.0 if is_over() else max(0.0, min(wait_s, end_s - time.monotonic())))
        wait_s = min(2 * wait_s, _LONGEST_WAIT_S)


@contextmanager
def _child(config: Config, plan: SeedPlan) -> Iterator[Connection]:
    """A process that seeds by a plan, for as long as the context lasts."""
    context = multiprocessing.get_context("spawn")  # a fork would take this process's threads along
    connection, theirs = context.Pipe()
    arguments = (theirs, config, replace(plan, watch=True))
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
            process.kill()
            process.join()


def _seed(connection: Connection, config: Config, plan: SeedPlan) -> None:
    """Seed until the parent closes its end of the pipe; Ctrl-C and SIGTERM are the parent's to act on."""
    # What Ray's core would print into the parent's terminal when a head is away is said there in words.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    with undisturbed(), redirect_stdout(sys.stderr):
        try:
            with _seeding(config, plan, connection.send) as seeding:
                while not connection.poll(_STEP_S):  # its end of file is something to read, too
                    seeding.step()
                    connection.send(Told())  # a sign of life
        except (BrokenPipeError, EOFError):
            return
        except (OrchestratorError, OSError) as error:
            connection.send(str(error))
