"""What the first rank of a node takes into its manifest of the node's caches, after a launch.

Invariants: nothing here fails a launch: what cannot be taken is a reason, in text that can be printed; it is
decided before a file is copied whether it may be; nothing is taken of a directory into which, by the time it
was copied, something came that the trust policy refuses; of an engine's files, whoever made them and when,
those of this manifest's artifacts are taken, and no others.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from warmrank.cache_store.canonical import canonical_json
from warmrank.cache_store.digests import Digest
from warmrank.cache_store.errors import UnusableCache
from warmrank.cache_store.fetching.node_offers import MAX_BYTES, MAX_FILES
from warmrank.cache_store.node.node_files import (
    NODE,
    NodeFile,
    identity_of,
    keep,
    kept_path,
    note_use,
    split_node_path,
)
from warmrank.cache_store.paths import collisions
from warmrank.worker.engine_files import PREFIX_CHARS, set_name
from warmrank.worker.node_caches import NodeCache
from warmrank.worker.node_listing import Listing, walk
from warmrank.worker.values import Value

if TYPE_CHECKING:
    from warmrank.cache_store.records.manifest import ArtifactEntry, PartitionManifest

_log = logging.getLogger(__name__)

_ENTRY_BYTES = 512  # of a document, for what an entry says besides its path
_SET_PARTS = 3


class Room(Value):
    """What the manifest of a node's first rank holds by itself, and so leaves to the node.

    Attributes:
        artifacts: beginnings of the digests of its artifacts, as prefixes of an engine's files.
        num_files: how many node artifacts it has room for.
        size_bytes: how large they may be together.
        document_bytes: how long what it says of them may be.
        file_bytes: how large one may be.
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
        num_new: how many of them are new or changed.
        bytes_new: their size.
        left_out: why other files are not among them, one line each.
    """

    files: tuple[NodeFile, ...] = ()
    num_new: int = 0
    bytes_new: int = 0
    left_out: tuple[str, ...] = ()


def room_in(manifest: PartitionManifest) -> Room:
    """The room that a rank's artifacts leave."""
    from warmrank.cache_store.records.fields import (
        MAX_DOCUMENT_BYTES,
        MAX_ENTRIES,
        MAX_FILE_BYTES,
        MAX_PARTITION_BYTES,
    )

    used_bytes = sum(entry.size_bytes for entry in manifest.artifacts)
    return Room(
        artifacts=frozenset(entry.sha256[:PREFIX_CHARS] for entry in manifest.artifacts),
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

    Args:
        caches: the node's.
        cache_root: the cache directory.
        room: what the manifest leaves to the node.
        before: what was there before; without it everything is new.
        carried: what the launch got from the store; what is new of the same path, or of the same artifact of
            an engine, takes its place.
        refusal: why a directory's files are not to be taken by now; empty if they may be.
    """
    taking = _Taking(cache_root, room)
    groups = {cache: _groups(cache, room.artifacts, before or {}, taking.leave_out) for cache in caches}
    known = {file.path: file for file in _declared(carried, groups, room.artifacts)}
    found = [_path(cache, member) for cache in groups for group in groups[cache] for member in group.members]
    taking.known = known
    taking.bad = dict(collisions(dict.fromkeys([*found, *known])))
    for cache in caches:
        for group in groups[cache]:
            taking.take_new(cache, group)
        if groups[cache] and (reason := refusal(Path(cache.directory))):
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


class _Group(Value):
    """Files that are taken together or not at all.

    Attributes:
        members: path below the node cache -> what was seen of the file.
        inside: the directory of a set, as a path below the node cache; empty for a file by itself.
    """

    members: Mapping[str, os.stat_result]
    inside: str = ""


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

    def take_new(self, cache: NodeCache, group: _Group) -> None:
        """Keep the files of a group."""
        sizes = {_path(cache, member): status.st_size for member, status in group.members.items()}
        if not self._admit(sizes):
            return
        digests: dict[str, Digest] = {}
        try:
            for member, status in group.members.items():
                known = self.known.get(_path(cache, member))
                digests[member] = keep(
                    self._cache_root,
                    Path(cache.directory) / member,
                    seen=identity_of(status),
                    expected=known.digest if known is not None else None,
                )
        except UnusableCache as error:
            self.leave_out(str(error))
            return
        inside = {member.removeprefix(f"{group.inside}/"): found for member, found in digests.items()}
        if group.inside and set_name(inside) != group.inside.rpartition("/")[2]:
            self.leave_out(f"{_path(cache, group.inside)}: its files are not those that it was made of")
            return
        for member, digest in digests.items():
            file = NodeFile(cache=cache.name, relative=member, digest=digest)
            self.files[file.path] = file

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
            elif self._admit({file.path: file.digest.size_bytes}):
                note_use(path)
                self.files[file.path] = file

    def _admit(self, sizes: Mapping[str, int]) -> bool:
        """Whether files may be taken, by their names in a manifest and their sizes; else why is noted."""
        room, reasons = self._room, []
        for path, size_bytes in sizes.items():
            if split_node_path(path) is None:
                reasons.append(f"{path!r}: no name that another node could have")
            elif size_bytes > room.file_bytes:
                reasons.append(f"{path}: {size_bytes} bytes, more than {room.file_bytes}")
            elif path in self.bad:
                reasons.append(f"{path}: {self.bad[path]}")
        if not reasons and not self._reserve(sizes):
            limits = f"{room.num_files} files, {room.size_bytes} bytes, {room.document_bytes} bytes of names"
            reasons = [f"{next(iter(sizes))}: more than there is room for in the manifest ({limits})"]
        for reason in reasons:
            self.leave_out(reason)
        return not reasons

    def _reserve(self, sizes: Mapping[str, int]) -> bool:
        num_files = self._num_files + len(sizes)
        size_bytes = self._size_bytes + sum(sizes.values())
        names = sum(len(canonical_json(path)) + _ENTRY_BYTES for path in sizes)
        document_bytes = self._document_bytes + names
        room = self._room
        if num_files > room.num_files or size_bytes > room.size_bytes or document_bytes > room.document_bytes:
            return False
        self._num_files, self._size_bytes, self._document_bytes = num_files, size_bytes, document_bytes
        return True


def _groups(
    cache: NodeCache, artifacts: Collection[str], before: Listing, leave_out: Callable[[str], None]
) -> list[_Group]:
    """What may be taken of a node cache."""
    if cache.collect == "none":
        return []
    found = {
        path: status
        for path, status in walk(cache, leave_out)
        if before.get((cache.name, path)) != identity_of(status)
    }
    if not cache.in_sets:
        return [_Group(members={path: status}) for path, status in found.items()]
    sets: dict[str, dict[str, os.stat_result]] = {}
    for path, status in found.items():
        parts = path.split("/", _SET_PARTS)
        if len(parts) > _SET_PARTS and parts[0] in artifacts:
            sets.setdefault("/".join(parts[:_SET_PARTS]), {})[path] = status
    newest: dict[str, str] = {}
    for inside in sorted(sets, key=lambda inside: max(item.st_mtime_ns for item in sets[inside].values())):
        newest[inside.rpartition("/")[0]] = inside
    return [_Group(members=sets[inside], inside=inside) for inside in newest.values()]


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
