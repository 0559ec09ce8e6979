"""The store's verbs, each beside the command that does the same without a store."""

from __future__ import annotations

import json
import shutil
import statistics
from collections.abc import Sequence
from pathlib import Path
from time import process_time
from typing import Any

from benchmarks.store_parts.timing import counting, in_turn, peak_bytes, settle, shell, timed
from benchmarks.store_parts.tree import LAUNCH_KEY, Shape, describe, function_dir, make_tree, write_private
from warmrank.cache_store.digests import digest_file
from warmrank.cache_store.parallel import NUM_THREADS, each
from warmrank.cache_store.records.manifest import LaunchRecord, PartitionManifest, PartitionRef, utc_now
from warmrank.cache_store.signing.trust import Trust
from warmrank.cache_store.store import Store, TierSpec
from warmrank.cache_store.store import open_store as open_tiers


def open_store(root: Path) -> Store:
    """The store in a directory, as a launch opens it; nothing is signed."""
    return open_tiers([TierSpec(location=str(root))], trust=Trust(policy="off"))


def publish(store_root: Path, tree: Path, manifests: Sequence[PartitionManifest]) -> list[PartitionRef]:
    """Publish a launch as one process would for all ranks, and commit it."""
    store = open_store(store_root)
    refs = [store.publish_partition(LAUNCH_KEY, manifest, tree).ref for manifest in manifests]
    store.commit_launch(
        LaunchRecord(
            launch_key=LAUNCH_KEY,
            identity={},
            world_size=len(refs),
            environment={},
            partitions=tuple(refs),
            created=utc_now(),
        )
    )
    return refs


def verbs(work: Path, shape: Shape, rounds: int) -> dict[str, Any]:
    """Publish, publish again and fetch, beside their peers."""
    tree = work / "tree"
    make_tree(tree, shape)
    num_functions = shape.num_shared + shape.num_own
    manifests = [describe(tree, rank, shape.num_ranks, num_functions) for rank in range(shape.num_ranks)]
    files = [entry for manifest in manifests for entry in manifest.artifacts]
    figures: dict[str, Any] = {
        "num_files": len(files),
        "num_unique": len({entry.sha256 for entry in files}),
        "size_bytes": sum(entry.size_bytes for entry in files),
        "unique_bytes": sum({entry.sha256: entry.size_bytes for entry in files}.values()),
    }
    figures["publish"] = publish_beside_cp(work, manifests, rounds)
    figures["publish_again"] = publish_again_beside_rsync(work, manifests, rounds * 2 + 1)
    figures["fetch"] = fetch_beside_cp(work, publish(work / "store", tree, manifests), rounds)
    return figures


def publish_beside_cp(work: Path, manifests: Sequence[PartitionManifest], rounds: int) -> dict[str, Any]:
    """A publish into a new store, and ``cp -r`` with ``sync`` of this file system, as publish does."""
    tree, store, copy = work / "tree", work / "store", work / "copy"

    def publish_first() -> float:
        remove(store, tree / ".index")
        settle(work)
        return timed(lambda: publish(store, tree, manifests))

    def cp_and_sync() -> float:
        remove(copy, tree / ".index")
        settle(work)
        return timed(lambda: shell("sh", "-c", f"cp -r '{tree}' '{copy}' && sync -f '{copy}'"))

    def hash_alone() -> None:
        each(digest_file, [tree / path for path in paths], num_threads=NUM_THREADS)

    paths = [entry.path for manifest in manifests for entry in manifest.artifacts]
    with counting() as hashed:
        figures = in_turn(rounds, publish_first, cp_and_sync)
    figures["bytes_hashed"] = sum(hashed) // rounds
    return figures | {"hash_alone_s": statistics.median(timed(hash_alone) for _ in range(rounds))}


def publish_again_beside_rsync(
    work: Path, manifests: Sequence[PartitionManifest], rounds: int
) -> dict[str, Any]:
    """A publish of what was published, and ``rsync -a`` of what was copied."""
    tree, store, copy = work / "tree", work / "store", work / "copy"
    if shutil.which("rsync") is None:
        return {"skipped": "rsync is not installed"}

    def rsync() -> float:
        return timed(lambda: shell("rsync", "-a", "--exclude=.index", f"{tree}/", f"{copy}/"))

    rsync()  # gives the copies their times
    publish(store, tree, manifests)  # reads once more what was new a moment before it was read
    with counting() as hashed:
        figures = in_turn(rounds, lambda: timed(lambda: publish(store, tree, manifests)), rsync)
    return figures | {"bytes_hashed": sum(hashed) // rounds}


def fetch_beside_cp(work: Path, refs: list[PartitionRef], rounds: int) -> dict[str, Any]:
    """Fetch, and ``cp -r`` of the tree that was published."""
    store, fetched, copy = open_store(work / "store"), work / "fetched", work / "copy"

    def fetch() -> float:
        remove(fetched)
        settle(work)
        seconds = timed(lambda: outcomes.append(store.fetch_partitions(refs, fetched)))
        if outcomes[-1].faults:
            raise RuntimeError(f"not fetched: {outcomes[-1].faults[0].error}")
        return seconds

    def cp() -> float:
        remove(copy)
        settle(work)
        return timed(lambda: shell("cp", "-r", str(work / "tree"), str(copy)))

    outcomes: list[Any] = []
    with counting() as hashed:
        figures = in_turn(rounds, fetch, cp)
    figures["bytes_hashed"] = sum(hashed) // rounds
    figures["bytes_read"] = outcomes[-1].bytes_read
    (work / "refs.json").write_text(json.dumps([ref.model_dump() for ref in refs]))
    return figures


def remove(*paths: Path) -> None:
    """Remove directories that may not be there."""
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)


def fetch_memory(work: Path) -> dict[str, Any]:
    """Peak memory of a fetch alone in its process, beyond that of the process before."""
    refs = [PartitionRef(**fields) for fields in json.loads((work / "refs.json").read_text())]
    store = open_store(work / "store")
    before = peak_bytes()
    outcome = store.fetch_partitions(refs, work / "fetched2")
    if outcome.faults:
        raise RuntimeError(f"not fetched: {outcome.faults[0].error}")
    return {"peak_bytes": peak_bytes() - before}


def launch(work: Path, world_size: int) -> dict[str, Any]:
    """One launch of ``world_size`` partitions: one function in four differs by stage."""
    tree, store = work / "tree", work / "store"
    for rank in range(world_size):
        for function in range(4):
            seed = function if function < 3 else 100 + rank * 8 // world_size
            write_private(tree / function_dir(rank, world_size, function) / "compiled_module", seed, 20_000)
    manifests = [describe(tree, rank, world_size, 4) for rank in range(world_size)]
    settle(work)
    before, cpu_s = peak_bytes(), process_time()
    seconds = timed(lambda: publish(store, tree, manifests))
    cpu_s = process_time() - cpu_s
    stored = [path.stat().st_size for path in store.rglob("*") if path.is_file()]
    return {
        "world_size": world_size,
        "seconds": seconds,
        "seconds_per_partition": seconds / world_size,
        "cpu_s_per_partition": cpu_s / world_size,
        "peak_bytes": peak_bytes() - before,
        "store_bytes": sum(stored),
        "store_files": len(stored),
    }
