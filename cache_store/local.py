"""The cache directory on a node's own disk, in TorchAir's layout.

Layout: ``<cache root>/<Class>_..._<key>/[<partition>/]<function>/compiled_module[.N]``. A function has up
to `MAX_VARIANTS` variants (more while they are fresh); a higher N was added later, and ``compiled_module``
itself is the first. ``<cache root>/.unverified`` says that artifacts came from a store without being required
to carry a signature.

Invariants: files are created whole (private temporary file, fsync, link without replacing), with mode 0600,
owned by the running user, and never share an inode with any other file, because TorchAir truncates its
cache in place. No lock is needed: of processes that add at once, each gets a name of its own or, for equal
bytes, the one that came first.

A rank's warm load imports this module, so it needs the standard library only.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import time
from pathlib import Path

from cache_store.digests import Digest, Readable, TooLong, copy_and_digest, digest_bytes
from cache_store.errors import Corrupt, UnusableCache
from cache_store.private_files import (
    check_private,
    create_private,
    digest_private,
    ensure_cache_dir,
    make_private_directories,
    open_private,
    os_errors_are_unusable,
    read_private,
    sync_directory,
    temporary_name,
)

__all__ = [
    "FRESH_S",
    "MAX_VARIANTS",
    "UNVERIFIED",
    "VARIANT_NAME",
    "add_variant",
    "add_variant_from",
    "add_variant_stream",
    "check_private",
    "ensure_cache_dir",
    "find_variant",
    "is_variant_name",
    "mark_unverified",
    "place",
    "read_private",
    "refuse_unverified",
    "stage",
    "variants",
]

logger = logging.getLogger(__name__)

VARIANT_NAME = "compiled_module"
MAX_VARIANTS = 64
FRESH_S = 3600.0
UNVERIFIED = ".unverified"
_UNVERIFIED_TEXT = """\
Artifacts were copied into this directory from a store whose trust policy was not 'require', so nobody may
have signed them. warmrank with policy 'require' refuses this directory; empty it, this file included, or use
another cache_dir.
"""
_VARIANT = re.compile(rf"{VARIANT_NAME}(?:\.([1-9][0-9]{{0,8}}))?", re.ASCII)


def is_variant_name(name: str) -> bool:
    """Whether ``name`` is ``compiled_module`` or ``compiled_module.N`` with N from 1."""
    return _VARIANT.fullmatch(name) is not None


def variants(function_dir: Path) -> tuple[Path, ...]:
    """Variants of one function, in the order in which they were added; none where there is no directory."""
    return tuple(function_dir / _variant_name(number) for number in _variant_numbers(function_dir))


def find_variant(function_dir: Path, expected: Digest) -> Path | None:
    """The variant with exactly these bytes, if there is one; it counts as fresh from now on.

    A file that is not private, such as ``cp -r`` makes, is passed over: nobody would load it.

    Raises:
        UnusableCache: the directory cannot be read.
    """
    for path in variants(function_dir):
        try:
            if _holds(path, expected):
                _touch(path)
                return path
        except UnusableCache as error:
            logger.warning("Passed over: %s", error)
    return None


def add_variant(function_dir: Path, data: bytes) -> Path:
    """Add ``data`` as a variant, or return the variant that already holds the same bytes.

    Beyond `MAX_VARIANTS` the oldest go, save those added or read within `FRESH_S`: a launch needs what it
    just found. Safe under concurrent processes.

    Raises:
        UnusableCache: the directory cannot be written.
    """
    stream = io.BytesIO(data)
    return add_variant_stream(function_dir, stream, expected=digest_bytes(data), source="data in memory")


def add_variant_from(function_dir: Path, source: Path, expected: Digest | None = None) -> Path:
    """Add a copy of the private file ``source`` as `add_variant` does, verified while copying.

    Raises:
        Corrupt: ``source`` does not hold the expected bytes; nothing was added.
        UnusableCache: as `add_variant`, or ``source`` is not there or not private.
    """
    with os_errors_are_unusable("file", source):
        file = open_private(source)
    with file:
        return add_variant_stream(function_dir, file, expected=expected, source=str(source))


def add_variant_stream(function_dir: Path, stream: Readable, *, expected: Digest | None, source: str) -> Path:
    """Add what ``stream`` holds as `add_variant_from` does; ``source`` names it in errors."""
    if expected is not None and (existing := find_variant(function_dir, expected)):
        return existing
    staged, digest = stage(function_dir, stream, expected=expected, source=source)
    return place(function_dir, staged, digest)


def stage(directory: Path, stream: Readable, *, expected: Digest | None, source: str) -> tuple[Path, Digest]:
    """Copy ``stream`` into a private temporary file of ``directory``, durable and verified.

    Returns:
        The file, which the caller must `place` or unlink, and its digest.

    Raises:
        Corrupt: it does not hold the expected bytes; no file is left.
        UnusableCache: the directory cannot be written; no file is left.
    """
    path = directory / f".{temporary_name()}.tmp"
    try:
        with os_errors_are_unusable("file", path):
            make_private_directories(directory)
            digest = _write_verified(path, stream, expected=expected, source=source)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return path, digest


def place(function_dir: Path, staged: Path, digest: Digest) -> Path:
    """Give a staged file of the same file system its name; ``staged`` is gone afterwards.

    Returns:
        The new variant, or the one that already held these bytes.

    Raises:
        UnusableCache: the directory cannot be written.
    """
    try:
        with os_errors_are_unusable("directory", function_dir):
            make_private_directories(function_dir)
            placed = _link_next(function_dir, staged, digest)
            sync_directory(function_dir)
            _trim(function_dir)
    finally:
        staged.unlink(missing_ok=True)
    return placed


def mark_unverified(cache_root: Path) -> None:
    """Leave word in a cache directory that what comes next need not be signed; once is enough.

    Raises:
        UnusableCache: the directory cannot be written.
    """
    path = cache_root / UNVERIFIED
    with os_errors_are_unusable("file", path), contextlib.suppress(FileExistsError):
        with create_private(path) as file:
            file.write(_UNVERIFIED_TEXT.encode())
            file.flush()
            os.fsync(file.fileno())
        sync_directory(cache_root)


def refuse_unverified(cache_root: Path, policy: str) -> None:
    """Refuse, under trust policy ``require``, a directory into which unverified artifacts were copied.

    Raises:
        UnusableCache: it bears the mark of `mark_unverified`, or cannot be looked at.
    """
    if policy != "require":
        return
    with os_errors_are_unusable("file", cache_root / UNVERIFIED):
        try:
            (cache_root / UNVERIFIED).lstat()
        except FileNotFoundError:
            return
    raise UnusableCache(
        what="directory",
        where=str(cache_root),
        expected="only artifacts that a trusted key signed, as trust policy 'require' asks",
        actual=f"{UNVERIFIED}: some were copied under another policy",
        remedy="use another cache_dir, or empty this one",
    )


def _holds(path: Path, expected: Digest) -> bool:
    with os_errors_are_unusable("file", path), contextlib.suppress(FileNotFoundError):
        return path.lstat().st_size == expected.size_bytes and digest_private(path) == expected
    return False


def _touch(path: Path) -> None:
    # The access time only, and by hand, because many file systems are mounted without it.
    with contextlib.suppress(OSError):
        os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))


def _write_verified(path: Path, stream: Readable, *, expected: Digest | None, source: str) -> Digest:
    with create_private(path) as file:
        try:
            digest = copy_and_digest(stream, file, limit_bytes=expected.size_bytes if expected else None)
        except TooLong as error:
            raise Corrupt(what="artifact", where=source, expected=str(expected), actual=str(error)) from error
        if expected is not None and digest != expected:
            raise Corrupt(what="artifact", where=source, expected=str(expected), actual=str(digest))
        file.flush()
        os.fsync(file.fileno())
    return digest


def _link_next(function_dir: Path, staged: Path, digest: Digest) -> Path:
    while True:
        # Listed before looking: whoever adds the same bytes after the look takes this very name.
        numbers = _variant_numbers(function_dir)
        if existing := find_variant(function_dir, digest):
            return existing
        target = function_dir / _variant_name(numbers[-1] + 1 if numbers else 0)
        with contextlib.suppress(FileExistsError):
            # The temporary name goes right after, so the file has one link, its own.
            os.link(staged, target)
            return target


def _trim(function_dir: Path) -> None:
    for path in variants(function_dir)[:-MAX_VARIANTS]:
        with contextlib.suppress(FileNotFoundError):
            status = path.lstat()
            if time.time() - max(status.st_atime, status.st_mtime) > FRESH_S:
                path.unlink()
                logger.info("Removed %s: a function keeps its newest %d variants", path, MAX_VARIANTS)


def _variant_name(number: int) -> str:
    return f"{VARIANT_NAME}.{number}" if number else VARIANT_NAME


def _variant_numbers(function_dir: Path) -> list[int]:
    with os_errors_are_unusable("directory", function_dir):
        try:
            names = os.listdir(function_dir)  # noqa: PTH208 - only names are needed, and loads are timed
        except FileNotFoundError:
            return []
    matches = (_VARIANT.fullmatch(name) for name in names)
    return sorted(int(match[1] or 0) for match in matches if match)
