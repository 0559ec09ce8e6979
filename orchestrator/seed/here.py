"""Seeding this node: needs neither torch nor Ray, so that it fits a boot script or an init container."""

from __future__ import annotations

from dataclasses import replace

from warmrank.cache_store.fetching.intake import Intake
from warmrank.cache_store.fetching.pace import Pace
from warmrank.cache_store.fetching.progress import OnProgress
from warmrank.cache_store.seed import Wanted, seed
from warmrank.orchestrator.config.reading import Config
from warmrank.orchestrator.config.store import StoreConfig
from warmrank.orchestrator.errors import NoStore
from warmrank.orchestrator.gang.node_artifacts import keeper_of
from warmrank.orchestrator.launch.identity import launch_key
from warmrank.orchestrator.nodes import Node, this_node
from warmrank.orchestrator.seed.options import SeedOptions
from warmrank.orchestrator.seed.other_launches import other_launches
from warmrank.orchestrator.seed.outcome import NodeSeed, summary
from warmrank.orchestrator.store.stores import open_to_fetch
from warmrank.worker.environment import environment


def seed_here(
    config: Config,
    node: Node | None = None,
    *,
    intake: Intake | None = None,
    on_progress: OnProgress | None = None,
) -> NodeSeed:
    """Seed this node, telling ``on_progress`` now and then how far it is.

    Raises:
        NoStore: the config names no store.
        StoreUnavailable: there is no store, or it cannot be read.
        UnusableCache: the cache directory cannot be used.
    """
    store = open_to_fetch(check_store(config))
    keeper = keeper_of(config)
    wanted = Wanted(
        launch_key=launch_key(config),
        environment=environment(),
        world_size=config.ranks,
        node_caches=keeper.destinations if keeper is not None else None,
    )
    report = seed(store, wanted, config.cache_dir, intake=intake, on_progress=on_progress)
    if not report.found and not report.faults:
        others = other_launches(store, config, may_read=node is None)
        report = replace(report, reason=report.reason + others)
    found = summary(node or this_node(), report)
    if keeper is None:
        return found
    keeper.take_over(report.node)
    return replace(found, node_artifacts=keeper.report())


def intake_of(options: SeedOptions) -> Intake:
    """How bytes come in, as far as that is the same wherever they come from."""
    limit = options.limit_bytes_per_s
    return Intake(pace=None if limit is None else Pace(limit), reread=options.verify)


def check_store(config: Config) -> StoreConfig:
    """The config's store.

    Raises:
        NoStore: it names none.
    """
    if config.store is None:
        msg = f"config {config.name} names no store to seed from; set store.path, which all nodes share"
        raise NoStore(msg)
    return config.store
