"""Publishing what waited on a node's disk while the store was away.

Invariants: a file of the queue goes only after what it asks for is done in every writable place of the store;
whatever stands in the way is a reason to keep it. To be interrupted is harmless: what was published is found
there the next time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from cache_store.errors import StoreError, is_final
from cache_store.publishing.publish_queue import (
    AwaitedPartition,
    WaitingLaunch,
    WaitingPartition,
    forget,
    pending,
)
from cache_store.store import Store

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueReport:
    """Outcome of publishing what waited.

    Attributes:
        published: keys of partitions that are in the store now, and wait no more.
        committed: names of launch records, by their sha256, likewise.
        kept: what still waits, by what it is, with the reason.
        problems: files that cannot be used, one line each.
    """

    published: tuple[str, ...]
    committed: tuple[str, ...]
    kept: dict[str, str]
    problems: tuple[str, ...]


def publish_pending(store: Store, cache_root: Path) -> QueueReport:
    """Publish what waits, and commit the launches all of whose partitions are in the store by then.

    Partitions of other nodes count too, so the driver's node comes last.

    Raises:
        UnusableCache: the directory cannot be read or written.
        StoreUnavailable: a required place of the store is away.
    """
    waiting = pending(cache_root)
    kept: dict[str, str] = {}
    published = _publish(store, cache_root, waiting.partitions, kept)
    committed = _commit(store, waiting.launches, kept)
    return QueueReport(
        published=tuple(published), committed=tuple(committed), kept=kept, problems=waiting.problems
    )


def _publish(
    store: Store, cache_root: Path, partitions: Mapping[Path, WaitingPartition], kept: dict[str, str]
) -> list[str]:
    published: list[str] = []
    for path, waiting in partitions.items():
        with _kept_otherwise(store, f"{waiting.manifest.partition} ({waiting.key[:12]})", kept) as done:
            store.publish_partition(waiting.launch_key, waiting.manifest, cache_root)
            done.append(path)
        if done:
            forget(path)
            published.append(waiting.key)
    return published


def _commit(store: Store, launches: Mapping[Path, WaitingLaunch], kept: dict[str, str]) -> list[str]:
    committed: list[str] = []
    for path, waiting in launches.items():
        label = f"launch {waiting.launch_key[:12]} of {waiting.created}"
        with _kept_otherwise(store, label, kept) as done:
            refs = store.standing([awaited.manifest_key for awaited in waiting.partitions])
            if missing := [awaited for awaited in waiting.partitions if awaited.manifest_key not in refs]:
                kept[label] = _missing(missing)
            else:
                done.append(store.commit_launch(waiting.record(refs)))
        if done:
            forget(path)
            committed += done
    return committed


@contextlib.contextmanager
def _kept_otherwise(store: Store, label: str, kept: dict[str, str]) -> Iterator[list[T]]:
    """What the body lists is done; a refusal, or a place that did not take it, is the reason to keep it."""
    done: list[T] = []
    try:
        yield done
    except StoreError as error:
        if is_final(error):
            raise
        done.clear()
        kept[label] = str(error)
    if done and store.is_behind:
        done.clear()
        away = [tier for tier in store.tiers if tier.state == "away" and tier.mode != "ro"]
        kept[label] = "; ".join(f"{tier.location} is away: {tier.reason}" for tier in away)


def _missing(awaited: list[AwaitedPartition]) -> str:
    ranks = ", ".join(str(item.rank) for item in awaited[:8])
    more = ", ..." if len(awaited) > 8 else ""
    return f"the partitions of ranks {ranks}{more} are not in the store; publish first on their nodes"
