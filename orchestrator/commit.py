"""The last stage: every rank's manifest, then, by the driver alone, the launch record."""

from __future__ import annotations

from pathlib import Path

from cache_store.errors import StoreError, UnusableCache
from cache_store.manifest import LaunchRecord, PartitionRef, utc_now
from cache_store.store import Store
from orchestrator.bounded import within
from orchestrator.errors import ranks_text
from orchestrator.identity import identity, launch_key
from orchestrator.stages import Stages
from orchestrator.stores import may_publish
from worker.results import RankPlace


def commit(stages: Stages, store: Store, first: RankPlace, *, is_new: bool) -> str:
    """Publish every rank's partition, then the record of the whole launch.

    Args:
        stages: the launch.
        store: the driver's own access to the store.
        first: rank 0's place, whose environment stands for the launch.
        is_new: some rank ended with an artifact that it did not have before.

    Returns:
        The record's key; empty when nothing was committed, which becomes a problem if something is new.
    """
    config = stages.config
    key = launch_key(config)
    if config.store is not None and not may_publish(config.store.trust):
        if is_new:
            stages.problem(
                "not committed: trust.policy is require, and store.trust.signing_key is not set. Make a key "
                '(docs/store.md) and name it there, or for a store of your own set store.trust.policy: "off"'
            )
        return ""
    with stages.stage("commit"):
        everyone = dict.fromkeys(range(config.ranks), (key,))
        refs: dict[int, PartitionRef | None] = stages.ask_store("commit", "publish", everyone)
        missing = [rank for rank in range(config.ranks) if refs.get(rank) is None]
        if missing:
            stages.problem(f"not committed: {ranks_text(missing)} could not publish to the store")
            return ""
        record = LaunchRecord(
            launch_key=key,
            identity=identity(config),
            world_size=config.ranks,
            environment=first.environment,
            partitions=tuple(ref for ref in refs.values() if ref is not None),
            created=utc_now(),
        )
        try:
            return within(
                lambda: store.commit_launch(record),
                timeout_s=config.timeouts.commit_s,
                setting="timeouts.commit_s",
                where=Path(store.location),
            )
        except UnusableCache:
            raise
        except StoreError as error:
            stages.problem(f"not committed: {error}")
            return ""
