"""A store in a directory: local disk or a network file system that many nodes mount.

What is on its way in lies in a private directory under ``tmp/``; all bytes of a batch are flushed before the
first name is linked; names are linked, because a link does not replace. Anybody who may write into a store
may put anything there, so nothing is waited for that is no regular file, and no link is followed. Correctness
rests on no lock.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final, Literal

from pydantic import BaseModel, ConfigDict

from warmrank.cache_store.backends.backend import FileInfo, NewFile, check_name, name_fault
from warmrank.cache_store.backends.directory_moves import Mover, make_directories
from warmrank.cache_store.backends.durability import EarlyWriter, Flush, FlushChoice, choose_flush, flush_all
from warmrank.cache_store.cache_dir.private_files import discard_tree, sweep_debris, temporary_name
from warmrank.cache_store.digests import TooLong, copy_and_digest, digest_bytes
from warmrank.cache_store.errors import (
    Corrupt,
    NoStoreYet,
    NotInStore,
    StoreUnavailable,
    os_errors_are_unavailable,
)
from warmrank.cache_store.keys import canonical_json
from warmrank.cache_store.layout import FORMAT_FILE, TMP, TOP_LEVEL, TRASH, file_depth
from warmrank.cache_store.parallel import each, each_short, is_short, threads_for
from warmrank.cache_store.parsing import parse_document
from warmrank.cache_store.steps import Step, reached

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


def _no_file(path: str | Path, name: str, mode: int) -> Corrupt:
    actual = stat.filemode(mode)
    return Corrupt(what=name, where=str(path), expected="a regular file", actual=actual)


STORE_FORMAT: Final = 1
_MAX_FORMAT_BYTES = 4096
_FORMAT_REMEDY = 'restore its one line, {"format":1,"digest":"sha256"}, or use another store'
_OBJECTS_REMEDY = (
    "this is an object store's line, seen through a mount or a copy: an object store is opened by its URL, "
    "such as s3://bucket/warmrank"
)


class _Format(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = STORE_FORMAT
    digest: Literal["sha256"] = "sha256"


class DirectoryBackend:
    """`BlobBackend` in the directory ``root``.

    Args:
        root: the directory.
        create: make an absent or empty directory into a store; otherwise that is an error.
        flush: how to flush; ``auto`` chooses by the file system's type.

    Raises:
        StoreUnavailable: the directory is none of a store, or cannot be used.
        NewerFormat: a later release made the store.
        Corrupt: its FORMAT file is damaged.
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
                return open_regular(path, name)
            except FileNotFoundError:
                raise NotInStore(what=name, where=str(self.root)) from None

    def stat(self, names: Iterable[str]) -> dict[str, FileInfo]:
        """See `BlobBackend.stat`."""
        found: dict[str, FileInfo] = {}
        with os_errors_are_unavailable("files", self.root):
            for name in names:
                check_name(name, where=str(self.root))
                try:
                    found[name] = info_of(name, os.lstat(f"{self.root}/{name}"))
                except FileNotFoundError:
                    continue
        return found

    def list(self, prefix: str) -> Iterator[FileInfo]:
        """See `BlobBackend.list`."""
        directory = prefix.rpartition("/")[0]
        start = self._path(directory) if directory else self.root
        with os_errors_are_unavailable("listing", start):
            yield from (info for info in walk(self.root, directory) if info.name.startswith(prefix))

    def move(self, name: str, target: str | None) -> bool:
        """See `BlobBackend.move`."""
        path = self._path(name)
        with os_errors_are_unavailable("file", path):
            try:
                if target is None:
                    self._mover.remove(path)
                elif not self._mover.move(path, self._path(target)):
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

    def _check_format(self, *, create: bool) -> None:
        path = self.root / FORMAT_FILE
        if create and not os.path.lexists(path):
            self._check_empty()
            data = canonical_json(_Format().model_dump())
            self.put_new([NewFile(name=FORMAT_FILE, source=data, expected=digest_bytes(data))])
        try:
            with open_regular(path, FORMAT_FILE) as file:
                data = file.read(_MAX_FORMAT_BYTES)
        except FileNotFoundError:
            raise NoStoreYet(what="store", where=str(self.root)) from None
        try:
            parse_document(_Format, data, supported_format=STORE_FORMAT, what="store", where=str(path))
        except Corrupt as error:
            remedy = _OBJECTS_REMEDY if b'"blobs"' in data else _FORMAT_REMEDY
            raise error.but(remedy=remedy) from error

    def _check_empty(self) -> None:
        strangers = sorted({entry.name for entry in self.root.iterdir()} - TOP_LEVEL)
        if strangers:
            raise StoreUnavailable(
                what="store",
                where=str(self.root),
                reason=f"holds {strangers[0]!r} but no {FORMAT_FILE} file, so it is no store",
                remedy="name an empty or absent directory",
            )

    def _create(self, files: Sequence[NewFile]) -> tuple[str, ...]:
        with self._temporary() as temporary:
            # The largest first, so that no thread copies alone at the end.
            order = sorted(enumerate(files), key=lambda item: -item[1].expected.size_bytes)
            size_bytes = sum(file.expected.size_bytes for file in files)
            run = each_short if is_short(len(files), size_bytes) else each
            num_threads = threads_for(len(files), size_bytes)
            run(lambda item: self._stage(item[1], f"{temporary}/{item[0]}"), order, num_threads=num_threads)
            reached(Step.PUT_STAGED)
            # As text all through: there may be thousands, and a `Path` takes longer to make than to link.
            staged = {file.name: f"{temporary}/{i}" for i, file in enumerate(files)}
            self._flush_files(staged.values())
            reached(Step.PUT_FLUSHED)
            created = tuple(name for name, path in staged.items() if self._link(path, name))
        reached(Step.PUT_LINKED)
        return created

    @contextlib.contextmanager
    def _temporary(self) -> Iterator[Path]:
        path = self.root / TMP / temporary_name()
        make_directories(path.parent, root=self.root, mode=self._mode)
        path.mkdir(mode=0o700)
        try:
            yield path
        finally:
            discard_tree(path)

    def _stage(self, file: NewFile, path: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            with file.open() as source, os.fdopen(os.open(path, flags, mode=0o666), "wb") as target:
                digest = copy_and_digest(source, EarlyWriter(target), limit_bytes=file.expected.size_bytes)
                mode = os.fstat(target.fileno()).st_mode
                os.fchmod(target.fileno(), mode & 0o444)  # immutable; who may read is the umask's decision
        except TooLong as error:
            raise file.fault(str(error)) from error
        if digest != file.expected:
            raise file.fault(str(digest))

    def _flush_files(self, paths: Iterable[str]) -> None:
        flush_all(paths, root=self.root, flush=self.flush)

    def _link(self, path: str, name: str) -> bool:
        return self._mover.link(path, f"{self.root}/{name}")

    def _flush_names(self, names: Iterable[str]) -> None:
        # Also directories of names that existed: whoever made them may not have flushed them yet. Directories
        # stay, so the names of those above need it only once.
        directories = {self.root / parent for parent in {name.rpartition("/")[0] for name in names}}
        new = directories - self._durable_directories
        above = {parent for path in new for parent in path.parents if parent.is_relative_to(self.root)}
        flush_all(directories | above, root=self.root, flush=self.flush)
        self._durable_directories |= new

    @functools.cached_property
    def _mode(self) -> int:
        return directory_mode(self.root)

    @functools.cached_property
    def _mover(self) -> Mover:
        return Mover(self.root, mode=self._mode)

    def _path(self, name: str) -> Path:
        check_name(name, where=str(self.root))
        return self.root / name
