"""The node artifacts of one node, in the process of its first rank: listed, fetched, installed, collected.

Only a node's first rank has a `NodeKeeper`, so everything here happens once a node. A node artifact never
makes a rank compile, nor a launch fail: what could not be done is a reason in the report.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cache_store.node.node_files import NodeFile, drop_unneeded, kept_path
from cache_store.node.placing import Destinations, admit_destinations
from cache_store.publishing.publish_queue import QUEUE
from orchestrator.config_models import Config
from orchestrator.store_report import NodeArtifacts
from worker import known_caches, node_caches
from worker.node_caches import Collected, Listing, NodeCache
from worker.settings import settings

if TYPE_CHECKING:
    from cache_store.node_seeding import NodeSeedReport
    from worker.static_kernels import CannTree, Installation

MAX_REASONS = 16


def node_caches_of(config: Config) -> tuple[NodeCache, ...]:
    """The node caches of this node: the known ones of its device kind, and those that the config declares."""
    defaults = known_caches.known(settings(), config.device, config.cache_dir)
    declared = {
        name: NodeCache(name=name, directory=found.path, patterns=found.patterns, collect=found.collect)
        if found is not None
        else None
        for name, found in config.node_caches.items()
    }
    return node_caches.merged(defaults, declared)


def keeper_of(config: Config) -> NodeKeeper | None:
    """What keeps this node's artifacts; None where it has no node caches."""
    caches = node_caches_of(config)
    return NodeKeeper(config, caches) if caches else None


class NodeKeeper:
    """Keeps the node artifacts of one node through a launch.

    Args:
        config: the launch.
        caches: the node's.
        tree: the node's CANN; None looks for it when packages are to be installed.
    """

    def __init__(self, config: Config, caches: tuple[NodeCache, ...], tree: CannTree | None = None) -> None:
        self._cache_root = config.cache_dir
        # Half of the stage's time: as long to wait for another process as to install.
        self._install_s = config.timeouts.fetch_s / 4
        self._caches = caches
        self._tree = tree
        self._before: Listing = {}
        self._seeded: NodeSeedReport | None = None
        self._installations: tuple[Installation, ...] = ()
        self._collected: Collected | None = None

    @property
    def destinations(self) -> Destinations:
        """Where what comes from the store goes."""
        return node_caches.destinations(self._caches)

    def begin(self, config: Config) -> None:
        """List what lies in the node caches before the launch changes anything.

        Raises:
            UnusableCache: the trust policy refuses a node cache.
        """
        if config.store is not None:
            trust = config.store.trust
            admit_destinations(self.destinations, trust.policy or "require", trust.revoked)
        self._before = node_caches.listing(self._caches)

    def take_over(self, seeded: NodeSeedReport) -> None:
        """Install what came from the store where that is needed, and do not count it as new later."""
        self._seeded = seeded
        if not seeded.files:
            return
        self._installations = self._install(seeded)
        self._before = node_caches.listing(self._caches)

    def collect(self) -> tuple[NodeFile, ...]:
        """The node artifacts, once every rank of the node has made what it makes; looked for once."""
        if self._collected is None:
            self._collected = node_caches.collect(
                node_caches.sources(self._caches),
                self._cache_root,
                before=self._before,
                carried=self._seeded.files if self._seeded is not None else (),
            )
            if not any((self._cache_root / QUEUE).glob("*.partition")):  # which need what they name
                drop_unneeded(self._cache_root, {file.digest.sha256 for file in self._collected.files})
        return self._collected.files

    def report(self) -> NodeArtifacts:
        """What became of them so far."""
        seeded, found = self._seeded, self._collected or Collected()
        statuses = [result.status for result in self._installations]
        reasons = [
            *(seeded.skipped if seeded else ()),
            *(f"{item.name}: {item.reason}" for item in self._installations if item.reason),
            *found.left_out,
        ]
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
            installed=tuple(item.name for item in self._installations if item.status == "installed"),
            num_installed_before=statuses.count("there"),
            skipped=(*reasons[:MAX_REASONS], *more),
        )

    def _install(self, seeded: NodeSeedReport) -> tuple[Installation, ...]:
        from worker import static_kernels
        from worker.static_kernels import Installation, Package

        packages = tuple(
            Package(
                path=kept_path(self._cache_root, file.digest.sha256),
                name=Path(file.relative).name,
                digest=file.digest,
                cann=seeded.environment.get("cann", ""),
                soc=seeded.environment.get("accelerator", ""),
            )
            for file in seeded.files
            if file.cache == known_caches.STATIC_KERNELS and file.relative.endswith(".run")
        )
        tree = self._tree or (static_kernels.tree_here() if packages else None)
        if tree is None:
            reason = "this node has no CANN that it could be installed into"
            return tuple(Installation(name=item.name, status="refused", reason=reason) for item in packages)
        if not packages:
            return ()
        timeout_s = self._install_s / len(packages)
        return static_kernels.install(packages, tree, self._cache_root, timeout_s=timeout_s)
