"""Giving a file of a store in a directory another name, or none.

Nothing is ever replaced; a process that stands still between any two calls takes no other file away than the
one that it gave the new name; killed there, the file stands under both names. Where something other than a
file was put, it is moved and removed all the same. Faults that no method turns into `StoreUnavailable` are
``OSError``.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from warmrank.cache_store.backends.durability import file_system_type, libc
from warmrank.cache_store.cache_dir.private_files import temporary_name
from warmrank.cache_store.errors import StoreUnavailable
from warmrank.cache_store.layout import TMP
from warmrank.cache_store.steps import Step, reached

# Where a rename is known to set the inode's time of change, which says since when a file has its name.
# Network file systems need not do so, and have no rename that does not replace.
_RENAME_TYPES = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "tmpfs", "overlay"})
_NO_REPLACE = 1
_AT_FDCWD = -100
_NO_SUCH_RENAME = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})
_NO_HARD_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
_MAX_REMOVALS = 10  # of one directory under the feet of one link
_MOUNTS = Path("/proc/self/mounts")


class Mover:
    """Links, moves and removes files of the store in ``root``; ``mode`` is that of new directories."""

    def __init__(self, root: Path, *, mode: int) -> None:
        self._root = root
        self._mode = mode

    def link(self, path: str | Path, target: str | Path) -> bool:
        """Give a file a second name; False when another file has it.

        Raises:
            StoreUnavailable: the file system has no hard links, or the directory cannot be made.
        """
        try:
            self._with_parent(os.link, path, target)
        except FileExistsError:
            # Over NFS a link may have been made although its answer was lost and the second try says EEXIST.
            return _is_same(path, target)
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            raise StoreUnavailable(
                what=Path(target).relative_to(self._root).as_posix(),
                where=str(self._root),
                reason=f"no hard link can be made ({error.strerror})",
                remedy="put the store on a file system that has hard links, such as ext4, xfs, NFS or Lustre",
            ) from error
        return True

    def move(self, path: Path, target: Path) -> bool:
        """Give what stands at ``path`` another name; False when something else has it; raises as `link`."""
        if self._renames:
            try:
                self._with_parent(rename_new, path, target)
            except FileExistsError:
                if not _is_same(path, target):
                    return False
                # A move that was cut short between its two calls; the second one follows below.
            except OSError as error:
                if error.errno not in _NO_SUCH_RENAME:
                    raise
            else:
                return True
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            if os.path.lexists(target):
                return False
            self._with_parent(os.rename, path, target)  # a link cannot move a directory
            return True
        if not self.link(path, target):
            return False
        reached(Step.MOVE_LINKED)
        return self._unlink(path, status)

    def _unlink(self, path: Path, moved: os.stat_result) -> bool:
        """Take the former name away from the file that was moved, and from no other.

        Meanwhile another process may have moved it too, and a third one created another file in its place.
        """
        away = self._away()
        path.rename(away)
        is_moved = os.path.samestat(away.lstat(), moved)
        if not is_moved:
            self.link(away, path)  # unless a still newer file has the name
        away.unlink()
        return is_moved

    def remove(self, path: Path) -> None:
        """Remove what stands at ``path``, whatever it is."""
        try:
            path.unlink()
        except (IsADirectoryError, PermissionError):
            if not stat.S_ISDIR(path.lstat().st_mode):
                raise
            away = self._away()
            path.rename(away)
            with suppress(OSError):  # what stays costs space only
                _remove_tree(away)

    def _away(self) -> Path:
        """A name on the way out, that nobody else has."""
        make_directories(self._root / TMP, root=self._root, mode=self._mode)
        return self._root / TMP / temporary_name()

    def _with_parent(
        self, call: Callable[[str | Path, str | Path], None], path: str | Path, target: str | Path
    ) -> None:
        for _ in range(_MAX_REMOVALS):
            try:
                return call(path, target)
            except FileNotFoundError:
                if not os.path.lexists(path):
                    raise
            # Another process may remove an empty directory of the trash again before it is used.
            with suppress(FileNotFoundError):
                make_directories(Path(target).parent, root=self._root, mode=self._mode)
        reason = f"its directory was removed {_MAX_REMOVALS} times while it was made"
        raise StoreUnavailable(what="file", where=str(target), reason=reason, remedy="try again")

    @functools.cached_property
    def _renames(self) -> bool:
        try:
            mounts = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:
            return False
        return file_system_type(self._root.resolve(), mounts) in _RENAME_TYPES


def rename_new(path: str | Path, target: str | Path) -> None:
    """Rename without replacing, in one step; raises ``OSError``, also where the system has no such call."""
    call = getattr(libc(), "renameat2", None)
    number = errno.ENOSYS
    if call is not None:
        sys.audit("os.rename", path, target, -1, -1)  # as `os.rename` does for whoever listens
        if call(_AT_FDCWD, os.fsencode(path), _AT_FDCWD, os.fsencode(target), _NO_REPLACE) == 0:
            return
        number = ctypes.get_errno()
    raise OSError(number, os.strerror(number), str(path), None, str(target))


def make_directories(directory: Path, *, root: Path, mode: int) -> None:
    """Make a directory below ``root`` and those between."""
    try:
        directory.mkdir(mode=mode)
    except FileExistsError:
        return
    except FileNotFoundError:
        if directory == root:
            raise
        make_directories(directory.parent, root=root, mode=mode)
        with suppress(FileExistsError):
            directory.mkdir(mode=mode)


def _is_same(path: str | Path, target: str | Path) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.lstat(target))
    except FileNotFoundError:
        return False


def _remove_tree(root: Path) -> None:
    """Remove a directory of any depth: what lies deeper is first brought up, so that no path gets long."""
    waiting = [root]
    while waiting:
        directory = waiting.pop()
        for path in list(directory.iterdir()):
            if path.is_dir() and not path.is_symlink():
                waiting.append(path.rename(root.with_name(temporary_name())))
            else:
                path.unlink()
        directory.rmdir()
