"""Files that lie beside a function's variants and belong to them, such as compiled kernels.

Layout: ``<function>/ge_cache_<first 16 hex of its SHA-256>.pt2``.

Invariants: a name says what the bytes are, so a file is written once and by any number of processes; a file
that holds other bytes than it should is moved out of the way, and put anew; like a variant it is made whole,
with mode 0600, and shares its inode with nothing. It is written before the variant that needs it.

A rank's warm load imports this module, so it needs the standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from warmrank.cache_store.digests import Digest, digest_bytes
from warmrank.cache_store.errors import Corrupt, UnusableCache
from warmrank.cache_store.node.local import stage
from warmrank.cache_store.node.private_files import (
    digest_private,
    open_private,
    os_errors_are_unusable,
    set_aside,
    sync_directory,
)

logger = logging.getLogger(__name__)

_NAME = re.compile(r"ge_cache_([0-9a-f]{16})\.pt2", re.ASCII)


def is_companion_name(name: str) -> bool:
    """Whether ``name`` is that of a file beside variants."""
    return _NAME.fullmatch(name) is not None


def holds_what_it_says(name: str, digest: Digest) -> bool:
    """Whether bytes of this digest may have this name."""
    match = _NAME.fullmatch(name)
    return match is not None and digest.sha256.startswith(match[1])


def add_companion(function_dir: Path, name: str, data: bytes) -> Path:
    """Put ``data`` beside the variants of a function, unless it is there.

    Raises:
        UnusableCache: the directory cannot be written.
    """
    expected = digest_bytes(data)
    if path := find_companion(function_dir, name, expected):
        return path
    staged, digest = stage(function_dir, io.BytesIO(data), expected=expected, source="data in memory")
    return _settled(function_dir, name, staged, digest)


def add_companion_from(function_dir: Path, source: Path, expected: Digest) -> Path:
    """Put a copy of the private file ``source`` beside the variants of a function, verified while copying.

    Raises:
        Corrupt: ``source`` does not hold the expected bytes; nothing was added.
        UnusableCache: the directory cannot be written, or ``source`` is not there or not private.
    """
    if path := find_companion(function_dir, source.name, expected):
        return path
    with os_errors_are_unusable("file", source):
        file = open_private(source)
    with file:
        staged, digest = stage(function_dir, file, expected=expected, source=str(source))
    return _settled(function_dir, source.name, staged, digest)


def find_companion(
    function_dir: Path, name: str, expected: Digest, *, digest_of: Callable[[Path], Digest] = digest_private
) -> Path | None:
    """The file of that name, if it holds exactly these bytes and is private."""
    path = function_dir / name
    try:
        with os_errors_are_unusable("file", path), contextlib.suppress(FileNotFoundError):
            if path.lstat().st_size == expected.size_bytes and digest_of(path) == expected:
                return path
    except UnusableCache as error:
        logger.warning("Passed over: %s", error)
    return None


def place_companion(
    function_dir: Path,
    name: str,
    staged: Path,
    digest: Digest,
    *,
    digest_of: Callable[[Path], Digest] = digest_private,
) -> Path:
    """Give a staged file of the same file system its name; ``staged`` is gone afterwards.

    Raises:
        Corrupt: the bytes are not what the name says.
        UnusableCache: the directory cannot be written.
    """
    path = function_dir / name
    try:
        if not holds_what_it_says(name, digest):
            raise Corrupt(what="file", where=str(path), expected=name, actual=str(digest))
        with os_errors_are_unusable("file", path):
            try:
                os.link(staged, path)
            except FileExistsError:
                if find_companion(function_dir, name, digest, digest_of=digest_of) is None:
                    set_aside(path)
                    with contextlib.suppress(FileExistsError):  # another process put it back
                        os.link(staged, path)
    finally:
        staged.unlink(missing_ok=True)
    return path


def companions(function_dir: Path) -> tuple[Path, ...]:
    """Files beside the variants of a function, in the order of their names."""
    with os_errors_are_unusable("directory", function_dir):
        try:
            names = sorted(os.listdir(function_dir))  # noqa: PTH208 - only names are needed
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return ()
            raise
    return tuple(function_dir / name for name in names if is_companion_name(name))


def drop_orphans(function_dir: Path, variants: Iterable[Path], *, age_s: float) -> None:
    """Remove files that no variant names, unless they came within ``age_s``: their variant may follow."""
    found = companions(function_dir)
    if not found:
        return
    texts = []
    for path in variants:
        with contextlib.suppress(OSError):
            texts.append(path.read_bytes())
    for path in found:
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.lstat().st_mtime <= age_s:
                continue
            if not any(path.name.encode() in text for text in texts):
                path.unlink()
                logger.info("Removed %s, which no variant needs any more", path)


def _settled(function_dir: Path, name: str, staged: Path, digest: Digest) -> Path:
    placed = place_companion(function_dir, name, staged, digest)
    with os_errors_are_unusable("directory", function_dir):
        sync_directory(function_dir)
    return placed
