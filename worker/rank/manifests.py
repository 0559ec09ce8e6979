"""A rank's manifest, from what it loaded in a launch or from the journal of its script.

It is made of plain values, and validated where it is published: a rank that loads what lies on its node
imports none of the store's models, which takes longer than all else that it does.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warmrank.cache_store.canonical import key_of
from warmrank.worker import journal
from warmrank.worker.keys.request import environment
from warmrank.worker.rank.workload import journal_of
from warmrank.worker.runtime.files import is_withheld, provenance

if TYPE_CHECKING:
    from warmrank.cache_store.cache_dir.node_files import NodeFile
    from warmrank.cache_store.records.manifest import PartitionManifest
    from warmrank.worker.rank.rank_worker import RankSpec
    from warmrank.worker.runtime.find import StoredArtifact
    from warmrank.worker.runtime.function import CachedFunction

_log = logging.getLogger(__name__)

Fields = dict[str, Any]
"""A `PartitionManifest`, or a part of it, but for when it was created."""


def of_units(
    spec: RankSpec, units: Iterable[tuple[str, CachedFunction, StoredArtifact, tuple[str, ...]]]
) -> Fields:
    """Manifest of a launch's units: name, function, artifact, signatures of what is captured."""
    requests: list[Fields] = []
    artifacts: dict[str, Fields] = {}
    captures: list[Fields] = []
    for name, function, stored, captured in units:
        asked = function.request()
        requests.append(_request(name, asked.key, asked.components, stored.artifact.guards.runtime_state))
        listed = _listed(
            stored.path,
            Path(spec.cache_dir),
            function=name,
            request_key=asked.key,
            provenance=provenance(stored.artifact),
            sha256=stored.sha256,
            size_bytes=stored.size_bytes,
            files=[(file.name, file.sha256, file.size_bytes) for file in stored.artifact.files],
        )
        if listed:
            artifacts |= {path: entry for path, entry in listed.items() if path not in artifacts}
            captures += [{"function": name, "signature": signature} for signature in captured]
    return _manifest((spec.rank, spec.world_size), requests, artifacts, captures)


def of_script(spec: RankSpec) -> Fields:
    """Manifest of what a script used, from its journal."""
    root = Path(spec.cache_dir)
    return of_journals((journal_of(spec),), rank=spec.rank, world_size=spec.world_size, root=root)


def of_journals(files: Iterable[Path], *, rank: int, world_size: int, root: Path) -> Fields:
    """Manifest of what the processes of one rank used, from their journals, the newest last."""
    requests: dict[tuple[str, frozenset[tuple[str, str]]], Fields] = {}
    artifacts: dict[str, Fields] = {}
    for result, details in (entry for file in files for entry in journal.read(file)):
        key = key_of(details["components"])[:32]
        state = result.runtime_state
        slot = result.function, frozenset(state.items())
        requests[slot] = _request(result.function, key, details["components"], state)
        artifacts |= _listed(
            Path(result.path),
            root,
            function=result.function,
            request_key=key,
            provenance=details["provenance"],
            sha256=result.digest,
            size_bytes=result.size_bytes,
            files=details["files"],
        )
    return _manifest((rank, world_size), list(requests.values()), artifacts, [])


def packed(fields: Fields) -> bytes:
    """The manifest for another process; of a large model's many ranks, all may pass the driver at once."""
    return zlib.compress(json.dumps(fields).encode(), level=1)


def unpacked(data: bytes) -> PartitionManifest:
    """The manifest that `packed` gave, created now."""
    return made(json.loads(zlib.decompress(data)))


def made(fields: Fields) -> PartitionManifest:
    """The manifest, created now."""
    from warmrank.cache_store.records.manifest import PartitionManifest, utc_now

    return PartitionManifest(**fields, created=utc_now())


def with_node_files(manifest: PartitionManifest, files: Collection[NodeFile]) -> PartitionManifest:
    """The manifest with the artifacts of its rank's node as well."""
    if not files:
        return manifest
    from warmrank.worker.node_collecting import entries

    fields = {name: value for name, value in manifest if name != "format"}
    return type(manifest)(**{**fields, "artifacts": (*manifest.artifacts, *entries(files))})


def _manifest(
    whose: tuple[int, int], requests: list[Fields], artifacts: Mapping[str, Fields], captures: list[Fields]
) -> Fields:
    rank, world_size = whose
    return {
        "partition": f"world{world_size}global_rank{rank}",
        "rank": rank,
        "world_size": world_size,
        "environment": environment(),
        "requests": requests,
        "artifacts": list(artifacts.values()),
        "captures": captures,
    }


def _request(function: str, key: str, components: Fields, runtime_state: Mapping[str, str]) -> Fields:
    return {"function": function, "key": key, "components": components, "runtime_state": runtime_state}


def _listed(
    path: Path, root: Path, *, files: Iterable[tuple[str, str, int]], **fields: Any
) -> dict[str, Fields]:
    """Entries of an artifact and its files, by path; none if it is withheld, abandoned or lies elsewhere."""
    if not path.is_file():
        return {}
    at, wanted = path.resolve(), root.resolve()
    if not at.is_relative_to(wanted):
        text = "%s is not published: its cache %s lies outside of the launch's %s"
        _log.warning(text, fields["function"], path, root)
        return {}
    if is_withheld(path.parent, fields["sha256"]):
        text = "%s is not published: no audit has found it equal to what other ranks trace"
        _log.warning(text, fields["function"])
        return {}
    relative = at.relative_to(wanted)
    found = {}
    for name, sha256, size_bytes in [(relative.name, fields["sha256"], fields["size_bytes"]), *files]:
        place = relative.with_name(name).as_posix()
        found[place] = {**fields, "path": place, "sha256": sha256, "size_bytes": size_bytes}
    return found
