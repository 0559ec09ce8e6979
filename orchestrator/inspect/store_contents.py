"""A store's contents as plain values: launches, one partition in full, directories of other tools, faults.

Imports neither torch nor Ray but to verify a cache directory, and changes nothing but by a repair. Without a
config nobody is trusted, so signatures go unchecked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from warmrank.cache_store import store as cache_store
from warmrank.cache_store.cache_dir.local import (
    companions,
    holds_what_it_says,
    is_companion_name,
    is_variant_name,
)
from warmrank.cache_store.cache_dir.node_files import kept_files
from warmrank.cache_store.cache_dir.private_files import check_private, digest_private
from warmrank.cache_store.errors import StoreError, StoreUnavailable, os_errors_are_unavailable
from warmrank.cache_store.gc.verify import VerifyReport
from warmrank.cache_store.layout import FORMAT_FILE, TOP_LEVEL
from warmrank.cache_store.parallel import OnProgress
from warmrank.cache_store.records.manifest import (
    OF_ONE_RUN,
    ArtifactEntry,
    LaunchRecord,
    PartitionManifest,
    PartitionRef,
)
from warmrank.cache_store.signing.trust import Trust
from warmrank.cache_store.store import Store
from warmrank.cache_store.text import brief_names, changed_components
from warmrank.orchestrator.config.models import launch_key
from warmrank.orchestrator.config.reading import Config
from warmrank.orchestrator.config.store import is_url, tier_at
from warmrank.orchestrator.errors import BadArgument
from warmrank.orchestrator.signals import leaving_at_once
from warmrank.orchestrator.stores import named_store, open_store, silent_places, tier_spec
from warmrank.worker.keys.request import environment

MIN_KEY_CHARS = 6  # A shorter word is taken for a name, not for the start of a key

_NAMED_BY = ("entrypoint", "script", "name")
"""Components of a launch's identity that people know it by; a config without a workload has its name."""


def open_to_look(config: Config | None, location: Path | str | None, *, with_keyring: bool = False) -> Store:
    """Open the config's store, or the one at ``location``; never create one, nor repair what is read.

    Without a config signatures go unchecked, unless they are checked ``with_keyring``, the user's.

    Raises:
        BadArgument: the config names no store, or neither (or both) was given.
    """
    if (config is None) == (location is None):
        raise BadArgument("expected either a CONFIG or --store PATH, to say which store")
    if config is not None:
        if config.store is None:
            raise BadArgument(
                f"config {config.name} names no store; expected store.path in it, or name one with "
                "--store PATH"
            )
        opened = open_store(config.store, create=False, to_sign=False)
    elif with_keyring:
        opened = open_store(named_store(str(location)), create=False, to_sign=False)
    else:
        specs = [tier_spec(tier_at(str(location)))]
        opened = cache_store.open_store(specs, trust=Trust(policy="off"), create=False)
    opened.repairs = False
    return opened


def open_if_there(config: Config) -> Store | None:
    """The config's store; None if it names none, or the first launch has yet to make it."""
    if config.store is None:
        return None
    try:
        return open_to_look(config, None)
    except StoreUnavailable:
        # To look at a silent place would hang.
        if silent_places(config.store) or not all(can_be_made(tier.path) for tier in config.store.tiers):
            raise
        return None


def can_be_made(location: str) -> bool:
    """True if a launch would make a store there: there is nothing, or only parts of a store."""
    if is_url(location):
        return False  # only the place itself can tell
    path = Path(location)
    with os_errors_are_unavailable("store", path):
        if not path.exists():
            return True
        return path.is_dir() and {entry.name for entry in path.iterdir()} <= TOP_LEVEL - {FORMAT_FILE}


def read_manifests(
    store: Store, record: LaunchRecord, problems: list[str]
) -> list[tuple[PartitionRef, PartitionManifest]]:
    """A record's manifests by rank; those that cannot be read are added to ``problems``."""
    found = []
    for ref in sorted(record.partitions, key=lambda ref: ref.rank):
        try:
            found.append((ref, store.manifest(ref.manifest_key, expected_sha256=ref.manifest_sha256)))
        except StoreError as error:
            problems.append(str(error))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """Distinct files of some partitions."""

    num_artifacts: int  # the other files are companions of one, or the node's
    num_files: int
    size_bytes: int


def contents_of(entries: Iterable[ArtifactEntry]) -> Contents:
    """Count files, each of equal ones once."""
    distinct = {entry.sha256: entry for entry in entries}.values()
    own = [entry.path.rpartition("/")[2] for entry in distinct if entry.scope == "rank"]
    return Contents(
        num_artifacts=sum(not is_companion_name(name) for name in own),
        num_files=len(distinct),
        size_bytes=sum(entry.size_bytes for entry in distinct),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherRanks:
    """Stored ranks that ran in another environment than this one; ``changes`` are from there to here."""

    ranks: tuple[int, ...]
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordView:
    """One launch record of a store."""

    launch_key: str  # several records may have the same
    created: str  # ISO 8601, UTC
    world_size: int
    marked: bool  # it is the one that was asked for
    changes: tuple[str, ...]  # from the nearest environment to here, such as `torch 2.13.0 -> 2.13.1`
    others: tuple[OtherRanks, ...]  # empty where all ranks ran in a single environment


def view_of(record: LaunchRecord, here: Mapping[str, str], *, marked: bool) -> RecordView:
    """A record, seen from this environment."""
    every = [(stored, changes_of(stored, here)) for stored in record.environments]
    others = [
        OtherRanks(ranks=tuple(ref.rank for ref in record.made_in(stored)), changes=changes)
        for stored, changes in every
        if changes and record.others
    ]
    return RecordView(
        launch_key=record.launch_key,
        created=record.created,
        world_size=record.world_size,
        marked=marked,
        changes=min((changes for _, changes in every), key=len),
        others=tuple(others),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """One partition in full, and the launch that it was found through."""

    key: str  # of the manifest
    launch_key: str
    manifest: PartitionManifest
    changes: tuple[str, ...]  # components of the environment that differ here
    others: tuple[str, ...]  # keys of further partitions of that name


def show_partition(store: Store, wanted: str, config: Config | None = None) -> PartitionView:
    """The newest partition of that name, or the one whose key begins so.

    Raises:
        BadArgument: there is none; the message names those that there are.
    """
    records = store.launches(launch_key(config) if config else None)
    pairs = [(record, ref) for record in records for ref in record.partitions]
    matches = [(record, ref) for record, ref in pairs if ref.partition == wanted]
    if not matches and len(wanted) >= MIN_KEY_CHARS:
        matches = [(record, ref) for record, ref in pairs if ref.manifest_key.startswith(wanted)]
        if not matches and (of := [each for each in records if each.launch_key.startswith(wanted)]):
            names = dict.fromkeys(ref.partition for record in of for ref in record.partitions)
            raise BadArgument(
                f"{wanted!r}: that is a launch; its partitions: {brief_names(names, max_names=8)}"
            )
    if not matches:
        there = brief_names(sorted({ref.partition for _, ref in pairs}), max_names=8)
        there = there or f"none, the store holds no launch{' of this config' if config else ''}"
        raise BadArgument(
            f"no partition {wanted!r} in {store.location}; expected a name, or at least {MIN_KEY_CHARS} "
            f"characters of a manifest's key. There are: {there}"
        )
    record, ref = matches[0]
    manifest = store.manifest(ref.manifest_key, expected_sha256=ref.manifest_sha256)
    return PartitionView(
        key=ref.manifest_key,
        launch_key=record.launch_key,
        manifest=manifest,
        changes=changes_of(manifest.environment, environment()),
        others=tuple(dict.fromkeys(o.manifest_key for _, o in matches if o.manifest_key != ref.manifest_key)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLine:
    """One partition of a launch, in short."""

    partition: str
    rank: int
    key: str
    contents: Contents


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchLine:
    """One launch of the store."""

    view: RecordView
    record: str  # sha256 that names the record among those of its key
    pinned: bool
    last_used: str  # ISO 8601, UTC, to about a day; empty if no use was noted
    what: str  # entrypoint or script
    identity: dict[str, str]
    contents: Contents
    partitions: tuple[PartitionLine, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The launches of a store, newest first."""

    store: str
    launches: tuple[LaunchLine, ...]
    problems: tuple[str, ...]  # what could not be read


def list_store(store: Store, config: Config | None = None) -> Listing:
    """List every launch in the store; with a config, mark its own."""
    wanted = launch_key(config) if config else ""
    problems: list[str] = []
    pinned, uses = {pin.record for pin in store.pins()}, store.last_uses()
    lines = []
    for stored in store.newest_launches():
        record, used = stored.record, uses.get(stored.name)
        found = read_manifests(store, record, problems)
        partitions = tuple(
            PartitionLine(
                partition=ref.partition,
                rank=ref.rank,
                key=ref.manifest_key,
                contents=contents_of(manifest.artifacts),
            )
            for ref, manifest in found
        )
        line = LaunchLine(
            view=view_of(record, environment(), marked=record.launch_key == wanted),
            record=stored.name.rpartition("/")[2],
            pinned=stored.name in pinned,
            last_used=used.isoformat(timespec="seconds") if used else "",
            what=next((record.identity[key] for key in _NAMED_BY if key in record.identity), "(unnamed)"),
            identity=record.identity,
            contents=contents_of(entry for _, manifest in found for entry in manifest.artifacts),
            partitions=partitions,
        )
        lines.append(line)
    return Listing(store=store.location, launches=tuple(lines), problems=(*store.problems, *problems))


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryLine:
    """The newest push of one directory of another tool."""

    tool: str
    created: str  # ISO 8601, UTC
    what: str  # of vLLM's entries the model's class, rank and world; else the keys that a user gave
    num_files: int
    size_bytes: int
    components: dict[str, str]  # all that has to be equal for it to come back


def list_directories(store: Store) -> tuple[DirectoryLine, ...]:
    """The directories of other tools in a store, newest first; not the notes of `warmrank exec --nnodes`."""
    found = (stored.listing for stored in store.directories())
    listings = sorted((one for one in found if OF_ONE_RUN not in one.components), key=lambda one: one.created)
    return tuple(
        DirectoryLine(
            tool=one.tool,
            created=one.created,
            what=_keys_of(one.components),
            num_files=len(one.files),
            size_bytes=one.size_bytes,
            components=one.components,
        )
        for one in reversed(listings)
    )


def _keys_of(components: Mapping[str, str]) -> str:
    if model := components.get("model.hf_config.architectures"):
        whose = f"{components['rank']} of {components['world']}, {components['device']}"
        return model.strip('[]"') + f", {whose}"
    own = {
        name.removeprefix("key "): value
        for name, value in components.items()
        if name.startswith("key ") and value != "none"
    }
    machine = environment()
    return ", ".join(f"{name}={value}" for name, value in own.items() if name not in machine)


def changes_of(stored: Mapping[str, str], here: Mapping[str, str]) -> tuple[str, ...]:
    """Components that differ, from stored to here."""
    return tuple(str(change) for change in changed_components(stored, here))


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheReport:
    """Outcome of reading a cache directory."""

    path: str
    num_artifacts: int
    num_of_other_versions: int  # artifacts that another version of warmrank wrote, and may still read
    num_files: int  # artifacts, those beside them, such as compiled kernels, and node artifacts
    size_bytes: int
    faults: tuple[str, ...]  # empty if every file is there, whole and private


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """Outcome of `verify`; ``store`` and ``cache`` are None where none was named."""

    location: str  # the store's
    num_places: int  # that it was read in, each with counts of its own, which are added
    store: VerifyReport | None
    signatures_checked: bool  # by a config's trust policy; without a config nobody is trusted
    cache: CacheReport | None
    faults: tuple[str, ...]


def verify(
    store: Store | None,
    cache_dir: Path | None,
    *,
    signatures_checked: bool,
    repair: bool = False,
    on_progress: OnProgress | None = None,
) -> Verified:
    """Hash and judge everything in a store and a cache directory, either of which may be absent.

    Raises:
        BadArgument: there is no such cache directory.
    """
    of_store = store.verify(repair=repair, cache_root=cache_dir, on_progress=on_progress) if store else None
    of_cache = verify_cache(cache_dir) if cache_dir else None
    return Verified(
        location=store.location if store else "",
        num_places=len(store.places) if store else 0,
        store=of_store,
        signatures_checked=signatures_checked,
        cache=of_cache,
        faults=(*(of_store.faults if of_store else ()), *(of_cache.faults if of_cache else ())),
    )


def verify_cache(cache_dir: Path) -> CacheReport:
    """Check that every artifact below a cache directory, and each file beside it, is private and whole."""
    if not cache_dir.is_dir():
        raise BadArgument(
            f"no cache directory at {cache_dir}; expected the cache_dir of a launch on this node"
        )
    faults: list[str] = []
    others: list[Path] = []
    artifacts = cached_files(cache_dir)
    needed = _judge_artifacts(artifacts, faults, others) if artifacts else set()
    beside = {found for path in artifacts for found in companions(path.parent)}
    of_node = kept_files(cache_dir)
    named = [(path, True) for path in of_node] + [(path, False) for path in sorted(beside - needed)]
    for path, is_of_node in named:  # files whose names say what is in them
        try:
            digest = digest_private(path)
        except (StoreError, OSError) as error:
            faults.append(str(error))
            continue
        if not (digest.sha256 == path.name if is_of_node else holds_what_it_says(path.name, digest)):
            faults.append(f"{path}: its bytes have {digest}")
    files = (*artifacts, *beside, *of_node)
    return CacheReport(
        path=str(cache_dir),
        num_artifacts=len(artifacts),
        num_of_other_versions=len(others),
        num_files=len(files),
        size_bytes=sum(path.lstat().st_size for path in files),
        faults=tuple(faults),
    )


def _judge_artifacts(paths: Iterable[Path], faults: list[str], others: list[Path]) -> set[Path]:
    """Check artifacts, and each file beside them once; return the paths of all these files.

    To ``others`` go whole artifacts of other versions, which say what they need in a way of their own.
    """
    from warmrank.worker.errors import ArtifactCorrupt, OtherFormat

    with leaving_at_once():  # only here, because they import torch
        from warmrank.worker.runtime.artifact import parse
        from warmrank.worker.runtime.find import verified

    judged: set[Path] = set()
    for path in paths:
        try:
            check_private(path)
            artifact = parse(path.read_bytes(), str(path))
        except OtherFormat:
            others.append(path)
            continue
        except (StoreError, ArtifactCorrupt, OSError) as error:
            faults.append(str(error))
            continue
        for file in artifact.files:
            if path.parent / file.name not in judged:
                try:
                    verified(path.parent, file)
                except (StoreError, ArtifactCorrupt) as error:
                    faults.append(str(error))
        judged |= {path.parent / file.name for file in artifact.files}
    return judged


def cached_files(cache_dir: Path) -> tuple[Path, ...]:
    """Every artifact below a cache directory, in a fixed order."""
    return tuple(sorted(path for path in cache_dir.rglob("*") if is_variant_name(path.name)))
