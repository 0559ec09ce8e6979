"""Digests of a cache directory's files as of the last read, so that unchanged ones are not read again.

Layout: ``<cache root>/.index/<name>.json`` (of another tool's directory beside it), mode 0600, two lines of
JSON, the first being the sha256 of the second::

    {"files":{"<path>":[[dev,ino,size,mtime_ns,ctime_ns,mode,uid],read_ns,"<sha256>"],...},"format":2}

A digest is given unread only if nothing that ``lstat`` says has changed, and if the file was by then so old,
by its file system's own clock, that a later write must have changed its times (git calls the others racily
clean), or is a copy of our own, dated back before it got its name. Whatever is wrong with an index makes it
empty. Threads may share one; of processes that save at once the last one's is kept, whole.
"""

from __future__ import annotations

import io
import json
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from warmrank.cache_store.cache_dir.private_files import (
    BACK_NS,
    make_private_directories,
    open_private,
    read_private,
    write_whole,
)
from warmrank.cache_store.canonical import canonical_json
from warmrank.cache_store.digests import Digest, digest_bytes, digest_stream
from warmrank.cache_store.errors import UnusableCache

logger = logging.getLogger(__name__)
_FORMAT: Final = 2
_MAX_BYTES = 64 << 20  # 250 bytes a file
# Times advance by the kernel's tick, at most 10 ms; where they have no fraction, by up to two seconds (FAT).
_TICK_NS = 100_000_000
_COARSE_TICK_NS = 2_000_000_000


class _Seen(NamedTuple):
    """Identity of a file when it was read, the time of the read, and its digest."""

    identity: tuple[int, ...]
    read_ns: int
    sha256: str

    def is_settled(self) -> bool:
        """Return True if the times are so old that a write after the read must have changed them."""
        times_ns = self.identity[3:5]
        is_coarse = all(time_ns % 1_000_000_000 == 0 for time_ns in times_ns)
        return max(times_ns) + (_COARSE_TICK_NS if is_coarse else _TICK_NS) < self.read_ns


class DigestIndex:
    """The index ``name`` of a directory's files; an absent, unreadable or damaged one is empty.

    With ``reread`` it starts empty, so every file is read again. It lies in the directory, or ``at`` another;
    ``opened`` opens a file, with the checks that it must pass.
    """

    def __init__(
        self,
        root: Path,
        name: str,
        *,
        reread: bool = False,
        at: Path | None = None,
        opened: Callable[[Path], io.BufferedReader] = open_private,
    ) -> None:
        self._prefix = f"{root.absolute()}{os.sep}"
        self._path = (at or root) / ".index" / f"{name}.json"
        self._opened = opened
        self._seen: dict[str, _Seen] = {} if reread else _read(self._path)
        self._used: set[str] = set()
        self._is_changed = False
        self._lock = threading.Lock()

    def digest(self, path: Path) -> Digest:
        """Digest of a private file, which is read only if it may have changed; raises as `digest_private`."""
        identity, key = _identity(os.lstat(path)), self._key(path)
        seen = self._seen.get(key)
        if seen is not None and seen.identity == identity and seen.is_settled():
            self._used.add(key)
            return Digest(sha256=seen.sha256, size_bytes=identity[2])
        read_ns = self.now_ns()
        with self._opened(path) as file:
            before = _identity(os.fstat(file.fileno()))
            digest = digest_stream(file)
            after = _identity(os.fstat(file.fileno()))
        if before == after and digest.size_bytes == before[2]:
            self._add(key, _Seen(before, read_ns, digest.sha256))
        return digest

    def remember_own(self, path: Path, digest: Digest) -> None:
        """Take the caller's word for a copy that got its name after `date_back`: it counts as settled."""
        try:
            identity = _identity(path.lstat())
        except OSError as error:
            logger.debug("Not remembered: %s", error)
            return
        if identity[2] == digest.size_bytes:
            self._add(self._key(path), _Seen(identity, time.time_ns() + 2 * BACK_NS, digest.sha256))

    def now_ns(self) -> int:
        """Time by the file system's clock, on NFS the server's; 0 where nothing can be remembered."""
        try:
            make_private_directories(self._path.parent)
            os.utime(self._path.parent)
            return self._path.parent.stat().st_mtime_ns
        except OSError as error:
            logger.debug("Nothing is remembered, so files will be read again: %s", error)
            return 0

    def save(self) -> None:
        """Write what was learned, if anything was; a failure costs time only, and is logged."""
        with self._lock:
            if not self._is_changed:
                return
            seen = {
                key: item
                for key, item in self._seen.items()
                if key in self._used or os.path.lexists(f"{self._prefix}{key}")
            }
        line = canonical_json({"format": _FORMAT, "files": seen}, keys_are_text=True)
        try:
            write_whole(self._path, canonical_json(digest_bytes(line).sha256) + b"\n" + line + b"\n")
        except OSError as error:
            logger.info("No index of digests, the next fetch reads all files again: %s", error)
        else:
            self._is_changed = False

    def _add(self, key: str, seen: _Seen) -> None:
        if key:
            with self._lock:
                self._seen[key] = seen
                self._used.add(key)
                self._is_changed = True

    def _key(self, path: Path) -> str:
        """Name of a file below the directory; empty for any other, which is not remembered."""
        text = str(path) if path.is_absolute() else str(path.absolute())
        return text.removeprefix(self._prefix) if text.startswith(self._prefix) else ""


def _identity(status: os.stat_result) -> tuple[int, ...]:
    times_ns = status.st_mtime_ns, status.st_ctime_ns
    return status.st_dev, status.st_ino, status.st_size, *times_ns, status.st_mode, status.st_uid


def _read(path: Path) -> dict[str, _Seen]:
    try:
        data = read_private(path) if path.stat().st_size <= _MAX_BYTES else b""
        seal, _, line = data.rstrip(b"\n").partition(b"\n")
        document = json.loads(line)
        if (json.loads(seal), document["format"]) == (digest_bytes(line).sha256, _FORMAT):
            return {
                key: _Seen(tuple(identity), read_ns, sha256)
                for key, (identity, read_ns, sha256) in document["files"].items()
            }
        logger.info("Index of digests %s is not used: damaged, or of another format", path)
    except FileNotFoundError:
        pass
    except (OSError, UnusableCache, ValueError, LookupError, TypeError, RecursionError) as error:
        logger.info("Index of digests %s is not used: %s", path, error)
    return {}
