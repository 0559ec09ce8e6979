"""Node caches: directories in which Ascend's tools keep what they compiled, listed before a launch and after.

What is new or changed in them after a launch belongs to the node. Its first rank keeps it, as node artifacts,
in its manifest (`cache_store.node.node_files`), together with what the launch got from the store.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cache_store.errors import UnusableCache
from cache_store.node.node_files import Identity, NodeFile, identity_of, keep, split_node_path
from cache_store.node.placing import Destination
from cache_store.node.private_files import check_owned, os_errors_are_unusable
from cache_store.paths import collisions
from cache_store.sync.tools import is_left_out
from worker.values import Value

if TYPE_CHECKING:
    from cache_store.records.manifest import ArtifactEntry

_log = logging.getLogger(__name__)

MAX_FILES = 8192
"""Node artifacts of one manifest, which has room for 10,000 files in all."""
MAX_BYTES = 32 << 30
_MARKS = frozenset({".unverified", ".signers", ".index", ".locks"})
_OWN_TEMPORARY = ".warmrank-"


class NodeCache(Value):
    """A node cache that the config declares.

    Attributes:
        name: its name.
        directory: where it lies on this node.
        patterns: which files below it belong to it; a ``*`` stands for slashes too.
        collect: ``new``: what a launch adds or changes; ``all``: also what was there before; ``none``.
    """

    name: str
    directory: str
    patterns: tuple[str, ...] = ("*",)
    collect: str = "new"


class Source(Value):
    """A directory to collect from.

    Attributes:
        name: of the node cache that its files belong to.
        directory: the directory; it may not be there.
        patterns: which files below it; a ``*`` stands for slashes too.
        prefix: posix path that stands before theirs, so that several directories fill one node cache.
    """

    name: str
    directory: Path
    patterns: tuple[str, ...] = ("*",)
    prefix: str = ""


Listing = Mapping[tuple[str, str], Identity]
"""What lies in node caches: name and path of each file -> what changes when it is written."""


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


def merged(defaults: Iterable[NodeCache], declared: Mapping[str, NodeCache | None]) -> tuple[NodeCache, ...]:
    """The node caches of a config, in place of the known ones of their names; None leaves one out."""
    caches: dict[str, NodeCache | None] = {cache.name: cache for cache in defaults}
    caches |= {
        name: cache
        and NodeCache(
            name=name, directory=expanded(cache.directory), patterns=cache.patterns, collect=cache.collect
        )
        for name, cache in declared.items()
    }
    return tuple(cache for cache in caches.values() if cache is not None)


def expanded(path: str) -> str:
    """A path with the user's home in place of ``~``."""
    try:
        return str(Path(path).expanduser())
    except RuntimeError:  # a user without a home; then nothing lies there
        return path


def destinations(caches: Iterable[NodeCache]) -> dict[str, Destination]:
    """Where what comes from the store goes."""
    return {
        cache.name: Destination(path=Path(cache.directory).absolute(), patterns=cache.patterns)
        for cache in caches
    }


def sources(caches: Iterable[NodeCache]) -> tuple[Source, ...]:
    """What there is to collect from."""
    return tuple(
        Source(name=cache.name, directory=Path(cache.directory).absolute(), patterns=cache.patterns)
        for cache in caches
        if cache.collect != "none"
    )


def listing(caches: Iterable[NodeCache]) -> Listing:
    """What lies there now and does not count as new later; what cannot be looked at is left out."""
    news = [cache for cache in caches if cache.collect == "new"]
    return {(source.name, path): identity for source in sources(news) for path, identity in _walk(source, [])}


def collect(
    places: Iterable[Source],
    cache_root: Path,
    *,
    before: Listing | None = None,
    carried: Sequence[NodeFile] = (),
) -> Collected:
    """Keep what is new in some directories below the cache directory, and say what the node has.

    Args:
        places: the directories.
        cache_root: the cache directory.
        before: what was there before; without it everything is new.
        carried: what the launch got from the store; a file of the same path that is new takes its place.
    """
    left_out: list[str] = []
    found = {
        file.path: file for source in places for file in _kept(source, cache_root, before or {}, left_out)
    }
    same = {file.path for file in carried if found.get(file.path) == file}
    new = [file for file in found.values() if file.path not in same]
    files = _within_limits([*new, *carried], left_out)
    kept = set(files)
    new = [file for file in new if file in kept]
    for reason in left_out[:8]:
        _log.info("Not a node artifact: %s", reason)
    return Collected(
        files=files,
        num_new=len(new),
        bytes_new=sum(file.digest.size_bytes for file in new),
        left_out=tuple(left_out),
    )


def entries(files: Iterable[NodeFile]) -> tuple[ArtifactEntry, ...]:
    """What a manifest says of node artifacts; nobody can tell what determined their bytes."""
    from cache_store.keys import key_of
    from cache_store.records.manifest import ArtifactEntry

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


def _kept(source: Source, cache_root: Path, before: Listing, left_out: list[str]) -> Iterator[NodeFile]:
    """What is new in a source, kept; why files are not in ``left_out``."""
    for path, identity in _walk(source, left_out):
        if before.get((source.name, path)) == identity:
            continue
        try:
            digest = keep(cache_root, source.directory / path, seen=identity)
        except UnusableCache as error:
            left_out.append(str(error))
            continue
        relative = f"{source.prefix}/{path}" if source.prefix else path
        yield NodeFile(cache=source.name, relative=relative, digest=digest)


def _within_limits(files: Iterable[NodeFile], left_out: list[str]) -> tuple[NodeFile, ...]:
    """Those that a manifest can name together, the first of each path."""
    paths: dict[str, NodeFile] = {}
    for file in files:
        if split_node_path(file.path) is None:
            left_out.append(f"{file.path!r}: no name that another node could have")
        else:
            paths.setdefault(file.path, file)
    bad = dict(collisions(paths))
    left_out += [f"{path}: {fault}" for path, fault in bad.items()]
    kept: list[NodeFile] = []
    size_bytes = 0
    for path, file in paths.items():
        if path in bad:
            continue
        if len(kept) == MAX_FILES or size_bytes + file.digest.size_bytes > MAX_BYTES:
            left_out.append(f"{path}: more than {MAX_FILES} files or {MAX_BYTES} bytes of one node")
            continue
        size_bytes += file.digest.size_bytes
        kept.append(file)
    return tuple(kept)


def _walk(source: Source, left_out: list[str]) -> Iterator[tuple[str, Identity]]:
    """Files of a source by their paths, in order, with what changes when they are written."""
    takes = Destination(path=source.directory, patterns=source.patterns).takes
    try:
        with os_errors_are_unusable("directory", source.directory):
            if not source.directory.exists():
                return
            check_owned(source.directory, source.directory.stat(), directory=True)
        for path, status in _files(source.directory, "", takes, left_out):
            yield path, identity_of(status)
    except UnusableCache as error:
        left_out.append(str(error))


def _files(
    root: Path, prefix: str, takes: Callable[[str], bool], left_out: list[str]
) -> Iterator[tuple[str, os.stat_result]]:
    with os_errors_are_unusable("directory", root / prefix), os.scandir(root / prefix) as scanned:
        found = sorted(scanned, key=lambda entry: entry.name)
    for entry in found:
        path = f"{prefix}{entry.name}"
        try:
            with os_errors_are_unusable("file", root / path):
                is_directory = entry.is_dir(follow_symlinks=False)
                if entry.name in _MARKS or entry.name.startswith(_OWN_TEMPORARY):
                    continue
                if is_left_out(entry.name, directory=is_directory) or not (is_directory or takes(path)):
                    continue
                status = entry.stat(follow_symlinks=False)
                check_owned(root / path, status, directory=is_directory)
            if is_directory:
                yield from _files(root, f"{path}/", takes, left_out)
            else:
                yield path, status
        except UnusableCache as error:
            left_out.append(str(error))
