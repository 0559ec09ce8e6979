"""One node's work with the store, in the process of its first rank: partitions, and node artifacts.

Everything here happens once a node. A node artifact never makes a rank compile, nor a launch fail: what could
not be done is a reason in the report.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warmrank.cache_store.cache_dir.node_files import KEPT_S, drop_unneeded, refusal
from warmrank.cache_store.errors import StoreUnavailable
from warmrank.cache_store.publish_pending import QUEUE, add_partition, discard_partition
from warmrank.orchestrator.config.models import Config, launch_key
from warmrank.orchestrator.config.reading import declared_caches, place_faults
from warmrank.orchestrator.nodes import NodeArtifacts
from warmrank.worker.results import Published

if TYPE_CHECKING:
    from warmrank.cache_store.fetch.blobs import FetchOptions
    from warmrank.cache_store.records.manifest import PartitionManifest
    from warmrank.cache_store.seed import NodeSeedReport, SeedReport
    from warmrank.cache_store.store import Store
    from warmrank.worker.node_collecting import Collected, Listing

MAX_REASONS = 16
_BEHIND = "a place of the store is away or refused it, and has yet to take it"


def trust_of(config: Config) -> tuple[str, tuple[str, ...]]:
    """The policy for copies in the cache directory, and the keys that are revoked."""
    if config.store is None:
        return "off", ()
    return config.store.trust.policy or "require", tuple(config.store.trust.revoked)


def publish_manifests(
    root: Path,
    opened: tuple[Store | None, str],
    key: str,
    manifests: Mapping[int, PartitionManifest],
    *,
    may_queue: bool,
    is_behind: bool,
) -> dict[int, Published]:
    """Publish the partitions of a node's ranks, or leave them on its disk for later; {} without either.

    Args:
        root: the cache directory.
        opened: the store; or None, and why there is none.
        key: the launch's.
        manifests: of each rank.
        may_queue: what the store does not take may be left for later.
        is_behind: the driver found a place of the store away that this node does not ask at all.

    Raises:
        cache_store.errors.StoreError: the store refused them, or it is away and nothing may be queued.
    """

    def published(rank: int, **fields: Any) -> Published:
        manifest = manifests[rank]
        return Published(environment=manifest.environment, partition=manifest.partition, **fields)

    def queued(reason: str) -> dict[int, Published]:
        keys = {rank: add_partition(root, key, manifest) for rank, manifest in manifests.items()}
        return {rank: published(rank, ref=None, key=key, queued=reason) for rank, key in keys.items()}

    store, why_away = opened
    if store is None:
        return queued(why_away) if may_queue else {}
    try:
        reports = store.publish_partitions(key, tuple(manifests.values()), None, root)
    except StoreUnavailable as error:
        if error.required or not may_queue:
            raise
        return queued(str(error))
    still_waits = is_behind or bool(store.behind)
    if not still_waits:
        for report in reports:
            discard_partition(root, report.key)  # of an earlier launch
    elif may_queue:
        queued(_BEHIND)
    return {
        rank: published(
            rank,
            ref=report.ref,
            key=report.key,
            conflicts=report.conflicts,
            num_blobs_new=report.num_blobs_new,
            bytes_new=report.bytes_new,
            queued=_BEHIND if still_waits and may_queue else "",
            problems=tuple(store.problems),
        )
        for rank, report in zip(manifests, reports, strict=True)
    }


class NodeKeeper:
    """Keeps the artifacts of one node through a launch; a node without node caches has partitions only."""

    def __init__(self, config: Config) -> None:
        self._config = config
        declared, faults = declared_caches(config), place_faults(config)
        self._has_caches = bool(declared)
        self._caches = tuple(cache for cache in declared if cache.name not in faults)
        self._faults = [f"node cache {name}: {why}" for name, why in faults.items()]
        self._before: Listing = {}
        self._seeded: NodeSeedReport | None = None
        self._collected: Collected | None = None

    def begin(self) -> None:
        """List what lies in the node caches before the launch changes anything."""
        if self._caches:
            from warmrank.worker.node_collecting import listing

            self._before = listing(self._caches)

    def fetch(
        self, store: Store, ranks: tuple[int, ...] | None = None, *, options: FetchOptions | None = None
    ) -> SeedReport:
        """Bring a launch's partitions, and what the node caches hold of it, from the store to this disk.

        ``ranks`` are those of this node; None for all, where it is not known yet which run here.
        """
        from warmrank.cache_store.seed import Wanted, seed
        from warmrank.worker.keys.request import environment

        config = self._config
        wanted = Wanted(
            launch_key=launch_key(config),
            environment=environment(),
            world_size=config.ranks,
            ranks=ranks,
            node_caches={cache.name: cache for cache in self._caches} if self._has_caches else None,
        )
        report = seed(store, wanted, config.cache_dir, options=options)
        self._seeded = report.node  # what came from the store does not count as new later
        return report

    def with_artifacts(self, manifest: PartitionManifest) -> PartitionManifest:
        """The manifest of the node's first rank with the node artifacts.

        They are looked for once, when every rank of the node has made what it makes.
        """
        if not self._has_caches:
            return manifest
        from warmrank.worker.node_collecting import collect
        from warmrank.worker.rank.manifests import with_node_files  # imports torch

        if self._collected is None:
            self._collected = collect(
                self._caches,
                self._config.cache_dir,
                manifest,
                before=self._before,
                carried=self._seeded.files if self._seeded is not None else (),
                refusal=lambda directory: refusal(directory, *trust_of(self._config)),
            )
            self._tidy({file.digest.sha256 for file in self._collected.files})
        return with_node_files(manifest, self._collected.files)

    def report(self) -> NodeArtifacts | None:
        """Their outcome so far; None without node caches."""
        if not self._has_caches:
            return None
        from warmrank.worker.node_collecting import Collected

        seeded, found = self._seeded, self._collected or Collected()
        reasons = [*self._faults, *(seeded.skipped if seeded else ()), *found.left_out]
        more = [f"and {len(reasons) - MAX_REASONS} more"] if len(reasons) > MAX_REASONS else []
        return NodeArtifacts(
            num_files=len(found.files),
            size_bytes=sum(file.digest.size_bytes for file in found.files),
            num_new=found.num_new,
            bytes_new=found.bytes_new,
            num_fetched=seeded.num_fetched if seeded else 0,
            bytes_fetched=seeded.bytes_fetched if seeded else 0,
            num_placed=seeded.num_placed if seeded else 0,
            num_there=seeded.num_there if seeded else 0,
            skipped=(*reasons[:MAX_REASONS], *more),
        )

    def _tidy(self, needed: set[str]) -> None:
        """Remove what was not used for long, unless something waits to be published, which may need it."""
        from warmrank.worker import node_caches

        root = self._config.cache_dir
        if not any((root / QUEUE).glob("*.partition")):
            drop_unneeded(root, needed)
        for name in node_caches.OWN:
            node_caches.drop_unused(node_caches.engine_directory(root, name), age_s=KEPT_S)
