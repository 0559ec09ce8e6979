"""What a fetch did: plain, picklable values."""

from __future__ import annotations

from dataclasses import dataclass

from warmrank.cache_store.backends.backend import NewFile
from warmrank.cache_store.errors import StoreError
from warmrank.cache_store.records.manifest import CaptureEntry, PartitionRef


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchReport:
    """What became of one partition that was laid out.

    Attributes:
        partition: name of the partition.
        num_files: artifacts in its manifest, all of which now lie in the cache directory.
        bytes_copied: size of those that were not there before.
        num_already_there: artifacts that the cache directory held, verified.
        captures: the capture plan of its manifest.
    """

    partition: str
    num_files: int
    bytes_copied: int
    num_already_there: int
    captures: tuple[CaptureEntry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchFault:
    """A partition of which nothing was laid out, and why."""

    ref: PartitionRef
    error: StoreError


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOutcome:
    """Outcome of fetching several partitions; in the order in which they were asked for.

    Attributes:
        partitions: those laid out.
        faults: the others.
        bytes_read: bytes that came out of the store: of each blob once, whatever the number of its copies.
        bytes_brought: bytes that came from another node.
        copies: one verified private copy of each blob of the partitions that were laid out, read or not.
        seconds: wall time.
    """

    partitions: tuple[FetchReport, ...]
    faults: tuple[FetchFault, ...]
    bytes_read: int
    copies: tuple[NewFile, ...]
    seconds: float
    bytes_brought: int = 0
