"""The driver of a launch: the stages, one after the other, and the only place that commits.

The store may be away: the launch then goes on without it and says so in the report's problems. A launch record
is created last, when every rank's manifest is in the store, so a launch is whole in the store or absent.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from cache_store.errors import StoreUnavailable
from cache_store.manifest import LaunchRecord, PartitionRef, utc_now
from orchestrator.assemble import assemble
from orchestrator.config import Config
from orchestrator.config_models import ScriptWorkload
from orchestrator.errors import WorkerFailure
from orchestrator.identity import identity, launch_key
from orchestrator.launcher import Launcher, Seat
from orchestrator.listener import Listener, Silence
from orchestrator.rank_host import Opened, Opening
from orchestrator.report import NodeFetch, Report
from orchestrator.rounds import Ledger, settle_all
from orchestrator.stages import Stages
from worker.errors import NotYet
from worker.results import FunctionProbe, FunctionResult, RankPlace, Verification

if TYPE_CHECKING:
    from cache_store.store import Store

logger = logging.getLogger(__name__)


def launch(
    config: Config,
    *,
    no_compile: bool = False,
    listener: Listener | None = None,
    launcher: Launcher | None = None,
) -> Report:
    """Run a launch until every rank is warm.

    Args:
        config: what to launch, where.
        no_compile: whether a miss is an error; also an error when the config says so.
        listener: is told what happens; None for nobody.
        launcher: runs the ranks; None for Ray.

    Raises:
        LaunchFailed: a stage failed on at least one rank.
        CompileForbidden: compiling is forbidden and something missed.
        CannotStart: the ranks could not be started.
        cache_store.errors.StoreError: what lies at the store's place is no usable store, or a key file is not.
        worker.errors.NotYet: the device kind is not supported yet.
    """
    refuse_unbuilt(config)
    no_compile = no_compile or config.no_compile
    if launcher is None:
        from orchestrator.ray_launcher import RayLauncher

        launcher = RayLauncher(config)
    started = utc_now()
    stages = Stages(config, launcher, listener or Silence())
    try:
        store = open_store_if_there(config, stages)
        places = bring_up(stages, config, no_compile=no_compile, use_store=store is not None)
        fetches = fetch(stages, config) if store is not None else ()
        probes: Mapping[int, tuple[FunctionProbe, ...]] = {}
        checks: Mapping[int, Verification] = {}
        if isinstance(config.workload, ScriptWorkload):
            ledger = run_scripts(stages)
        else:
            build(stages)
            probes = probe(stages)
            ledger = settle_all(stages, probes, max_rounds=config.max_rounds, no_compile=no_compile)
            capture(stages, ledger)
            first_call(stages, ledger)
            checks = verify(stages)
        record = commit(stages, config, store, places[0]) if store is not None else ""
        stages.close()
    finally:
        launcher.stop()
    return assemble(
        config,
        stages,
        places=places,
        probes=probes,
        ledger=ledger,
        checks=checks,
        fetches=fetches,
        record=record,
        started=started,
    )
