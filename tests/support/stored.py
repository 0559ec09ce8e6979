"""Stores, launches and keys that tests write; without torch, as many short processes import it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from warmrank.cache_store.backends.backend import BlobBackend
from warmrank.cache_store.cache_dir.local import add_variant
from warmrank.cache_store.canonical import key_of
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.records.manifest import (
    ArtifactEntry,
    CaptureEntry,
    LaunchRecord,
    PartitionManifest,
    PartitionRef,
    RequestEntry,
    environments_of,
)
from warmrank.cache_store.signing.keyring import Signer, save_private_key, save_public_key
from warmrank.cache_store.signing.trust import Trust
from warmrank.cache_store.store import Store, TierSpec
from warmrank.cache_store.store import open_store as open_tiers

LAUNCH_KEY = key_of({"entrypoint": "sample:workload"})
ENVIRONMENT = {"python": "3.11.9", "torch": "2.13.0"}
CREATED = "2026-01-31T12:00:00+00:00"
FUNCTIONS = {"Llama.prefill": b"def prefill(): ...\n", "Llama.decode": b"def decode(): ...\n"}
OFF = Trust(policy="off")
PATIENT_S = 60.0  # for a disk of this machine: when it is busy it is slow, and few tests are about that


def open_store(root: Path, trust: Trust = OFF) -> Store:
    return open_tiers([TierSpec(location=str(root), answer_s=PATIENT_S)], trust=trust)


def store_config(root: Path) -> dict[str, Any]:
    """A config's ``store`` in this directory, where nothing is signed."""
    return {"path": str(root), "answer_s": PATIENT_S, "trust": {"policy": "off"}}


def backend_of(store: Store) -> BlobBackend:
    """What keeps the files of a store with one tier, for tests that let it fail."""
    (tier,) = store.places
    return tier.backend


def partition_name(rank: int, world_size: int) -> str:
    return f"world{world_size}global_rank{rank}"


def function_dir(cache_root: Path, partition: str, function: str) -> Path:
    return cache_root / "Llama_dynamic_aclgraphcache_0f" / partition / function.rpartition(".")[2]


def make_partition(
    cache_root: Path,
    *,
    rank: int = 0,
    world_size: int = 1,
    functions: Mapping[str, bytes] = FUNCTIONS,
    environment: Mapping[str, str] = ENVIRONMENT,
    created: str = CREATED,
) -> PartitionManifest:
    """Write artifacts below ``cache_root`` as a rank does, and describe them."""
    partition = partition_name(rank, world_size)
    requests, artifacts = [], []
    for function, data in functions.items():
        components = {"function": function, **environment}
        path = add_variant(function_dir(cache_root, partition, function), data)
        digest = digest_bytes(data)
        requests.append(RequestEntry(function=function, key=key_of(components), components=components))
        artifacts.append(
            ArtifactEntry(
                function=function,
                path=path.relative_to(cache_root).as_posix(),
                request_key=key_of(components),
                provenance=hashlib.sha256(function.encode()).hexdigest(),
                sha256=digest.sha256,
                size_bytes=digest.size_bytes,
            )
        )
    return PartitionManifest(
        partition=partition,
        rank=rank,
        world_size=world_size,
        environment=dict(environment),
        requests=tuple(requests),
        artifacts=tuple(artifacts),
        captures=tuple(CaptureEntry(function=function, signature="int64[1, 8]") for function in functions),
        created=created,
    )


def rank_entry(**changes: Any) -> ArtifactEntry:
    """The entry of one artifact of a rank."""
    fields: dict[str, Any] = {
        "function": "Llama.decode",
        "path": "Llama_0f/world1global_rank0/decode/compiled_module",
        "request_key": "1" * 64,
        "provenance": "2" * 64,
        "sha256": "3" * 64,
        "size_bytes": 7,
    }
    return ArtifactEntry(**(fields | changes))


def rank_manifest(**changes: Any) -> PartitionManifest:
    """The manifest of a single rank with that artifact."""
    fields: dict[str, Any] = {
        "partition": "world1global_rank0",
        "rank": 0,
        "world_size": 1,
        "environment": ENVIRONMENT,
        "requests": (),
        "artifacts": (rank_entry(),),
        "captures": (),
        "created": CREATED,
    }
    return PartitionManifest(**(fields | changes))


def make_record(
    refs: tuple[PartitionRef, ...],
    *,
    launch_key: str = LAUNCH_KEY,
    environment: Mapping[str, str] = ENVIRONMENT,
    elsewhere: Mapping[int, Mapping[str, str]] = MappingProxyType({}),
    created: str = CREATED,
) -> LaunchRecord:
    environments = environments_of({ref.rank: elsewhere.get(ref.rank, environment) for ref in refs})
    return LaunchRecord(
        launch_key=launch_key,
        identity={"entrypoint": "sample:workload"},
        world_size=len(refs),
        environment=environments.environment,
        others=environments.others,
        partitions=refs,
        created=created,
    )


def publish_launch(
    store: Store,
    cache_root: Path,
    *,
    world_size: int = 1,
    functions: Mapping[int, Mapping[str, bytes]] | None = None,
    environment: Mapping[str, str] = ENVIRONMENT,
    elsewhere: Mapping[int, Mapping[str, str]] = MappingProxyType({}),
    created: str = CREATED,
    change: Callable[[PartitionManifest], PartitionManifest] = lambda manifest: manifest,
) -> LaunchRecord:
    """Publish every rank's partition and commit the launch; ``functions`` are by rank.

    Ranks in ``elsewhere`` ran in the environment that it gives; ``change`` is made to each manifest.
    """
    refs = []
    for rank in range(world_size):
        manifest = make_partition(
            cache_root,
            rank=rank,
            world_size=world_size,
            functions=(functions or {}).get(rank, FUNCTIONS),
            environment=elsewhere.get(rank, environment),
            created=created,
        )
        launch_key = key_of({"launch": LAUNCH_KEY, **environment})
        refs.append(store.publish_partition(launch_key, change(manifest), cache_root).ref)
    record = make_record(tuple(refs), environment=environment, elsewhere=elsewhere, created=created)
    store.commit_launch(record)
    return record


def tree(root: Path) -> dict[str, bytes]:
    """Every file below ``root``, what a cache directory keeps about itself apart."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and not {".locks", ".index", ".signers"} & set(path.parts)
    }


def stored(store_root: Path, prefix: str) -> list[Path]:
    """Every file of a store below one of its directories."""
    return sorted(path for path in (store_root / prefix).rglob("*") if path.is_file())


def blob_path(store_root: Path, data: bytes) -> Path:
    sha256 = digest_bytes(data).sha256
    return store_root / "cas" / "sha256" / sha256[:2] / sha256


def overwrite(path: Path, data: bytes) -> None:
    """Damage a file of the store, which is read-only on purpose."""
    path.chmod(0o600)
    path.write_bytes(data)


def save_key_pair(signer: Signer, directory: Path) -> tuple[Path, Path]:
    """Write ``<name>.pem`` and ``<name>.pub.pem``; the private key's path comes first."""
    private_path, public_path = directory / f"{signer.name}.pem", directory / f"{signer.name}.pub.pem"
    save_private_key(signer, private_path)
    save_public_key(signer.public_key, public_path)
    return private_path, public_path
