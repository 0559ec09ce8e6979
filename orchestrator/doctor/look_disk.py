"""Looks at the cache directory and the node caches, which may lie on a dead disk. Input only.

A place that does not answer within `PATIENCE_S` is left in its thread, and said to be silent. What is made
for a try is removed again.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from functools import partial
from pathlib import Path

from warmrank.cache_store.backends.durability import file_system_type
from warmrank.cache_store.errors import UnusableCache
from warmrank.cache_store.node.private_files import FILE_MODE, check_parents, create_private, temporary_name
from warmrank.orchestrator.bounded import all_within
from warmrank.orchestrator.config.models import Config
from warmrank.orchestrator.config.node_caches import declared_caches, place_faults
from warmrank.orchestrator.doctor.clocks import Clock
from warmrank.orchestrator.doctor.disk import Disk, NodeCacheDirectory

PATIENCE_S = 5.0

_FICLONE = 0x40049409  # linux/fs.h: _IOW(0x94, 9, int)
_SCRATCH_BYTES = 4096
_MOUNTS = Path("/proc/self/mounts")


def look_at_disk(path: Path, needed_bytes: int) -> tuple[Disk, tuple[Clock, ...]] | None:
    """The cache directory, and the clock of its file system; None where it does not answer.

    Raises:
        OSError: it cannot be looked at.
    """
    (found,) = all_within([partial(_disk_or_error, path.absolute(), needed_bytes)], timeout_s=PATIENCE_S)
    if isinstance(found, OSError):
        raise found
    return found


def _disk_or_error(path: Path, needed_bytes: int) -> tuple[Disk, tuple[Clock, ...]] | OSError:
    """An error as a value, because it would be lost in its thread."""
    try:
        return _disk(path, needed_bytes)
    except OSError as error:
        return error


def _disk(path: Path, needed_bytes: int) -> tuple[Disk, tuple[Clock, ...]]:
    there = _nearest_there(path)
    status, room = there.stat(), os.statvfs(there)
    is_directory = stat.S_ISDIR(status.st_mode)
    problem = "" if is_directory else "it is no directory"
    if is_directory and not os.access(there, os.R_OK | os.W_OK | os.X_OK):
        problem = "this user may not write it"
    tried = _Scratch(there) if path == there and not problem else None
    if tried is not None:
        tried.run()
    return (
        Disk(
            path=str(path),
            exists=path == there,
            looked_at=str(there),
            problem=problem,
            uid=status.st_uid,
            own_uid=os.geteuid(),
            mode=stat.S_IMODE(status.st_mode),
            file_system=_file_system(there),
            noexec=bool(room.f_flag & os.ST_NOEXEC),
            free_bytes=room.f_frsize * room.f_bavail,
            free_inodes=room.f_favail if room.f_files else -1,
            needed_bytes=needed_bytes,
            scratch_problem=tried.problem if tried else "",
            keeps_modes=tried.keeps_modes if tried else None,
            reflinks=tried.reflinks if tried else None,
        ),
        tried.clocks if tried else (),
    )


def look_at_node_caches(config: Config) -> tuple[NodeCacheDirectory, ...]:
    """The directories of the config's node caches on this node."""
    caches, misplaced = declared_caches(config), place_faults(config)
    looks = [partial(_writing_fault, Path(cache.directory).absolute()) for cache in caches]
    faults = all_within(looks, timeout_s=PATIENCE_S)
    return tuple(
        NodeCacheDirectory(
            name=cache.name,
            path=cache.directory,
            problem=misplaced.get(cache.name) or ("it does not answer" if fault is None else fault),
        )
        for cache, fault in zip(caches, faults, strict=True)
    )


def _writing_fault(path: Path) -> str:
    """Why files cannot be put into a directory, which may be made; empty if they can."""
    there = _nearest_there(path)
    if not there.is_dir():
        return f"{there} is no directory"
    try:
        check_parents(path)
    except UnusableCache as error:
        return error.actual
    return "" if os.access(there, os.W_OK | os.X_OK) else f"this user may not write {there}"


def _nearest_there(path: Path) -> Path:
    """The path, or the nearest directory above it that can be looked at."""
    for candidate in (path, *path.parents):
        try:
            candidate.stat()
        except OSError:
            continue
        return candidate
    return Path("/")


def _file_system(path: Path) -> str:
    mounts = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    return file_system_type(path.resolve(), mounts)


class _Scratch:
    """A private file made for a try, and a copy of it that shares its blocks where that is possible."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / f".doctor-{temporary_name()}"
        self.problem = ""
        self.keeps_modes: bool | None = None
        self.reflinks: bool | None = None
        self.clocks: tuple[Clock, ...] = ()

    def run(self) -> None:
        copy = self._path.with_name(f"{self._path.name}.copy")
        try:
            before = time.time()
            with create_private(self._path) as file:
                file.write(bytes(_SCRATCH_BYTES))
                file.flush()
                os.fsync(file.fileno())
            after, status = time.time(), self._path.stat()
            self.keeps_modes = status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) == FILE_MODE
            self.clocks = (
                Clock(
                    check="clocks.cache_dir",
                    name="the cache directory's file system",
                    ahead_s=nearest(status.st_mtime, before, after),
                ),
            )
            self.reflinks = _reflink(self._path, copy)
        except OSError as error:
            self.problem = error.strerror or str(error)
        finally:
            for path in (self._path, copy):
                path.unlink(missing_ok=True)


def nearest(their_s: float, before_s: float, after_s: float) -> float:
    """How far a clock read between two readings of ours is ahead, at the least; negative if behind."""
    if before_s <= their_s <= after_s:
        return 0.0
    return their_s - after_s if their_s > after_s else their_s - before_s


def _reflink(source: Path, target: Path) -> bool:
    with source.open("rb") as from_file, create_private(target) as to_file:
        try:
            fcntl.ioctl(to_file.fileno(), _FICLONE, from_file.fileno())
        except OSError:
            return False
    return True
