"""Seeding a node: the partitions of an earlier launch, laid out before any rank starts.

Invariants: a miss is a value with its reason, never an exception, so a launch goes on without its store;
what comes from another world is offered, not promised: guards decide on each rank whether it may be
adopted. Knows neither torch nor ray, so that it fits a node's boot script.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cache_store.errors import StoreError
from cache_store.explain import explain_miss
from cache_store.local import ensure_cache_dir
from cache_store.manifest import LaunchRecord, PartitionRef
from cache_store.reports import FetchReport
from cache_store.store import Store

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedReport:
    """Outcome of seeding one node.

    Attributes:
        found: a launch with this environment is in the store.
        reason: one line: which launch was taken, or why none.
        world_size: that launch's; 0 when none was found.
        partitions: those laid out.
        faults: what could not be used, one line each.
        seconds: wall time.
    """

    found: bool
    reason: str
    world_size: int
    partitions: tuple[FetchReport, ...]
    faults: tuple[str, ...]
    seconds: float


def seed(
    store: Store,
    *,
    launch_key: str,
    cache_root: Path,
    environment: Mapping[str, str],
    world_size: int,
    ranks: tuple[int, ...] | None = None,
) -> SeedReport:
    """Lay out what the newest fitting launch stored.

    A launch fits when its environment is equal. One of the same world size is preferred, and then the
    partitions of ``ranks`` are laid out (None: of all ranks). Of a launch of another world, one partition for
    each distinct set of artifacts is laid out, whatever the ranks.

    Raises:
        UnusableCache: ``cache_root`` cannot be used; that is the configuration's fault, and no miss.
    """
    started = time.perf_counter()
    ensure_cache_dir(cache_root)
    faults: list[str] = []
    fetched: list[FetchReport] = []
    record, reason = _find(store, launch_key, environment, world_size, faults)
    if record is not None:
        refs = _choose(store, record, world_size, ranks, faults)
        fetched = list(_fetch(store, refs, cache_root, faults))
    report = SeedReport(
        found=record is not None,
        reason=reason,
        world_size=record.world_size if record else 0,
        partitions=tuple(fetched),
        faults=tuple(faults),
        seconds=time.perf_counter() - started,
    )
    logger.info(
        "Seeded %s with %d partitions, %d bytes copied, %.3f s: %s",
        cache_root,
        len(fetched),
        sum(item.bytes_copied for item in fetched),
        report.seconds,
        reason,
    )
    return report


def pick_launch(
    records: Iterable[LaunchRecord], *, environment: Mapping[str, str], world_size: int
) -> LaunchRecord | None:
    """Of records, newest first, the newest with this environment; one of this world size before any other."""
    fitting = [record for record in records if record.environment == environment]
    same_world = [record for record in fitting if record.world_size == world_size]
    return next(iter(same_world or fitting), None)


def _find(
    store: Store, launch_key: str, environment: Mapping[str, str], world_size: int, faults: list[str]
) -> tuple[LaunchRecord | None, str]:
    num_known = len(store.problems)
    try:
        records = store.launches(launch_key)
    except StoreError as error:
        faults.append(str(error))
        return None, f"the store could not be read: {error}"
    faults.extend(store.problems[num_known:])
    record = pick_launch(records, environment=environment, world_size=world_size)
    if record is not None:
        return record, f"launch {launch_key[:12]} of {record.world_size} ranks, made {record.created}"
    if not records:
        skipped = f"; {len(faults)} records could not be used, the first: {faults[0]}" if faults else ""
        return None, f"no launch {launch_key[:12]} is in the store{skipped}"
    candidates = [(f"the launch made {item.created}", item.environment) for item in records]
    return None, f"no launch {launch_key[:12]} has this environment; {explain_miss(environment, candidates)}"


def _choose(
    store: Store, record: LaunchRecord, world_size: int, ranks: tuple[int, ...] | None, faults: list[str]
) -> list[PartitionRef]:
    refs = sorted(record.partitions, key=lambda ref: ref.rank)
    if record.world_size == world_size:
        return [ref for ref in refs if ranks is None or ref.rank in ranks]
    distinct: dict[frozenset[tuple[str, str]], PartitionRef] = {}
    for ref in refs:
        try:
            manifest = store.manifest(ref.manifest_key, expected_sha256=ref.manifest_sha256)
        except StoreError as error:
            faults.append(str(error))
            continue
        artifacts = frozenset((entry.function, entry.sha256) for entry in manifest.artifacts)
        distinct.setdefault(artifacts, ref)
    return list(distinct.values())


def _fetch(
    store: Store, refs: Iterable[PartitionRef], cache_root: Path, faults: list[str]
) -> Iterable[FetchReport]:
    for ref in refs:
        try:
            yield store.fetch_partition(ref.manifest_key, cache_root, expected_sha256=ref.manifest_sha256)
        except StoreError as error:
            logger.warning("Partition %s is not laid out: %s", ref.partition, error)
            faults.append(str(error))
