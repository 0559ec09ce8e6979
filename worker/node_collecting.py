"""Files of the node's caches that a node's first rank takes into its manifest after a launch.

Invariants: nothing here fails a launch: what cannot be taken is a reason, in text that can be printed;
nothing is taken of a directory into which, by the time it was copied, something came that the trust policy
refuses; of engine torchair's archives, whoever made them and when, those of this manifest's artifacts are
taken, and no others. Links are never followed; a directory that others can write is left out whole, as are
hidden files and directories, locks, temporary files, and what lies deeper than any manifest could name.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from warmrank.cache_store.cache_dir import node_files
from warmrank.cache_store.cache_dir.node_files import NODE, NodeCache, NodeFile
from warmrank.cache_store.cache_dir.private_files import check_owned, os_errors_are_unusable
from warmrank.cache_store.canonical import key_of
from warmrank.cache_store.errors import UnusableCache
from warmrank.cache_store.fetch.node_artifacts import MAX_BYTES, MAX_FILES
from warmrank.cache_store.paths import MAX_PARTS, collisions
from warmrank.cache_store.records.manifest import (
    MAX_ENTRIES,
    MAX_FILE_BYTES,
    MAX_PARTITION_BYTES,
    ArtifactEntry,
    PartitionManifest,
)
from warmrank.cache_store.sync.tools import is_left_out
from warmrank.worker.node_caches import ARTIFACT_CHARS, OWN
from warmrank.worker.values import Value

_log = logging.getLogger(__name__)
Listing = Mapping[tuple[str, str], node_files.Identity]
"""Contents of node caches: name and path of each file -> what changes when it is written."""


class Collected(Value):
    """Files that the first rank of a node found."""

    # the node artifacts of its manifest; the cache directory keeps their bytes
    files: tuple[NodeFile, ...] = ()
    num_new: int = 0
    bytes_new: int = 0
    left_out: tuple[str, ...] = ()  # why other files are not among them, one line each


def collect(
    caches: Sequence[NodeCache],
    cache_root: Path,
    manifest: PartitionManifest,
    *,
    before: Listing | None = None,
    carried: Iterable[NodeFile] = (),
    refusal: Callable[[Path], str] = lambda _: "",
) -> Collected:
    """Keep what is new in node caches below the cache directory, and say what the node has.

    Args:
        caches: of this node.
        cache_root: the cache directory.
        manifest: the first rank's own, which leaves the node as many entries and bytes as it has not itself.
        before: what was there; without it everything is new.
        carried: files that the launch got from the store; what is new of the same path takes their place.
        refusal: says why a directory's files are not to be taken by now.
    """
    artifacts = tuple(f"{entry.sha256[:ARTIFACT_CHARS]}/*" for entry in manifest.artifacts)
    caches = [replace(cache, patterns=artifacts) if cache.name in OWN else cache for cache in caches]
    by_name = {cache.name: cache for cache in caches}
    known = {
        file.path: file
        for file in carried
        if file.cache in by_name and by_name[file.cache].takes(file.relative)
    }
    left_out: list[str] = []
    found = {cache: _found(cache, before or {}, left_out) for cache in caches}
    paths = [f"{NODE}/{cache.name}/{relative}" for cache in caches for relative in found[cache]]
    room = _Room(manifest, dict(collisions(dict.fromkeys([*paths, *known]))), left_out)
    files: dict[str, NodeFile] = {}
    for cache in caches:
        new = _kept(cache, found[cache], cache_root, room, known)
        if found[cache] and (reason := refusal(Path(cache.directory))):
            left_out.append(f"node cache {cache.name}: {reason}")
        else:
            files |= new
    made = [file for path, file in files.items() if known.get(path) != file]
    for path, file in known.items():
        kept = node_files.kept_path(cache_root, file.digest.sha256)
        if path in files:
            continue
        if not kept.exists():
            left_out.append(f"{path}: its kept copy is gone; the next fetch brings it again")
        elif room.takes(path, file.digest.size_bytes):
            node_files.note_use(kept)
            files[path] = file
    reasons = [reason.encode("utf-8", "backslashreplace").decode("utf-8") for reason in left_out]
    for reason in reasons[:8]:
        _log.info("Not a node artifact: %s", reason)
    return Collected(
        files=tuple(files.values()),
        num_new=len(made),
        bytes_new=sum(file.digest.size_bytes for file in made),
        left_out=tuple(reasons),
    )


def _kept(
    cache: NodeCache,
    found: Mapping[str, os.stat_result],
    cache_root: Path,
    room: _Room,
    known: Mapping[str, NodeFile],
) -> dict[str, NodeFile]:
    """Keep files of a node cache, as far as they may be taken."""
    kept = {}
    for relative, status in found.items():
        path = f"{NODE}/{cache.name}/{relative}"
        if not room.takes(path, status.st_size):
            continue
        expected = known[path].digest if path in known else None
        source, seen = Path(cache.directory) / relative, node_files.identity_of(status)
        try:
            digest = node_files.keep(cache_root, source, seen=seen, expected=expected)
        except UnusableCache as error:
            room.left_out.append(str(error))
        else:
            kept[path] = NodeFile(cache=cache.name, relative=relative, digest=digest)
    return kept


def entries(files: Iterable[NodeFile]) -> tuple[ArtifactEntry, ...]:
    """Manifest entries of node artifacts; nobody can tell what determined their bytes."""
    return tuple(
        ArtifactEntry(
            scope="node",
            function=file.cache,
            path=file.path,
            request_key=key_of({"node cache": file.cache}),
            provenance=file.digest.sha256,
            sha256=file.digest.sha256,
            size_bytes=file.digest.size_bytes,
        )
        for file in files
    )


class _Room:
    """Entries and bytes that are left in a manifest, and paths that cannot stand beside others."""

    def __init__(self, manifest: PartitionManifest, bad: Mapping[str, str], left_out: list[str]) -> None:
        used_bytes = sum(entry.size_bytes for entry in manifest.artifacts)
        self._num_files = min(MAX_FILES, MAX_ENTRIES - len(manifest.artifacts))
        self._size_bytes = min(MAX_BYTES, MAX_PARTITION_BYTES - used_bytes)
        self._bad = bad
        self.left_out = left_out

    def takes(self, path: str, size_bytes: int) -> bool:
        """Take room for a file, if it may be taken; else note why not."""
        if node_files.split_node_path(path) is None:
            reason = f"{path!r}: no name that another node could have"
        elif size_bytes > MAX_FILE_BYTES:
            reason = f"{path}: {size_bytes} bytes, more than {MAX_FILE_BYTES}"
        elif path in self._bad:
            reason = f"{path}: {self._bad[path]}"
        elif self._num_files < 1 or size_bytes > self._size_bytes:
            reason = (
                f"{path}: more than there is room for in the manifest ({self._size_bytes} bytes are left)"
            )
        else:
            self._num_files, self._size_bytes = self._num_files - 1, self._size_bytes - size_bytes
            return True
        self.left_out.append(reason)
        return False


def _found(cache: NodeCache, before: Listing, left_out: list[str]) -> dict[str, os.stat_result]:
    """Files of a node cache that were not there before, or have changed."""
    if cache.collect == "none":
        return {}
    return {
        path: status
        for path, status in _walk(cache, left_out)
        if before.get((cache.name, path)) != node_files.identity_of(status)
    }


def listing(caches: Iterable[NodeCache]) -> Listing:
    """Files that lie there now, and are not new later; those that cannot be looked at are left out."""
    return {
        (cache.name, path): node_files.identity_of(status)
        for cache in caches
        if cache.collect == "new"
        for path, status in _walk(cache, [])
    }


def _walk(cache: NodeCache, left_out: list[str], prefix: str = "") -> Iterator[tuple[str, os.stat_result]]:
    """Files of a node cache by their paths below it, in order; why others are not among them."""
    directory = Path(cache.directory) / prefix
    try:
        with os_errors_are_unusable("directory", directory):
            if not prefix and not directory.exists():
                return
            check_owned(directory, directory.stat() if not prefix else directory.lstat(), directory=True)
            with os.scandir(directory) as scanned:
                found = sorted(scanned, key=lambda entry: entry.name)
    except UnusableCache as error:
        left_out.append(str(error))
        return
    for entry in found:
        path = f"{prefix}{entry.name}"
        try:
            with os_errors_are_unusable("file", directory / entry.name):
                is_directory = entry.is_dir(follow_symlinks=False)
                if node_files.is_reserved(entry.name) or is_left_out(entry.name, directory=is_directory):
                    continue
                if is_directory:
                    if path.count("/") + 1 < MAX_PARTS:
                        yield from _walk(cache, left_out, f"{path}/")
                elif cache.takes(path):
                    status = entry.stat(follow_symlinks=False)
                    check_owned(directory / entry.name, status)
                    yield path, status
        except UnusableCache as error:
            left_out.append(str(error))
