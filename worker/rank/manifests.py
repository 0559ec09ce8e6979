"""A rank's manifest, from what it loaded in a launch or from the journal of its script."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warmrank.cache_store.records.manifest import (
    ArtifactEntry,
    CaptureEntry,
    PartitionManifest,
    RequestEntry,
    utc_now,
)
from warmrank.worker import journal
from warmrank.worker.keys.request import environment
from warmrank.worker.node_collecting import entries
from warmrank.worker.rank.workload import journal_of
from warmrank.worker.results import Published
from warmrank.worker.runtime.files import is_withheld, provenance

if TYPE_CHECKING:
    from warmrank.cache_store.cache_dir.node_files import NodeFile
    from warmrank.cache_store.digests import Digest
    from warmrank.cache_store.store import Store
    from warmrank.worker.rank.start import RankSpec
    from warmrank.worker.runtime.find import StoredArtifact
    from warmrank.worker.runtime.function import CachedFunction

_log = logging.getLogger(__name__)


def of_units(
    spec: RankSpec, units: Iterable[tuple[str, CachedFunction, StoredArtifact, tuple[str, ...]]]
) -> PartitionManifest:
    """Manifest of a launch's units: name, function, artifact, signatures of what is captured."""
    requests: list[RequestEntry] = []
    artifacts: dict[str, ArtifactEntry] = {}
    captures: list[CaptureEntry] = []
    for name, function, stored, captured in units:
        asked = function.request()
        requests.append(
            RequestEntry(
                function=name,
                key=asked.key,
                components=asked.components,
                runtime_state=stored.artifact.guards.runtime_state,
            )
        )
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
            captures += [CaptureEntry(function=name, signature=signature) for signature in captured]
    return _manifest(spec.rank, spec.world_size, requests, artifacts, captures)


def of_script(spec: RankSpec) -> PartitionManifest:
    """Manifest of what a script used, from its journal."""
    return of_journals(
        (journal_of(spec),), rank=spec.rank, world_size=spec.world_size, root=Path(spec.cache_dir)
    )


def of_journals(files: Iterable[Path], *, rank: int, world_size: int, root: Path) -> PartitionManifest:
    """Manifest of what the processes of one rank used, from their journals, the newest last."""
    from warmrank.cache_store.canonical import key_of

    requests: dict[tuple[str, frozenset[tuple[str, str]]], RequestEntry] = {}
    artifacts: dict[str, ArtifactEntry] = {}
    for result, details in (entry for file in files for entry in journal.read(file)):
        key = key_of(details["components"])[:32]
        state = result.runtime_state
        requests[result.function, frozenset(state.items())] = RequestEntry(
            function=result.function, key=key, components=details["components"], runtime_state=state
        )
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
    return _manifest(rank, world_size, list(requests.values()), artifacts, [])


def with_node_files(manifest: PartitionManifest, files: Collection[NodeFile]) -> PartitionManifest:
    """The manifest with the artifacts of its rank's node as well."""
    if not files:
        return manifest
    fields = {name: value for name, value in manifest if name != "format"}
    return PartitionManifest(**{**fields, "artifacts": (*manifest.artifacts, *entries(files))})


def _manifest(
    rank: int,
    world_size: int,
    requests: list[RequestEntry],
    artifacts: Mapping[str, ArtifactEntry],
    captures: list[CaptureEntry],
) -> PartitionManifest:
    return PartitionManifest(
        partition=f"world{world_size}global_rank{rank}",
        rank=rank,
        world_size=world_size,
        environment=environment(),
        requests=tuple(requests),
        artifacts=tuple(artifacts.values()),
        captures=tuple(captures),
        created=utc_now(),
    )


def _listed(
    path: Path, root: Path, *, files: Iterable[tuple[str, str, int]], **fields: Any
) -> dict[str, ArtifactEntry]:
    """Entries of an artifact and its files, by path; none if it is withheld, abandoned or lies elsewhere."""
    if not path.is_file():
        return {}
    found, wanted = path.resolve(), root.resolve()
    if not found.is_relative_to(wanted):
        _log.warning(
            "%s is not published: its cache %s lies outside of the launch's %s",
            fields["function"],
            path,
            root,
        )
        return {}
    if is_withheld(path.parent, fields["sha256"]):
        return {}
    relative = found.relative_to(wanted)
    entry = ArtifactEntry(path=relative.as_posix(), **fields)
    beside = ((relative.with_name(name).as_posix(), sha256, size) for name, sha256, size in files)
    return {entry.path: entry} | {
        name: entry.model_copy(update={"path": name, "sha256": sha256, "size_bytes": size})
        for name, sha256, size in beside
    }


def publish(
    store: Store,
    launch_key: str,
    manifest: PartitionManifest,
    root: Path,
    *,
    shared: Collection[Digest] = (),
) -> Published:
    """Publish a manifest with its artifacts, and say where it lies.

    ``shared`` are blobs that this rank added to the store before.
    """
    report = store.publish_partition(launch_key, manifest, root)
    return Published(
        ref=report.ref,
        environment=manifest.environment,
        partition=manifest.partition,
        key=report.key,
        conflicts=report.conflicts,
        num_blobs_new=report.num_blobs_new + len(shared),
        bytes_new=report.bytes_new + sum(digest.size_bytes for digest in shared),
        problems=tuple(store.problems),
    )
