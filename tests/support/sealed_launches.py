"""Launches made from a number: whoever knows it knows every byte that must be in the store."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from tests.support.stored import function_dir, make_partition, make_record, partition_name
from warmrank.cache_store.cache_dir.private_files import create_private, make_private_directories
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import StoreError
from warmrank.cache_store.keys import key_of
from warmrank.cache_store.layout import blob_name
from warmrank.cache_store.records.manifest import PartitionManifest, PartitionRef
from warmrank.cache_store.store import Store

SIZES = (0, 40, 900, 5_000, 70_000)


def launch_key(seed: int) -> str:
    return key_of({"seed": str(seed)})


def rank_functions(seed: int, rank: int) -> dict[str, bytes]:
    """A rank's functions: one of its own, one that all ranks share, one that the next launch shares too."""
    own = random.Random(f"{seed} {rank}")
    common = random.Random(seed // 2)
    return {
        "M.own": own.randbytes(own.choice(SIZES)),
        "M.all": random.Random(seed).randbytes(3_000),
        "M.common": common.randbytes(common.choice(SIZES) + 1),
    }


def lay_launch(cache_root: Path, seed: int, world_size: int) -> tuple[PartitionManifest, ...]:
    """Write the artifacts of a launch as ranks do, but without waiting for the disk."""
    manifests = []
    for rank in range(world_size):
        functions = rank_functions(seed, rank)
        for function, data in functions.items():
            path = function_dir(cache_root, partition_name(rank, world_size), function) / "compiled_module"
            make_private_directories(path.parent)
            if not path.exists():
                with create_private(path) as file:
                    file.write(data)
        manifests.append(make_partition(cache_root, rank=rank, world_size=world_size, functions=functions))
    return tuple(manifests)


def publish_laid(
    store: Store, cache_root: Path, seed: int, manifests: Sequence[PartitionManifest]
) -> tuple[str, tuple[PartitionRef, ...]]:
    """Publish and commit; the name of the record's bytes, and what it names."""
    key = launch_key(seed)
    refs = tuple(store.publish_partition(key, manifest, cache_root).ref for manifest in manifests)
    return store.commit_launch(make_record(refs, launch_key=key)), refs


def fetch_laid(store: Store, cache_root: Path, seed: int) -> tuple[int, list[StoreError]]:
    """Fetch the newest record of a launch: how many partitions it has, and why some were not laid out."""
    records = store.launches(launch_key(seed))
    if not records:
        return 0, []
    outcome = store.fetch_partitions(records[0].partitions, cache_root)
    return len(records[0].partitions), [fault.error for fault in outcome.faults]


def blobs_of(seed: int, world_size: int) -> dict[str, bytes]:
    """Names and bytes of all blobs of a launch."""
    datas = [data for rank in range(world_size) for data in rank_functions(seed, rank).values()]
    return {blob_name(digest_bytes(data).sha256): data for data in datas}


def files_of(seed: int, world_size: int) -> dict[str, bytes]:
    """What must lie in a cache directory after a fetch of all partitions of a launch."""
    root = Path("/cache")
    return {
        (function_dir(root, partition_name(rank, world_size), function) / "compiled_module")
        .relative_to(root)
        .as_posix(): data
        for rank in range(world_size)
        for function, data in rank_functions(seed, rank).items()
    }
