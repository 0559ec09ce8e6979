"""What a command's ranks added, from their journals into the store; the record of the launch comes last.

Invariants: partitions are published when every rank of the world has a journal, on the node of each rank, and
the record by the driver alone; what the store does not take because it is away waits on the nodes' disks, as
after a launch, and `warmrank publish` brings it there later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from warmrank.cache_store.errors import StoreError, StoreUnavailable, is_final
from warmrank.cache_store.publishing.publish_queue import (
    add_launch,
    add_partition,
    discard_partition,
)
from warmrank.orchestrator.config.models import Config
from warmrank.orchestrator.errors import OrchestratorError, ranks_text
from warmrank.orchestrator.launch.commit import complete, waiting_launch
from warmrank.orchestrator.launch.identity import launch_key
from warmrank.worker import journal
from warmrank.worker.manifests import of_journals, publish, with_node_files
from warmrank.worker.results import Published

if TYPE_CHECKING:
    from warmrank.cache_store.records.manifest import PartitionManifest
    from warmrank.cache_store.store import Store
    from warmrank.orchestrator.gang.node_artifacts import NodeKeeper

_AWAY = "the store is away"


class OtherEnvironment(OrchestratorError):
    """A command ran in another environment than warmrank on its node, such as another interpreter's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWork:
    """What one rank's journals say.

    Attributes:
        world_size: of its world.
        rank: the rank.
        num_new: look-ups that ended with an artifact which its partition did not hold before.
        num_loaded: those that did not.
    """

    world_size: int
    rank: int
    num_new: int
    num_loaded: int


def work_in(journals: Path) -> tuple[RankWork, ...]:
    """What the ranks of this node did so far, by rank; those whose journals hold nothing are left out."""
    found = []
    for (world_size, rank), files in journal.by_rank(journals).items():
        outcomes = [result.outcome for file in files for result, _ in journal.read(file)]
        num_loaded = outcomes.count("loaded")
        if outcomes:
            num_new = len(outcomes) - num_loaded
            found.append(RankWork(world_size=world_size, rank=rank, num_new=num_new, num_loaded=num_loaded))
    return tuple(found)


def missing_ranks(work: Iterable[RankWork], num_ranks: int) -> tuple[int, ...]:
    """Ranks of a world of this size that did nothing yet."""
    there = {each.rank for each in work if each.world_size == num_ranks}
    return tuple(rank for rank in range(num_ranks) if rank not in there)


def other_worlds(work: Iterable[RankWork], num_ranks: int) -> tuple[int, ...]:
    """Sizes of worlds that are not the config's."""
    return tuple(sorted({each.world_size for each in work} - {num_ranks}))


def publish_ranks(
    config: Config, store: Store | None, journals: Path, ranks: Sequence[int], keeper: NodeKeeper | None
) -> dict[int, Published]:
    """Publish partitions of ranks that ran on this node, or let them wait on its disk.

    Args:
        config: the launch.
        store: None where it is away.
        journals: directory of the ranks' journals.
        ranks: those of this node.
        keeper: of the node's artifacts, which go with the first rank; None where there are none.

    Raises:
        StoreError: the store refused a partition, or it is away and required.
        OtherEnvironment: the command compiled for another one than this process would say.
    """
    files = journal.by_rank(journals)
    done: dict[int, Published] = {}
    for rank in ranks:
        manifest = of_journals(
            files[config.ranks, rank], rank=rank, world_size=config.ranks, root=config.cache_dir
        )
        _check_environment(manifest)
        if keeper is not None and not done:
            manifest = with_node_files(manifest, keeper.collect(manifest))
        queued = Published(
            ref=None, environment=manifest.environment, partition=manifest.partition, key="", queued=_AWAY
        )
        if store is not None:
            try:
                found = publish(store, launch_key(config), manifest, config.cache_dir)
            except StoreUnavailable as error:
                if is_final(error):
                    raise
                queued = replace(queued, queued=str(error))
            else:
                if not store.is_behind:
                    discard_partition(config.cache_dir, found.key)  # of an earlier run
                    done[rank] = found
                    continue
                queued = replace(found, queued=_AWAY)
        done[rank] = replace(queued, key=add_partition(config.cache_dir, launch_key(config), manifest))
    return done


def _check_environment(manifest: PartitionManifest) -> None:
    """Refuse artifacts whose environment is not the one that the manifest would give."""
    for request in manifest.requests:
        for name, value in manifest.environment.items():
            if (found := request.components.get(name, value)) != value:
                msg = (
                    f"the command compiled with {name} {found}, and warmrank runs with {name} {value}: "
                    "nodes would look for the launch in vain. Install warmrank where the command runs"
                )
                raise OtherEnvironment(msg)


def commit_launch(config: Config, store: Store | None, published: Mapping[int, Published]) -> tuple[str, str]:
    """Commit the record of a world whose partitions are all published, or let it wait on this disk.

    Args:
        config: the launch.
        store: None where it is away.
        published: every rank's.

    Returns:
        The record's key, empty when it is not in the store; and why it waits, empty when it does not.

    Raises:
        StoreError: a place that is required is away.
    """
    reason = next((part.queued for part in published.values() if part.queued), "")
    launch, key = waiting_launch(config, published), ""
    record = complete(launch, published)
    if store is not None and record is not None:
        try:
            key = store.commit_launch(record)
        except StoreError as error:
            if is_final(error):
                raise
            reason = str(error)
    reason = reason or ("" if key and store is not None and not store.is_behind else _AWAY)
    if reason:
        add_launch(config.cache_dir, launch)
    return key, reason


def not_whole(work: Sequence[RankWork], num_ranks: int, num_here: int) -> str:
    """Why what ranks did makes no launch, or not this host's part of one; empty when it does.

    Args:
        work: of all ranks that this command ran.
        num_ranks: of the world.
        num_here: how many of them this command runs.
    """
    missing = missing_ranks(work, num_ranks)
    if num_ranks - len(missing) >= num_here:
        return ""
    others = other_worlds(work, num_ranks)
    if others:
        sizes = ", ".join(str(size) for size in others)
        return f"the command ran ranks of a world of {sizes}, and the config has ranks: {num_ranks}"
    if num_here < num_ranks:
        return f"{num_ranks - len(missing)} of the {num_here} ranks here loaded or compiled something"
    return f"{ranks_text(missing)} of {num_ranks} loaded or compiled nothing here"
