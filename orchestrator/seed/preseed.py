"""`warmrank preseed`: partitions of a launch out of the shared store into nodes' cache directories, verified.

On this node it needs neither torch nor Ray, so that it fits a node's boot script or an init container; on a
cluster, one Ray task is pinned to each node and does the same there.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cache_store.errors import StoreError
from cache_store.fetching.progress import OnProgress
from cache_store.seed import SeedReport, Wanted, seed
from orchestrator.config.reading import Config
from orchestrator.config.store import StoreConfig
from orchestrator.errors import NoStore, UnknownNode
from orchestrator.gang import ray_session
from orchestrator.gang.node_artifacts import keeper_of
from orchestrator.launch.identity import launch_key
from orchestrator.show.store_report import NodeArtifacts
from orchestrator.store.stores import open_to_fetch
from worker.environment import environment

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node of the cluster, by every name that people may use for it."""

    node_id: str
    address: str
    host: str

    def __str__(self) -> str:
        return f"{self.host} ({self.address}, {self.node_id[:12]})" if self.node_id else self.host


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeed:
    """What became of one node.

    Attributes:
        node: the node.
        found: a launch with this node's environment is in the store.
        reason: which launch, or why none.
        world_size: that launch's number of ranks; 0 when none was found.
        num_partitions: partitions that now lie in the cache directory, verified.
        num_files: artifacts in them.
        num_already_there: of these, artifacts that lay there before.
        bytes_copied: bytes written to the node's cache directory.
        faults: what could not be used; empty when all is well.
        seconds: wall time on the node.
        node_artifacts: what became of the node's own artifacts; None on a node without node caches.
    """

    node: Node
    found: bool
    reason: str
    world_size: int = 0
    num_partitions: int = 0
    num_files: int = 0
    num_already_there: int = 0
    bytes_copied: int = 0
    faults: tuple[str, ...] = ()
    seconds: float = 0.0
    node_artifacts: NodeArtifacts | None = None


def preseed(config: Config, wanted: Sequence[str] = ()) -> tuple[NodeSeed, ...]:
    """Seed every alive node of the config's cluster, or those named by id, address or host name.

    A config that names no cluster launches on this machine, so then this machine is seeded, without Ray.

    Raises:
        NoStore: the config names no store.
        UnknownNode: a name fits no alive node, or several.
        CannotStart: the cluster cannot be joined.
        StoreError: on this machine, as `seed_here`.
    """
    _check_store(config)
    if ray_session.way_in(config.ray, os.environ, initialized=False) == "local":
        choose((this_node(),), wanted)
        return (seed_here(config),)
    return _seed_cluster(config, wanted)


def seed_here(config: Config, node: Node | None = None, *, on_progress: OnProgress | None = None) -> NodeSeed:
    """Seed this node, telling ``on_progress`` now and then how far it is.

    Raises:
        NoStore: the config names no store.
        StoreUnavailable: there is no store, or it cannot be read.
        UnusableCache: the cache directory cannot be used.
    """
    store = open_to_fetch(_check_store(config))
    keeper = keeper_of(config)
    wanted = Wanted(
        launch_key=launch_key(config),
        environment=environment(),
        world_size=config.ranks,
        node_caches=keeper.destinations if keeper is not None else None,
    )
    report = seed(store, wanted, config.cache_dir, on_progress=on_progress)
    found = _summary(node or this_node(), report)
    if keeper is None:
        return found
    keeper.take_over(report.node)
    return replace(found, node_artifacts=keeper.report())


def this_node() -> Node:
    """This machine, where no cluster names it."""
    return Node(node_id="", address="", host=socket.gethostname())


def choose(nodes: Sequence[Node], wanted: Iterable[str]) -> tuple[Node, ...]:
    """The nodes that names stand for, each once; all when there are no names.

    Raises:
        UnknownNode: a name fits no node, or several.
    """
    chosen: list[Node] = []
    for name in wanted:
        matches = [node for node in nodes if name in (node.node_id, node.address, node.host)]
        if not matches and len(name) >= 6:
            matches = [node for node in nodes if node.node_id.startswith(name)]
        if len(matches) != 1:
            raise UnknownNode(name, matches, nodes)
        chosen += matches
    return tuple(dict.fromkeys(chosen)) if chosen else tuple(nodes)


def _check_store(config: Config) -> StoreConfig:
    if config.store is None:
        msg = f"config {config.name} names no store to seed from; set store.path, which all nodes share"
        raise NoStore(msg)
    return config.store


def _summary(node: Node, report: SeedReport) -> NodeSeed:
    return NodeSeed(
        node=node,
        found=report.found,
        reason=report.reason,
        world_size=report.world_size,
        num_partitions=len(report.partitions),
        num_files=sum(part.num_files for part in report.partitions),
        num_already_there=sum(part.num_already_there for part in report.partitions),
        bytes_copied=sum(part.bytes_copied for part in report.partitions),
        faults=report.faults,
        seconds=report.seconds,
    )


def _seed_cluster(config: Config, wanted: Sequence[str]) -> tuple[NodeSeed, ...]:
    import ray

    session = ray_session.enter(config.ray)
    try:
        nodes = choose(_alive(ray.nodes()), wanted)  # type: ignore[no-untyped-call]
        environ = ray_session.rank_environ(config.ray, config.device, session.way_in)
        refs = [_task(node, environ).remote(config, node) for node in nodes]
        timeout_s = config.timeouts.start_s + config.timeouts.fetch_s
        ready, _ = ray.wait(refs, num_returns=len(refs), timeout=timeout_s)
        return tuple(
            _answer(ref, node) if ref in ready else _failed(node, f"no answer in {timeout_s:g} s")
            for ref, node in zip(refs, nodes, strict=True)
        )
    finally:
        ray_session.leave(session)


def _alive(nodes: Iterable[dict[str, Any]]) -> tuple[Node, ...]:
    alive = (
        Node(node_id=node["NodeID"], address=node["NodeManagerAddress"], host=node["NodeManagerHostname"])
        for node in nodes
        if node["Alive"]
    )
    return tuple(sorted(alive, key=lambda node: (node.host, node.node_id)))


def _task(node: Node, environ: dict[str, str]) -> Any:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # No CPU is asked for: a node may be seeded while a launch holds all of them.
    return ray.remote(_seed_on_node).options(
        num_cpus=0,
        max_retries=0,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False),
        runtime_env={"env_vars": environ},
    )


def _seed_on_node(config: Config, node: Node) -> NodeSeed:
    """Runs on the node; one node's failure must not hide what became of the others."""
    try:
        return seed_here(config, node)
    except (StoreError, OSError) as error:
        return _failed(node, str(error))


def _answer(ref: Any, node: Node) -> NodeSeed:
    import ray

    try:
        answer: NodeSeed = ray.get(ref)
    except ray.exceptions.RayError as error:
        first = str(error).strip().partition("\n")[0] or type(error).__name__
        return _failed(node, f"the task failed: {first}")
    return answer


def _failed(node: Node, why: str) -> NodeSeed:
    return NodeSeed(node=node, found=False, reason=why, faults=(why,))
