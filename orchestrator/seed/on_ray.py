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
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, BinaryIO

from warmrank.cache_store.backends.backend import ChunkFile, NewFile
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
            with copy.open() as file:
                shared[copy.name] = tuple(put(data) for data in iter(partial(file.read, PIECE_BYTES), b""))
        except UnusableCache as error:
            logger.warning("Not shared: %s", error)
        else:
            room_bytes -= copy.expected.size_bytes
    return shared


def opener(shared: Share, get: Callable[[Any], bytes]) -> Callable[[str], BinaryIO]:
    """Function that opens the blobs of a share by name, for any number of threads.

    It raises `NotInStore` for any other. ``get`` gives back what was put; after an error of Ray's no other
    blob is opened.
    """
    import ray

    left = dict(shared)

    def pieces_of(name: str) -> Iterator[bytes]:
        try:
            yield from map(get, shared[name])
        except ray.exceptions.RayError as error:
            left.clear()
            reason = f"what it shared is gone: {first_line(error)}"
            raise StoreUnavailable(what="blob", where="another node", reason=reason) from error

    def opened(name: str) -> BinaryIO:
        if name not in left:
            raise NotInStore(what=name, where="another node")
        return io.BufferedReader(ChunkFile(pieces_of(name)))

    return opened


class NodeSeeder:
    """The actor that seeds the node it runs on; ``verify``: it reads what is there already again."""

    def __init__(self, config: Config, node: Node, *, verify: bool) -> None:
        self._config, self._node, self._verify = config, node, verify

    def seed(self, shared: Share, shares: bool) -> tuple[NodeSeed, Share]:
        """Seed the node from another's share; returns the outcome, and its own share if it ``shares``."""
        import ray

        copies: list[NewFile] = []
        opened = opener(shared, lambda piece: ray.get(piece, timeout=_GET_TIMEOUT_S))
        options = FetchOptions(shared=opened, held=copies.extend, reread=self._verify)
        try:
            found = seed_here(self._config, self._node, options=options)
        except (StoreError, OrchestratorError, OSError) as error:
            return failed(self._node, str(error)), {}
        with suppress(ray.exceptions.RayError):  # the object store is full; the others read the store
            if shares:
                return found, share(copies, ray.put, room_bytes=_room_bytes(self._node))
        return found, {}


def _room_bytes(node: Node) -> int:
    """A quarter of a node's object store, so that nothing spills beside a launch."""
    resources = next((each.resources for each in nodes_of_ray() if each.node == node), {})
    return int(resources.get("object_store_memory", 0)) // 4


class RaySeedCluster:
    """A `SeedCluster`: the one that this process is on; ``group`` is of `NodeSeeder`."""

    def __init__(self, config: Config, group: NodeGroup, *, verify: bool = False) -> None:
        self._config, self._group, self._verify = config, group, verify
        self._shares: dict[Node | None, Any] = {}
        self._running: dict[Node, Any] = {}

    def nodes(self) -> tuple[Node, ...]:
        """See `SeedCluster.nodes`."""
        return tuple(each.node for each in nodes_of_ray())

    def start(self, node: Node, *, source: Node | None = None, shares: bool = False) -> None:
        """See `SeedCluster.start`."""
        self._group.start(node.node_id, self._config, node, verify=self._verify)
        shared = self._shares.get(source, {})
        self._running[node] = self._group.call(node.node_id, NodeSeeder.seed, shared, shares)

    def ended(self) -> list[NodeSeed]:
        """See `SeedCluster.ended`."""
        import ray

        running, found = self._running, list[NodeSeed]()
        refs = list(running.values())
        done = set(ray.wait(refs, num_returns=len(refs), timeout=0)[0] if refs else ())
        for node in [node for node, ref in running.items() if ref in done]:
            try:
                outcome, shared = ray.get(running.pop(node))
            except ray.exceptions.RayError as error:
                why = f"the seeding process on the node failed: {first_line(error)}"
                outcome, shared = failed(node, why), {}
            found.append(outcome)
            if shared:
                self._shares[node] = ray.put(shared)  # once for all that get it
        return found

    def stop(self, node: Node) -> None:
        """See `SeedCluster.stop`."""
        self._running.pop(node, None)
        self._shares.pop(node, None)
        self._group.stop(node.node_id)


def seed_cluster(config: Config, plan: SeedPlan, tell: Callable[[Told], object]) -> None:
    """Seed every alive node of the config's cluster, or those that the plan names.

    Raises `UnknownNode` where a name fits no alive node, or several; `CannotStart` where the cluster cannot
    be joined.
    """
    with ray_session.group_on(config, NodeSeeder) as group:
        limit_s = config.timeouts.start_s + config.timeouts.fetch_s
        seeding = Seeding(RaySeedCluster(config, group, verify=plan.verify), plan, limit_s=limit_s, tell=tell)
        while not seeding.is_done:
            seeding.step()
            tell(Told())  # a sign of life
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

    def left_s() -> float:
        is_enough = num_nodes is not None and outcomes.num_seeded() >= num_nodes
        return 0.0 if is_enough else max(0.0, end_s - time.monotonic())

    while left_s():
        why = "the process that watches it ended or hangs; Ray ends it without a head"
        with _child(config, plan) as child:
            while (patience_s := min(left_s(), _HUNG_S)) and child.poll(patience_s):
                try:
                    told = child.recv()
                except (EOFError, OSError):
                    break
                if isinstance(told, str):
                    why = told
                    continue
                if away_s is not None:
                    outcomes.say(f"the cluster is back after {time.monotonic() - away_s:.0f} s", "green")
                away_s, wait_s = None, _FIRST_WAIT_S
                outcomes.take(told)
        if away_s is None and left_s():
            away_s = time.monotonic()
            outcomes.say(f"the cluster is away, and asked again until it is back: {why}", "yellow")
        time.sleep(min(wait_s, left_s()))
        wait_s = min(2 * wait_s, _LONGEST_WAIT_S)


@contextmanager
def _child(config: Config, plan: SeedPlan) -> Iterator[Connection]:
    """A process that seeds by a plan, for as long as the context lasts."""
    context = multiprocessing.get_context("spawn")  # a fork would take this process's threads along
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=_seed, args=(writer, config, plan), daemon=True, name="watch")
    with undisturbed():  # which it inherits, so that no Ctrl-C ends it while it starts
        process.start()
    writer.close()
    try:
        yield reader
    finally:
        with undisturbed():
            reader.close()
            process.join(_STOP_S)
            process.kill()
            process.join()


def _seed(writer: Connection, config: Config, plan: SeedPlan) -> None:
    """Seed until the parent closes its end of the pipe; Ctrl-C and SIGTERM are the parent's to act on."""
    # What Ray's core would print into the parent's terminal when a head is away is said there in words.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    with undisturbed(), redirect_stdout(sys.stderr):
        try:
            seed_cluster(config, plan, writer.send)
        except BrokenPipeError:
            return
        except (OrchestratorError, OSError) as error:
            writer.send(str(error))
