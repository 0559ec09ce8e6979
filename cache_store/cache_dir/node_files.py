"""Node artifacts on a node's disk: files that belong to a node, not to a rank, such as compiled kernels.

A *node cache* is a directory of another tool that a config declares by name. A manifest names a file of it
``node/<name of the node cache>/<path below it>``. The bytes lie once, whatever names them::

    <cache root>/node/ab/<sha256>       mode 0600, directories 0700

A kept file is made whole, made anew where it holds other bytes, and shares no inode, because the tools write
theirs in place. Only what this user alone could have written is kept, and nothing that changed while it was
read. Its modification time says when it was last used, to a day.

From there node artifacts go where the tools look for them: nowhere outside of the directories that this
node's config declares, nor through a link, nor where another user can write. A file that is there is the
node's own and stays. What cannot be placed is a reason, never an error: the tool compiles it again.
"""

from __future__ import annotations

import contextlib
import fnmatch
import logging
import os
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from warmrank.cache_store.cache_dir.marks import Marks, check_marks, permit_copies
from warmrank.cache_store.cache_dir.private_files import (
    check_parents,
    create_private,
    date_back,
    digest_owned,
    digest_private,
    make_directories_below,
    make_private_directories,
    open_owned,
    open_private,
    os_errors_are_unusable,
    sweep_debris,
    temporary_path,
)
from warmrank.cache_store.digests import Digest, TooLong, Writable, copy_and_digest, is_sha256
from warmrank.cache_store.errors import UnusableCache
from warmrank.cache_store.paths import path_fault

logger = logging.getLogger(__name__)
NODE = "node"
KEPT_S = 30 * 24 * 3600.0
_NOTED_S = 24 * 3600.0  # each note of a use changes what the digest index knows of the file
_CACHE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}", re.ASCII)
Identity = tuple[int, int, int, int]


Collect = Literal["new", "all", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCache:
    """A node cache of this node; ``patterns`` say which files below its directory belong to it."""

    name: str
    directory: str  # which may be absent
    patterns: tuple[str, ...] = ("*",)  # a ``*`` stands for slashes too
    collect: Collect = "new"  # what a launch adds or changes; or also what was there before

    def takes(self, relative: str) -> bool:
        """Return True if a file of that path below the directory belongs to the node cache."""
        return any(fnmatch.fnmatchcase(relative, pattern) for pattern in self.patterns)


NodeCaches = Mapping[str, NodeCache]
"""The node caches of this node, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFile:
    """A node artifact: the name of its node cache, its posix path below that, and its bytes."""

    cache: str
    relative: str
    digest: Digest

    @property
    def path(self) -> str:
        """Its path in manifests."""
        return f"{NODE}/{self.cache}/{self.relative}"


def split_node_path(path: str) -> tuple[str, str] | None:
    """Name of the node cache and path below it; None for what is no path of a node artifact."""
    first, _, rest = path.partition("/")
    name, _, relative = rest.partition("/")
    if first != NODE or not _CACHE_NAME.fullmatch(name) or not relative or path_fault(path):
        return None
    return None if any(is_reserved(part) for part in relative.split("/")) else (name, relative)


def is_reserved(name: str) -> bool:
    """Return True for names that no part of a node artifact's path may have: marks, locks, hidden files."""
    folded = name.casefold()
    return folded.startswith(".") or folded.endswith(".lock") or folded == "locks"


def kept_path(cache_root: Path, sha256: str) -> Path:
    """Path of the bytes of that digest in a cache directory."""
    return cache_root / NODE / sha256[:2] / sha256


def find_kept(
    cache_root: Path, digest: Digest, *, digest_of: Callable[[Path], Digest] = digest_private
) -> Path | None:
    """The kept file with exactly these bytes, if it is whole and private."""
    path = kept_path(cache_root, digest.sha256)
    with contextlib.suppress(UnusableCache, OSError):  # then it is made anew
        if path.lstat().st_size == digest.size_bytes and digest_of(path) == digest:
            return path
    return None


def note_use(path: Path) -> None:
    """Keep `drop_unneeded`, of this launch and of others, from taking a kept file."""
    with contextlib.suppress(OSError):
        if time.time() - path.lstat().st_mtime > _NOTED_S:
            os.utime(path, follow_symlinks=False)


def kept_files(cache_root: Path) -> tuple[Path, ...]:
    """All kept files of a cache directory, sorted."""
    paths = (cache_root / NODE).glob("??/*")
    return tuple(sorted(path for path in paths if is_sha256(path.name)))


def drop_unneeded(cache_root: Path, needed: Collection[str]) -> None:
    """Remove kept files unused for `KEPT_S` and not needed now; the store brings back what is missed."""
    for path in kept_files(cache_root):
        with contextlib.suppress(OSError):
            if path.name not in needed and time.time() - path.lstat().st_mtime > KEPT_S:
                path.unlink()
                logger.info("Removed %s, which was not used for long", path)


def temporary_kept(cache_root: Path) -> Path:
    """A name for a file on its way in; its directory is made, and swept of what killed processes left."""
    directory = cache_root / NODE / "tmp"
    with os_errors_are_unusable("directory", directory):
        make_private_directories(directory)
    sweep_debris(directory, ".", ".tmp")
    return temporary_path(directory)


def place_kept(cache_root: Path, staged: Path, digest: Digest) -> Path:
    """Give a staged file, whose bytes the caller verified, its name; ``staged`` is gone afterwards."""
    path = kept_path(cache_root, digest.sha256)
    with os_errors_are_unusable("file", path):
        make_private_directories(path.parent)
        date_back(staged)
        staged.replace(path)  # equal bytes, or torn ones
    return path


def keep(
    cache_root: Path, source: Path, *, seen: Identity | None = None, expected: Digest | None = None
) -> Digest:
    """Keep a copy of a file of another tool, and return its digest.

    ``seen`` is what `identity_of` said of it a moment ago, ``expected`` what it probably holds: if that is
    kept, the file is read and not copied.
    """
    if expected is not None and (known := find_kept(cache_root, expected)) is not None:
        with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - a device
            if _copy_unchanged(source, nowhere, seen) == expected:
                note_use(known)
                return expected
    staged = temporary_kept(cache_root)
    try:
        with os_errors_are_unusable("file", staged), create_private(staged) as target:
            digest = _copy_unchanged(source, target, seen)
        if (known := find_kept(cache_root, digest)) is None:
            place_kept(cache_root, staged, digest)
        else:
            note_use(known)
    finally:
        staged.unlink(missing_ok=True)
    return digest


def identity_of(status: os.stat_result) -> Identity:
    """The parts of a status that change when a file is written or replaced."""
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _copy_unchanged(source: Path, target: Writable, seen: Identity | None) -> Digest:
    with os_errors_are_unusable("file", source), open_owned(source) as file:
        before = os.fstat(file.fileno())
        try:
            digest = copy_and_digest(file, target, limit_bytes=before.st_size)
        except TooLong as error:
            raise _changed(source, f"it grew beyond {before.st_size} bytes") from error
        if digest.size_bytes != before.st_size:
            raise _changed(source, f"{digest.size_bytes} bytes, of {before.st_size}")
        if not {identity_of(source.lstat()), seen or identity_of(before)} == {identity_of(before)}:
            raise _changed(source, "its times, size or inode changed")
    return digest


def _changed(source: Path, actual: str) -> UnusableCache:
    expected = "a file that nobody writes while it is read"
    remedy = "the next launch takes it, once it is complete"
    return UnusableCache(what="file", where=str(source), expected=expected, actual=actual, remedy=remedy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Node artifacts that were written, that were there with the same bytes, and why others are not there."""

    new: tuple[NodeFile, ...] = ()
    there: tuple[NodeFile, ...] = ()
    skipped: tuple[str, ...] = ()


def refusal(directory: Path, policy: str, revoked: Collection[str]) -> str:
    """Reason of `check_marks` to refuse a node cache under a trust policy; empty if it may be used."""
    try:
        check_marks(directory, policy, revoked)
    except UnusableCache as error:
        return str(error)
    return ""


def place_files(cache_root: Path, files: Sequence[NodeFile], caches: NodeCaches, vouched: Marks) -> Placed:
    """Copy node artifacts that ``cache_root`` keeps to where this node's tools look for them."""
    new: list[NodeFile] = []
    there: list[NodeFile] = []
    skipped: list[str] = []
    for file in files:
        try:
            (new if _place(cache_root, file, caches.get(file.cache), vouched) else there).append(file)
        except (_NotPlaced, UnusableCache) as reason:
            skipped.append(f"{file.path}: {reason}")
    for directory in {(Path(caches[file.cache].directory) / file.relative).parent for file in new}:
        sweep_debris(directory, ".", ".tmp")
    return Placed(new=tuple(new), there=tuple(there), skipped=tuple(skipped))


class _NotPlaced(Exception):
    """Reason why a file is not placed; within this module only."""


def _place(cache_root: Path, file: NodeFile, cache: NodeCache | None, vouched: Marks) -> bool:
    """Place a file; return False where it was there."""
    if split_node_path(file.path) is None:
        raise _NotPlaced("no path of a node artifact")
    if cache is None or not cache.takes(file.relative):
        why = "no pattern takes it" if cache else f"this node's config declares no {file.cache!r}"
        raise _NotPlaced(f"left in the cache directory: {why}")
    root = Path(cache.directory)
    path = root / file.relative
    if _is_there(path, file):
        return False
    kept = find_kept(cache_root, file.digest)
    if kept is None:
        raise _NotPlaced("its kept copy is gone or damaged; the next fetch brings it again")
    note_use(kept)
    check_parents(root)
    make_directories_below(root, path.parent)
    permit_copies(root, vouched.policy, vouched.signers)
    temporary = temporary_path(path.parent)
    try:
        with (
            os_errors_are_unusable("file", path),
            open_private(kept) as source,
            create_private(temporary) as target,
        ):
            if copy_and_digest(source, target) != file.digest:
                raise _NotPlaced("its kept copy changed while it was read")
            target.flush()
            os.fsync(target.fileno())  # a torn file would be taken for the node's own
        with os_errors_are_unusable("file", path):
            try:
                os.link(temporary, path)
            except FileExistsError:  # the tool, or another process, was faster
                _is_there(path, file)
                return False
            return True
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _is_there(path: Path, file: NodeFile) -> bool:
    """Return True if the node has the file; raise `_NotPlaced` for another one of that name that stays."""
    with os_errors_are_unusable("file", path):
        try:
            is_equal = path.lstat().st_size == file.digest.size_bytes and digest_owned(path) == file.digest
        except (FileNotFoundError, NotADirectoryError):
            return False
    if not is_equal:
        raise _NotPlaced(f"the node has another file at {path}, which stays")
    return True
