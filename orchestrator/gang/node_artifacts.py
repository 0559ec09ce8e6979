"""The node artifacts of one node, in the process of its first rank: listed, fetched, collected.

Only a node's first rank has a `NodeKeeper`, so everything here happens once a node. A node artifact never
makes a rank compile, nor a launch fail: what could not be done is a reason in the report.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from warmrank.cache_store.cache_dir.marks import admit
from warmrank.cache_store.cache_dir.node_files import KEPT_S, NodeCaches, NodeFile, drop_unneeded, refusal
from warmrank.cache_store.cache_dir.private_files import ensure_cache_dir
from warmrank.cache_store.publish_pending import QUEUE
from warmrank.orchestrator.config.models import Config
from warmrank.orchestrator.config.reading import declared_caches, node_caches_of, place_faults
from warmrank.orchestrator.nodes import NodeArtifacts
from warmrank.worker import node_caches, node_collecting
from warmrank.worker.node_collecting import Collected, Listing, listing

if TYPE_CHECKING:
    from warmrank.cache_store.fetch.blobs import FetchOptions
    from warmrank.cache_store.records.manifest import PartitionManifest
    from warmrank.cache_store.seed import NodeSeedReport, SeedReport
    from warmrank.cache_store.store import Store

MAX_REASONS = 16


def enter_cache_dir(config: Config) -> None:
    """Make the cache directory, or check that what lies there is trusted.

    Raises:
        cache_store.errors.StoreError: it cannot be used.
    """
    if config.store is None:
        ensure_cache_dir(config.cache_dir)
    else:
        admit(config.cache_dir, config.store.trust.policy or "require", config.store.trust.revoked)


def keeper_of(config: Config) -> NodeKeeper | None:
    """The keeper of this node's artifacts; None where it has no node caches."""
    return NodeKeeper(config) if declared_caches(config) else None


def fetch_partitions(
    config: Config,
    store: Store,
    keeper: NodeKeeper | None,
    *,
    launch_key: str,
    ranks: tuple[int, ...] | None = None,
    options: FetchOptions | None = None,
) -> SeedReport:
    """Bring a launch's partitions, and what the node caches hold of it, from the store to this node's disk.

    ``ranks`` are those of this node; None for all, where it is not known yet which run here.
    """
    from warmrank.cache_store.seed import Wanted, seed
    from warmrank.worker.keys.request import environment

    wanted = Wanted(
        launch_key=launch_key,
        environment=environment(),
        world_size=config.ranks,
        ranks=ranks,
        node_caches=keeper.caches if keeper is not None else None,
    )
    report = seed(store, wanted, config.cache_dir, options=options)
    if keeper is not None:
        keeper.take_over(report.node)
    return report


class NodeKeeper:
    """Keeps the node artifacts of one node through a launch."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._caches = node_caches_of(config)
        self._faults = [f"node cache {name}: {why}" for name, why in place_faults(config).items()]
        self._before: Listing = {}
        self._seeded: NodeSeedReport | None = None
        self._collected: Collected | None = None

    @property
    def caches(self) -> NodeCaches:
        """The node caches that node artifacts of the store are laid into, by name."""
        return {cache.name: cache for cache in self._caches}

    def begin(self) -> None:
        """List what lies in the node caches before the launch changes anything."""
        self._before = listing(self._caches)

    def take_over(self, seeded: NodeSeedReport) -> None:
        """Do not count as new later what came from the store."""
        self._seeded = seeded

    def collect(self, manifest: PartitionManifest) -> tuple[NodeFile, ...]:
        """The node artifacts, looked for once, when every rank of the node has made what it makes.

        ``manifest`` is what the node's first rank has by itself.
        """
        if self._collected is None:
            self._collected = node_collecting.collect(
                self._caches,
                self._config.cache_dir,
                node_collecting.room_in(manifest),
                before=self._before,
                carried=self._seeded.files if self._seeded is not None else (),
                refusal=self._refusal,
            )
            self._tidy({file.digest.sha256 for file in self._collected.files})
        return self._collected.files

    def report(self) -> NodeArtifacts:
        """Their outcome so far."""
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

    def _refusal(self, directory: Path) -> str:
        if self._config.store is None:
            return ""
        trust = self._config.store.trust
        return refusal(directory, trust.policy or "require", trust.revoked)

    def _tidy(self, needed: set[str]) -> None:
        """Remove what was not used for long, unless something waits to be published, which may need it."""
        root = self._config.cache_dir
        if not any((root / QUEUE).glob("*.partition")):
            drop_unneeded(root, needed)
        from warmrank.worker.node_caches import drop_unused

        for name in node_caches.OWN:
            drop_unused(node_caches.engine_directory(root, name), age_s=KEPT_S)
