"""What waits on a node's disk to be published, because the store was away when a launch ended.

Layout, below a cache directory, mode 0700 and 0600, each file canonical JSON of a model below::

    .queue/rank<rank>of<world size>-<partition key>.partition   {"format":1,"launch_key":...,"manifest":{...}}
    .queue/<sha256 of the file>.launch                          {"format":1,"launch_key":...,"identity":...,
                                                                 "world_size":...,"environment":...,
                                                                 "partitions":[...],"created":...}

A partition waits on its rank's node, a launch on the driver's. A launch names its partitions' keys only: the
record is completed with what then stands in the store.

Invariants: a file appears whole or not at all and is private, because it will be signed when it is
published; nothing is signed while it waits. Of a rank, and of launches, the newest `MAX_WAITING` are kept.
Publishing again what was published is harmless, so a file goes only after what it asks for is done.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeVar

from pydantic import model_validator

from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import Corrupt, StoreError
from warmrank.cache_store.node.private_files import (
    create_private,
    make_private_directories,
    os_errors_are_unusable,
    read_private,
    sweep_debris,
    sync_directory,
    temporary_name,
)
from warmrank.cache_store.parsing import parse_document
from warmrank.cache_store.records.fields import (
    MAX_DOCUMENT_BYTES,
    Count,
    Document,
    PartitionName,
    Sha256,
    Utc,
    WorldSize,
)
from warmrank.cache_store.records.manifest import (
    Environments,
    LaunchRecord,
    PartitionManifest,
    PartitionRef,
    partition_key,
)

logger = logging.getLogger(__name__)

QUEUE = ".queue"
MAX_WAITING = 64
FORMAT: Final = 1
_TEMPORARY = ".tmp-"
_PARTITION = re.compile(r"(rank[0-9]+of[0-9]+)-([0-9a-f]{64})\.partition", re.ASCII)
_LAUNCH = re.compile(r"()([0-9a-f]{64})\.launch", re.ASCII)


class WaitingPartition(Document):
    """A rank's partition, whose artifacts lie in the cache directory."""

    format: Literal[1] = FORMAT
    launch_key: Sha256
    manifest: PartitionManifest

    @property
    def key(self) -> str:
        """The partition's key."""
        return partition_key(self.launch_key, self.manifest)


class AwaitedPartition(Document):
    """A partition that a launch will name once it is in the store."""

    partition: PartitionName
    rank: Count
    manifest_key: Sha256


class WaitingLaunch(Environments):
    """A launch record without the digests of its manifests."""

    format: Literal[1] = FORMAT
    launch_key: Sha256
    identity: dict[str, str]
    world_size: WorldSize
    partitions: tuple[AwaitedPartition, ...]
    created: Utc

    @model_validator(mode="after")
    def _check(self) -> WaitingLaunch:
        if sorted(awaited.rank for awaited in self.partitions) != list(range(self.world_size)):
            raise ValueError(f"the partitions are not those of ranks 0..{self.world_size - 1}")
        return self

    def record(self, refs: Mapping[str, PartitionRef]) -> LaunchRecord:
        """The record, with what stands in the store under each manifest's key."""
        return LaunchRecord(
            launch_key=self.launch_key,
            identity=self.identity,
            world_size=self.world_size,
            environment=self.environment,
            others=self.others,
            partitions=tuple(refs[awaited.manifest_key] for awaited in self.partitions),
            created=self.created,
        )


W = TypeVar("W", WaitingPartition, WaitingLaunch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """What waits in one cache directory, the oldest first.

    Attributes:
        partitions: by the path of their files.
        launches: by the path of their files.
        problems: files that cannot be used, one line each.
    """

    partitions: dict[Path, WaitingPartition]
    launches: dict[Path, WaitingLaunch]
    problems: tuple[str, ...]


def add_partition(cache_root: Path, launch_key: str, manifest: PartitionManifest) -> str:
    """Let a partition wait; an earlier one with its key is replaced.

    Returns:
        The partition's key.

    Raises:
        UnusableCache: ``cache_root`` cannot be written.
    """
    waiting = WaitingPartition(launch_key=launch_key, manifest=manifest)
    name = f"rank{manifest.rank}of{manifest.world_size}-{waiting.key}.partition"
    _add(cache_root, name, waiting.to_bytes())
    return waiting.key


def add_launch(cache_root: Path, launch: WaitingLaunch) -> None:
    """Let a launch wait for its partitions; raises as `add_partition`."""
    data = launch.to_bytes()
    _add(cache_root, f"{digest_bytes(data).sha256}.launch", data)


def discard_partition(cache_root: Path, key: str) -> None:
    """Forget a partition that was published otherwise; raises as `add_partition`."""
    directory = cache_root / QUEUE
    with os_errors_are_unusable("directory", directory):
        for path in _names(directory, _PARTITION):
            if path.name.endswith(f"-{key}.partition"):
                path.unlink(missing_ok=True)


def pending(cache_root: Path) -> Pending:
    """What waits; a file that is not private, or damaged, is a problem and left where it is.

    Raises:
        UnusableCache: the directory cannot be read.
    """
    directory = cache_root / QUEUE
    problems: list[str] = []
    with os_errors_are_unusable("directory", directory):
        partitions, launches = _names(directory, _PARTITION), _names(directory, _LAUNCH)
    return Pending(
        partitions=_read_all(WaitingPartition, partitions, problems),
        launches=_read_all(WaitingLaunch, launches, problems),
        problems=tuple(problems),
    )


def forget(path: Path) -> None:
    """Remove a file that `pending` named; raises as `add_partition`."""
    with os_errors_are_unusable("file", path):
        path.unlink(missing_ok=True)


def _add(cache_root: Path, name: str, data: bytes) -> None:
    directory = cache_root / QUEUE
    temporary = directory / f"{_TEMPORARY}{temporary_name()}"
    with os_errors_are_unusable("directory", directory):
        make_private_directories(directory)
        sweep_debris(directory, _TEMPORARY)
        try:
            with create_private(temporary) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(directory / name)
        finally:
            temporary.unlink(missing_ok=True)
        sync_directory(directory)
        _trim(directory)
    logger.info("Queued %s until the store answers", directory / name)


def _trim(directory: Path) -> None:
    groups: dict[str, list[Path]] = {}
    for pattern in (_PARTITION, _LAUNCH):
        for path in _names(directory, pattern):
            match = pattern.fullmatch(path.name)
            groups.setdefault(match[1] if match else "", []).append(path)
    for paths in groups.values():
        for path in paths[:-MAX_WAITING]:
            path.unlink(missing_ok=True)
            logger.warning("Forgot %s: the newest %d wait", path, MAX_WAITING)


def _names(directory: Path, pattern: re.Pattern[str]) -> list[Path]:
    """Files of one kind, the oldest first; none where there is no directory. Raises ``OSError``."""
    found: list[tuple[int, str, Path]] = []
    with contextlib.suppress(FileNotFoundError):
        for path in directory.iterdir():
            if pattern.fullmatch(path.name):
                with contextlib.suppress(FileNotFoundError):  # another process was faster
                    found.append((path.lstat().st_mtime_ns, path.name, path))
    return [path for _, _, path in sorted(found)]


def _read_all(model: type[W], paths: list[Path], problems: list[str]) -> dict[Path, W]:
    found: dict[Path, W] = {}
    for path in paths:
        try:
            found[path] = _read(model, path)
        except StoreError as error:
            problems.append(str(error))
    return found


def _read(model: type[W], path: Path) -> W:
    what = "queued publish"
    data = read_private(path)
    if len(data) > MAX_DOCUMENT_BYTES:
        expected = f"at most {MAX_DOCUMENT_BYTES} bytes"
        raise Corrupt(what=what, where=str(path), expected=expected, actual=f"{len(data)} bytes")
    found = parse_document(model, data, supported_format=FORMAT, what=what, where=str(path))
    named = path.stem.rpartition("-")[2]
    actual = found.key if isinstance(found, WaitingPartition) else digest_bytes(data).sha256
    if named != actual:
        raise Corrupt(what=what, where=str(path), expected=f"what is named {named[:12]}", actual=actual[:12])
    return found
