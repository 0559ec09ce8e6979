"""What trials of faults do with a store and a cache directory, and what is wrong with these afterwards."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tests.support.sealed_launches import fetch_laid, files_of, launch_key, lay_launch, publish_laid
from tests.support.stored import open_store, tree
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.records.manifest import PartitionManifest

DAY_S = 24 * 3600.0


def publish(store: Path, source: Path, seed: int, world_size: int = 2) -> str:
    """Publish a launch and commit it."""
    manifests = lay_launch(source, seed, world_size)
    record, _ = publish_laid(open_store(store), source, seed, manifests)
    return record


def fetch(store: Path, cache: Path, seed: int) -> int:
    """Fetch all partitions of the newest record of a launch."""
    num_partitions, errors = fetch_laid(open_store(store), cache, seed)
    if errors:
        raise errors[0]
    return num_partitions


def publish_and_fetch(
    store: Path, source: Path, cache: Path, seed: int, manifests: tuple[PartitionManifest, ...]
) -> None:
    """Everything that a cold launch and a warm one do with the store; the artifacts were laid before."""
    publish_laid(open_store(store), source, seed, manifests)
    fetch(store, cache, seed)


def survey(store: Path, cache: Path, seed: int) -> dict[str, Any]:
    """Say everything that is wrong with a store and a cache directory after a fault, however small."""
    opened = open_store(store)
    report = opened.verify()
    return {
        "problems": [*report.faults, *half_laid_out(cache, seed)],
        "launches": len(opened.launches(launch_key(seed))),
        "debris": debris(store, cache),
    }


def recover(store: Path, source: Path, cache: Path, seed: int) -> dict[str, Any]:
    """What the next launch does: publish, fetch, and leave nothing of the one that ended behind."""
    shutil.rmtree(source, ignore_errors=True)
    publish(store, source, seed)
    num_partitions = fetch(store, cache, seed)
    expected = files_of(seed, num_partitions)
    actual = laid_out(cache)
    wrong = [name for name in expected if actual.get(name) != expected[name]]
    opened = open_store(store)
    return {
        "problems": [*opened.verify().faults, *(f"{name} is not what it was" for name in wrong)],
        "partitions": num_partitions,
        "debris": debris(store, cache),
    }


def debris(store: Path, cache: Path) -> list[str]:
    """Temporary files and directories in a store and in a cache directory."""
    found = list((store / "tmp").glob("*"))
    found += [
        path for path in cache.rglob("*") if path.name.startswith(".tmp-") or path.suffix in {".tmp", ".part"}
    ]
    return [str(path) for path in found]


def laid_out(cache: Path) -> dict[str, bytes]:
    """The artifacts of a cache directory: what a rank would find there."""
    files = tree(cache).items()
    return {name: data for name, data in files if not any(part.startswith(".") for part in Path(name).parts)}


def half_laid_out(cache: Path, seed: int, world_size: int = 2) -> list[str]:
    """Artifacts under their names whose bytes are not those of the launch."""
    expected = files_of(seed, world_size)
    return [
        f"{name} has other bytes: {digest_bytes(data)}"
        for name, data in laid_out(cache).items()
        if data != expected.get(name)
    ]
