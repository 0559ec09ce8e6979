"""Making files and names survive a power cut, in the cheapest way that the file system allows.

Measured on ext4 and xfs: renaming without a flush loses half of what was acknowledged in a power cut; one
``syncfs`` for a whole batch loses nothing, at three times the speed of an fsync for each file. What it does
on network file systems is not established, so they, and every unknown type, get an fsync for each file.
"""

from __future__ import annotations

import errno
import functools
import io
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from warmrank.cache_store.parallel import each

if TYPE_CHECKING:
    import ctypes

Flush = Literal["syncfs", "fsync"]
FlushChoice = Literal["auto", "syncfs", "fsync"]
LOCAL_TYPES = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "tmpfs", "overlay", "zfs", "bcachefs"}
)
# A syncfs also writes what other programs left dirty, which for a few files costs more than their fsyncs.
_FEW = 8
_NUM_THREADS = 8  # they only wait
_EARLY_BYTES = 8 << 20
_SYNC_FILE_RANGE_WRITE = 2  # linux/fs.h
_MOUNTS = Path("/proc/self/mounts")


def choose_flush(path: Path, choice: FlushChoice = "auto") -> Flush:
    """Choose the flush for files below ``path``; ``auto`` is ``syncfs`` on what is known to be local."""
    if choice != "auto":
        return choice
    return "syncfs" if type_of(path) in LOCAL_TYPES else "fsync"


def type_of(path: Path) -> str:
    """Type of the file system that holds ``path``; empty where it cannot be told."""
    try:
        return file_system_type(path.resolve(), read_mounts())
    except OSError:
        return ""


def read_mounts() -> str:
    """The mount table of this process; raises ``OSError``."""
    return _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")


def file_system_type(path: Path, mounts: str) -> str:
    """Type of the file system that holds the resolved ``path``, from the text of ``/proc/mounts``.

    A mount point hides what was mounted before at the same place or above. Empty when nothing holds it.
    """
    best, found = -1, ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        # Blanks, tabs, line feeds and backslashes stand as three octal digits.
        mount_point = Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[1]))
        if path.is_relative_to(mount_point) and len(mount_point.parts) >= best:
            best, found = len(mount_point.parts), fields[2]
    return found


def flush_all(paths: Iterable[str | Path], *, root: Path, flush: Flush) -> None:
    """Make files or directories, all on the file system of ``root``, durable; raises ``OSError``."""
    distinct = set(paths)
    if flush == "syncfs" and len(distinct) > _FEW:
        _sync_file_system(root)
    else:
        each(_fsync, sorted(distinct, key=os.fspath), num_threads=_NUM_THREADS if len(distinct) > _FEW else 1)


class EarlyWriter:
    """Writes a file that is to be flushed later, and has the disk begin meanwhile; promises nothing."""

    def __init__(self, file: io.BufferedWriter) -> None:
        self._file = file
        self._written = self._begun = 0

    def write(self, data: bytes, /) -> None:
        """Take all of ``data``."""
        self._file.write(data)
        self._written += len(data)
        size_bytes = self._written - self._begun
        if size_bytes >= _EARLY_BYTES:
            import ctypes

            # The result is ignored: the flush that follows has the last word.
            offset, size = ctypes.c_int64(self._begun), ctypes.c_int64(size_bytes)
            libc().sync_file_range(self._file.fileno(), offset, size, _SYNC_FILE_RANGE_WRITE)
            self._begun = self._written


@functools.cache
def libc() -> ctypes.CDLL:
    """The C library; a call through it releases the GIL."""
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def _fsync(path: str | Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems make names durable at once, and cannot sync a directory.
        if not (error.errno in (errno.EINVAL, errno.ENOTSUP) and Path(path).is_dir()):
            raise
    finally:
        os.close(descriptor)


def _sync_file_system(path: Path) -> None:
    import ctypes

    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if libc().syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
    finally:
        os.close(descriptor)
