"""The store's part: all manifests and the launch record put there and found again, signed and checked."""

from __future__ import annotations

from pathlib import Path

from benchmarks.scale_parts.world import ENVIRONMENT, LAUNCH_KEY, RANKS_A_NODE, World
from warmrank.cache_store.cache_dir.private_files import make_private_directories
from warmrank.cache_store.records.manifest import LaunchRecord, PartitionManifest, PartitionRef, utc_now
from warmrank.cache_store.seed import SeedReport, Wanted, seed
from warmrank.cache_store.signing.keyring import generate_key_pair, save_private_key
from warmrank.cache_store.signing.trust import load_trust
from warmrank.cache_store.store import Store, TierSpec
from warmrank.cache_store.store import open_store as open_tiers

CREATED = "2026-01-31T12:00:00.000000+00:00"


def make_key(work: Path) -> None:
    """Make the key that the launch signs with."""
    save_private_key(generate_key_pair("benchmark"), work / "key.pem")


def open_store(work: Path) -> Store:
    """The store in a directory, signatures demanded, as of one that is shared."""
    trust = load_trust("require", signing_key=work / "key.pem")
    return open_tiers([TierSpec(location=str(work / "store"))], trust=trust)


def publish(
    store: Store, made: list[PartitionManifest], files: dict[str, Path], root: Path
) -> list[PartitionRef]:
    """Every rank's part of the commit: its artifacts and its manifest, all ranks' in one go."""
    return [report.ref for report in store.publish_partitions(LAUNCH_KEY, made, files, root)]


def commit(store: Store, refs: list[PartitionRef]) -> str:
    """The driver's part of the commit: do all manifests stand? Then the record."""
    return store.commit_launch(
        LaunchRecord(
            launch_key=LAUNCH_KEY,
            identity={"benchmark": "scale"},
            world_size=len(refs),
            environment=ENVIRONMENT,
            partitions=tuple(refs),
            created=utc_now(),
        )
    )


def seed_node(store: Store, world: World, node: int, cache_root: Path, *, ranks: int = 0) -> SeedReport:
    """What one node fetches; ``ranks``: of a launch of that size instead."""
    make_private_directories(cache_root)
    own = tuple(range(node * RANKS_A_NODE, min(world.ranks, (node + 1) * RANKS_A_NODE)))
    wanted = Wanted(
        launch_key=LAUNCH_KEY, environment=ENVIRONMENT, world_size=ranks or world.ranks, ranks=own
    )
    return seed(store, wanted, cache_root)


def refs_there(store: Store) -> list[PartitionRef]:
    """What the store's one record names, as the ranks of a warm launch would report it."""
    (record,) = store.launches(LAUNCH_KEY)
    return list(record.partitions)
