"""`warmrank explain`: what a launch of this config would find, and what stands against a hit.

Builds no model and imports neither torch nor Ray; guards on the model, inputs and runtime state stay open.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from warmrank.cache_store.cache_dir.local import find_file, is_companion_name
from warmrank.cache_store.errors import NoStoreYet, StoreError, StoreUnavailable
from warmrank.cache_store.records.manifest import ArtifactEntry, LaunchRecord, PartitionManifest, RequestEntry
from warmrank.cache_store.seed import pick_launch
from warmrank.cache_store.store import Store
from warmrank.cache_store.text import nearest
from warmrank.orchestrator.config.models import identity, launch_key
from warmrank.orchestrator.config.reading import Config
from warmrank.orchestrator.inspect.store_contents import (
    OtherRanks,
    cached_files,
    nearest_record,
    num_artifacts,
    open_if_there,
    other_ranks,
    read_manifests,
    record_changes,
)
from warmrank.orchestrator.text import count_text, time_text
from warmrank.worker.keys.request import environment

logger = logging.getLogger(__name__)

Outlook = Literal["load", "adopt", "compile"]

GUARDS_NOTE = (
    "guards on the model's source, structure, inputs and runtime state are checked by a launch, on every rank"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordView:
    """One record of this launch in the store."""

    created: str  # ISO 8601, UTC
    world_size: int
    chosen: bool  # a launch here would take this one
    changes: tuple[str, ...]  # components that differ, from the nearest stored environment to here
    others: tuple[OtherRanks, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionView:
    """Stored artifacts of one cached function, over all ranks."""

    function: str
    num_artifacts: int  # distinct ones
    num_files: int  # these and the distinct files beside them, such as compiled kernels
    size_bytes: int  # of the files
    num_on_this_node: int  # of the files, those in this node's cache directory already
    requests: tuple[tuple[RequestEntry, tuple[int, ...]], ...]  # distinct ones, each with its ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The findings for a launch here."""

    name: str
    launch_key: str
    identity: dict[str, str]  # the named components behind the key
    environment: dict[str, str]
    world_size: int
    store: str  # empty if the config names none
    cache_dir: str
    outlook: Outlook
    verdict: str  # the outlook in one line, and why
    records: tuple[RecordView, ...]  # under the launch key, newest first
    functions: tuple[FunctionView, ...]  # of the record that would be taken, else of the nearest
    cached: dict[str, int]  # directories of the cache directory, of any launch: number of artifacts
    nearest_launch: tuple[str, ...]  # where the store holds other launches only: how the nearest differs
    problems: tuple[str, ...]
    note: str = GUARDS_NOTE


def explain_if_away(config: Config) -> Explanation:
    """Explain a launch, also with its store away; raises `StoreUnavailable` if a required place is away."""
    try:
        return explain(config, open_if_there(config))
    except StoreUnavailable as error:
        if error.required:
            raise
        return explain(config, None, away=str(error))


def explain(
    config: Config, store: Store | None, here: Mapping[str, str] | None = None, *, away: str = ""
) -> Explanation:
    """Say what a launch of this config would find here, by default in this machine's environment.

    ``away`` says why the store cannot be used now; empty if it can, or there is none.
    """
    here = environment() if here is None else here
    asked, key = identity(config), launch_key(config)
    records = store.launches(key) if store else ()
    chosen = pick_launch(records, environment=here, world_size=config.ranks)
    shown = chosen or nearest_record(records, here)
    problems: list[str] = []
    manifests = (
        [manifest for _, manifest in read_manifests(store, shown, problems)] if store and shown else []
    )
    near = None
    if store and not records:
        near = nearest(asked, ((record.launch_key, record.identity) for record in store.launches()))
    outlook: Outlook = "compile"
    verdict = f"compile, unless the cache holds it: a launch goes on without the store: {away}"
    if not away:
        outlook, verdict = judge(config, records, chosen, here, has_store=store is not None)
    root = config.cache_dir
    cached = Counter(path.parent.relative_to(root).as_posix() for path in cached_files(root))
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
        functions=_functions(config, manifests),
        cached=dict(cached),
        nearest_launch=tuple(map(str, near.changes)) if near else (),
        problems=tuple(dict.fromkeys((*(store.problems if store else ()), *problems))),
    )


def _functions(config: Config, manifests: Sequence[PartitionManifest]) -> tuple[FunctionView, ...]:
    stored: dict[str, list[ArtifactEntry]] = {}
    requests: dict[str, dict[bytes, tuple[RequestEntry, list[int]]]] = {}
    for manifest in manifests:
        for entry in manifest.artifacts:
            if entry.scope == "rank":
                stored.setdefault(entry.function, []).append(entry)
        for asked in manifest.requests:
            alike = requests.setdefault(asked.function, {}).setdefault(asked.to_bytes(), (asked, []))
            alike[1].append(manifest.rank)
    views = []
    for name, entries in stored.items():
        distinct = {entry.sha256: entry for entry in entries}
        view = FunctionView(
            function=name,
            num_artifacts=num_artifacts(distinct.values()),
            num_files=len(distinct),
            size_bytes=sum(entry.size_bytes for entry in distinct.values()),
            num_on_this_node=len({entry.sha256 for entry in entries if _is_here(config, entry)}),
            requests=tuple((asked, tuple(ranks)) for asked, ranks in requests.get(name, {}).values()),
        )
        views.append(view)
    return tuple(views)


def _is_here(config: Config, entry: ArtifactEntry) -> bool:
    try:
        path = config.cache_dir / entry.path
        if is_companion_name(path.name):
            return find_file(path.parent, entry.digest, beside=path.name) is not None
        return find_file(path.parent, entry.digest) is not None
    except StoreError as error:
        # A launch refuses such a file too; `warmrank store verify` lists them.
        logger.warning("%s", error)
        return False


def judge(
    config: Config,
    records: Sequence[LaunchRecord],
    chosen: LaunchRecord | None,
    here: Mapping[str, str],
    *,
    has_store: bool,
) -> tuple[Outlook, str]:
    """The ranks' next action, and the reason, in one line that begins with the action."""
    if config.store is None:
        why = "no store is configured: ranks load what their own cache directory holds, or compile"
        return "compile", f"compile: {why}"
    if chosen and chosen.world_size == config.ranks:
        num_here = len(chosen.made_in(here))
        of = "" if num_here == chosen.world_size else f"the {num_here} in this environment of "
        return "load", (
            "load, if the model's code is unchanged: a launch here loads what "
            f"{of}{count_text(chosen.world_size, 'rank')} stored at {time_text(chosen.created)}"
        )
    if chosen:
        return "adopt", (
            f"adopt: stored by {count_text(chosen.world_size, 'rank')}, launched with {config.ranks}: "
            "ranks adopt what their guards allow, and compile the rest"
        )
    if not has_store:
        return "compile", (
            f"compile, unless the cache holds it: {NoStoreYet(what='store', where=config.store.location)}; "
            f"relative paths are read from {Path.cwd()}"
        )
    near = nearest_record(records, here)
    if near is None:
        why = "this launch is not in the store: a launch here compiles, unless its cache holds it"
        return "compile", f"compile: {why}"
    changes = "; ".join(record_changes(near, here))
    return "compile", f"compile: stored for another environment only: {changes}"
