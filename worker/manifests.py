"""A rank's manifest, from what it loaded in a launch or from the journal of its script."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from warmrank.worker.keys.environment import environment
from warmrank.worker.rank.script import journal_of

from warmrank.cache_store.records.manifest import (
    ArtifactEntry,
    CaptureEntry,
    PartitionManifest,
    RequestEntry,
    utc_now,
)
from warmrank.worker import journal
from warmrank.worker.node_collecting import entries
from warmrank.worker.results import Published
from warmrank.worker.runtime.find import is_withheld

if TYPE_CHECKING:
    from warmrank.cache_store.cache_dir.node_files import NodeFile
    from warmrank.worker.rank.start import RankSpec

    from warmrank.cache_store.digests import Digest
    from warmrank.cache_store.store import Store
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
        path = _listed(name, stored.path, Path(spec.cache_dir))
        if path is None or is_withheld(stored.path.parent, stored.sha256):
            continue
        artifacts.setdefault(
            path,
            ArtifactEntry(
                function=name,
                path=path,
                request_key=asked.key,
                provenance=stored.artifact.provenance(),
                sha256=stored.sha256,
                size_bytes=stored.size_bytes,
            ),
        )
        files = [(file.name, file.sha256, file.size_bytes) for file in stored.artifact.files]
        artifacts |= _files_beside(artifacts[path], files)
        captures += [CaptureEntry(function=name, signature=signature) for signature in captured]
    return _manifest(spec.rank, spec.world_size, requests, artifacts, captures)


def of_script(spec: RankSpec) -> PartitionManifest:
    """Manifest of what a script used, from its journal."""
    return of_journals(
        (journal_of(spec),), rank=spec.rank, world_size=spec.world_size, root=Path(spec.cache_dir)
    )


def of_journals(files: Iterable[Path], *, rank: int, world_size: int, root: Path) -> PartitionManifest:
    """Manifest of what the processes of one rank used, from their journals, the newest last.

    Args:
        files: the journals.
        rank: whose they are.
        world_size: number of ranks.
        root: the cache directory.
    """
    from warmrank.cache_store.keys import key_of

    requests: dict[tuple[str, frozenset[tuple[str, str]]], RequestEntry] = {}
    artifacts: dict[str, ArtifactEntry] = {}
    for result, details in (entry for file in files for entry in journal.read(file)):
        key = key_of(details["components"])[:32]
        state = result.runtime_state
        requests[result.function, frozenset(state.items())] = RequestEntry(
            function=result.function, key=key, components=details["components"], runtime_state=state
        )
        path = _listed(result.function, Path(result.path), root)
        if path is None or is_withheld(Path(result.path).parent, result.digest):
            continue
        artifacts[path] = ArtifactEntry(
            function=result.function,
            path=path,
            request_key=key,
            provenance=details["provenance"],
            sha256=result.digest,
            size_bytes=result.size_bytes,
        )
        artifacts |= _files_beside(artifacts[path], details["files"])
    return _manifest(rank, world_size, list(requests.values()), artifacts, [])


def with_node_files(manifest: PartitionManifest, files: Collection[NodeFile]) -> PartitionManifest:
    """The manifest with the artifacts of its rank's node as well."""
    if not files:
        return manifest
    fields = {name: value for name, value in manifest if name != "format"}
    return PartitionManifest(**{**fields, "artifacts": (*manifest.artifacts, *entries(files))})


def _files_beside(entry: ArtifactEntry, files: Iterable[tuple[str, str, int]]) -> dict[str, ArtifactEntry]:
    """Entries of the files that belong to an artifact, given its own entry, by path."""
    directory = entry.path.rpartition("/")[0]
    return {
        f"{directory}/{name}": entry.model_copy(
            update={"path": f"{directory}/{name}", "sha256": sha256, "size_bytes": size_bytes}
        )
        for name, sha256, size_bytes in files
    }


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


def _listed(function: str, path: Path, root: Path) -> str | None:
    """An artifact's path below the launch's cache directory; None for one that is abandoned or elsewhere."""
    if not path.is_file():
        return None
    found, wanted = path.resolve(), root.resolve()
    if not found.is_relative_to(wanted):
        _log.warning(
            "%s is not published: its cache %s lies outside of the launch's %s", function, path, root
        )
        return None
    return found.relative_to(wanted).as_posix()


def publish(
    store: Store,
    launch_key: str,
    manifest: PartitionManifest,
    root: Path,
    *,
    shared: Collection[Digest] = (),
) -> Published:
    """Publish a manifest with its artifacts, and say where it lies.

    Args:
        store: the store.
        launch_key: the launch's.
        manifest: of this rank.
        root: the launch's cache directory.
        shared: blobs that this rank added to the store before.
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
