"""Looking into a store: opening it to look, and what one partition holds, as plain values.

Nothing here builds a model, or imports torch or Ray. Without a config nobody is trusted, so signatures are
then not looked at.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from warmrank.cache_store.cache_dir.local import is_companion_name
from warmrank.cache_store.errors import StoreError, StoreUnavailable, os_errors_are_unavailable
from warmrank.cache_store.keys import changed_components
from warmrank.cache_store.layout import FORMAT_FILE, TOP_LEVEL
from warmrank.cache_store.records.launches import StoredLaunch
from warmrank.cache_store.records.manifest import (
    ArtifactEntry,
    CaptureEntry,
    LaunchRecord,
    PartitionManifest,
    PartitionRef,
    RequestEntry,
)
from warmrank.cache_store.store import Store
from warmrank.orchestrator.config.reading import Config
from warmrank.orchestrator.config.store import is_url
from warmrank.orchestrator.errors import NothingThere
from warmrank.orchestrator.launch.identity import launch_key
from warmrank.orchestrator.launch.outlook import OtherRanks, other_ranks, record_changes
from warmrank.orchestrator.store.stores import named_store, open_store, open_unchecked, silent_places
from warmrank.worker.keys.environment import environment

MIN_KEY_CHARS = 6
"""Fewer characters of a key than this are taken for a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateView:
    """Runtime state that a function's artifacts were made with.

    Attributes:
        values: the declared values, name -> text.
        ranks: ranks that declared them.
    """

    values: dict[str, str]
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """One partition in full.

    Attributes:
        key: the manifest's key.
        launch_key: the launch that it was found through.
        others: keys of further partitions of that name, in older or other launches.
        changes: components of the environment that differ here.
    """

    partition: str
    rank: int
    world_size: int
    key: str
    launch_key: str
    created: str
    environment: dict[str, str]
    changes: tuple[str, ...]
    requests: tuple[RequestEntry, ...]
    artifacts: tuple[ArtifactEntry, ...]
    captures: tuple[CaptureEntry, ...]
    others: tuple[str, ...]


def num_artifacts(entries: Iterable[ArtifactEntry]) -> int:
    """How many of a manifest's files are a rank's artifacts; others lie beside one, or are the node's."""
    own = (entry.path.rpartition("/")[2] for entry in entries if entry.scope == "rank")
    return sum(not is_companion_name(name) for name in own)


def states_of(name: str, manifests: Sequence[PartitionManifest]) -> tuple[StateView, ...]:
    """The distinct states that were declared for a function, without those ranks that declared none."""
    ranks: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for manifest in manifests:
        for request in manifest.requests:
            if request.function == name and request.runtime_state:
                ranks.setdefault(tuple(request.runtime_state.items()), []).append(manifest.rank)
    return tuple(StateView(values=dict(state), ranks=tuple(members)) for state, members in ranks.items())


def open_to_look(config: Config | None, location: Path | str | None) -> Store:
    """Open the config's store, or the one at ``location`` without looking at signatures; never creates one.

    Raises:
        NothingThere: the config names no store, or neither (or both) was given.
        StoreError: there is no store, or it cannot be used.
    """
    if location is not None and config is None:
        return open_unchecked(str(location))
    if config is None or location is not None:
        msg = "expected either a CONFIG or --store PATH, to say which store"
        raise NothingThere(msg)
    if config.store is None:
        msg = f"config {config.name} names no store; expected store.path in it, or name one with --store PATH"
        raise NothingThere(msg)
    return open_store(config.store, create=False, to_sign=False)


def open_to_evict(config: Config | None, location: Path | str | None) -> Store:
    """As `open_to_look`, but with the keys of this user's keyring also for a store without a config."""
    if location is not None and config is None:
        return open_store(named_store(str(location)), create=False, to_sign=False)
    return open_to_look(config, location)


def open_if_there(config: Config) -> Store | None:
    """The config's store; none where the config names none, or the first launch has yet to make it.

    Raises:
        StoreError: there is a store, or something else, and it cannot be used.
    """
    if config.store is None:
        return None
    try:
        return open_store(config.store, create=False, to_sign=False)
    except StoreUnavailable:
        # To look at a silent place would hang.
        if silent_places(config.store) or not all(
            _is_yet_to_be_made(tier.path) for tier in config.store.tiers
        ):
            raise
        return None


def _is_yet_to_be_made(location: str) -> bool:
    """Whether a launch would make a store there: nothing is there, or nothing but what belongs to one."""
    if is_url(location):
        return False  # only the place itself can tell
    path = Path(location)
    with os_errors_are_unavailable("store", path):
        if not path.exists():
            return True
        return path.is_dir() and {entry.name for entry in path.iterdir()} <= TOP_LEVEL - {FORMAT_FILE}


def changes_here(stored: dict[str, str]) -> tuple[str, ...]:
    """Components of a stored environment that differ here, such as ``torch 2.13.0 -> 2.13.1``."""
    return tuple(str(change) for change in changed_components(stored, environment()))


def show_partition(store: Store, wanted: str, config: Config | None = None) -> PartitionView:
    """The newest partition of that name, or the one whose key begins so.

    Raises:
        NothingThere: there is none; names those that there are.
        StoreError: its manifest cannot be read.
    """
    records = store.launches(launch_key(config) if config else None)
    pairs = [(record, ref) for record in records for ref in record.partitions]
    matches = [(record, ref) for record, ref in pairs if ref.partition == wanted]
    if not matches and len(wanted) >= MIN_KEY_CHARS:
        matches = [(record, ref) for record, ref in pairs if ref.manifest_key.startswith(wanted)]
    if not matches:
        _refuse_launch(records, wanted)
        raise NothingThere(_absent(store, wanted, sorted({ref.partition for _, ref in pairs})))
    record, ref = matches[0]
    manifest = store.manifest(ref.manifest_key, expected_sha256=ref.manifest_sha256)
    return PartitionView(
        partition=manifest.partition,
        rank=manifest.rank,
        world_size=manifest.world_size,
        key=ref.manifest_key,
        launch_key=record.launch_key,
        created=manifest.created,
        environment=manifest.environment,
        changes=changes_here(manifest.environment),
        requests=manifest.requests,
        artifacts=manifest.artifacts,
        captures=manifest.captures,
        others=tuple(dict.fromkeys(o.manifest_key for _, o in matches if o.manifest_key != ref.manifest_key)),
    )


def is_config_name(name: str) -> bool:
    """Whether a name is that of a config; no partition is called so."""
    return Path(name).suffix.lower() in {".yaml", ".yml", ".json"}


def refuse_lone_config(name: str, config: Config) -> NoReturn:
    """Raise where a config was named and no partition; names the partitions of its launch, or of its store.

    Raises:
        NothingThere: always, unless the store cannot be used.
        StoreError: it cannot.
    """
    store = open_to_look(config, None)
    records = store.launches(launch_key(config)) or store.launches()
    names = sorted({ref.partition for record in records for ref in record.partitions})
    msg = f"{name} is a config; name a partition too: {_shown(names) or 'none, the store holds no launch'}"
    raise NothingThere(msg)


def _refuse_launch(records: Sequence[LaunchRecord], wanted: str) -> None:
    """Raise where the key is a launch's, naming its partitions.

    Raises:
        NothingThere: it is.
    """
    found = [record for record in records if record.launch_key.startswith(wanted)]
    if len(wanted) >= MIN_KEY_CHARS and found:
        names = dict.fromkeys(ref.partition for record in found for ref in record.partitions)
        msg = f"{wanted!r}: that is a launch; its partitions: {_shown(list(names))}"
        raise NothingThere(msg)


def _absent(store: Store, wanted: str, names: list[str]) -> str:
    return (
        f"no partition {wanted!r} in {store.location}; expected a name, or at least {MIN_KEY_CHARS} "
        f"characters of a manifest's key. There are: {_shown(names) or 'none, the store holds no launch'}"
    )


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


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


_FORMAT = 1
"""Of what `worker.capture.plan` writes. That module needs torch, so the layout is read here again."""

_DIGEST_CHARS = 12


def short_signature(signature: str) -> str:
    """Shapes as lists, and runs of equal ones once, with their number.

    A capture plan is told in words; a text that only looks like one is given as it is.
    """
    if signature.startswith("{"):
        try:
            return _plan(json.loads(signature))
        except (ValueError, TypeError, KeyError):  # of a later version, say: nothing of it may be lost
            return signature
    parts = re.findall(r"[^\s,()\[\]]*\[[^\]]*\]|[^\s,()\[\]]+", signature.replace("torch.Size(", ""))
    return " ".join(_runs(parts))


def _plan(plan: dict[str, Any]) -> str:
    """``inputs 3-4: [2, 64] x2, [8, 8] strides [1, 8]; numbers 5: 32; artifact 80eb...``."""
    if plan["format"] != _FORMAT:
        raise ValueError(plan["format"])
    inputs = [(position, _tensor(*rest)) for position, *rest in plan["inputs"]]
    numbers = [(position, json.dumps(value)) for position, value in plan["numbers"]]
    parts = [
        _listed("input", inputs),
        _listed("number", numbers),
        f"artifact {plan['artifact'][:_DIGEST_CHARS]}",
    ]
    return "; ".join(part for part in parts if part)


def _tensor(sizes: list[int], strides: list[int] | None = None) -> str:
    return str(sizes) if strides is None else f"{sizes} strides {strides}"


def _listed(what: str, items: list[tuple[int, str]]) -> str:
    """Each value with its position; neighbours that are equal once."""
    found = []
    for text, run in itertools.groupby(items, key=lambda item: item[1]):
        positions = [position for position, _ in run]
        found.append(f"{_positions(positions)}: {text}")
    return f"{what if len(items) == 1 else what + 's'} {', '.join(found)}" if found else ""


def _positions(positions: list[int]) -> str:
    """``3``, ``3-5``, ``3-5 7``."""
    parts = []
    # Positions that follow each other are as far from the count as the first.
    for _, run in itertools.groupby(enumerate(positions), key=lambda pair: pair[1] - pair[0]):
        members = [position for _, position in run]
        parts.append(str(members[0]) if len(members) == 1 else f"{members[0]}-{members[-1]}")
    return " ".join(parts)


def _runs(parts: Iterable[str]) -> list[str]:
    runs = [(part, len(list(run))) for part, run in itertools.groupby(parts)]
    return [f"{part} x{count}" if count > 1 else part for part, count in runs]
