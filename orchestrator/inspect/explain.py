"""`warmrank explain`: what a launch of this config would find, and what stands against a hit.

Builds no model and imports neither torch nor Ray; guards on the model, inputs and runtime state stay open.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from warmrank.cache_store.cache_dir.local import find_file, is_companion_name
from warmrank.cache_store.errors import NoStoreYet, StoreError, StoreUnavailable
from warmrank.cache_store.records.manifest import ArtifactEntry, LaunchRecord, PartitionManifest, RequestEntry
from warmrank.cache_store.seed import pick_launch
from warmrank.cache_store.store import Store
from warmrank.cache_store.text import count_text, grouped, nearest, time_text
from warmrank.orchestrator.config.models import EntrypointWorkload, identity, launch_key
from warmrank.orchestrator.config.reading import Config
from warmrank.orchestrator.inspect.store_contents import (
    Contents,
    RecordView,
    cached_files,
    contents_of,
    open_if_there,
    read_manifests,
    view_of,
)
from warmrank.worker.keys.request import environment

logger = logging.getLogger(__name__)

Outlook = Literal["load", "adopt", "compile"]

GUARDS_NOTE = (
    "guards on the model's source, structure, inputs and runtime state are checked by a launch, on every rank"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionView:
    """Stored artifacts of one cached function, over all ranks."""

    function: str
    contents: Contents
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
    records: tuple[RecordView, ...]  # under the launch key, newest first; a launch here would take the marked
    functions: tuple[FunctionView, ...]  # of the record that would be taken, else of the nearest
    cached: dict[str, int]  # directories of the cache directory, of any launch: number of artifacts
    nearest_launch: tuple[str, ...]  # where the store holds other launches only: how the nearest differs
    problems: tuple[str, ...]
    note: str = GUARDS_NOTE


def explain_here(config: Config) -> Explanation:
    """Explain a launch, also with its store away; raises `StoreUnavailable` if a required place is away."""
    try:
        return explain(config, open_if_there(config))
    except StoreUnavailable as error:
        if error.required:
            raise
        why = f"compile, unless the cache holds it: a launch goes on without the store: {error}"
        return replace(explain(config, None), outlook="compile", verdict=why)


def explain(config: Config, store: Store | None, here: Mapping[str, str] | None = None) -> Explanation:
    """Say what a launch of this config would find here, by default in this machine's environment."""
    here = environment() if here is None else here
    asked, key, root = identity(config), launch_key(config), config.cache_dir
    records = store.launches(key) if store else ()
    chosen = pick_launch(records, environment=here, world_size=config.ranks)
    views = tuple(view_of(record, here, marked=record is chosen) for record in records)
    near = min(views, key=lambda view: len(view.changes), default=None)
    shown = chosen or next(
        (record for record, view in zip(records, views, strict=True) if view is near), None
    )
    problems: list[str] = []
    manifests = read_manifests(store, shown, problems) if store and shown else []
    other = None
    if store and not records:
        other = nearest(asked, ((record.launch_key, record.identity) for record in store.launches()))
    engines = _other_engines(config, [manifest for _, manifest in manifests])
    outlook, verdict = judge(config, chosen, near, here, engines=engines, has_store=store is not None)
    return Explanation(
        name=config.name,
        launch_key=key,
        identity=asked,
        environment=dict(here),
        world_size=config.ranks,
        store=config.store.location if config.store else "",
        cache_dir=str(root),
        outlook=outlook,
        verdict=verdict,
        records=views,
        functions=_functions(config, [manifest for _, manifest in manifests]),
        cached=dict(Counter(path.parent.relative_to(root).as_posix() for path in cached_files(root))),
        nearest_launch=tuple(map(str, other.changes)) if other else (),
        problems=tuple(dict.fromkeys((*(store.problems if store else ()), *problems))),
    )


def judge(
    config: Config,
    chosen: LaunchRecord | None,
    near: RecordView | None,
    here: Mapping[str, str],
    *,
    engines: Sequence[str],
    has_store: bool,
) -> tuple[Outlook, str]:
    """The ranks' next action, and the reason, in one line that begins with the action."""
    if chosen and engines:
        what = f"what names no engine itself, if its mode allows engine {config.engine}"
        return "compile", f"compile {what}: stored for engine {' and '.join(engines)}"
    if chosen:
        stored = count_text(chosen.world_size, "rank")
        if chosen.world_size != config.ranks:
            why = "ranks adopt what their guards allow, and compile the rest"
            return "adopt", f"adopt: stored by {stored}, launched with {config.ranks}: {why}"
        num_here = len(chosen.made_in(here))
        of = "" if num_here == chosen.world_size else f"the {num_here} in this environment of "
        what = f"loads what {of}{stored} stored at {time_text(chosen.created)}"
        return "load", f"load, if the model's code and its engine are unchanged: a launch here {what}"
    action = "compile"
    if config.store is None:
        why = "no store is configured: ranks load what their own cache directory holds, or compile"
    elif not has_store:
        action = "compile, unless the cache holds it"
        absent = NoStoreYet(what="store", where=config.store.location)
        why = f"{absent}; relative paths are read from {Path.cwd()}"
    elif near:
        why = f"stored for another environment only: {'; '.join(near.changes)}"
    else:
        why = "this launch is not in the store: a launch here compiles, unless its cache holds it"
    return "compile", f"{action}: {why}"


def _other_engines(config: Config, manifests: Sequence[PartitionManifest]) -> list[str]:
    """Engines of what is stored, other than the config's; none where functions or scripts decide."""
    if config.engine == "auto" or not isinstance(config.workload, EntrypointWorkload):
        return []
    asked = (entry.components.get("engine", "") for manifest in manifests for entry in manifest.requests)
    return sorted({engine.partition(" ")[0] for engine in asked} - {config.engine, ""})


def _functions(config: Config, manifests: Sequence[PartitionManifest]) -> tuple[FunctionView, ...]:
    entries = [entry for manifest in manifests for entry in manifest.artifacts if entry.scope == "rank"]
    asked = [(entry, manifest.rank) for manifest in manifests for entry in manifest.requests]
    views = []
    for name, own in grouped((entry.function, entry) for entry in entries).items():
        alike = grouped((entry.to_bytes(), (entry, rank)) for entry, rank in asked if entry.function == name)
        view = FunctionView(
            function=name,
            contents=contents_of(own),
            num_on_this_node=len({entry.sha256 for entry in own if _is_here(config, entry)}),
            requests=tuple((same[0][0], tuple(rank for _, rank in same)) for same in alike.values()),
        )
        views.append(view)
    return tuple(views)


def _is_here(config: Config, entry: ArtifactEntry) -> bool:
    path = config.cache_dir / entry.path
    beside = path.name if is_companion_name(path.name) else ""
    try:
        return find_file(path.parent, entry.digest, beside=beside) is not None
    except StoreError as error:
        # A launch refuses such a file too; `warmrank store verify` lists them.
        logger.warning("%s", error)
        return False
