"""The queue of what waits on a node's disk to be published, because the store was away when a launch ended.

Layout, below a cache directory, mode 0700 and 0600, each file canonical JSON of a model below::

    .queue/rank<rank>of<world size>-<partition key>.partition   {"format":1,"launch_key":...,"manifest":{...}}
    .queue/<sha256 of the file>.launch                          {"format":1,"launch_key":...,"identity":...,
                                                                 "world_size":...,"environment":...,
                                                                 "partitions":[...],"created":...}

A partition waits on its rank's node, a launch on the driver's, which names partitions by key only: the record
is completed with what then stands in the store. Nothing is signed while it waits. A file leaves the queue
once every writable place has it, or when an artifact is lost. Of a rank, and of launches, the newest
64 stay.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from pydantic import model_validator

from warmrank.cache_store.cache_dir.private_files import (
    digest_private,
    os_errors_are_unusable,
    read_private,
    write_whole,
)
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import Corrupt, StoreError, UnusableCache, outcome_of
from warmrank.cache_store.parsing import parse_document
from warmrank.cache_store.records.manifest import (
    Count,
    Document,
    Environments,
    LaunchRecord,
    PartitionManifest,
    PartitionName,
    PartitionRef,
    Sha256,
    Utc,
    WorldSize,
    partition_key,
)
from warmrank.cache_store.store import Store

logger = logging.getLogger(__name__)
QUEUE = ".queue"
_MAX_WAITING = 64


class WaitingPartition(Document):
    """A rank's partition, whose artifacts lie in the cache directory."""

    format: Literal[1] = 1
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

    format: Literal[1] = 1
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
        fields = {name: value for name, value in self if name not in ("format", "partitions")}
        return LaunchRecord(
            **fields, partitions=tuple(refs[awaited.manifest_key] for awaited in self.partitions)
        )


W = TypeVar("W", WaitingPartition, WaitingLaunch)


class Pending(NamedTuple):
    """The queue of one cache directory, by file, the oldest first; problems are files of no use."""

    partitions: dict[Path, WaitingPartition]
    launches: dict[Path, WaitingLaunch]
    problems: tuple[str, ...]


def add_partition(cache_root: Path, launch_key: str, manifest: PartitionManifest) -> str:
    """Let a partition wait, replacing an earlier one with its key, which is returned.

    Raises `UnusableCache` where ``cache_root`` cannot be written.
    """
    waiting = WaitingPartition(launch_key=launch_key, manifest=manifest)
    of_rank = f"rank{manifest.rank}of{manifest.world_size}-"
    _add(cache_root, f"{of_rank}{waiting.key}.partition", waiting.to_bytes(), like=f"{of_rank}*.partition")
    return waiting.key


def add_launch(cache_root: Path, launch: WaitingLaunch) -> None:
    """Let a launch wait for its partitions; raises as `add_partition`."""
    data = launch.to_bytes()
    _add(cache_root, f"{digest_bytes(data).sha256}.launch", data, like="*.launch")


def _add(cache_root: Path, name: str, data: bytes, *, like: str) -> None:
    """Add a file; of those with such names the newest stay."""
    path = cache_root / QUEUE / name
    with os_errors_are_unusable("directory", path.parent):
        write_whole(path, data)
    for old in _files(cache_root, like)[:-_MAX_WAITING]:
        _forget(old, f"the newest {_MAX_WAITING} wait")
    logger.info("Queued %s until the store answers", path)


def discard_partition(cache_root: Path, key: str) -> None:
    """Forget a partition that was published otherwise; raises as `add_partition`."""
    for path in _files(cache_root, f"*-{key}.partition"):
        _forget(path)


def pending(cache_root: Path) -> Pending:
    """Read the queue; a file that is not private, or damaged, is a problem and left where it is."""
    problems: list[str] = []
    return Pending(
        partitions=_read_all(WaitingPartition, _files(cache_root, "rank*-*.partition"), problems),
        launches=_read_all(WaitingLaunch, _files(cache_root, "*.launch"), problems),
        problems=tuple(problems),
    )


def _forget(path: Path, why: str = "") -> None:
    with os_errors_are_unusable("file", path):
        path.unlink(missing_ok=True)
    if why:
        logger.warning("Forgot %s: %s", path, why)


def _files(cache_root: Path, pattern: str) -> list[Path]:
    """Files of the queue, the oldest first; none where there is no directory."""
    found: list[tuple[int, Path]] = []
    with os_errors_are_unusable("directory", cache_root / QUEUE):
        for path in (cache_root / QUEUE).glob(pattern):
            with contextlib.suppress(FileNotFoundError):  # another process was faster
                found.append((path.lstat().st_mtime_ns, path))
    return [path for _, path in sorted(found)]


def _read_all(model: type[W], paths: list[Path], problems: list[str]) -> dict[Path, W]:
    found: dict[Path, W] = {}
    for path in paths:
        try:
            data = read_private(path)
            one = parse_document(model, data, what="queued publish", where=str(path))
            named = path.stem.rpartition("-")[2]
            actual = one.key if isinstance(one, WaitingPartition) else digest_bytes(data).sha256
            if named != actual:
                expected, actual = f"what is named {named[:12]}", actual[:12]
                raise Corrupt(what="queued publish", where=str(path), expected=expected, actual=actual)
            found[path] = one
        except StoreError as error:
            problems.append(str(error))
    return found


@dataclass(slots=True, kw_only=True)
class QueueReport:
    """Outcome of publishing what waited; ``kept`` and ``dropped`` have reasons by what they are of."""

    published: tuple[str, ...] = ()  # keys of partitions that are in the store now
    committed: tuple[str, ...] = ()  # sha256s of launch records, likewise
    kept: dict[str, str] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()  # files that cannot be used


def publish_pending(store: Store, cache_root: Path) -> QueueReport:
    """Publish what waits, and commit the launches all of whose partitions are in the store by then.

    Partitions of other nodes count too, so the driver's node comes last.
    """
    waiting = pending(cache_root)
    report = QueueReport(problems=waiting.problems)
    lost: set[str] = set()  # keys of partitions that can never be published
    for path, partition in waiting.partitions.items():
        label = f"{partition.manifest.partition} ({partition.key[:12]})"
        publish = partial(store.publish_partition, partition.launch_key, partition.manifest, cache_root)
        outcome = outcome_of(publish)
        is_local = isinstance(outcome, Corrupt | UnusableCache)
        if is_local and (why := _lost_artifact(cache_root, partition.manifest)):
            lost.add(partition.key)
            report.dropped[label] = f"{why}; the next launch without it compiles it anew"
            _forget(path, report.dropped[label])
        elif isinstance(outcome, StoreError):
            report.kept[label] = str(outcome)
        elif _is_done(store, path, label, report):
            report.published += (partition.key,)
    _commit_launches(store, waiting.launches, lost, report)
    return report


def _commit_launches(
    store: Store, launches: Mapping[Path, WaitingLaunch], lost: Collection[str], report: QueueReport
) -> None:
    for path, launch in launches.items():
        label = f"launch {launch.launch_key[:12]} of {launch.created}"
        refs = outcome_of(partial(store.standing, [it.manifest_key for it in launch.partitions]))
        if isinstance(refs, StoreError):
            report.kept[label] = str(refs)
            continue
        missing = [awaited for awaited in launch.partitions if awaited.manifest_key not in refs]
        ranks = ", ".join(str(item.rank) for item in missing[:8]) + ", ..." * (len(missing) > 8)
        if any(awaited.manifest_key in lost for awaited in missing):
            report.dropped[label] = f"artifacts of ranks {ranks} are lost"
            _forget(path, report.dropped[label])
        elif missing:
            remedy = f"publish first on their nodes, or remove {path} if they are lost there"
            report.kept[label] = f"the partitions of ranks {ranks} are not in the store; {remedy}"
        elif isinstance(
            committed := outcome_of(partial(store.commit_launch, launch.record(refs))), StoreError
        ):
            report.kept[label] = str(committed)
        elif _is_done(store, path, label, report):
            report.committed += (committed,)


def _is_done(store: Store, path: Path, label: str, report: QueueReport) -> bool:
    """Take what was published out of the queue, unless a place did not get it."""
    if behind := store.behind:
        report.kept[label] = "; ".join(behind)
        return False
    _forget(path)
    return True


def _lost_artifact(cache_root: Path, manifest: PartitionManifest) -> str | None:
    """Say which artifact cannot come back: it is gone, or holds other bytes. One that cannot be read may."""
    for entry in manifest.artifacts:
        path = entry.local_path(cache_root)
        try:
            if digest_private(path) != entry.digest:
                return f"{path} is not what was compiled"
        except FileNotFoundError:
            return f"{path} is gone"
        except (UnusableCache, OSError) as error:
            logger.debug("Not looked at: %s", error)
    return None
