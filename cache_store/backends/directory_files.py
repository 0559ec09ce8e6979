"""Files of a store in a directory: opening, looking, walking, making directories.

Invariant: anybody who may write into a store may put anything there, so nothing is waited for that is no
regular file, no link is followed in the last part of a name, and no walk goes deeper than a store's names.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from warmrank.cache_store.backends.backend import FileInfo, name_fault
from warmrank.cache_store.errors import Corrupt
from warmrank.cache_store.layout import TMP, file_depth

logger = logging.getLogger(__name__)

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def open_regular(path: str | Path, name: str) -> BinaryIO:
    """Open a file for reading.

    Raises:
        Corrupt: it is something else: a directory, a link, a pipe.
        OSError: it is not there, or cannot be opened.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe's open would wait
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO) and not stat.S_ISREG(mode := os.lstat(path).st_mode):
            raise _no_file(path, name, mode) from error
        raise
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISREG(mode):
            return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    raise _no_file(path, name, mode)


def info_of(name: str, status: os.stat_result) -> FileInfo:
    """What the status of a file says of it."""
    # A link or rename changes the inode's time of change, so that is when the file got its present name.
    return FileInfo(
        name=name,
        stored_bytes=status.st_size,
        content_bytes=status.st_size,
        modified_s=status.st_ctime,
        written_s=min(status.st_mtime, status.st_ctime),  # a time of change can be set, but to no later one
        is_regular=stat.S_ISREG(status.st_mode),
    )


def walk(root: Path, directory: str) -> Iterator[FileInfo]:
    """Everything below a directory of a store, itself given relative to ``root``, but what is on its way in.

    A directory where the store's layout has a file counts as one. Names that no store gives are left out,
    and said in the log.

    Raises:
        OSError: something cannot be looked at.
    """
    strange: list[str] = []
    yield from _walk(str(root), f"{directory}/" if directory else "", strange)
    if strange:
        logger.warning(
            "%d entries in %s have names that no store gives, such as %r; they are left alone",
            len(strange),
            root / directory,
            strange[0],
        )


def _walk(root: str, prefix: str, strange: list[str]) -> Iterator[FileInfo]:
    """Its depth is bounded by `file_depth`."""
    try:
        with os.scandir(f"{root}/{prefix}") as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        name = f"{prefix}{entry.name}"
        if name_fault(name):
            strange.append(name)
        elif entry.is_dir(follow_symlinks=False) and name.count("/") + 1 < file_depth(name):
            if name != TMP.rstrip("/"):
                yield from _walk(root, f"{name}/", strange)
        else:
            with contextlib.suppress(FileNotFoundError):  # another process moved it since
                yield info_of(name, entry.stat(follow_symlinks=False))


def directory_mode(root: Path) -> int:
    """Mode for new directories of the store in ``root``: others may write only where they may in ``root``.

    The umask takes from it; without this, that of the day would decide who can write into a store.
    """
    return 0o777 & ~(_OTHERS_WRITE & ~root.stat().st_mode)


def make_directories(directory: Path, *, root: Path, mode: int) -> None:
    """Make a directory below ``root`` and those between; raises ``OSError``."""
    try:
        directory.mkdir(mode=mode)
    except FileExistsError:
        return
    except FileNotFoundError:
        if directory == root:
            raise
        make_directories(directory.parent, root=root, mode=mode)
        with contextlib.suppress(FileExistsError):
            directory.mkdir(mode=mode)


def _no_file(path: str | Path, name: str, mode: int) -> Corrupt:
    actual = stat.filemode(mode)
    return Corrupt(what=name, where=str(path), expected="a regular file", actual=actual)
