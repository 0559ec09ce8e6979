"""What publish, fetch and verify did: plain, picklable values."""

from __future__ import annotations

from dataclasses import dataclass

from cache_store.manifest import PartitionRef


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishReport:
    """Outcome of publishing one partition.

    Attributes:
        key: the partition's key.
        ref: what a launch record says about the manifest that stands in the store under ``key``.
        created: this call created the manifest; otherwise one stood there, and it stays.
        num_blobs_new: blobs that this call added.
        bytes_new: their size.
        conflicts: functions for which the standing manifest has other bytes: their compile is not
            deterministic.
    """

    key: str
    ref: PartitionRef
    created: bool
    num_blobs_new: int
    bytes_new: int
    conflicts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchReport:
    """Outcome of fetching one partition.

    Attributes:
        partition: name of the partition.
        num_files: artifacts in its manifest, all of which now lie in the cache directory.
        bytes_copied: bytes that came out of the store.
        num_already_there: artifacts that the cache directory held, verified.
        seconds: wall time, the wait for another fetcher included.
    """

    partition: str
    num_files: int
    bytes_copied: int
    num_already_there: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """Outcome of reading the whole store.

    Attributes:
        num_blobs: blobs read and hashed.
        num_manifests: manifests looked at.
        num_launches: launch records looked at.
        bytes_hashed: size of all blobs read.
        faults: one line each; empty for a whole store.
    """

    num_blobs: int
    num_manifests: int
    num_launches: int
    bytes_hashed: int
    faults: tuple[str, ...]
