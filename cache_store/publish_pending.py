"""Publishing what waited on a node's disk while the store was away.

Invariants: a file of the queue goes only after what it asks for is done in every writable place of the store,
or when that can never be done, because an artifact is lost; whatever else stands in the way is a reason to
keep it. To be interrupted is harmless: what was published is found there the next time.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from warmrank.cache_store.errors import Corrupt, StoreError, UnusableCache, is_final
from warmrank.cache_store.node.private_files import digest_private
from warmrank.cache_store.publishing.publish_queue import (
    AwaitedPartition,
    WaitingLaunch,
    WaitingPartition,
    forget,
    pending,
)
from warmrank.cache_store.records.manifest import PartitionManifest
from warmrank.cache_store.store import Store

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueReport:
    """Outcome of publishing what waited.

    Attributes:
        published: keys of partitions that are in the store now, and wait no more.
        committed: names of launch records, by their sha256, likewise.
        kept: what still waits, by what it is, with the reason.
        dropped: what waits no more although it was not published, by what it is, with the reason.
        problems: files that cannot be used, one line each.
    """

    published: tuple[str, ...]
    committed: tuple[str, ...]
    kept: dict[str, str]
    dropped: dict[str, str]
    problems: tuple[str, ...]


def publish_pending(store: Store, cache_root: Path) -> QueueReport:
    """Publish what waits, and commit the launches all of whose partitions are in the store by then.

    Partitions of other nodes count too, so the driver's node comes last.

    Raises:
        UnusableCache: the directory cannot be read or written.
        StoreUnavailable: a required place of the store is away.
    """
    waiting = pending(cache_root)
    run = _Run(store)
    for path, partition in waiting.partitions.items():
        run.publish(path, partition, cache_root)
    for path, launch in waiting.launches.items():
        run.commit(path, launch)
    return QueueReport(
        published=tuple(run.published),
        committed=tuple(run.committed),
        kept=run.kept,
        dropped=run.dropped,
        problems=waiting.problems,
    )


class _Run:
    """One pass over a queue; the attributes are those of its report."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lost: set[str] = set()
        self.published: list[str] = []
        self.committed: list[str] = []
        self.kept: dict[str, str] = {}
        self.dropped: dict[str, str] = {}

    def publish(self, path: Path, waiting: WaitingPartition, cache_root: Path) -> None:
        label = f"{waiting.manifest.partition} ({waiting.key[:12]})"
        lost: str | None = None
        with self._kept_otherwise(label) as done:
            try:
                self._store.publish_partition(waiting.launch_key, waiting.manifest, cache_root)
            except (Corrupt, UnusableCache):
                lost = _lost_artifact(cache_root, waiting.manifest)
                raise
            done.append(waiting.key)
        if done:
            forget(path)
            self.published += done
        elif lost:
            self._drop(path, label, f"{lost}; the next launch without it compiles it anew")
            self._lost.add(waiting.key)

    def commit(self, path: Path, waiting: WaitingLaunch) -> None:
        label = f"launch {waiting.launch_key[:12]} of {waiting.created}"
        with self._kept_otherwise(label) as done:
            refs = self._store.standing([awaited.manifest_key for awaited in waiting.partitions])
            missing = [awaited for awaited in waiting.partitions if awaited.manifest_key not in refs]
            if not missing:
                done.append(self._store.commit_launch(waiting.record(refs)))
            elif self._lost & {awaited.manifest_key for awaited in missing}:
                self._drop(path, label, f"artifacts of {_ranks(missing)} are lost")
            else:
                remedy = f"publish first on their nodes, or remove {path} if they are lost there"
                self.kept[label] = f"the partitions of {_ranks(missing)} are not in the store; {remedy}"
        if done:
            forget(path)
            self.committed += done

    def _drop(self, path: Path, label: str, reason: str) -> None:
        forget(path)
        self.kept.pop(label, None)
        self.dropped[label] = reason
        logger.warning("Forgot %s: %s", path, reason)

    @contextlib.contextmanager
    def _kept_otherwise(self, label: str) -> Iterator[list[str]]:
        """What the body lists is done; a refusal, or a place that did not take it, is why it is kept."""
        store, done = self._store, list[str]()
        try:
            yield done
        except StoreError as error:
            if is_final(error):
                raise
            done.clear()
            self.kept[label] = str(error)
        if done and store.is_behind:
            done.clear()
            away = [tier for tier in store.tiers if tier.state == "away" and tier.mode != "ro"]
            self.kept[label] = "; ".join(f"{tier.location} is away: {tier.reason}" for tier in away)


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


def _ranks(awaited: list[AwaitedPartition]) -> str:
    ranks = ", ".join(str(item.rank) for item in awaited[:8])
    return f"ranks {ranks}{', ...' if len(awaited) > 8 else ''}"
