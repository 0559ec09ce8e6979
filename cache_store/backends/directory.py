"""A store in a directory: local disk or a network file system that many nodes mount.

All bytes of a batch are flushed in a private directory under ``tmp/`` before the first name is linked; a link
does not replace. Anybody who may write into a store may put anything there, so nothing is waited for that is
no regular file, and no link is followed. Correctness rests on no lock: a process that stands still within a
move takes no other file away; killed there, the file stands under both names.

Measured on ext4 and xfs: renaming without a flush loses half of what was acknowledged in a power cut; one
``syncfs`` for a whole batch loses nothing, at three times the speed of an fsync for each file. What it does
on network file systems is not established, so they, and every unknown type, get an fsync for each file.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Literal

from warmrank.cache_store.backends.backend import (
    STORE_FORMAT,
    FileInfo,
    NewFile,
    check_format,
    check_name,
    name_fault,
    new_document,
    not_empty,
)
from warmrank.cache_store.cache_dir.private_files import (
    OTHERS_WRITE,
    discard_tree,
    sweep_debris,
    temporary_name,
)
from warmrank.cache_store.canonical import canonical_json
from warmrank.cache_store.digests import TooLong, copy_and_digest
from warmrank.cache_store.errors import (
    Corrupt,
    NoStoreYet,
    NotInStore,
    StoreUnavailable,
    os_errors_are_unavailable,
)
from warmrank.cache_store.layout import FORMAT_FILE, TMP, TRASH, file_depth
from warmrank.cache_store.parallel import NUM_THREADS, each
from warmrank.cache_store.parsing import Strict
from warmrank.cache_store.steps import Step, reached

logger = logging.getLogger(__name__)
Flush = Literal["syncfs", "fsync"]
FlushChoice = Literal["auto", "syncfs", "fsync"]
LOCAL_TYPES = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "tmpfs", "overlay", "zfs", "bcachefs"}
)
# A syncfs also writes what other programs left dirty, which for a few files costs more than their fsyncs.
_FEW = 8
_NUM_THREADS = 8  # they only wait
_MOUNTS = Path("/proc/self/mounts")
_MAX_FORMAT_BYTES = 4096
_FORMAT_REMEDY = 'restore its one line, {"format":1,"digest":"sha256"}, or use another store'
_OBJECTS_REMEDY = (
    "this is an object store's line, seen through a mount or a copy: an object store is opened by its URL, "
    "such as s3://bucket/warmrank"
)
_HARD_LINKS_REMEDY = "put the store on a file system that has hard links, such as ext4, xfs, NFS or Lustre"
_NO_HARD_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
_MAX_REMOVALS = 10  # of one directory under the feet of one link


class _Format(Strict):
    format: Literal[1] = STORE_FORMAT
    digest: Literal["sha256"] = "sha256"


class DirectoryBackend:
    """`BlobBackend` in the directory ``root``.

    An absent or empty directory is made into a store if ``create``; ``flush`` ``auto`` chooses by the file
    system's type.
    """

    def __init__(self, root: Path, *, create: bool = True, flush: FlushChoice = "auto") -> None:
        self.root = root.absolute()
        self._durable_directories: set[Path] = set()  # their own names, not those inside
        with os_errors_are_unavailable("store", self.root):
            if create:
                self.root.mkdir(parents=True, exist_ok=True)
            self.flush: Flush = choose_flush(self.root, flush)
            self._check_format(create=create)
            if create:
                sweep_debris(self.root / TMP)

    def put_new(self, files: Sequence[NewFile]) -> tuple[str, ...]:
        """See `BlobBackend.put_new`."""
        with os_errors_are_unavailable(f"{len(files)} new files", self.root):
            if FORMAT_FILE not in {file.name for file in files}:
                self._check_there()
            standing = self.stat(file.name for file in files)
            absent = [file for file in files if file.name not in standing]
            created = self._create(absent) if absent else ()
            self._flush_names([file.name for file in files])
        reached(Step.PUT_DURABLE)
        return created

    def open(self, name: str) -> BinaryIO:
        """See `BlobBackend.open`."""
        check_name(name, where=str(self.root))
        path = f"{self.root}/{name}"
        with os_errors_are_unavailable("file", path):
            try:
                return _open_regular(path, name)
            except FileNotFoundError:
                raise NotInStore(what=name, where=str(self.root)) from None

    def stat(self, names: Iterable[str]) -> dict[str, FileInfo]:
        """See `BlobBackend.stat`."""
        found: dict[str, FileInfo] = {}
        with os_errors_are_unavailable("files", self.root):
            for name in names:
                check_name(name, where=str(self.root))
                with contextlib.suppress(FileNotFoundError):
                    found[name] = _info_of(name, os.lstat(f"{self.root}/{name}"))
        return found

    def list(self, prefix: str) -> Iterator[FileInfo]:
        """See `BlobBackend.list`; a directory where the store's layout has a file counts as one."""
        directory = prefix.rpartition("/")[0]
        start = self._path(directory) if directory else self.root
        with os_errors_are_unavailable("listing", start):
            below = self._walk(f"{directory}/" if directory else "")
            yield from (info for info in below if info.name.startswith(prefix))

    def move(self, name: str, target: str | None) -> bool:
        """See `BlobBackend.move`."""
        path = self._path(name)
        with os_errors_are_unavailable("file", path):
            try:
                if target is None:
                    self._remove(path)
                elif not self._move(path, self._path(target)):
                    return False
            except FileNotFoundError:
                return False
            self._flush_names([name for name in (name, target) if name and not name.startswith((TRASH, TMP))])
            if target and target.startswith(TRASH):
                with contextlib.suppress(FileNotFoundError):  # taken out again meanwhile, with its directory
                    self._flush_names([target])
            if name.startswith((TRASH, TMP)):
                self._prune(path.parent)
        return True

    def _check_format(self, *, create: bool) -> None:
        path = self.root / FORMAT_FILE
        if create and not os.path.lexists(path):
            if fault := not_empty(sorted(entry.name for entry in self.root.iterdir()), where=str(self.root)):
                raise fault.but(remedy="name an empty or absent directory")
            self.put_new([new_document(FORMAT_FILE, canonical_json(_Format().model_dump()))])
        try:
            with _open_regular(path, FORMAT_FILE) as file:
                data = file.read(_MAX_FORMAT_BYTES)
        except FileNotFoundError:
            raise NoStoreYet(what="store", where=str(self.root)) from None
        remedy = _OBJECTS_REMEDY if b'"blobs"' in data else _FORMAT_REMEDY
        check_format(_Format, data, where=str(path), remedy=remedy)

    def _check_there(self) -> None:
        """Refuse to write where the opened store is no more, such as on a bare mount point."""
        if not os.path.lexists(self.root / FORMAT_FILE):
            reason = f"it was there before, and its {FORMAT_FILE} is gone"
            raise StoreUnavailable(what="store", where=str(self.root), reason=reason)

    def _walk(self, prefix: str) -> Iterator[FileInfo]:
        """List all files below but those on their way in; the depth is bounded by `file_depth`."""
        try:
            with os.scandir(f"{self.root}/{prefix}") as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            return
        except PermissionError:
            if prefix.startswith(TMP) and prefix != TMP:
                return  # private, of another user, who sweeps it
            raise
        for entry in entries:
            name = f"{prefix}{entry.name}"
            if name_fault(name):
                logger.warning("%r in %s is no name of a store; it is left alone", name, self.root)
            elif entry.is_dir(follow_symlinks=False) and name.count("/") + 1 < file_depth(name):
                if name != TMP.rstrip("/"):
                    yield from self._walk(f"{name}/")
            else:
                with contextlib.suppress(FileNotFoundError):  # another process moved it since
                    yield _info_of(name, entry.stat(follow_symlinks=False))

    def _create(self, files: Sequence[NewFile]) -> tuple[str, ...]:
        temporary = self._away()
        temporary.mkdir(mode=0o700)
        try:
            # The largest first, so that no thread copies alone at the end.
            order = sorted(enumerate(files), key=lambda item: -item[1].expected.size_bytes)
            size_bytes = sum(file.expected.size_bytes for file in files)
            each(
                lambda item: _stage(item[1], f"{temporary}/{item[0]}"),
                order,
                num_threads=NUM_THREADS,
                size_bytes=size_bytes,
            )
            reached(Step.PUT_STAGED)
            # As text all through: there may be thousands, and a `Path` takes longer to make than to link.
            staged = {file.name: f"{temporary}/{i}" for i, file in enumerate(files)}
            flush_all(staged.values(), root=self.root, flush=self.flush)
            reached(Step.PUT_FLUSHED)
            created = tuple(name for name, path in staged.items() if self._link(path, f"{self.root}/{name}"))
        finally:
            discard_tree(temporary)
        reached(Step.PUT_LINKED)
        return created

    def _flush_names(self, names: Iterable[str]) -> None:
        # Also directories of names that existed: whoever made them may not have flushed them yet. Directories
        # stay, so the names of those above need it only once.
        directories = {self.root / parent for parent in {name.rpartition("/")[0] for name in names}}
        new = directories - self._durable_directories
        above = {parent for path in new for parent in path.parents if parent.is_relative_to(self.root)}
        flush_all(directories | above, root=self.root, flush=self.flush)
        self._durable_directories |= new

    def _link(self, path: str | Path, target: str | Path) -> bool:
        """Give a file a second name; False when another file has it."""
        try:
            self._with_parent(os.link, path, target)
        except FileExistsError:
            # Over NFS a link may have been made although its answer was lost and the second try says EEXIST.
            return _is_same(path, target)
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            owner, remedy = os.lstat(path).st_uid, _HARD_LINKS_REMEDY
            if error.errno == errno.EPERM and owner != os.geteuid():
                remedy = f"as the user with uid {owner}, or root: Linux lets no other one move it"
            raise StoreUnavailable(
                what=Path(target).relative_to(self.root).as_posix(),
                where=str(self.root),
                reason=f"no hard link can be made ({error.strerror})",
                remedy=remedy,
            ) from error
        return True

    def _move(self, path: Path, target: Path) -> bool:
        """Give what stands at ``path`` another name, whatever it is; False when something else has it."""
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            if os.path.lexists(target):
                return False
            self._with_parent(os.rename, path, target)  # a link cannot move a directory
            return True
        if not self._link(path, target):
            return False
        reached(Step.MOVE_LINKED)
        # The former name goes, if it still is that of the file that was moved: meanwhile another process may
        # have moved it too, and a third one created another file in its place.
        away = self._away()
        path.rename(away)
        is_moved = os.path.samestat(away.lstat(), status)
        if not is_moved:
            self._link(away, path)  # unless a still newer file has the name
        away.unlink()
        return is_moved

    def _remove(self, path: Path) -> None:
        try:
            path.unlink()  # first: it waits for a file system that is frozen, which `Tier.ping` relies on
        except (IsADirectoryError, PermissionError):
            if not stat.S_ISDIR(path.lstat().st_mode):
                raise
            away = self._away()
            path.rename(away)
            with contextlib.suppress(RecursionError):  # what stays costs space only
                discard_tree(away)

    def _prune(self, directory: Path) -> None:
        """Remove directories of the trash that are empty now; who wants one meanwhile makes it again.

        Also those under ``tmp/``; who put nothing into one for so long that it counts as debris tries again.
        """
        tops = (self.root, self.root / TRASH, self.root / TMP)
        with contextlib.suppress(OSError):  # not empty, or another process was quicker
            while directory not in tops:
                self._durable_directories.discard(directory)
                directory.rmdir()
                directory = directory.parent

    def _away(self) -> Path:
        """A name on the way in or out, that nobody else has."""
        self._make_directories(self.root / TMP)
        return self.root / TMP / temporary_name()

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
            with contextlib.suppress(FileNotFoundError):
                self._make_directories(Path(target).parent)
        reason = f"its directory was removed {_MAX_REMOVALS} times while it was made"
        raise StoreUnavailable(what="file", where=str(target), reason=reason, remedy="try again")

    def _make_directories(self, directory: Path) -> None:
        try:
            directory.mkdir(mode=self._mode)
        except FileExistsError:
            return
        except FileNotFoundError:
            if directory.parent == self.root:
                raise
            self._make_directories(directory.parent)
            with contextlib.suppress(FileExistsError):
                directory.mkdir(mode=self._mode)

    @functools.cached_property
    def _mode(self) -> int:
        """Mode for new directories: others may write only where they may in ``root``, whatever the umask."""
        return 0o777 & ~(OTHERS_WRITE & ~self.root.stat().st_mode)

    def _path(self, name: str) -> Path:
        check_name(name, where=str(self.root))
        return self.root / name


def _open_regular(path: str | Path, name: str) -> BinaryIO:
    """Open a file for reading; raises ``OSError``, and `Corrupt` for a directory, a link, a pipe."""
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


def _no_file(path: str | Path, name: str, mode: int) -> Corrupt:
    return Corrupt(what=name, where=str(path), expected="a regular file", actual=stat.filemode(mode))


def _info_of(name: str, status: os.stat_result) -> FileInfo:
    # A link or rename changes the inode's time of change, so that is when the file got its present name.
    return FileInfo(
        name=name,
        stored_bytes=status.st_size,
        content_bytes=status.st_size,
        modified_s=status.st_ctime,
        written_s=min(status.st_mtime, status.st_ctime),  # a time of change can be set, but to no later one
        is_regular=stat.S_ISREG(status.st_mode),
    )


def _stage(file: NewFile, path: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with file.open() as source, os.fdopen(os.open(path, flags, mode=0o666), "wb") as target:
        try:
            actual = copy_and_digest(source, target, limit_bytes=file.expected.size_bytes)
        except TooLong as error:
            raise file.fault(str(error)) from error
        if actual != file.expected:
            raise file.fault(str(actual))
        mode = os.fstat(target.fileno()).st_mode
        os.fchmod(target.fileno(), mode & 0o444)  # immutable; who may read is the umask's decision


def _is_same(path: str | Path, target: str | Path) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.lstat(target))
    except FileNotFoundError:
        return False


def choose_flush(path: Path, choice: FlushChoice = "auto") -> Flush:
    """Choose the flush for files below ``path``; ``auto`` is ``syncfs`` on what is known to be local."""
    if choice != "auto":
        return choice
    try:
        kind = file_system_type(path.resolve(), read_mounts())
    except OSError:
        kind = ""
    return "syncfs" if kind in LOCAL_TYPES else "fsync"


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
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
    finally:
        os.close(descriptor)
