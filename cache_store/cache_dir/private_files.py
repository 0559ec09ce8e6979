"""Files and directories that only the running user can have written.

Invariants: what was checked is what is read (the open file's status, links never followed); a directory
made here has mode 0700 and a file 0600; every fault of the operating system becomes `UnusableCache`.
"""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import re
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from warmrank.cache_store.digests import Digest, digest_stream
from warmrank.cache_store.errors import OsErrors, UnusableCache, UnwritableDisk

logger = logging.getLogger(__name__)
FILE_MODE = 0o600
MAX_ASIDE = 8
DIRECTORY_MODE = 0o700
DEBRIS_AGE_S = 24 * 3600.0
_UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
_MAX_LINKS = 40  # as in Linux
BACK_NS = 4_000_000_000  # twice the coarsest tick of a file system's times (FAT)


def check_private(path: Path) -> None:
    """Refuse a file that another user could have written: an artifact is code.

    Raises:
        UnusableCache: it is no regular file, belongs to another user, its mode is not 0600, or it cannot be
            looked at.
    """
    with os_errors_are_unusable("file", path):
        status = path.lstat()
    _check_status(path, status)


def open_private(path: Path) -> io.BufferedReader:
    """Open a file for reading, checked as `check_private` does.

    Raises:
        UnusableCache: as `check_private`.
        OSError: it is not there, or cannot be opened.
    """
    return _open_checked(path, _check_status)


def open_owned(path: Path) -> io.BufferedReader:
    """Open a file of another tool for reading: this user's, and not writable by anybody else.

    Raises:
        UnusableCache: it is no regular file, belongs to another user, or others can write it.
        OSError: it is not there, or cannot be opened.
    """
    return _open_checked(path, check_owned)


def read_private(path: Path) -> bytes:
    """All bytes of a file that `open_private` lets through.

    Raises:
        UnusableCache: as `open_private`, or it is not there, or cannot be read.
    """
    with os_errors_are_unusable("file", path), open_private(path) as file:
        return file.read()


def digest_private(path: Path) -> Digest:
    """Digest of a file that `open_private` lets through; raises as that does."""
    with open_private(path) as file:
        return digest_stream(file)


def digest_owned(path: Path) -> Digest:
    """Digest of a file that `open_owned` lets through; raises as that does."""
    with open_owned(path) as file:
        return digest_stream(file)


def create_private(path: Path) -> io.BufferedWriter:
    """Create a file with mode 0600 and open it for writing; raises ``OSError``, also when it exists."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, mode=FILE_MODE), "wb")


def date_back(path: Path) -> None:
    """Before a private copy gets its name: give it a time of change that no later write can give it again.

    Raises:
        OSError: it is gone, or has no times.
    """
    time_ns = time.time_ns() - BACK_NS
    os.utime(path, ns=(time_ns, time_ns), follow_symlinks=False)


def make_private_directories(path: Path) -> None:
    """Create ``path`` and its missing parents, each with mode 0700; raises ``OSError``."""
    # Path.mkdir(parents=True) gives its mode to the last directory only.
    try:
        path.mkdir(mode=DIRECTORY_MODE)
    except FileExistsError:
        return  # it was there, or another process was faster
    except FileNotFoundError:
        if path.parent == path:
            raise
        make_private_directories(path.parent)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=DIRECTORY_MODE)


def make_directories_below(root: Path, directory: Path) -> None:
    """Make the directories below ``root`` that are missing; refuse links, and what others can write.

    A link would lead copies out of the directory whose marks say whose word they came by.

    Args:
        root: made likewise; may be a link itself, of the config's making.
        directory: at or below ``root``.

    Raises:
        UnusableCache: one cannot be made or used.
    """
    with os_errors_are_unusable("directory", directory):
        make_private_directories(root)
        check_owned(root, root.stat(), directory=True)
        current = root
        for part in directory.relative_to(root).parts:
            current = current / part
            with contextlib.suppress(FileExistsError):
                current.mkdir(mode=DIRECTORY_MODE)
            check_owned(current, current.lstat(), directory=True)


def way_to(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Every directory in which a part of ``path`` is looked up, and every link that is followed, in order.

    Who can write one of these directories, or owns one of these links, decides what the path means. Ends at
    the first name that is not there.

    Raises:
        OSError: one cannot be looked at, or there are too many links.
    """
    current, num_links = Path("/"), 0
    waiting = list(path.absolute().parts[:0:-1])
    while waiting:
        if (part := waiting.pop()) == "..":
            current = current.parent
            continue
        yield current, current.stat()
        below = current / part
        try:
            status = below.lstat()
        except FileNotFoundError:
            return
        if not stat.S_ISLNK(status.st_mode):
            current = below
            continue
        yield below, status
        num_links += 1
        if num_links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        target = below.readlink()
        if target.is_absolute():
            current = Path("/")
        waiting += target.parts[: 0 if target.is_absolute() else None : -1]


def check_parents(path: Path) -> None:
    """Refuse a path that another user could make mean something else.

    Raises:
        UnusableCache: a directory above it, or above a link that leads to it, or such a link, belongs to
            neither this user nor root, or others can write the directory and rename what is not theirs (the
            sticky bit of ``/tmp`` forbids that).
    """
    with os_errors_are_unusable("directory", path):
        for place, status in way_to(path):
            is_held = status.st_mode & stat.S_ISVTX or stat.S_ISLNK(status.st_mode)
            is_open = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not is_held
            if is_open or status.st_uid not in (0, os.geteuid()):
                raise UnusableCache(
                    what="path",
                    where=str(path),
                    expected="no directory on the way that another user could put something else into",
                    actual=f"{place} has mode {stat.S_IMODE(status.st_mode):04o} and uid {status.st_uid}",
                    remedy="chmod go-w that one, or name another path",
                )


def ensure_cache_dir(path: Path) -> None:
    """Make sure that ``path`` is a directory this user owns and can write; create it with mode 0700.

    Raises:
        UnusableCache: it cannot be created or written, belongs to another user, or others can write it.
    """
    with os_errors_are_unusable("directory", path):
        make_private_directories(path)
        status = path.stat()
    mode = f"mode {stat.S_IMODE(status.st_mode):04o}"
    if not stat.S_ISDIR(status.st_mode):
        expected, actual, remedy = "a directory", stat.filemode(status.st_mode), "name another cache_dir"
    elif status.st_uid != os.geteuid():
        expected, actual = f"owner uid {os.geteuid()}", f"uid {status.st_uid}"
        remedy = "name a cache_dir of your own"
    elif status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        expected, actual = "not writable by group or others", mode
        remedy = f"chmod 700 {path}, or name another cache_dir"
    elif not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        expected, actual = "writable", f"{mode}, or a read-only file system"
        remedy = f"chmod u+rwx {path}, or name another cache_dir"
    else:
        return
    raise UnusableCache(what="directory", where=str(path), expected=expected, actual=actual, remedy=remedy)


def temporary_name() -> str:
    """A name no other process has: host, pid, and a random part for file systems that hosts share."""
    return f"{os.uname().nodename}-{os.getpid()}-{uuid.uuid4().hex}"


def sweep_debris(directory: Path, prefix: str = "", suffix: str = "") -> None:
    """Remove what ended processes of this host left in ``directory``, named with `temporary_name`.

    Only what is `DEBRIS_AGE_S` old: containers share a host's name but not its process ids. What cannot be
    removed stays, because debris costs space only.

    Args:
        directory: where to look; nothing is done where there is none.
        prefix: what stands before that name.
        suffix: what stands after it.
    """
    middle = rf"{re.escape(prefix + os.uname().nodename)}-([0-9]+)-[0-9a-f]{{32}}"
    name = re.compile(rf"{middle}{re.escape(suffix)}", re.ASCII)
    with contextlib.suppress(OSError):
        for path in sorted(directory.iterdir()):
            match = name.fullmatch(path.name)
            if match and not is_running(int(match[1])):
                _remove_if_old(path)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable; raises ``OSError``."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def set_aside(path: Path) -> None:
    """Keep a damaged file for a look at it, under a name that no load considers; at most `MAX_ASIDE` of them.

    What cannot be moved stays, and is only logged: whoever met with the damage goes on without the file.
    """
    names = [f"{path.name}.corrupt", *(f"{path.name}.corrupt.{number}" for number in range(1, MAX_ASIDE))]
    free = next((name for name in names if not path.with_name(name).exists()), names[-1])
    try:
        path.replace(path.with_name(free))
    except FileNotFoundError:
        return  # another process was faster
    except OSError as error:
        logger.warning("%s stays where it is: %s", path, error)


def discard_tree(path: Path) -> None:
    """Remove a directory of this process that nobody needs; what stays is swept later (`sweep_debris`)."""
    # rmtree does not ignore a failing fstat, which a stale handle of a network file system can cause.
    with contextlib.suppress(OSError):
        shutil.rmtree(path, ignore_errors=True)


def os_errors_are_unusable(what: str, path: str | Path) -> OsErrors:
    """Turn any ``OSError`` of the node's own disk into an error of the cache directory.

    Where the disk is full or only read that is `UnwritableDisk`, which names the disk, the same for all its
    files; otherwise `UnusableCache`, with the operating system's reason.
    """

    def unusable(error: OSError) -> UnusableCache:
        reason = error.strerror or str(error)
        if error.errno in _UNWRITABLE:
            return UnwritableDisk(
                what="disk of the cache",
                where=str(_mount_of(Path(path))),
                expected="space left, and writable",
                actual=reason,
                remedy="free space there, or name another cache_dir",
            )
        return UnusableCache(
            what=what,
            where=str(path),
            expected="readable, writable, and space left on its disk",
            actual=reason,
            remedy="check its owner, mode and free space, or name another cache_dir",
        )

    return OsErrors(unusable)


def _mount_of(path: Path) -> Path:
    """Where the disk is mounted that a path lies on."""
    return next((place for place in (path, *path.parents) if place.is_mount()), path)


def _remove_if_old(path: Path) -> None:
    with contextlib.suppress(OSError, RecursionError):  # others may have made a tree too deep for rmtree
        status = path.lstat()
        if time.time() - status.st_mtime <= DEBRIS_AGE_S:
            return
        if stat.S_ISDIR(status.st_mode):
            shutil.rmtree(path)
        else:
            path.unlink()
        logger.info("Removed %s, left by a process that ended", path)


def is_running(pid: int) -> bool:
    """Whether this host has a process of that id, as far as this one can see."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _open_checked(path: Path, check: Callable[[Path, os.stat_result], None]) -> io.BufferedReader:
    # Without O_NONBLOCK the open itself would wait at a named pipe.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    file = os.fdopen(descriptor, "rb")
    try:
        check(path, os.fstat(descriptor))
    except BaseException:
        file.close()
        raise
    return file


def check_owned(path: Path, status: os.stat_result, *, directory: bool = False) -> None:
    """Refuse a file, or a directory, that somebody but this user could have written.

    Raises:
        UnusableCache: it belongs to another user, others can write it, or it is something else.
    """
    kind = "directory" if directory else "file"
    if not (stat.S_ISDIR if directory else stat.S_ISREG)(status.st_mode):
        expected, actual = f"a {'directory' if directory else 'regular file'}", stat.filemode(status.st_mode)
    elif status.st_uid != os.geteuid():
        expected, actual = f"owner uid {os.geteuid()}", f"uid {status.st_uid}"
    elif status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        expected, actual = "not writable by group or others", f"mode {stat.S_IMODE(status.st_mode):04o}"
    else:
        return
    remedy = "publish only what you alone could have written: leave it out, or chmod go-w it"
    raise UnusableCache(what=kind, where=str(path), expected=expected, actual=actual, remedy=remedy)


def _check_status(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        expected, actual, remedy = "a regular file", stat.filemode(status.st_mode), f"remove {path}"
    elif status.st_uid != os.geteuid():
        expected, actual = f"owner uid {os.geteuid()}", f"uid {status.st_uid}"
        remedy = "remove it or run as its owner: an artifact is code, and only its owner uses it"
    elif stat.S_IMODE(status.st_mode) != FILE_MODE:
        expected, actual = f"mode {FILE_MODE:04o}", f"mode {stat.S_IMODE(status.st_mode):04o}"
        remedy = f"remove it, or chmod 600 {path} if nobody else can have written it"
    else:
        return
    raise UnusableCache(what="file", where=str(path), expected=expected, actual=actual, remedy=remedy)
