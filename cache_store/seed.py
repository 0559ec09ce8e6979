"""Seeding a node: the partitions of earlier launches, laid out before any rank starts.

Invariants: a miss is a value with its reason, never an exception, so a launch goes on without its store;
what comes from another world is offered, not promised: guards decide on each rank whether it may be
adopted. Knows neither torch nor ray, so that it fits a node's boot script.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from cache_store.errors import StoreError
from cache_store.explain import explain_miss
from cache_store.local import ensure_cache_dir, refuse_unverified
from cache_store.manifest import LaunchRecord, PartitionRef
from cache_store.reports import FetchReport
from cache_store.store import Store

logger = logging.getLogger(__name__)

MAX_LAUNCHES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedReport:
    """Outcome of seeding one node.

    Attributes:
        found: a launch with this environment is in the store.
        reason: one line: which launch was taken, or why none.
        world_size: that launch's; 0 when none was found.
        partitions: those laid out, each once; what earlier launches added to one is counted in its
            ``num_files`` and ``bytes_copied``.
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
    """Lay out what the newest fitting launches stored.

    A launch fits when its environment is equal. Those of the same world size are preferred, and then the
    partitions of ``ranks`` are laid out (None: of all ranks): of the newest first, and as further variants
    those of up to `MAX_LAUNCHES` - 1 earlier ones, so that a rollback of the sources finds its artifacts. Of
    a launch of another world, one partition for each distinct set of artifacts is laid out, whatever the
    ranks.

    Raises:
        UnusableCache: ``cache_root`` cannot be used; that is the configuration's fault, and no miss.
    """
    started = time.perf_counter()
    ensure_cache_dir(cache_root)
    refuse_unverified(cache_root, store.policy)
    faults: list[str] = []
    chosen, reason = _find(store, launch_key, environment, world_size, faults)
    refs = [ref for record in chosen for ref in _choose(store, record, world_size, ranks, faults)]
    fetched = _merge(_fetch(store, dict.fromkeys(refs), cache_root, faults))
    report = SeedReport(
        found=bool(chosen),
        reason=reason,
        world_size=chosen[0].world_size if chosen else 0,
        partitions=fetched,
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
    return next(iter(pick_launches(records, environment=environment, world_size=world_size)), None)


def pick_launches(
    records: Iterable[LaunchRecord], *, environment: Mapping[str, str], world_size: int
) -> tuple[LaunchRecord, ...]:
    """`pick_launch`'s first, then earlier ones with this environment if that is of this world size."""
    fitting = [record for record in records if record.environment == environment]
    same_world = [record for record in fitting if record.world_size == world_size]
    return tuple(same_world[:MAX_LAUNCHES] or fitting[:1])


def _find(
    store: Store, launch_key: str, environment: Mapping[str, str], world_size: int, faults: list[str]
) -> tuple[tuple[LaunchRecord, ...], str]:
    num_known = len(store.problems)
    try:
        records = store.launches(launch_key)
    except StoreError as error:
        faults.append(str(error))
        return (), f"the store could not be read: {error}"
    faults.extend(store.problems[num_known:])
    chosen = pick_launches(records, environment=environment, world_size=world_size)
    if chosen:
        earlier = f", and {len(chosen) - 1} earlier" if len(chosen) > 1 else ""
        ranks = f"{chosen[0].world_size} ranks"
        return chosen, f"launch {launch_key[:12]} of {ranks}, made {chosen[0].created}{earlier}"
    if not records:
        skipped = f"; {len(faults)} records could not be used, the first: {faults[0]}" if faults else ""
        return (), f"no launch {launch_key[:12]} is in the store{skipped}"
    candidates = [(f"the launch made {item.created}", item.environment) for item in records]
    return (), f"no launch {launch_key[:12]} has this environment; {explain_miss(environment, candidates)}"


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
    done: set[str] = set()
    for ref in refs:
        if ref.manifest_key in done:
            continue  # an earlier launch pins what was published again since
        try:
            report = store.fetch_partition(ref.manifest_key, cache_root, expected_sha256=ref.manifest_sha256)
        except StoreError as error:
            logger.warning("Partition %s is not laid out: %s", ref.partition, error)
            faults.append(str(error))
            continue
        done.add(ref.manifest_key)
        yield report


def _merge(reports: Iterable[FetchReport]) -> tuple[FetchReport, ...]:
    merged: dict[str, FetchReport] = {}
    for report in reports:
        first = merged.get(report.partition)
        merged[report.partition] = report if first is None else _with_variants(first, report)
    return tuple(merged.values())


def _with_variants(first: FetchReport, later: FetchReport) -> FetchReport:
    # What was there already may be a file of the first, so only the new ones count.
    return replace(
        first,
        num_files=first.num_files + later.num_files - later.num_already_there,
        bytes_copied=first.bytes_copied + later.bytes_copied,
        seconds=first.seconds + later.seconds,
    )
