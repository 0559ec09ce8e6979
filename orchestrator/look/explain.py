"""`warmrank explain`: what a launch of this config would find, and what stands against a hit.

Builds no model and imports neither torch nor Ray, so what only a rank can know is left open, and said to be:
guards on the model's source, structure, inputs and runtime state are checked by a launch.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from warmrank.cache_store.cache_dir.local import find_companion, find_variant, is_companion_name
from warmrank.cache_store.errors import StoreError, StoreUnavailable
from warmrank.cache_store.keys import nearest
from warmrank.cache_store.records.manifest import ArtifactEntry, LaunchRecord, PartitionManifest
from warmrank.cache_store.seed import pick_launch
from warmrank.cache_store.store import Store
from warmrank.orchestrator.config.reading import Config
from warmrank.orchestrator.launch.identity import identity, launch_key
from warmrank.orchestrator.launch.outlook import (
    OtherRanks,
    Outlook,
    changes_of,
    judge,
    judge_away,
    nearest_record,
    other_ranks,
    record_changes,
)
from warmrank.orchestrator.look.store_contents import StateView, num_artifacts, open_if_there, states_of
from warmrank.orchestrator.look.verify import cached_files
from warmrank.worker.keys.environment import environment

logger = logging.getLogger(__name__)

GUARDS_NOTE = (
    "guards on the model's source, structure, inputs and runtime state are checked by a launch, on every rank"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordView:
    """One record of this launch in the store.

    Attributes:
        created: ISO 8601, UTC.
        world_size: number of ranks.
        chosen: a launch here would take this one.
        changes: components that differ, from the nearest environment stored to here; empty when one fits.
        others: its ranks of other environments.
    """

    created: str
    world_size: int
    chosen: bool
    changes: tuple[str, ...]
    others: tuple[OtherRanks, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestView:
    """One request that is stored for a function.

    Attributes:
        key: its key.
        ranks: ranks that asked for it.
        components: the named components behind the key.
        changes: of these, components of the environment that differ here.
    """

    key: str
    ranks: tuple[int, ...]
    components: dict[str, str]
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionView:
    """What is stored for one cached function.

    Attributes:
        function: its name.
        num_artifacts: distinct artifacts, over all ranks.
        num_files: these and the distinct files beside them, such as compiled kernels.
        size_bytes: size of the files.
        num_on_this_node: of the files, those in this node's cache directory already.
        requests: the distinct requests.
        runtime_state: the distinct states that were declared for it; empty where there was none.
    """

    function: str
    num_artifacts: int
    num_files: int
    size_bytes: int
    num_on_this_node: int
    requests: tuple[RequestView, ...]
    runtime_state: tuple[StateView, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedView:
    """Artifacts of one function in this node's cache directory, whatever launch they belong to.

    Attributes:
        directory: the function's directory, relative to the cache directory.
        num_artifacts: variants in it.
    """

    directory: str
    num_artifacts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What a launch here would find.

    Attributes:
        name: the config's name.
        launch_key: key of the launch.
        identity: the named components behind it.
        environment: named components of this machine's environment.
        world_size: ranks of the launch.
        store: the store's location; empty when the config names none.
        cache_dir: the cache directory.
        outlook: what the ranks would do, as far as can be said without building the model.
        verdict: the same in one line, and why.
        records: records under the launch key, newest first.
        functions: of the record that would be taken, else of the one that comes nearest.
        cached: what lies in this node's cache directory, of any launch.
        nearest_launch: where the store holds other launches only, what differs from the nearest.
        problems: what could not be read.
        note: what this does not say.
    """

    name: str
    launch_key: str
    identity: dict[str, str]
    environment: dict[str, str]
    world_size: int
    store: str
    cache_dir: str
    outlook: Outlook
    verdict: str
    records: tuple[RecordView, ...]
    functions: tuple[FunctionView, ...]
    cached: tuple[CachedView, ...]
    nearest_launch: tuple[str, ...]
    problems: tuple[str, ...]
    note: str = GUARDS_NOTE


def explain_if_away(config: Config) -> Explanation:
    """Say what a launch of this config would find, also where its store is away: a launch goes on without it.

    Raises:
        StoreUnavailable: a place is away that is required, so that a launch would fail.
        StoreError: there is something else than a store, or a key file is unusable.
    """
    try:
        return explain(config, open_if_there(config))
    except StoreUnavailable as error:
        if error.required:
            raise
        return explain(config, None, away=str(error))


def explain(
    config: Config, store: Store | None, here: Mapping[str, str] | None = None, *, away: str = ""
) -> Explanation:
    """Say what a launch of this config would find here.

    Args:
        config: the launch.
        store: its store, opened; none when there is none.
        here: this machine's environment; none computes it.
        away: why the store cannot be used now, where that is so.

    Raises:
        StoreUnavailable: the store cannot be listed.
    """
    here = environment() if here is None else here
    asked = identity(config)
    key = launch_key(config)
    records = store.launches(key) if store else ()
    chosen = pick_launch(records, environment=here, world_size=config.ranks)
    problems: list[str] = []
    shown = chosen or nearest_record(records, here)
    manifests = _manifests(store, shown, problems) if store and shown else ()
    others = _others(store, asked) if store and not records else ()
    outlook, verdict = (
        judge(config, records, chosen, here, has_store=store is not None) if not away else judge_away(away)
    )
    return Explanation(
        name=config.name,
        launch_key=key,
        identity=asked,
        environment=dict(here),
        world_size=config.ranks,
        store=config.store.location if config.store else "",
        cache_dir=str(config.cache_dir),
        outlook=outlook,
        verdict=verdict,
        records=tuple(
            RecordView(
                created=record.created,
                world_size=record.world_size,
                chosen=record is chosen,
                changes=record_changes(record, here),
                others=other_ranks(record, here),
            )
            for record in records
        ),
        functions=_functions(config, manifests, here),
        cached=_cached(config.cache_dir),
        nearest_launch=others,
        problems=tuple(dict.fromkeys((*(store.problems if store else ()), *problems))),
    )


def _others(store: Store, asked: Mapping[str, str]) -> tuple[str, ...]:
    """What differs from the launch in the store that comes nearest; empty when the store holds none."""
    found = nearest(asked, ((record.launch_key, record.identity) for record in store.launches()))
    return tuple(str(change) for change in found.changes) if found else ()


def _manifests(store: Store, record: LaunchRecord, problems: list[str]) -> tuple[PartitionManifest, ...]:
    found = []
    for ref in sorted(record.partitions, key=lambda ref: ref.rank):
        try:
            found.append(store.manifest(ref.manifest_key, expected_sha256=ref.manifest_sha256))
        except StoreError as error:
            problems.append(str(error))
    return tuple(found)


def _functions(
    config: Config, manifests: Sequence[PartitionManifest], here: Mapping[str, str]
) -> tuple[FunctionView, ...]:
    entries = (entry for manifest in manifests for entry in manifest.artifacts if entry.scope == "rank")
    names = dict.fromkeys(entry.function for entry in entries)
    return tuple(_function(config, name, manifests, here) for name in names)


def _function(
    config: Config, name: str, manifests: Sequence[PartitionManifest], here: Mapping[str, str]
) -> FunctionView:
    every = (entry for manifest in manifests for entry in manifest.artifacts if entry.scope == "rank")
    entries = [entry for entry in every if entry.function == name]
    distinct = {entry.sha256: entry for entry in entries}
    present = {entry.sha256 for entry in entries if _is_here(config, entry)}
    return FunctionView(
        function=name,
        num_artifacts=num_artifacts(distinct.values()),
        num_files=len(distinct),
        size_bytes=sum(entry.size_bytes for entry in distinct.values()),
        num_on_this_node=len(present),
        requests=_requests(name, manifests, here),
        runtime_state=states_of(name, manifests),
    )


def _is_here(config: Config, entry: ArtifactEntry) -> bool:
    try:
        path = config.cache_dir / entry.path
        if is_companion_name(path.name):
            return find_companion(path.parent, path.name, entry.digest) is not None
        return find_variant(path.parent, entry.digest) is not None
    except StoreError as error:
        # A launch refuses such a file too; `warmrank store verify` lists them.
        logger.warning("%s", error)
        return False


def _requests(
    name: str, manifests: Sequence[PartitionManifest], here: Mapping[str, str]
) -> tuple[RequestView, ...]:
    ranks: dict[str, list[int]] = {}
    components: dict[str, dict[str, str]] = {}
    for manifest in manifests:
        for request in manifest.requests:
            if request.function == name:
                ranks.setdefault(request.key, []).append(manifest.rank)
                components[request.key] = request.components
    return tuple(
        RequestView(
            key=key,
            ranks=tuple(ranks[key]),
            components=stored,
            changes=changes_of(_shared(stored, here), _shared(here, stored)),
        )
        for key, stored in components.items()
    )


def _shared(components: Mapping[str, str], other: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in components.items() if name in other}


def _cached(cache_dir: Path) -> tuple[CachedView, ...]:
    counts = Counter(path.parent.relative_to(cache_dir).as_posix() for path in cached_files(cache_dir))
    return tuple(CachedView(directory=name, num_artifacts=count) for name, count in counts.items())
