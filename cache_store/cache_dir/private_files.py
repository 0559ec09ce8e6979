"""Files and directories that only the running user can have written.

What is checked is what is read (the open file's status, links never followed); directories made here have
mode 0700, files 0600; every fault of the operating system becomes `UnusableCache`.
"""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import re
import shlex
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
DIRECTORY_MODE = 0o700
WRITING = ".tmp-"  # begins the name of a file that is being written
DEBRIS_AGE_S = 24 * 3600.0
BACK_NS = 4_000_000_000  # twice the coarsest tick of a file system's times (FAT)
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
_MAX_LINKS = 40  # as in Linux
_PRIVATE_REMEDY = ("remove it", "if nobody else can have written it, chmod 600")
_OWNED_REMEDY = ("publish only what you alone could have written: leave it out", "chmod go-w")
_CACHE_REMEDY = ("name a cache_dir of your own", "chmod 700")


def check_status(  # noqa: PLR0913 - one check for every file and directory that is code or decides about it
    path: Path,
    status: os.stat_result,
    *,
    what: str,
    remedy: tuple[str, str],
    directory: bool = False,
    root_too: bool = False,
    private: bool = False,
) -> None:
    """Refuse a file or directory of another kind or owner, or that others can write; raises `UnusableCache`.

    ``private`` asks for mode 0600 exactly. The remedy's second half ends in a chmod, which helps where the
    mode is at fault, and is not given else.
    """
    said, of_mode = remedy
    uid, mode = os.geteuid(), stat.S_IMODE(status.st_mode)
    if not (stat.S_ISDIR if directory else stat.S_ISREG)(status.st_mode):
        expected, actual = "a directory" if directory else "a regular file", stat.filemode(status.st_mode)
    elif status.st_uid != uid and not (root_too and status.st_uid == 0):
        expected, actual = f"owner uid {uid}{' or root' * root_too}", f"uid {status.st_uid}"
    elif mode != FILE_MODE if private else mode & OTHERS_WRITE:
        expected = f"mode {FILE_MODE:04o}" if private else "not writable by group or others"
        actual, said = f"mode {mode:04o}", f"{said}; or, {of_mode} {shlex.quote(str(path))}"
    else:
        return
    raise UnusableCache(what=what, where=str(path), expected=expected, actual=actual, remedy=said)


def check_owned(path: Path, status: os.stat_result, *, directory: bool = False) -> None:
    """Refuse what is not this user's, or what others can write; raises as `check_status`."""
    what = "directory" if directory else "file"
    check_status(path, status, what=what, remedy=_OWNED_REMEDY, directory=directory)


def check_private(path: Path) -> None:
    """Refuse what is no regular file of this user with mode 0600, because an artifact is code."""
    with os_errors_are_unusable("file", path):
        status = path.lstat()
    _check_private(path, status)


def _check_private(path: Path, status: os.stat_result) -> None:
    check_status(path, status, what="file", remedy=_PRIVATE_REMEDY, private=True)


def open_private(path: Path) -> io.BufferedReader:
    """Open a file for reading, checked as `check_private` does; also raises ``OSError``."""
    return _open_checked(path, _check_private)


def open_owned(path: Path) -> io.BufferedReader:
    """Open another tool's file for reading, checked as `check_owned` does; also raises ``OSError``."""
    return _open_checked(path, check_owned)


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


def read_private(path: Path) -> bytes:
    """All bytes of a private file; every fault is `UnusableCache`."""
    with os_errors_are_unusable("file", path), open_private(path) as file:
        return file.read()


def digest_private(path: Path) -> Digest:
    """Digest of a private file; raises as `open_private`."""
    with open_private(path) as file:
        return digest_stream(file)


def digest_owned(path: Path) -> Digest:
    """Digest of another tool's file; raises as `open_owned`."""
    with open_owned(path) as file:
        return digest_stream(file)


def create_private(path: Path) -> io.BufferedWriter:
    """Create a file with mode 0600 and open it for writing; raises ``OSError``, also when it exists."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, mode=FILE_MODE), "wb")


def write_whole(path: Path, data: bytes, *, replace: bool = True, mode: int = FILE_MODE) -> None:
    """Make a file whole, durable on return; its directory is made with mode 0700, and swept (`sweep_debris`).

    Raises ``OSError``, also when it exists and is not to be replaced.
    """
    temporary = path.with_name(f"{WRITING}{temporary_name()}")
    make_private_directories(path.parent)
    sweep_debris(path.parent, WRITING)
    try:
        with create_private(temporary) as file:
            file.write(data)
            os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            temporary.replace(path)
        else:
            os.link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)


def date_back(path: Path) -> None:
    """Give a private copy, before its name, a time of change that no later write can give it again."""
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
    """Make the missing directories below ``root``, and it; refuse links, and what others can write.

    ``root`` itself may be a link that the config made. Another link would lead copies out of the directory
    whose marks say who vouches for them. Raises `UnusableCache`.
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
    """Every directory in which a part of ``path`` is looked up, and every link followed, in order.

    Who can write one of these directories, or owns one of these links, decides what the path means. Ends at
    the first name that is absent; raises ``OSError``, also for too many links.
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
    """Refuse a path that another user could make mean something else."""
    with os_errors_are_unusable("directory", path):
        for place, status in way_to(path):
            is_held = status.st_mode & stat.S_ISVTX or stat.S_ISLNK(status.st_mode)
            is_owned = status.st_uid in (0, os.geteuid())
            if (status.st_mode & OTHERS_WRITE and not is_held) or not is_owned:
                remedy = f"; or, chmod go-w {shlex.quote(str(place))}" if is_owned else ""
                raise UnusableCache(
                    what="path",
                    where=str(path),
                    expected="no directory on the way that another user could put something else into",
                    actual=f"{place} has mode {stat.S_IMODE(status.st_mode):04o} and uid {status.st_uid}",
                    remedy=f"name another path{remedy}",
                )


def ensure_cache_dir(path: Path) -> None:
    """Make sure that ``path`` is a directory that only this user can write; create it with mode 0700."""
    with os_errors_are_unusable("directory", path):
        make_private_directories(path)
        status = path.stat()
    check_status(path, status, what="directory", remedy=_CACHE_REMEDY, directory=True)
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        actual = f"mode {stat.S_IMODE(status.st_mode):04o}, or a read-only file system"
        remedy = f"chmod u+rwx {shlex.quote(str(path))}, or name another cache_dir"
        raise UnusableCache(
            what="directory", where=str(path), expected="writable", actual=actual, remedy=remedy
        )


def temporary_name() -> str:
    """A name no other process has: host, pid, and a random part for file systems that hosts share."""
    return f"{os.uname().nodename}-{os.getpid()}-{uuid.uuid4().hex}"


def temporary_path(directory: Path) -> Path:
    """A path for a file on its way in; a file left under it is swept, by ``.`` and ``.tmp``."""
    return directory / f".{temporary_name()}.tmp"


def sweep_debris(directory: Path, prefix: str = "", suffix: str = "") -> None:
    """Remove what ended processes of this host left, named ``prefix`` + `temporary_name` + ``suffix``.

    Only what is `DEBRIS_AGE_S` old, because containers share a host's name but not its process ids. What
    cannot be removed stays: debris only costs space.
    """
    middle = rf"{re.escape(prefix + os.uname().nodename)}-([0-9]+)-[0-9a-f]{{32}}"
    name = re.compile(rf"{middle}{re.escape(suffix)}", re.ASCII)
    with contextlib.suppress(OSError):
        for path in sorted(directory.iterdir()):
            match = name.fullmatch(path.name)
            if not match or _is_running(int(match[1])):
                continue
            with contextlib.suppress(OSError, RecursionError):  # a tree may be too deep for rmtree
                status = path.lstat()
                if time.time() - status.st_mtime > DEBRIS_AGE_S:
                    (shutil.rmtree if stat.S_ISDIR(status.st_mode) else os.unlink)(path)
                    logger.info("Removed %s, left by a process that ended", path)


def _is_running(pid: int) -> bool:
    with contextlib.suppress(PermissionError):
        try:
            os.kill(pid, 0)
        except (ProcessLookupError, OverflowError):
            return False
    return True


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable; raises ``OSError``."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def set_aside(path: Path) -> None:
    """Rename a damaged file, for a look at it, to a name that no load considers; the last one stays.

    What cannot be moved stays and is logged.
    """
    try:
        path.replace(path.with_name(f"{path.name}.corrupt"))
    except FileNotFoundError:
        return  # another process was faster
    except OSError as error:
        logger.warning("%s stays where it is: %s", path, error)


@contextlib.contextmanager
def staging_directory(parent: Path) -> Iterator[Path]:
    """A private directory of this process, gone afterwards; what a killed one leaves is to be swept."""
    path = parent / f"{WRITING}{temporary_name()}"
    with os_errors_are_unusable("directory", path):
        make_private_directories(path)
    try:
        yield path
    finally:
        discard_tree(path)


def discard_tree(path: Path) -> None:
    """Remove a directory of this process; what stays is swept later (`sweep_debris`)."""
    # rmtree does not ignore a failing fstat, which a stale handle of a network file system can cause.
    with contextlib.suppress(OSError):
        shutil.rmtree(path, ignore_errors=True)


def os_errors_are_unusable(what: str, path: str | Path, *, setting: str = "cache_dir") -> OsErrors:
    """Turn any ``OSError`` of the node's own disk into `UnusableCache` with the system's reason.

    Where the disk is full or read-only that is `UnwritableDisk`, which names the disk, the same for all
    files, and the ``setting`` that leads there.
    """

    def unusable(error: OSError) -> UnusableCache:
        reason = error.strerror or str(error)
        if error.errno in _UNWRITABLE:
            places = (str(path), *map(str, Path(path).parents))
            return UnwritableDisk(
                what=f"disk of the {setting}",
                where=next(filter(os.path.ismount, places), str(path)),  # false where the disk fails
                expected="space left, and writable",
                actual=reason,
                remedy=f"free space there, or name another {setting}",
            )
        return UnusableCache(
            what=what,
            where=str(path),
            expected="readable, writable, and space left on its disk",
            actual=reason,
            remedy="check its owner, mode and free space, or name another in its place",
        )

    return OsErrors(unusable)
