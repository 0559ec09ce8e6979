"""Seeding this node: needs neither torch nor Ray, so that it fits a boot script or an init container."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Literal

from warmrank.cache_store.changes import explain_miss
from warmrank.cache_store.errors import NoStoreYet, StoreError
from warmrank.cache_store.fetch.blobs import FetchOptions
from warmrank.cache_store.seed import SeedReport
from warmrank.cache_store.store import Store
from warmrank.orchestrator.config.reading import Config
from warmrank.orchestrator.config.store import StoreConfig
from warmrank.orchestrator.errors import BadArgument
from warmrank.orchestrator.gang.node_artifacts import fetch_partitions, keeper_of
from warmrank.orchestrator.launch.identity import identity, launch_key
from warmrank.orchestrator.nodes import Node, NodeArtifacts, this_node
from warmrank.orchestrator.store.stores import open_to_fetch

logger = logging.getLogger(__name__)

MAX_KEYS_READ = 16
"""A miss is explained by other launches only where they are few, and by one node: a thousand nodes that boot
at once shall not each read a whole store to word a miss."""
HINT = "warmrank explain names what differs from what is stored"

Status = Literal["seeded", "miss", "faults"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeed:
    """Outcome of seeding one node; crosses Ray, and goes into JSON.

    ``found``: a launch with this node's environment is in the store, of ``world_size`` ranks. The partitions
    now lie, verified, in the cache directory, with ``num_files`` artifacts, of which some lay there before;
    their bytes were read from the store, or came from another node. ``reason`` says which launch, or why
    none, or why the node failed, ``faults`` what could not be used.
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
        found = replace(found, reason=report.reason + _other_launches(store, config, may_read=node is None))
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
        bytes_copied=sum(part.bytes_copied for part in report.partitions),
        faults=report.faults,
        seconds=report.seconds,
        bytes_from_store=report.bytes_read,
        bytes_from_nodes=report.bytes_brought,
    )


def _other_launches(store: Store, config: Config, *, may_read: bool) -> str:
    """End of a line that says why a store holds no launch of a config; empty where it holds some."""
    try:
        keys = store.launch_keys()
        if launch_key(config) in keys:
            return ""
        if not keys:
            return "; it holds no launch at all"
        if not may_read or len(keys) > MAX_KEYS_READ:
            return f"; {HINT}"
        # What is launched is behind the key, so one record says it for all of the same key.
        newest = [records[0] for key in keys if (records := store.launches(key))]
    except StoreError as error:
        logger.info("Other launches are not compared: %s", error)
        return f"; {HINT}"
    candidates = [(f"launch {record.launch_key[:12]}", record.identity) for record in newest]
    return f"; {explain_miss(identity(config), candidates)}"
