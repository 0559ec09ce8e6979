"""What the first rank of a node takes into its manifest of the node's caches, after a launch.

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
from typing import TYPE_CHECKING

from warmrank.cache_store.cache_dir.node_files import (
    NODE,
    Destination,
    Identity,
    NodeFile,
    identity_of,
    is_reserved,
    keep,
    kept_path,
    note_use,
    split_node_path,
)
from warmrank.cache_store.cache_dir.private_files import check_owned, os_errors_are_unusable
from warmrank.cache_store.errors import UnusableCache
from warmrank.cache_store.fetch.node_artifacts import MAX_BYTES, MAX_FILES
from warmrank.cache_store.keys import canonical_json
from warmrank.cache_store.paths import MAX_PARTS, collisions
from warmrank.cache_store.sync.tools import is_left_out
from warmrank.worker.node_caches import ARTIFACT_CHARS, NodeCache, archive_name
from warmrank.worker.values import Value

if TYPE_CHECKING:
    from warmrank.cache_store.records.manifest import ArtifactEntry, PartitionManifest

_log = logging.getLogger(__name__)

_ENTRY_BYTES = 512  # of a document, for what an entry says besides its path
_ARCHIVE_PARTS = 3  # <artifact>/<storage formats>/<archive>


class Room(Value):
    """What the manifest of a node's first rank holds by itself, and so leaves to the node.

    Attributes:
        artifacts: beginnings of the digests of its artifacts, as prefixes of an engine's files.
    """

    artifacts: frozenset[str] = frozenset()
    num_files: int = MAX_FILES
    size_bytes: int = MAX_BYTES
    document_bytes: int = 8 << 20
    file_bytes: int = 16 << 30


class Collected(Value):
    """What the first rank of a node found.

    Attributes:
        files: the node artifacts of its manifest; the cache directory keeps their bytes.
        left_out: why other files are not among them, one line each.
    """

    files: tuple[NodeFile, ...] = ()
    num_new: int = 0
    bytes_new: int = 0
    left_out: tuple[str, ...] = ()


def room_in(manifest: PartitionManifest) -> Room:
    """The room that a rank's artifacts leave."""
    from warmrank.cache_store.parsing import MAX_DOCUMENT_BYTES
    from warmrank.cache_store.records.manifest import (
        MAX_ENTRIES,
        MAX_FILE_BYTES,
        MAX_PARTITION_BYTES,
    )

    used_bytes = sum(entry.size_bytes for entry in manifest.artifacts)
    return Room(
        artifacts=frozenset(entry.sha256[:ARTIFACT_CHARS] for entry in manifest.artifacts),
        num_files=min(MAX_FILES, MAX_ENTRIES - len(manifest.artifacts)),
        size_bytes=min(MAX_BYTES, MAX_PARTITION_BYTES - used_bytes),
        document_bytes=MAX_DOCUMENT_BYTES - len(manifest.to_bytes()) - _ENTRY_BYTES,
        file_bytes=MAX_FILE_BYTES,
    )


def collect(
    caches: Sequence[NodeCache],
    cache_root: Path,
    room: Room,
    *,
    before: Listing | None = None,
    carried: Iterable[NodeFile] = (),
    refusal: Callable[[Path], str] = lambda _: "",
) -> Collected:
    """Keep what is new in node caches below the cache directory, and say what the node has.

    Without ``before``, what was there, everything is new. What is new of the same path as ``carried`` (what
    the launch got from the store), or of the same artifact of an engine, takes its place. ``room`` is what
    the manifest leaves to the node; ``refusal`` says why a directory's files are not to be taken by now.
    """
    taking = _Taking(cache_root, room)
    found = {cache: _found(cache, room.artifacts, before or {}, taking.leave_out) for cache in caches}
    known = {file.path: file for file in _declared(carried, caches, room.artifacts)}
    names = [_path(cache, relative) for cache in caches for relative in found[cache]]
    taking.known = known
    taking.bad = dict(collisions(dict.fromkeys([*names, *known])))
    for cache in caches:
        for relative, status in found[cache].items():
            taking.take_new(cache, relative, status)
        if found[cache] and (reason := refusal(Path(cache.directory))):
            taking.drop(cache.name, reason)
    new = [file for file in taking.files.values() if known.get(file.path) != file]
    taking.carry(known.values(), {cache.name for cache in caches if cache.in_sets})
    for reason in taking.left_out[:8]:
        _log.info("Not a node artifact: %s", reason)
    return Collected(
        files=tuple(taking.files.values()),
        num_new=len(new),
        bytes_new=sum(file.digest.size_bytes for file in new),
        left_out=tuple(taking.left_out),
    )


def entries(files: Iterable[NodeFile]) -> tuple[ArtifactEntry, ...]:
    """What a manifest says of node artifacts; nobody can tell what determined their bytes."""
    from warmrank.cache_store.keys import key_of
    from warmrank.cache_store.records.manifest import ArtifactEntry

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
    """What is taken so far, by path, and why other files are not."""

    def __init__(self, cache_root: Path, room: Room) -> None:
        self.files: dict[str, NodeFile] = {}
        self.left_out: list[str] = []
        self.bad: dict[str, str] = {}
        self.known: Mapping[str, NodeFile] = {}
        self._cache_root, self._room = cache_root, room
        self._num_files = self._size_bytes = self._document_bytes = 0

    def leave_out(self, reason: str) -> None:
        """Note why a file is not taken; its name may be no text."""
        self.left_out.append(reason.encode("utf-8", "backslashreplace").decode("utf-8"))

    def take_new(self, cache: NodeCache, relative: str, status: os.stat_result) -> None:
        """Keep a file."""
        path = _path(cache, relative)
        if not self._admit(path, status.st_size):
            return
        known = self.known.get(path)
        try:
            digest = keep(
                self._cache_root,
                Path(cache.directory) / relative,
                seen=identity_of(status),
                expected=known.digest if known is not None else None,
            )
        except UnusableCache as error:
            self.leave_out(str(error))
            return
        if cache.in_sets and archive_name(digest) != Path(relative).name:
            self.leave_out(f"{path}: its bytes are not those that its name says")
            return
        self.files[path] = NodeFile(cache=cache.name, relative=relative, digest=digest)

    def drop(self, cache: str, reason: str) -> None:
        """Take nothing of a node cache after all."""
        self.files = {path: file for path, file in self.files.items() if file.cache != cache}
        self.leave_out(f"node cache {cache}: {reason}")

    def carry(self, files: Iterable[NodeFile], in_sets: Collection[str]) -> None:
        """Take what the launch got from the store, where the node made nothing in its place."""
        made = {_unit(file) for file in self.files.values() if file.cache in in_sets}
        for file in files:
            if file.path in self.files or (file.cache in in_sets and _unit(file) in made):
                continue
            path = kept_path(self._cache_root, file.digest.sha256)
            if not path.exists():
                self.leave_out(f"{file.path}: its kept copy is gone; the next fetch brings it again")
            elif self._admit(file.path, file.digest.size_bytes):
                note_use(path)
                self.files[file.path] = file

    def _admit(self, path: str, size_bytes: int) -> bool:
        """Take room for a file, if it may be taken; else note why not."""
        room, reason = self._room, ""
        if split_node_path(path) is None:
            reason = f"{path!r}: no name that another node could have"
        elif size_bytes > room.file_bytes:
            reason = f"{path}: {size_bytes} bytes, more than {room.file_bytes}"
        elif path in self.bad:
            reason = f"{path}: {self.bad[path]}"
        elif not self._reserve(size_bytes, len(canonical_json(path)) + _ENTRY_BYTES):
            limits = f"{room.num_files} files, {room.size_bytes} bytes, {room.document_bytes} bytes of names"
            reason = f"{path}: more than there is room for in the manifest ({limits})"
        if reason:
            self.leave_out(reason)
        return not reason

    def _reserve(self, size_bytes: int, document_bytes: int) -> bool:
        room = self._room
        num_files = self._num_files + 1
        size_bytes += self._size_bytes
        document_bytes += self._document_bytes
        if num_files > room.num_files or size_bytes > room.size_bytes or document_bytes > room.document_bytes:
            return False
        self._num_files, self._size_bytes, self._document_bytes = num_files, size_bytes, document_bytes
        return True


def _found(
    cache: NodeCache, artifacts: Collection[str], before: Listing, leave_out: Callable[[str], None]
) -> dict[str, os.stat_result]:
    """What may be taken of a node cache; of an engine's the newest archive of each artifact."""
    if cache.collect == "none":
        return {}
    found = {
        path: status
        for path, status in walk(cache, leave_out)
        if before.get((cache.name, path)) != identity_of(status)
    }
    if not cache.in_sets:
        return found
    newest: dict[str, str] = {}
    for path in sorted(found, key=lambda path: found[path].st_mtime_ns):
        parts = path.split("/")
        if len(parts) == _ARCHIVE_PARTS and parts[0] in artifacts:
            newest["/".join(parts[:2])] = path
    return {path: found[path] for path in newest.values()}


def _declared(
    carried: Iterable[NodeFile], caches: Iterable[NodeCache], artifacts: Collection[str]
) -> Iterable[NodeFile]:
    """Of what came from the store, what belongs to this node, and to an artifact of this manifest."""
    in_sets = {cache.name: cache.in_sets for cache in caches}
    for file in carried:
        if file.cache in in_sets and (not in_sets[file.cache] or file.relative.split("/")[0] in artifacts):
            yield file


def _unit(file: NodeFile) -> tuple[str, ...]:
    return (file.cache, *file.relative.split("/", 2)[:2])


def _path(cache: NodeCache, relative: str) -> str:
    return f"{NODE}/{cache.name}/{relative}"


Listing = Mapping[tuple[str, str], Identity]
"""What lies in node caches: name and path of each file -> what changes when it is written."""


def listing(caches: Iterable[NodeCache]) -> Listing:
    """What lies there now and does not count as new later; what cannot be looked at is left out."""
    news = [cache for cache in caches if cache.collect == "new"]
    return {
        (cache.name, path): identity_of(status)
        for cache in news
        for path, status in walk(cache, lambda _: None)
    }


def walk(cache: NodeCache, leave_out: Callable[[str], None]) -> Iterator[tuple[str, os.stat_result]]:
    """Files of a node cache by their paths below it, in order; why others are not among them."""
    root = Path(cache.directory)
    takes = Destination(path=root, patterns=cache.patterns).takes
    try:
        with os_errors_are_unusable("directory", root):
            if not root.exists():
                return
            check_owned(root, root.stat(), directory=True)
    except UnusableCache as error:
        leave_out(str(error))
        return
    waiting = [""]
    while waiting:
        directories: list[str] = []
        prefix = waiting.pop()
        for name, status in _entries(root / prefix, leave_out, _usual(prefix, takes)):
            if status is None:
                directories.append(f"{prefix}{name}/")
            else:
                yield f"{prefix}{name}", status
        waiting += reversed(directories)


def _usual(prefix: str, takes: Callable[[str], bool]) -> Callable[[os.DirEntry[str]], bool]:
    """Which entries of a directory are looked at at all."""
    is_deepest = prefix.count("/") + 1 >= MAX_PARTS

    def usual(entry: os.DirEntry[str]) -> bool:
        is_directory = entry.is_dir(follow_symlinks=False)
        if is_reserved(entry.name) or is_left_out(entry.name, directory=is_directory):
            return False
        return not is_deepest if is_directory else takes(f"{prefix}{entry.name}")

    return usual


def _entries(
    directory: Path, leave_out: Callable[[str], None], is_usual: Callable[[os.DirEntry[str]], bool]
) -> Iterator[tuple[str, os.stat_result | None]]:
    """Names in a directory; with each file its status, with a directory None."""
    try:
        with os_errors_are_unusable("directory", directory), os.scandir(directory) as scanned:
            found = sorted(scanned, key=lambda entry: entry.name)
    except UnusableCache as error:
        leave_out(str(error))
        return
    for entry in found:
        try:
            with os_errors_are_unusable("file", directory / entry.name):
                if not is_usual(entry):
                    continue
                is_directory = entry.is_dir(follow_symlinks=False)
                status = entry.stat(follow_symlinks=False)
                check_owned(directory / entry.name, status, directory=is_directory)
        except UnusableCache as error:
            leave_out(str(error))
        else:
            yield entry.name, None if is_directory else status
