"""Fetching by several at once: the lock saves work, and without it the result is the same."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from tests.support.stored import FUNCTIONS, LAUNCH_KEY, REPOSITORY, make_partition, open_store
from tests.support.stored import tree as all_files
from warmrank.cache_store.cache_dir.marks import UNVERIFIED
from warmrank.cache_store.fetch.staging import FetchReport
from warmrank.cache_store.records.manifest import PartitionRef
from warmrank.cache_store.store import Store

ALL_BYTES = sum(len(data) for data in FUNCTIONS.values())


def publish(store: Store, source: Path, **changes: Any) -> PartitionRef:
    return store.publish_partition(LAUNCH_KEY, make_partition(source, **changes), source).ref


@pytest.fixture
def ref(store: Store, source: Path) -> PartitionRef:
    return publish(store, source)


def fetch(store: Store, refs: Sequence[PartitionRef], cache: Path, **options: Any) -> tuple[FetchReport, ...]:
    """Reports of a fetch that must not have a fault."""
    outcome = store.fetch_partitions(refs, cache, **options)
    assert outcome.faults == ()
    return outcome.partitions


def tree(root: Path) -> dict[str, bytes]:
    return {name: data for name, data in all_files(root).items() if name != UNVERIFIED}


def test_file_system_without_locks_fetches_all_the_same(store, ref, source, cache, monkeypatch, caplog):
    def no_locks(self: FileLock) -> None:
        raise NotImplementedError("FileSystem does not appear to support flock")

    monkeypatch.setattr(FileLock, "acquire", no_locks)
    fetch(store, [ref], cache)
    assert tree(cache) == tree(source)
    assert "does not appear to support flock" in caplog.text


def fetch_at_once(root: Path, refs: Sequence[PartitionRef], cache: Path) -> list[int]:
    """Bytes that each of eight threads copied, each with the partitions in another order."""
    barrier = threading.Barrier(8)

    def run(number: int) -> int:
        store = open_store(root)
        barrier.wait()
        turned = [*refs[number % len(refs) :], *refs[: number % len(refs)]]
        return sum(report.bytes_copied for report in fetch(store, turned, cache))

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(run, range(8)))


def test_threads_that_fetch_without_a_lock_agree(store, root, source, cache, monkeypatch):
    monkeypatch.setattr(FileLock, "acquire", lambda self: None)
    refs = [publish(store, source, rank=rank, world_size=3) for rank in range(3)]
    fetch_at_once(root, refs, cache)
    assert tree(cache) == tree(source)


FETCHER = """
import sys
from pathlib import Path
from warmrank.cache_store.records.manifest import PartitionRef
from tests.support.stored import open_store
root, cache, *refs = sys.argv[1:]
store, refs = open_store(Path(root)), [PartitionRef.model_validate_json(ref) for ref in refs]
print(sum(report.bytes_copied for report in store.fetch_partitions(refs, Path(cache)).partitions))
"""


def test_processes_that_fetch_at_once_copy_once(store, root, source, cache):
    refs = [publish(store, source, rank=rank, world_size=2) for rank in range(2)]
    texts = [ref.model_dump_json() for ref in refs]
    command = [sys.executable, "-c", FETCHER, str(root), str(cache), *texts]
    processes = [
        subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(4)
    ]
    copied = [int(process.communicate(timeout=400)[0]) for process in processes]
    assert sum(copied) == 2 * ALL_BYTES
    assert tree(cache) == tree(source)
