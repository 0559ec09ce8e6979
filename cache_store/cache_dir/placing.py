"""From a cache directory into a node's own caches: each node artifact where the tool that reads it looks.

Nothing is written outside of the directories that this node's config declares, nor through a link, nor where
another user can write. A file that is there is the node's own and stays, unless its path says what it holds
(`Destination.in_sets`). What is written appears whole, verified, mode 0600, sharing no inode. What cannot be
placed is a reason, never an error: the tool compiles it again.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from warmrank.cache_store.cache_dir.marks import check_marks, permit_copies
from warmrank.cache_store.cache_dir.node_files import (
    NodeFile,
    find_kept,
    kept_path,
    note_use,
    split_node_path,
)
from warmrank.cache_store.cache_dir.private_files import (
    check_parents,
    create_private,
    digest_owned,
    make_directories_below,
    open_private,
    os_errors_are_unusable,
    sweep_debris,
    temporary_name,
)
from warmrank.cache_store.digests import copy_and_digest
from warmrank.cache_store.errors import UnusableCache

_TEMPORARY = ".warmrank-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """A node cache of this node.

    One ``in_sets`` has its files in ``<artifact>/<conditions>/``, and their names say what is in them
    (`worker.node_caches`); of one artifact, under the same conditions, one is enough.
    """

    path: Path  # of its directory, which may be absent
    patterns: tuple[str, ...] = ("*",)  # which files below belong to it; a ``*`` stands for slashes too
    in_sets: bool = False

    def takes(self, relative: str) -> bool:
        """Whether a file of that path below the directory belongs to the node cache."""
        return any(fnmatch.fnmatchcase(relative, pattern) for pattern in self.patterns)


Destinations = Mapping[str, Destination]
"""The node caches of this node, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vouched:
    """Under which trust policy node artifacts came, and by the word of which keys."""

    policy: str
    signers: Collection[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Node artifacts that were written, that were there with the same bytes, and why others are not there."""

    new: tuple[NodeFile, ...] = ()
    there: tuple[NodeFile, ...] = ()
    skipped: tuple[str, ...] = ()


def refusal(directory: Path, policy: str, revoked: Collection[str]) -> str:
    """Why a node cache must not be used under a trust policy, as `check_marks` has it; empty if it may."""
    try:
        check_marks(directory, policy, revoked)
    except UnusableCache as error:
        return str(error)
    return ""


def admitted(
    destinations: Destinations, policy: str, revoked: Collection[str]
) -> tuple[dict[str, Destination], tuple[str, ...]]:
    """The node caches that may be used under a trust policy, and why others are left out."""
    reasons = {name: refusal(found.path, policy, revoked) for name, found in destinations.items()}
    usable = {name: found for name, found in destinations.items() if not reasons[name]}
    return usable, tuple(f"node cache {name}: {reason}" for name, reason in reasons.items() if reason)


def place_files(
    cache_root: Path, files: Sequence[NodeFile], destinations: Destinations, vouched: Vouched
) -> Placed:
    """Copy node artifacts that ``cache_root`` keeps to where this node's tools look for them."""
    new: list[NodeFile] = []
    there: list[NodeFile] = []
    skipped: list[str] = []
    for file in files:
        try:
            destination = _destination_of(file, destinations)
            (new if _place(cache_root, file, destination, vouched) else there).append(file)
        except (_NotPlaced, UnusableCache) as reason:
            skipped.append(f"{file.path}: {reason}")
    for directory in {(destinations[file.cache].path / file.relative).parent for file in new}:
        sweep_debris(directory, _TEMPORARY)
    return Placed(new=tuple(new), there=tuple(there), skipped=tuple(skipped))


class _NotPlaced(Exception):
    """Why a file is not placed; within this module only."""


def _destination_of(file: NodeFile, destinations: Destinations) -> Destination:
    if split_node_path(file.path) is None:
        raise _NotPlaced("no path of a node artifact")
    if (destination := destinations.get(file.cache)) is None:
        why = f"this node's config declares no node cache {file.cache!r}"
    elif not destination.takes(file.relative):
        why = f"no pattern of node cache {file.cache!r} takes it"
    else:
        return destination
    raise _NotPlaced(f"left in the cache directory: {why}")


def _place(cache_root: Path, file: NodeFile, destination: Destination, vouched: Vouched) -> bool:
    """Whether the file is new; it was there otherwise."""
    path = destination.path / file.relative
    if _is_there(path, file, replaced=destination.in_sets):
        return False
    kept = find_kept(cache_root, file.digest)
    if kept is None:
        raise _NotPlaced("its kept copy is gone or damaged; the next fetch brings it again")
    note_use(kept)
    check_parents(destination.path)
    make_directories_below(destination.path, path.parent)
    permit_copies(destination.path, vouched.policy, vouched.signers)
    temporary = path.parent / f"{_TEMPORARY}{temporary_name()}"
    try:
        with (
            os_errors_are_unusable("file", path),
            open_private(kept_path(cache_root, file.digest.sha256)) as source,
            create_private(temporary) as target,
        ):
            if copy_and_digest(source, target) != file.digest:
                raise _NotPlaced("its kept copy changed while it was read")
            target.flush()
            os.fsync(target.fileno())  # a torn file would be taken for the node's own
        with os_errors_are_unusable("file", path):
            if destination.in_sets:
                temporary.replace(path)
                return True
            try:
                os.link(temporary, path)
            except FileExistsError:  # the tool, or another process, was faster
                _is_there(path, file)
                return False
            return True
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _is_there(path: Path, file: NodeFile, *, replaced: bool = False) -> bool:
    """Whether the node has the file; `_NotPlaced` where it has another one of that name that stays."""
    with os_errors_are_unusable("file", path):
        try:
            is_equal = path.lstat().st_size == file.digest.size_bytes and digest_owned(path) == file.digest
        except (FileNotFoundError, NotADirectoryError):
            return False
    if not is_equal and not replaced:
        raise _NotPlaced(f"the node has another file at {path}, which stays")
    return is_equal
