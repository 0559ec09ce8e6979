"""What launches a store holds, as plain values; nothing here builds a model, or imports torch or Ray."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from warmrank.cache_store.records.launches import StoredLaunch

from warmrank.cache_store.errors import StoreError
from warmrank.cache_store.records.manifest import PartitionManifest, PartitionRef
from warmrank.cache_store.store import Store
from warmrank.orchestrator.config.reading import Config
from warmrank.orchestrator.launch.identity import launch_key
from warmrank.orchestrator.launch.outlook import OtherRanks, other_ranks, record_changes
from warmrank.orchestrator.look.store_contents import num_artifacts
from warmrank.worker.keys.environment import environment


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLine:
    """One partition of a launch, in short."""

    partition: str
    rank: int
    key: str
    num_artifacts: int
    num_files: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchLine:
    """One launch record of the store.

    Attributes:
        launch_key: its key; several records may have the same.
        record: the sha256 that names the record among those of its key.
        pinned: no evict takes it.
        last_used: ISO 8601, UTC, to about a day; empty where no use was noted.
        of_config: it is the launch of the config that was named.
        created: ISO 8601, UTC.
        what: entrypoint or script.
        identity: named components of what was launched.
        world_size: number of ranks.
        functions: names of the cached functions.
        num_artifacts: distinct artifacts.
        num_files: these, the distinct files beside them, and node artifacts.
        size_bytes: size of the files.
        num_node_files: how many of them are node artifacts.
        changes: components that differ here from the nearest environment, such as ``torch 2.13.0 -> 2.13.1``.
        others: ranks of other environments.
        partitions: every rank's partition.
    """

    launch_key: str
    record: str
    pinned: bool
    last_used: str
    of_config: bool
    created: str
    what: str
    identity: dict[str, str]
    world_size: int
    functions: tuple[str, ...]
    num_artifacts: int
    num_files: int
    size_bytes: int
    changes: tuple[str, ...]
    others: tuple[OtherRanks, ...]
    partitions: tuple[PartitionLine, ...]
    num_node_files: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What is in a store.

    Attributes:
        store: its location.
        launches: every launch, newest first.
        problems: what could not be read, one line each.
    """

    store: str
    launches: tuple[LaunchLine, ...]
    problems: tuple[str, ...]


def list_store(store: Store, config: Config | None = None) -> Listing:
    """Every launch in the store; with a config, its own launches are marked.

    Raises:
        StoreError: the store cannot be listed.
    """
    wanted = launch_key(config) if config else ""
    problems: list[str] = []
    pinned = {pin.record for pin in store.pins()}
    uses = store.last_uses()
    lines = tuple(
        _launch_line(
            store,
            stored,
            problems,
            of_config=stored.record.launch_key == wanted,
            pinned=stored.name in pinned,
            last_used=uses.get(stored.name),
        )
        for stored in store.stored_launches()
    )
    return Listing(store=store.location, launches=lines, problems=(*store.problems, *problems))


def _launch_line(
    store: Store,
    stored: StoredLaunch,
    problems: list[str],
    *,
    of_config: bool,
    pinned: bool,
    last_used: datetime | None,
) -> LaunchLine:
    record = stored.record
    found: list[tuple[PartitionRef, PartitionManifest]] = []
    for ref in sorted(record.partitions, key=lambda ref: ref.rank):
        try:
            found.append((ref, store.manifest(ref.manifest_key, expected_sha256=ref.manifest_sha256)))
        except StoreError as error:
            problems.append(str(error))
    distinct = {entry.sha256: entry for _, manifest in found for entry in manifest.artifacts}
    return LaunchLine(
        launch_key=record.launch_key,
        record=stored.name.rpartition("/")[2],
        pinned=pinned,
        last_used=last_used.isoformat(timespec="seconds") if last_used else "",
        of_config=of_config,
        created=record.created,
        what=what_is_launched(record.identity),
        identity=record.identity,
        world_size=record.world_size,
        functions=tuple(sorted({entry.function for entry in distinct.values() if entry.scope == "rank"})),
        num_artifacts=num_artifacts(distinct.values()),
        num_files=len(distinct),
        num_node_files=sum(entry.scope == "node" for entry in distinct.values()),
        size_bytes=sum(entry.size_bytes for entry in distinct.values()),
        changes=record_changes(record, environment()),
        others=other_ranks(record, environment()),
        partitions=tuple(
            PartitionLine(
                partition=ref.partition,
                rank=ref.rank,
                key=ref.manifest_key,
                num_artifacts=num_artifacts(manifest.artifacts),
                num_files=len(manifest.artifacts),
                size_bytes=sum(entry.size_bytes for entry in manifest.artifacts),
            )
            for ref, manifest in found
        ),
    )


def what_is_launched(identity: dict[str, str]) -> str:
    """The entrypoint or script of a launch."""
    return identity.get("entrypoint") or identity.get("script") or "(unnamed)"
