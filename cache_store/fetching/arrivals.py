"""Blobs of a cache directory on their way in: verified, and not laid out yet.

Layout: ``<cache root>/.incoming/<sha256>``, whole and verified when it got that name, and
``.incoming/.<unique>.part`` while it is copied.

Invariants: only who holds the lock of the cache directory (`node.single_flight`) uses it, so that a fetch
that was killed leaves to the next one what it had verified, and takes nothing from one that runs; what an
earlier process left is read and verified again before it is used; what nobody came for within `DEBRIS_AGE_S`
goes.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from cache_store.digests import Digest, is_sha256
from cache_store.errors import Corrupt, UnusableCache
from cache_store.node.private_files import (
    DEBRIS_AGE_S,
    digest_private,
    make_private_directories,
    os_errors_are_unusable,
    sweep_debris,
    temporary_name,
)

logger = logging.getLogger(__name__)

INCOMING = ".incoming"
_PART = ".part"


class Arrivals:
    """What has arrived for one cache directory.

    Args:
        cache_root: the cache directory.

    Attributes:
        resumed: blobs that an earlier process left.
        brought: blobs that came in this one, not out of the store.
    """

    def __init__(self, cache_root: Path) -> None:
        self.resumed: set[Digest] = set()
        self.brought: set[Digest] = set()
        self._directory = cache_root / INCOMING
        self._here: set[Digest] = set()

    def resume(self, digests: Iterable[Digest], count: Callable[[int], None]) -> list[Digest]:
        """Verify what an earlier process left of these.

        Args:
            digests: the blobs that are wanted.
            count: told of the bytes that need not be copied.

        Returns:
            Those that have not arrived.
        """
        missing: list[Digest] = []
        for digest in dict.fromkeys(digests):
            if digest in self._here:
                continue
            if self._is_whole(digest):
                self._here.add(digest)
                self.resumed.add(digest)
                count(digest.size_bytes)
            else:
                missing.append(digest)
        if self.resumed:
            logger.info("%d blobs that were copied before need not be copied again", len(self.resumed))
        return missing

    def has(self, digest: Digest) -> bool:
        """Whether the blob is here, verified by this process."""
        return digest in self._here

    def path(self, digest: Digest) -> Path:
        """Where the blob is once it has arrived."""
        return self._directory / digest.sha256

    def part(self) -> Path:
        """A new name for a file on its way in.

        Raises:
            UnusableCache: there is no place for it.
        """
        with os_errors_are_unusable("directory", self._directory):
            make_private_directories(self._directory)
        return self._directory / f".{temporary_name()}{_PART}"

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
            UnusableCache: it is not here any more, or cannot be moved.
        """
        with os_errors_are_unusable("file", target):
            self.path(digest).replace(target)
        self._here.discard(digest)

    def close(self) -> None:
        """Remove what nobody came for, and the directory when it is empty; what stays costs space only."""
        sweep_debris(self._directory, ".", _PART)
        with contextlib.suppress(OSError):
            for path in sorted(self._directory.iterdir()):
                if is_sha256(path.name) and time.time() - path.lstat().st_mtime > DEBRIS_AGE_S:
                    path.unlink(missing_ok=True)
            self._directory.rmdir()

    def _is_whole(self, digest: Digest) -> bool:
        path = self.path(digest)
        try:
            if path.lstat().st_size == digest.size_bytes and digest_private(path) == digest:
                return True
            path.unlink()
        except FileNotFoundError:
            return False
        except (OSError, UnusableCache) as error:
            logger.warning("Not used, so it is copied again: %s", error)
            return False
        logger.warning("%s is not what its name says, so it is copied again", path)
        return False
