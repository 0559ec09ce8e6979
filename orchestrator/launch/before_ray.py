"""Finds, before a launch starts a Ray of its own, what every rank would find on this machine seconds later.

Invariants: what is raised is what would come from the ranks, so that reports and exit codes are the same;
and only where ranks are certain to find the same, because elsewhere the nodes may have what is missing here.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from warmrank.cache_store.errors import UnusableCache
from warmrank.cache_store.node.private_files import ensure_cache_dir
from warmrank.orchestrator.bounded import all_within
from warmrank.orchestrator.config.machine import fault_of, is_shipped
from warmrank.orchestrator.config.models import Config
from warmrank.orchestrator.config.trust import LOOK_S
from warmrank.orchestrator.errors import LaunchFailed
from warmrank.orchestrator.gang.rank_host import failure_of
from warmrank.orchestrator.gang.ray_session import way_in_now


def refuse_for_ranks(config: Config) -> None:
    """Look for what all ranks need.

    Raises:
        LaunchFailed: the cache directory cannot be used, or the entrypoint cannot be called.
    """
    way = way_in_now(config.ray)
    fault = fault_of(config)
    if fault is not None and (way in {"local", "job"} or (way == "address" and is_shipped(fault, config))):
        _refuse(config, "build", fault.error)
    if way != "local":
        return
    # A disk that does not answer is left to the ranks, whose stages have time-outs.
    (unusable,) = all_within([partial(_unusable, config.cache_dir)], timeout_s=LOOK_S)
    if unusable:
        _refuse(config, "start", *unusable)


def _unusable(cache_dir: Path) -> tuple[UnusableCache, ...]:
    try:
        ensure_cache_dir(cache_dir)
    except UnusableCache as error:
        return (error,)
    return ()


def _refuse(config: Config, stage: str, error: Exception) -> None:
    failures = [failure_of(error, rank=rank, stage=stage) for rank in range(config.ranks)]
    raise LaunchFailed(stage, failures, num_ranks=config.ranks)
