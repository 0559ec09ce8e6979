"""Blobs of a cache directory on their way in: verified, and not laid out yet.

Layout: ``<cache root>/.incoming/<unique>/<sha256>``, copied out of the store under that name, and
``<n>.part`` while another node brings it, or two files of `begun` while it comes in pieces, where
``<unique>`` names the process (`private_files.temporary_name`), or begins with ``left-`` once that has no use
for it.

Invariants: a process uses its own directory only; from another's it takes, by renaming, what that left:
because it ended, or said so. So a fetch that was killed, or that failed, leaves to the next one what it had
verified, and what has come of a blob in pieces. It is read and verified again before it is used; what nobody
came for within `DEBRIS_AGE_S` goes, and all of it at once when the disk is full. A process holds its
directory by `flock`, where that works: the process ids of two containers that share a host's name say
nothing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import logging
import os
import re
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from warmrank.cache_store.digests import Digest, is_sha256
from warmrank.cache_store.errors import Corrupt, StoreError, UnusableCache
from warmrank.cache_store.fetching.begun import BEGUN, Begun, begin, discard, take_over
from warmrank.cache_store.node.private_files import (
    DEBRIS_AGE_S,
    digest_private,
    is_running,
    make_private_directories,
    os_errors_are_unusable,
    sweep_debris,
    temporary_name,
)

logger = logging.getLogger(__name__)

INCOMING = ".incoming"
_LEFT = "left-"
_NEW = "new-"
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_PART = ".part"
# Directories of this process: after a container was started again, an ended process may have had its id.
_open_names: set[str] = set()


class Arrivals:
    """What has arrived for one cache directory.

    Args:
        cache_root: the cache directory.

    Attributes:
        resumed: blobs that an earlier fetch left.
        brought: blobs that came in this one, not out of the store.
        is_disk_full: nothing is left to the next fetch, because others need the room.
    """

    def __init__(self, cache_root: Path) -> None:
        self.resumed: set[Digest] = set()
        self.brought: set[Digest] = set()
        self.is_disk_full = False
        self._incoming = cache_root / INCOMING
        self._name = temporary_name()
        self._directory = self._incoming / self._name
        self._here: set[Digest] = set()
        self._begun: dict[Digest, Begun] = {}
        self._numbers = itertools.count()
        self._making = threading.Lock()
        self._held: int | None = None
        _open_names.add(self._name)

    def resume(self, digests: Iterable[Digest], count: Callable[[int], None]) -> list[Digest]:
        """Take over what earlier fetches left of these, verified.

        Args:
            digests: the blobs that are wanted.
            count: told of the bytes that need not be copied.

        Returns:
            Those that have not arrived.
        """
        missing = [digest for digest in dict.fromkeys(digests) if digest not in self._here]
        left = {path.name: path for directory in self._left() for path in _blobs(directory)}
        for digest in missing:
            if digest.sha256 in left and self._take_over(left[digest.sha256], digest):
                self.resumed.add(digest)
                count(digest.size_bytes)
        self._take_over_begun({digest.sha256: digest for digest in missing})
        self._tidy()
        if self.resumed:
            logger.info("%d blobs that were copied before need not be copied again", len(self.resumed))
        return [digest for digest in missing if digest not in self._here]

    def has(self, digest: Digest) -> bool:
        """Whether the blob is here, verified by this process."""
        return digest in self._here

    def path(self, digest: Digest) -> Path:
        """Where the blob is once it has arrived."""
        return self._directory / digest.sha256

    def place_for(self, digest: Digest) -> Path:
        """Where the blob is, or is to be copied, verified; its name alone says nothing to the next fetch.

        Raises:
            UnusableCache: there is no place for it.
        """
        self._hold()
        return self._directory / digest.sha256

    def note(self, digest: Digest) -> None:
        """The blob was copied to its place, and verified."""
        self._here.add(digest)

    def part(self) -> Path:
        """A new name for a file on its way in.

        Raises:
            UnusableCache: there is no place for it.
        """
        self._hold()
        return self._directory / f"{next(self._numbers)}{_PART}"

    def begin(self, digest: Digest) -> Begun:
        """A blob that comes in pieces: as much of it as an earlier fetch left, or nothing yet.

        Raises:
            UnusableCache: there is no place for it.
        """
        part = self.part()
        if digest not in self._begun:
            self._begun[digest] = begin(part.with_name(f"{digest.sha256}{BEGUN}"), digest)
        return self._begun[digest]

    def keep(self, part: Path, digest: Digest) -> Path:
        """Give a file of `part`, verified while it was copied, the name of its blob.

        Raises:
            UnusableCache: it cannot be renamed.
        """
        with os_errors_are_unusable("file", part):
            part.replace(self.path(digest))
        self._here.add(digest)
        return self.path(digest)

    def accept(self, part: Path, digest: Digest) -> None:
        """As `keep`, for what came from elsewhere than the store; it is read, and gone if it is not the blob.

        Raises:
            Corrupt: it is not; the file is gone.
            UnusableCache: it cannot be read or renamed.
        """
        with os_errors_are_unusable("file", part):
            actual = digest_private(part)
        if actual != digest:
            part.unlink(missing_ok=True)
            raise Corrupt(what="blob", where=str(part), expected=str(digest), actual=str(actual))
        self.keep(part, digest)
        self.brought.add(digest)

    def hand_over(self, digest: Digest, target: Path) -> None:
        """Move an arrived blob to ``target``, on the same file system.

        Raises:
            UnusableCache: it cannot be moved.
        """
        with os_errors_are_unusable("file", target):
            os.replace(f"{self._directory}/{digest.sha256}", target)  # noqa: PTH105 - thousands of times
        self._here.discard(digest)

    def note_fault(self, error: StoreError) -> None:
        """Something could not be brought; of a full disk nothing is kept."""
        if isinstance(error.__cause__, OSError) and error.__cause__.errno in _NO_ROOM:
            self.is_disk_full = True

    def close(self) -> None:
        """Leave what was not used to the next fetch, and remove what nobody came for."""
        _open_names.discard(self._name)
        sweep_debris(self._incoming)
        sweep_debris(self._incoming, _NEW)
        with contextlib.suppress(OSError):  # what stays costs space only
            for begun in self._directory.glob(f"*{BEGUN}"):
                discard(begun)
            for part in self._directory.glob(f"*{_PART}"):
                part.unlink()
            if not _remove_if_empty(self._directory):
                self._directory.rename(self._incoming / f"{_LEFT}{uuid.uuid4().hex}")
        with contextlib.suppress(OSError):
            for directory in self._incoming.glob(f"{_LEFT}*"):
                is_old = time.time() - directory.stat().st_mtime > DEBRIS_AGE_S
                if is_old or self.is_disk_full or _remove_if_empty(directory):
                    shutil.rmtree(directory, ignore_errors=True)
        with self._making:
            if self._held is not None:
                os.close(self._held)
                self._held = None

    def _hold(self) -> None:
        """Make the directory if it is not there yet."""
        if self._held is None:
            with os_errors_are_unusable("directory", self._directory), self._making:
                if self._held is None:
                    self._held = self._make_held()

    def _make_held(self) -> int:
        """Make the directory, held before it gets its name; returns what holds it."""
        new = self._incoming / f"{_NEW}{self._name}"
        make_private_directories(new)
        descriptor = os.open(new, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError):  # then the process id has to do
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            new.rename(self._directory)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _tidy(self) -> None:
        """Remove what ended processes had begun to copy, or a container that keeps failing fills the disk."""
        for directory in self._left():
            with contextlib.suppress(OSError):
                for part in directory.glob(f"*{_PART}"):
                    part.unlink()
                _remove_if_empty(directory)

    def _left(self) -> Iterator[Path]:
        with contextlib.suppress(OSError):
            for directory in sorted(self._incoming.iterdir()):
                is_left = directory.name.startswith(_LEFT)
                if is_left or (_has_ended(directory.name) and not _is_held(directory)):
                    yield directory

    def _take_over_begun(self, wanted: Mapping[str, Digest]) -> None:
        """Take over what has come of blobs in pieces; of a blob that is whole, or was taken over, it goes."""
        left = [path for directory in self._left() for path in directory.glob(f"*{BEGUN}")]
        for path in left:
            digest = wanted.get(path.stem)
            if digest is None:
                continue  # of another fetch, perhaps the next one of this process
            if digest not in self._here and digest not in self._begun:
                try:
                    own = self.part().with_name(path.name)
                    self._begun[digest] = take_over(path, own, digest)
                except (OSError, UnusableCache) as error:
                    logger.warning("Not used, so it is copied again: %s", error)
            discard(path)

    def _take_over(self, path: Path, digest: Digest) -> bool:
        part = self.part()
        try:
            path.replace(part)
            if digest_private(part) == digest:
                self.keep(part, digest)
                return True
            part.unlink()
        except (OSError, UnusableCache) as error:
            logger.warning("Not used, so it is copied again: %s", error)
            return False
        logger.warning("%s is not what its name says, so it is copied again", path)
        return False


def _blobs(directory: Path) -> list[Path]:
    try:
        return [path for path in sorted(directory.iterdir()) if is_sha256(path.name)]
    except OSError:
        return []  # gone meanwhile


def _has_ended(name: str) -> bool:
    """Whether the process of this host that a directory belongs to has ended."""
    if name in _open_names:
        return False
    match = re.fullmatch(rf"{re.escape(os.uname().nodename)}-([0-9]+)-[0-9a-f]{{32}}", name, re.ASCII)
    return match is not None and (int(match[1]) == os.getpid() or not is_running(int(match[1])))


def _is_held(directory: Path) -> bool:
    """Whether somebody holds a directory, as far as the file system knows."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # no flock here
    finally:
        os.close(descriptor)
    return False


def _remove_if_empty(directory: Path) -> bool:
    try:
        directory.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
