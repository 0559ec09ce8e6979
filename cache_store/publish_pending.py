"""The queue of what waits on a node's disk to be published, because the store was away when a launch ended.

Layout, below a cache directory, mode 0700 and 0600, each file canonical JSON of a model below::

    .queue/rank<rank>of<world size>-<partition key>.partition   {"format":1,"launch_key":...,"manifest":{...}}
    .queue/<sha256 of the file>.launch                          {"format":1,"launch_key":...,"identity":...,
                                                                 "world_size":...,"environment":...,
                                                                 "partitions":[...],"created":...}

A partition waits on its rank's node, a launch on the driver's, which names partitions by key only: the record
is completed with what then stands in the store. Nothing is signed while it waits. A file leaves the queue
once every writable place has it, or when an artifact is lost. Of a rank, and of launches, the newest
`MAX_WAITING` stay.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import model_validator

from warmrank.cache_store.cache_dir.private_files import (
    WRITING,
    digest_private,
    os_errors_are_unusable,
    read_private,
    sweep_debris,
    write_whole,
)
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import Corrupt, StoreError, UnusableCache, is_final
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
MAX_WAITING = 64
_PARTITION = re.compile(r"(rank[0-9]+of[0-9]+)-([0-9a-f]{64})\.partition", re.ASCII)
_LAUNCH = re.compile(r"()([0-9a-f]{64})\.launch", re.ASCII)


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
    """The queue of one cache directory, by file, the oldest first; problems are files of no use."""

    partitions: dict[Path, WaitingPartition]
    launches: dict[Path, WaitingLaunch]
    problems: tuple[str, ...]


def add_partition(cache_root: Path, launch_key: str, manifest: PartitionManifest) -> str:
    """Let a partition wait, replacing an earlier one with its key, which is returned.

    Raises `UnusableCache` where ``cache_root`` cannot be written.
    """
    waiting = WaitingPartition(launch_key=launch_key, manifest=manifest)
    name = f"rank{manifest.rank}of{manifest.world_size}-{waiting.key}.partition"
    _add(cache_root / QUEUE, name, waiting.to_bytes())
    return waiting.key


def add_launch(cache_root: Path, launch: WaitingLaunch) -> None:
    """Let a launch wait for its partitions; raises as `add_partition`."""
    data = launch.to_bytes()
    _add(cache_root / QUEUE, f"{digest_bytes(data).sha256}.launch", data)


def discard_partition(cache_root: Path, key: str) -> None:
    """Forget a partition that was published otherwise; raises as `add_partition`."""
    directory = cache_root / QUEUE
    with os_errors_are_unusable("directory", directory):
        for path in _names(directory, _PARTITION):
            if path.name.endswith(f"-{key}.partition"):
                path.unlink(missing_ok=True)


def pending(cache_root: Path) -> Pending:
    """Read the queue; a file that is not private, or damaged, is a problem and left where it is."""
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


def _add(directory: Path, name: str, data: bytes) -> None:
    with os_errors_are_unusable("directory", directory):
        sweep_debris(directory, WRITING)
        write_whole(directory / name, data)
        for pattern in (_PARTITION, _LAUNCH):
            _trim(directory, pattern)
    logger.info("Queued %s until the store answers", directory / name)


def _trim(directory: Path, pattern: re.Pattern[str]) -> None:
    groups: dict[str, list[Path]] = {}
    for path in _names(directory, pattern):
        match = pattern.fullmatch(path.name)
        groups.setdefault(match[1] if match else "", []).append(path)
    for path in (path for paths in groups.values() for path in paths[:-MAX_WAITING]):
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
    what, data = "queued publish", read_private(path)
    found = parse_document(model, data, what=what, where=str(path))
    named = path.stem.rpartition("-")[2]
    actual = found.key if isinstance(found, WaitingPartition) else digest_bytes(data).sha256
    if named != actual:
        raise Corrupt(what=what, where=str(path), expected=f"what is named {named[:12]}", actual=actual[:12])
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueReport:
    """Outcome of publishing what waited; ``kept`` and ``dropped`` have reasons by what they are of."""

    published: tuple[str, ...]  # keys of partitions that are in the store now
    committed: tuple[str, ...]  # sha256s of launch records, likewise
    kept: dict[str, str]
    dropped: dict[str, str]
    problems: tuple[str, ...]  # files that cannot be used


def publish_pending(store: Store, cache_root: Path) -> QueueReport:
    """Publish what waits, and commit the launches all of whose partitions are in the store by then.

    Partitions of other nodes count too, so the driver's node comes last.
    """
    waiting = pending(cache_root)
    run = _Run(store=store, cache_root=cache_root)
    for path, partition in waiting.partitions.items():
        run.publish(path, partition)
    for path, launch in waiting.launches.items():
        run.commit(path, launch)
    return QueueReport(
        published=tuple(run.published),
        committed=tuple(run.committed),
        kept=run.kept,
        dropped=run.dropped,
        problems=waiting.problems,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """One pass over a queue, with the parts of its report, and keys of partitions that are lost."""

    store: Store
    cache_root: Path
    lost: set[str] = field(default_factory=set)
    published: list[str] = field(default_factory=list)
    committed: list[str] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)

    def publish(self, path: Path, waiting: WaitingPartition) -> None:
        label = f"{waiting.manifest.partition} ({waiting.key[:12]})"
        lost: str | None = None
        with self._kept_otherwise(path, label, self.published) as done:
            try:
                self.store.publish_partition(waiting.launch_key, waiting.manifest, self.cache_root)
            except (Corrupt, UnusableCache):
                lost = _lost_artifact(self.cache_root, waiting.manifest)
                raise
            done.append(waiting.key)
        if lost:
            self._drop(path, label, f"{lost}; the next launch without it compiles it anew")
            self.lost.add(waiting.key)

    def commit(self, path: Path, waiting: WaitingLaunch) -> None:
        label = f"launch {waiting.launch_key[:12]} of {waiting.created}"
        with self._kept_otherwise(path, label, self.committed) as done:
            refs = self.store.standing([awaited.manifest_key for awaited in waiting.partitions])
            missing = [awaited for awaited in waiting.partitions if awaited.manifest_key not in refs]
            ranks = ", ".join(str(item.rank) for item in missing[:8]) + ", ..." * (len(missing) > 8)
            if not missing:
                done.append(self.store.commit_launch(waiting.record(refs)))
            elif self.lost & {awaited.manifest_key for awaited in missing}:
                self._drop(path, label, f"artifacts of ranks {ranks} are lost")
            else:
                remedy = f"publish first on their nodes, or remove {path} if they are lost there"
                self.kept[label] = f"the partitions of ranks {ranks} are not in the store; {remedy}"

    def _drop(self, path: Path, label: str, reason: str) -> None:
        forget(path)
        self.kept.pop(label, None)
        self.dropped[label] = reason
        logger.warning("Forgot %s: %s", path, reason)

    @contextlib.contextmanager
    def _kept_otherwise(self, path: Path, label: str, finished: list[str]) -> Iterator[list[str]]:
        """Note what the body lists as done, or as kept for a refusal, or a place that did not take it."""
        done: list[str] = []
        try:
            yield done
        except StoreError as error:
            if is_final(error):
                raise
            self.kept[label] = str(error)
            return
        if done and self.store.is_behind:
            away = [tier for tier in self.store.tiers if tier.state == "away" and tier.mode != "ro"]
            self.kept[label] = "; ".join(f"{tier.location} is away: {tier.reason}" for tier in away)
        elif done:
            forget(path)
            finished += done


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
