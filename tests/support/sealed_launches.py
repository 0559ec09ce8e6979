"""Launches made from a seed, and a store in memory to evict them from."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.backends import MemoryBackend, alone
from tests.support.stored import (
    ENVIRONMENT,
    LAUNCH_KEY,
    OFF,
    function_dir,
    make_partition,
    make_record,
    partition_name,
)
from warmrank.cache_store.backends.backend import NewFile
from warmrank.cache_store.cache_dir.private_files import create_private, make_private_directories
from warmrank.cache_store.canonical import key_of
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import StoreError
from warmrank.cache_store.gc import evict as evicting
from warmrank.cache_store.gc.evict import EvictPolicy, EvictReport, evict
from warmrank.cache_store.layout import blob_name, record_name
from warmrank.cache_store.records.manifest import LaunchRecord, PartitionManifest, PartitionRef
from warmrank.cache_store.signing.trust import Trust
from warmrank.cache_store.steps import Step
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


GRACE_S = 3600.0
DAY_S = 86400.0
SHARED = b"def shared(): ...\n"


class Evicting:
    """One store in memory and what tests do with it."""

    def __init__(self, work: Path, trust: Trust = OFF) -> None:
        self.backend = MemoryBackend()
        self.places = alone(self.backend)
        self.store = Store(self.backend, trust=trust, location="memory")
        self._work = work
        self._num_launches = 0
        self._num_records = 0

    def launch(
        self, *, key: str = LAUNCH_KEY, own: bytes | None = None, environment: Mapping[str, str] = ENVIRONMENT
    ) -> str:
        """Commit a launch with a function of its own and one that all share; its record's name."""
        self._num_launches += 1
        number = self._num_launches
        functions = {"Llama.own": own or f"own {number}".encode(), "Llama.shared": SHARED}
        return self.commit(self.publish(functions, number, key=key, environment=environment))

    def publish(
        self,
        functions: Mapping[str, bytes],
        number: int,
        *,
        key: str = LAUNCH_KEY,
        environment: Mapping[str, str] = ENVIRONMENT,
    ) -> LaunchRecord:
        root = self._work / f"cache{number}"
        manifest = make_partition(root, functions=functions, environment=environment)
        partition_key = key_of({"launch": key, "number": str(number)})
        ref = self.store.publish_partition(partition_key, manifest, root).ref
        self._num_records += 1
        created = datetime.fromtimestamp(1e9 + self._num_records, UTC).isoformat()
        return make_record((ref,), launch_key=key, environment=environment, created=created)

    def commit(self, record: LaunchRecord) -> str:
        return record_name("launch", record.launch_key, self.store.commit_launch(record))

    def evict(self, *, dry_run: bool = False, **policy: float | bool | None) -> EvictReport:
        rules = EvictPolicy(**{"grace_s": GRACE_S, **policy})  # type: ignore[arg-type]
        return evict(
            self.places,
            rules,
            trust=self.store._trust,
            location="memory",
            dry_run=dry_run,
            clock=lambda: self.backend.now_s,
        )

    def pass_time(self, seconds: float) -> None:
        self.backend.now_s += seconds

    def names(self, prefix: str) -> set[str]:
        return {info.name for info in self.backend.list(prefix)}

    def has(self, data: bytes) -> bool:
        return any(name.endswith(digest_bytes(data).sha256) for name in self.names("cas/"))


def put(memory: Evicting, name: str, data: bytes = b"x") -> None:
    memory.backend.put_new([NewFile(name=name, source=data, expected=digest_bytes(data))])


def at_step(
    monkeypatch: pytest.MonkeyPatch, step: Step, act: Callable[[], object], *, of: object = evicting
) -> None:
    """Do something else at the first time that an evict, or the code of another module, reaches a step."""
    done: list[Step] = []

    def reached(now: Step) -> None:
        if now == step and not done:
            done.append(now)
            act()

    monkeypatch.setattr(of, "reached", reached)
