"""`warmrank preseed`: partitions of a launch out of the shared store into nodes' cache directories, verified.

On a cluster, one process on each node does there what `here` does on this one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from warmrank.orchestrator.config.reading import Config
from warmrank.orchestrator.gang import ray_session
from warmrank.orchestrator.nodes import choose, this_node
from warmrank.orchestrator.seed.events import Tell, nobody
from warmrank.orchestrator.seed.here import check_store, intake_of, seed_here
from warmrank.orchestrator.seed.options import SeedOptions
from warmrank.orchestrator.seed.outcome import NodeSeed
from warmrank.orchestrator.seed.seeding import SeedCluster, Seeding, SeedPlan

STEP_S = 0.1


def preseed(
    config: Config, wanted: Sequence[str] = (), *, options: SeedOptions | None = None, tell: Tell = nobody
) -> tuple[NodeSeed, ...]:
    """Seed every alive node of the config's cluster, or those named by id, address or host name.

    A config that names no cluster launches on this machine, so then this machine is seeded, without Ray.

    Args:
        config: the launch.
        wanted: the names; none for all nodes.
        options: how each node is seeded.
        tell: hears of everything that happens.

    Raises:
        NoStore: the config names no store.
        UnknownNode: a name fits no alive node, or several.
        CannotStart: the cluster cannot be joined.
        StoreError: on this machine, as `seed_here`.
    """
    check_store(config)
    options = options or SeedOptions()
    if is_this_machine(config):
        choose((this_node(),), wanted)
        return (seed_here(config, intake=intake_of(options)),)
    plan = plan_of(config, wanted, options)
    with seed_cluster(config, options) as cluster:
        seeding = Seeding(cluster, plan, tell=tell)
        while True:
            seeding.step()
            if seeding.is_done:
                return seeding.results()
            time.sleep(STEP_S)


def is_this_machine(config: Config) -> bool:
    """Whether the config names no cluster."""
    return ray_session.way_in(config.ray, os.environ, initialized=False) == "local"


def plan_of(
    config: Config,
    wanted: Sequence[str],
    options: SeedOptions,
    *,
    watch: bool = False,
    seeded: frozenset[str] = frozenset(),
) -> SeedPlan:
    """What to do with the nodes of a cluster."""
    return SeedPlan(
        wanted=tuple(wanted),
        fan_out=options.fan_out,
        watch=watch,
        silent_s=config.timeouts.start_s + config.timeouts.fetch_s,
        seeded=seeded,
    )


@contextmanager
def seed_cluster(config: Config, options: SeedOptions) -> Iterator[SeedCluster]:
    """The cluster of a config, joined for as long as the context lasts.

    Raises:
        CannotStart: it cannot be joined.
    """
    from warmrank.orchestrator.seed.on_ray import RaySeedCluster

    session = ray_session.enter(config.ray, timeout_s=config.timeouts.start_s)
    try:
        environ = ray_session.rank_environ(config.ray, config.device, session.way_in)
        yield RaySeedCluster(config, options, environ)
    finally:
        ray_session.leave(session)
