"""What a publish did: plain, picklable values."""

from __future__ import annotations

from dataclasses import dataclass

from warmrank.cache_store.digests import Digest
from warmrank.cache_store.records.manifest import PartitionRef


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobReport:
    """Outcome of adding one file.

    Attributes:
        digest: its digest, which names the blob.
        created: this call added the blob; otherwise it was there.
    """

    digest: Digest
    created: bool


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
