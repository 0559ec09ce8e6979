"""Seeding a node: the partitions of earlier launches, laid out before any rank starts.

Invariants: a miss is a value with its reason, never an exception, so a launch goes on without its store;
what comes from another world is offered, not promised: guards decide on each rank whether it may be
adopted. Node artifacts come once a node, of each path from the newest launch of which they can be had. Knows
neither torch nor ray, so that it fits a node's boot script.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from warmrank.cache_store.cache_dir.marks import Marks
from warmrank.cache_store.cache_dir.node_files import NodeCaches, NodeFile, place_files, refusal
from warmrank.cache_store.errors import StoreError, is_final, outcome_of
from warmrank.cache_store.fetch.blobs import FetchOptions
from warmrank.cache_store.fetch.fetch import FetchOutcome, FetchReport
from warmrank.cache_store.fetch.node_artifacts import Launch
from warmrank.cache_store.records.documents import StoredLaunch
from warmrank.cache_store.records.manifest import LaunchRecord, PartitionRef
from warmrank.cache_store.store import Store
from warmrank.cache_store.text import count_text, explain_miss, time_text

logger = logging.getLogger(__name__)

MAX_LAUNCHES = 8
MAX_OTHER_RANKS = 1024
_MAX_NODE_LAUNCHES = 4
"""Launches whose manifests are looked through for node artifacts; each takes over what it was given, so the
others have what its nodes did not take or declare, and copies of what cannot be had of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeedReport:
    """Outcome of seeding one node's node artifacts."""

    files: tuple[NodeFile, ...] = ()  # that the node's cache directory keeps now
    num_fetched: int = 0  # distinct ones that came from the store
    bytes_fetched: int = 0
    num_placed: int = 0  # written to where the node's tools look for them
    num_there: int = 0  # that lay there, with the same bytes
    skipped: tuple[str, ...] = ()  # why others do not lie there


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedReport:
    """Outcome of seeding one node.

    What earlier launches added to a partition is counted in its ``num_files`` and ``bytes_copied``.
    """

    found: bool  # a launch with this environment is in the store
    reason: str  # one line: which launch was taken, or why none
    world_size: int  # that launch's; 0 when none was found
    partitions: tuple[FetchReport, ...]  # laid out, each once
    faults: tuple[str, ...]  # what could not be used, one line each
    seconds: float
    node: NodeSeedReport = field(default_factory=NodeSeedReport)
    bytes_read: int = 0  # of partitions, out of the store
    bytes_brought: int = 0  # of partitions, from another node

    @property
    def bytes_copied(self) -> int:
        """Bytes of all partitions that were not there before."""
        return sum(partition.bytes_copied for partition in self.partitions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A launch that a node is about to run, in its environment."""

    launch_key: str
    environment: Mapping[str, str]
    world_size: int
    ranks: tuple[int, ...] | None = None  # this node's; None stands for all
    node_caches: NodeCaches | None = None  # None: it gets no node artifacts


def seed(
    store: Store, wanted: Wanted, cache_root: Path, *, options: FetchOptions | None = None
) -> SeedReport:
    """Lay out what the newest fitting launches stored.

    A launch fits when some of its ranks ran in this environment, and only their partitions count. Of launches
    of the same world size the partitions of the node's ranks are laid out: of the newest first, and as
    further variants those of up to `MAX_LAUNCHES` - 1 earlier ones, so that a rollback of the sources finds
    its artifacts. Launches of other world sizes count where they are newer than all of these, because the
    sources may have changed since; of them, and where a rank of the node ran in another environment then, one
    partition for each distinct set of artifacts is laid out, whatever the ranks. The newest launch counts as
    used today.
    """
    started, options = time.perf_counter(), options or FetchOptions()
    store.admit(cache_root)
    faults: list[str] = []
    chosen, reason = _find(store, wanted, faults)
    records = [stored.record for stored in chosen]
    node = _seed_node(store, records, wanted, cache_root, options, faults)
    outcome = FetchOutcome()
    if refs := _choose(records, wanted, cache_root):
        found = outcome_of(
            lambda: store.fetch_partitions(
                list(refs),
                cache_root,
                options=options,
                records=chosen,
                distinct=[ref for ref, is_distinct in refs.items() if is_distinct],
            )
        )
        if isinstance(found, StoreError):
            faults.append(str(found))
        else:
            outcome = found
            faults.extend(str(fault.error) for fault in outcome.faults)
    if outcome.partitions:
        try:
            store.mark_used(chosen[0].name)
        except StoreError as error:
            logger.debug("The use of %s was not noted: %s", chosen[0].name, error)
    world_sizes = [record.world_size for record in records]
    report = SeedReport(
        found=bool(chosen),
        reason=reason,
        world_size=wanted.world_size if wanted.world_size in world_sizes else next(iter(world_sizes), 0),
        partitions=_merge(outcome.partitions),
        faults=tuple(faults),
        seconds=time.perf_counter() - started,
        node=node,
        bytes_read=outcome.bytes_read,
        bytes_brought=outcome.bytes_brought,
    )
    said = "Seeded %s with %d partitions, %d bytes copied, %.3f s: %s"
    logger.info(said, cache_root, len(report.partitions), report.bytes_copied, report.seconds, reason)
    return report


def pick_launch(
    records: Iterable[LaunchRecord], *, environment: Mapping[str, str], world_size: int
) -> LaunchRecord | None:
    """Of records, newest first, the newest with this environment; one of this world size before any other."""
    fitting = [record for record in records if environment in record.environments]
    return next((record for record in fitting if record.world_size == world_size), next(iter(fitting), None))


def pick_launches(
    launches: Iterable[StoredLaunch], *, environment: Mapping[str, str], world_size: int
) -> tuple[StoredLaunch, ...]:
    """Up to `MAX_LAUNCHES` with this environment, newest first: of this world size, and newer ones of others.

    All manifests of other worlds have to be read, so there the number of their ranks is bounded too. No more
    of ``launches``, which come newest first, are taken than have to be looked at.
    """
    own: list[StoredLaunch] = []
    others: list[StoredLaunch] = []
    num_ranks = 0
    for stored in launches:
        record = stored.record
        if environment not in record.environments:
            continue
        if record.world_size == world_size:
            own.append(stored)
        elif not own:
            num_ranks += record.world_size
            if not others or num_ranks <= MAX_OTHER_RANKS:
                others.append(stored)
        if len(own) == MAX_LAUNCHES:
            break
    others = others[: MAX_LAUNCHES // 2 if own else MAX_LAUNCHES]
    return (*others, *own[: MAX_LAUNCHES - len(others)])


def _find(store: Store, wanted: Wanted, faults: list[str]) -> tuple[tuple[StoredLaunch, ...], str]:
    """The launches to lay out, and a line that says which, or why there is none."""
    num_known = len(store.problems)
    others: list[tuple[str, Mapping[str, str]]] = []

    def noted(launches: Iterable[StoredLaunch]) -> Iterator[StoredLaunch]:
        for stored in launches:
            if wanted.environment not in stored.record.environments:
                label = f"the launch made {time_text(stored.created)}"
                others.extend((label, environment) for environment in stored.record.environments)
            yield stored

    try:
        launches = noted(store.newest_launches(wanted.launch_key))
        chosen = pick_launches(launches, environment=wanted.environment, world_size=wanted.world_size)
    except StoreError as error:
        if is_final(error):
            raise
        faults.append(str(error))
        return (), f"the store could not be read: {error}"
    faults.extend(store.problems[num_known:])
    if not chosen:
        away = any(tier.state == "away" for tier in store.tiers)
        where = "the places of the store that answer" if away else "the store"
        return (), _none_fits(others, wanted, faults, where)
    newest = chosen[0].record
    earlier = f", and {len(chosen) - 1} earlier" if len(chosen) > 1 else ""
    ranks = count_text(newest.world_size, "rank")
    return chosen, f"launch {wanted.launch_key[:12]} of {ranks}, made {time_text(newest.created)}{earlier}"


def _none_fits(
    others: Sequence[tuple[str, Mapping[str, str]]], wanted: Wanted, faults: Sequence[str], where: str
) -> str:
    launch = f"no launch {wanted.launch_key[:12]}"
    if others:
        return f"{launch} has this environment; {explain_miss(wanted.environment, others)}"
    records = count_text(len(faults), "record")
    skipped = f"; {records} could not be used, the first: {faults[0]}" if faults else ""
    return f"{launch} is in {where}{skipped}"


def _choose(records: Sequence[LaunchRecord], wanted: Wanted, cache_root: Path) -> dict[PartitionRef, bool]:
    """Choose partitions: of the own world its ranks', and whether only those with distinct artifacts."""
    there = {path.name for path in cache_root.glob("*/world*")}  # of equal sets, what need not be brought
    own: dict[PartitionRef, None] = {}
    refs: list[PartitionRef] = []
    for record in records:
        here = record.made_in(wanted.environment)
        refs += sorted(here, key=lambda ref: (ref.partition not in there, ref.rank))
        if record.world_size == wanted.world_size:
            own |= dict.fromkeys(ref for ref in here if wanted.ranks is None or ref.rank in wanted.ranks)
    is_covered = bool(own) and {ref.rank for ref in own}.issuperset(wanted.ranks or ())
    if is_covered and all(record.world_size == wanted.world_size for record in records):
        return dict.fromkeys(own, False)
    return {ref: not (is_covered and ref in own) for ref in (*own, *refs)}


def _seed_node(
    store: Store,
    records: Sequence[LaunchRecord],
    wanted: Wanted,
    cache_root: Path,
    options: FetchOptions,
    faults: list[str],
) -> NodeSeedReport:
    """Keep the node artifacts of the last launches in the cache directory, and put each where its tool looks.

    A node cache that the trust policy refuses gets none, and is no error.
    """
    caches, refused = dict(wanted.node_caches or {}), list[str]()
    for name, cache in (wanted.node_caches or {}).items():
        if reason := refusal(Path(cache.directory), store.policy, store.revoked):
            refused.append(f"node cache {name}: {reason}")
            del caches[name]
    launches: list[Launch] = []
    for record in records[:_MAX_NODE_LAUNCHES]:
        here = record.made_in(wanted.environment)
        ranks = {ref.rank for ref in here}
        is_known = record.world_size == wanted.world_size and ranks.issuperset(wanted.ranks or ())
        launches.append((here, wanted.ranks if is_known else None))
    if wanted.node_caches is None or not launches:
        return NodeSeedReport(skipped=tuple(refused))
    fetched = outcome_of(lambda: store.fetch_node_files(launches, caches, cache_root, options=options))
    if isinstance(fetched, StoreError):
        faults.append(f"node artifacts: {fetched}")
        return NodeSeedReport(skipped=tuple(refused))
    vouched = Marks(policy=store.policy, signers=fetched.signers)
    placed = place_files(cache_root, fetched.files, caches, vouched)
    return NodeSeedReport(
        files=fetched.files,
        num_fetched=fetched.num_copied,
        bytes_fetched=fetched.bytes_copied,
        num_placed=len(placed.new),
        num_there=len(placed.there),
        skipped=(*refused, *fetched.skipped, *placed.skipped),
    )


def _merge(reports: Iterable[FetchReport]) -> tuple[FetchReport, ...]:
    """One report for each partition, whatever the number of launches that it came from."""
    merged: dict[str, FetchReport] = {}
    for report in reports:
        first = merged.setdefault(report.partition, report)
        if first is not report:
            merged[report.partition] = replace(
                first,
                # What was there already may be a file of the first, so only the new ones count.
                num_files=first.num_files + report.num_files - report.num_already_there,
                bytes_copied=first.bytes_copied + report.bytes_copied,
                captures=tuple(dict.fromkeys((*first.captures, *report.captures))),
            )
    return tuple(merged.values())
