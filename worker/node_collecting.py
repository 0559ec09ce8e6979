"""Files of the node's caches that a node's first rank takes into its manifest after a launch.

Invariants: nothing here fails a launch: what cannot be taken is a reason, in text that can be printed; it is
decided before a file is copied whether it may be; nothing is taken of a directory into which, by the time it
was copied, something came that the trust policy refuses; of an engine's files, whoever made them and when,
those of this manifest's artifacts are taken, and no others. Links are never followed; a directory that others
can write is left out whole, as are hidden files and directories, locks, temporary files, and what lies deeper
than any manifest could name.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from warmrank.cache_store.cache_dir import node_files
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
from warmrank.worker.node_caches import ARTIFACT_CHARS, archive_name
from warmrank.worker.values import Value

_log = logging.getLogger(__name__)
_ARCHIVE_PARTS = 3  # <artifact>/<storage formats>/<archive>
Listing = Mapping[tuple[str, str], node_files.Identity]
"""Contents of node caches: name and path of each file -> what changes when it is written."""


class Room(Value):
    """Bytes and entries that the manifest of a node's first rank leaves to the node."""

    # beginnings of the digests of its artifacts, as prefixes of an engine's files
    artifacts: frozenset[str] = frozenset()
    num_files: int = MAX_FILES
    size_bytes: int = MAX_BYTES


class Collected(Value):
    """Files that the first rank of a node found."""

    # the node artifacts of its manifest; the cache directory keeps their bytes
    files: tuple[node_files.NodeFile, ...] = ()
    num_new: int = 0
    bytes_new: int = 0
    left_out: tuple[str, ...] = ()  # why other files are not among them, one line each


def room_in(manifest: PartitionManifest) -> Room:
    """The room that a rank's artifacts leave; as many paths as may come fit into its document."""
    used_bytes = sum(entry.size_bytes for entry in manifest.artifacts)
    return Room(
        artifacts=frozenset(entry.sha256[:ARTIFACT_CHARS] for entry in manifest.artifacts),
        num_files=min(MAX_FILES, MAX_ENTRIES - len(manifest.artifacts)),
        size_bytes=min(MAX_BYTES, MAX_PARTITION_BYTES - used_bytes),
    )


def collect(
    caches: Sequence[node_files.NodeCache],
    cache_root: Path,
    room: Room,
    *,
    before: Listing | None = None,
    carried: Iterable[node_files.NodeFile] = (),
    refusal: Callable[[Path], str] = lambda _: "",
) -> Collected:
    """Keep what is new in node caches below the cache directory, and say what the node has.

    Without ``before``, what was there, everything is new. What is new of the same path as ``carried`` (what
    the launch got from the store), or of the same artifact of an engine, takes its place. ``room`` is what
    the manifest leaves to the node; ``refusal`` says why a directory's files are not to be taken by now.
    """
    taking = _Taking(cache_root, room)
    declared = {cache.name: cache for cache in caches}
    known = {
        file.path: file
        for file in carried
        if (cache := declared.get(file.cache)) is not None
        and (not cache.in_sets or file.relative.split("/")[0] in room.artifacts)
    }
    found = {cache: _found(cache, room.artifacts, before or {}, taking.leave_out) for cache in caches}
    names = [f"{node_files.NODE}/{cache.name}/{relative}" for cache in caches for relative in found[cache]]
    taking.bad = dict(collisions(dict.fromkeys([*names, *known])))
    for cache in caches:
        for relative, status in found[cache].items():
            taking.take_new(cache, relative, status, known)
        if found[cache] and (reason := refusal(Path(cache.directory))):
            taking.files = {path: file for path, file in taking.files.items() if file.cache != cache.name}
            taking.leave_out(f"node cache {cache.name}: {reason}")
    new = [file for file in taking.files.values() if known.get(file.path) != file]

    def unit(file: node_files.NodeFile) -> tuple[str, str]:
        return file.cache, declared[file.cache].unit_of(file.relative)

    made = set(map(unit, taking.files.values()))
    for file in known.values():
        if unit(file) not in made:
            taking.carry(file)
    for reason in taking.left_out[:8]:
        _log.info("Not a node artifact: %s", reason)
    return Collected(
        files=tuple(taking.files.values()),
        num_new=len(new),
        bytes_new=sum(file.digest.size_bytes for file in new),
        left_out=tuple(taking.left_out),
    )


def entries(files: Iterable[node_files.NodeFile]) -> tuple[ArtifactEntry, ...]:
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


class _Taking:
    """Files taken so far, by path, and the reasons for leaving others."""

    def __init__(self, cache_root: Path, room: Room) -> None:
        self._cache_root, self._room = cache_root, room
        self.files: dict[str, node_files.NodeFile] = {}
        self.left_out: list[str] = []
        self.bad: Mapping[str, str] = {}  # paths that cannot stand beside others
        self._num_files = self._size_bytes = 0

    def leave_out(self, reason: str) -> None:
        """Note why a file is not taken; its name may be no text."""
        self.left_out.append(reason.encode("utf-8", "backslashreplace").decode("utf-8"))

    def take_new(
        self,
        cache: node_files.NodeCache,
        relative: str,
        status: os.stat_result,
        known: Mapping[str, node_files.NodeFile],
    ) -> None:
        """Keep a file."""
        path = f"{node_files.NODE}/{cache.name}/{relative}"
        if not self._admit(path, status.st_size):
            return
        expected = known[path].digest if path in known else None
        source = Path(cache.directory) / relative
        try:
            digest = node_files.keep(
                self._cache_root, source, seen=node_files.identity_of(status), expected=expected
            )
        except UnusableCache as error:
            self.leave_out(str(error))
            return
        if cache.in_sets and archive_name(digest) != source.name:
            self.leave_out(f"{path}: its bytes are not those that its name says")
        else:
            self.files[path] = node_files.NodeFile(cache=cache.name, relative=relative, digest=digest)

    def carry(self, file: node_files.NodeFile) -> None:
        """Take what the launch got from the store."""
        path = node_files.kept_path(self._cache_root, file.digest.sha256)
        if not path.exists():
            self.leave_out(f"{file.path}: its kept copy is gone; the next fetch brings it again")
        elif self._admit(file.path, file.digest.size_bytes):
            node_files.note_use(path)
            self.files[file.path] = file

    def _admit(self, path: str, size_bytes: int) -> bool:
        """Take room for a file, if it may be taken; else note why not."""
        room = self._room
        if node_files.split_node_path(path) is None:
            reason = f"{path!r}: no name that another node could have"
        elif size_bytes > MAX_FILE_BYTES:
            reason = f"{path}: {size_bytes} bytes, more than {MAX_FILE_BYTES}"
        elif path in self.bad:
            reason = f"{path}: {self.bad[path]}"
        elif self._num_files >= room.num_files or self._size_bytes + size_bytes > room.size_bytes:
            there = f"{room.num_files} files, {room.size_bytes} bytes"
            reason = f"{path}: more than there is room for in the manifest ({there})"
        else:
            self._num_files, self._size_bytes = self._num_files + 1, self._size_bytes + size_bytes
            return True
        self.leave_out(reason)
        return False


def _found(
    cache: node_files.NodeCache, artifacts: Collection[str], before: Listing, leave_out: Callable[[str], None]
) -> dict[str, os.stat_result]:
    """Files that may be taken of a node cache; of an engine's the newest archive of each artifact."""
    if cache.collect == "none":
        return {}
    found = {
        path: status
        for path, status in _walk(cache, leave_out)
        if before.get((cache.name, path)) != node_files.identity_of(status)
    }
    if not cache.in_sets:
        return found
    newest: dict[str, str] = {}
    for path in sorted(found, key=lambda path: found[path].st_mtime_ns):
        parts = path.split("/")
        if len(parts) == _ARCHIVE_PARTS and parts[0] in artifacts:
            newest[cache.unit_of(path)] = path
    return {path: found[path] for path in newest.values()}


def listing(caches: Iterable[node_files.NodeCache]) -> Listing:
    """Files that lie there now, and are not new later; those that cannot be looked at are left out."""
    return {
        (cache.name, path): node_files.identity_of(status)
        for cache in caches
        if cache.collect == "new"
        for path, status in _walk(cache, lambda _: None)
    }


def _walk(
    cache: node_files.NodeCache, leave_out: Callable[[str], None], prefix: str = ""
) -> Iterator[tuple[str, os.stat_result]]:
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
        leave_out(str(error))
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
                        yield from _walk(cache, leave_out, f"{path}/")
                elif cache.takes(path):
                    status = entry.stat(follow_symlinks=False)
                    check_owned(directory / entry.name, status)
                    yield path, status
        except UnusableCache as error:
            leave_out(str(error))
