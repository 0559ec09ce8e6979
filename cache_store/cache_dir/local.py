"""The cache directory on a node's own disk, in TorchAir's layout.

Layout::

    <cache root>/<Class>_..._<key>/[<partition>/]<function>/compiled_module[.N]
    <cache root>/<Class>_..._<key>/[<partition>/]<function>/ge_cache_<first 16 hex of its SHA-256>.pt2

A function has up to `MAX_VARIANTS` variants (more while they are fresh); a higher N was added later. A
companion (a file beside variants, such as compiled kernels) is written before the variant that needs it; what
takes its name as ``beside`` means a variant by none. Files are created whole, with mode 0600, and share no
inode, because TorchAir truncates its cache in place. No lock is needed. What a power cut tore is no variant:
a load verifies every byte. Every fault of the disk is `UnusableCache`.
"""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from warmrank.cache_store.cache_dir.private_files import (
    create_private,
    digest_private,
    make_private_directories,
    open_private,
    os_errors_are_unusable,
    set_aside,
    sweep_debris,
    sync_directory,
    temporary_path,
)
from warmrank.cache_store.digests import Digest, copy_and_digest, digest_bytes
from warmrank.cache_store.errors import Corrupt, UnusableCache

logger = logging.getLogger(__name__)
VARIANT_NAME = "compiled_module"
MAX_VARIANTS = 64
FRESH_S = 3600.0
_MAX_DIGITS = 9
_CROWDED = MAX_VARIANTS // 2  # a touch changes what an index of digests goes by, so only where a trim is near
_COMPANION = re.compile(r"ge_cache_([0-9a-f]{16})\.pt2", re.ASCII)
_DigestOf = Callable[[Path], Digest]


def is_variant_name(name: str) -> bool:
    """Return True for ``compiled_module``, and ``compiled_module.N`` with N from 1."""
    return _number(name) is not None


def variant_name(number: int) -> str:
    """Name of the variant that is added after ``number`` others."""
    return f"{VARIANT_NAME}.{number}" if number else VARIANT_NAME


def _variant_numbers(function_dir: Path) -> list[int]:
    return sorted(number for name in _file_names(function_dir) if (number := _number(name)) is not None)


def variants(function_dir: Path) -> tuple[Path, ...]:
    """Variants of one function, oldest first; none where there is no directory."""
    return tuple(function_dir / variant_name(number) for number in _variant_numbers(function_dir))


def _file_names(function_dir: Path) -> list[str]:
    """Names of all files; none where there is no directory."""
    with os_errors_are_unusable("directory", function_dir):
        try:
            return os.listdir(function_dir)  # noqa: PTH208 - only names are needed, and loads are timed
        except (FileNotFoundError, NotADirectoryError):
            return []


def _number(name: str) -> int | None:
    if name == VARIANT_NAME:
        return 0
    head, dot, digits = name.partition(".")
    if head != VARIANT_NAME or not dot or len(digits) > _MAX_DIGITS or digits.startswith("0"):
        return None
    return int(digits) if digits.isascii() and digits.isdigit() else None


def is_companion_name(name: str) -> bool:
    """Return True for the name of a companion."""
    return _COMPANION.fullmatch(name) is not None


def holds_what_it_says(name: str, digest: Digest) -> bool:
    """Return True if a companion of this name may have bytes of this digest."""
    match = _COMPANION.fullmatch(name)
    return match is not None and digest.sha256.startswith(match[1])


def companions(function_dir: Path) -> tuple[Path, ...]:
    """Files beside the variants of a function, sorted by name."""
    return tuple(function_dir / name for name in sorted(_file_names(function_dir)) if is_companion_name(name))


def find_file(
    function_dir: Path, expected: Digest, *, beside: str = "", digest_of: _DigestOf = digest_private
) -> Path | None:
    """The file with exactly these bytes; a variant is kept for `FRESH_S` from now on.

    A file that is not private, such as ``cp -r`` makes, is passed over: nobody would load it. ``digest_of``
    may be that of an index, which spares the reading.
    """
    known = (function_dir / beside,) if beside else variants(function_dir)
    for path in known:
        if _holds(path, expected, digest_of):
            if len(known) > _CROWDED:
                # The access time only, and by hand, because many file systems are mounted without it.
                with contextlib.suppress(OSError):
                    os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
            return path
    return None


def add_variant(
    function_dir: Path, source: bytes | Path, expected: Digest | None = None, *, beside: str = ""
) -> Path:
    """Add bytes, or a copy of a private file, as a variant, or as the companion ``beside``; equal bytes stay.

    What is copied is verified, and `Corrupt` if it is not as expected; nothing is added then. Beyond
    `MAX_VARIANTS` the oldest go, save those added or read within `FRESH_S`, which a launch just found.
    Safe under concurrent processes.
    """
    if isinstance(source, bytes):
        expected, where = digest_bytes(source), "data in memory"
    else:
        where = str(source)
    if expected is not None and (existing := find_file(function_dir, expected, beside=beside)):
        return existing
    with os_errors_are_unusable("file", where):
        stream = io.BytesIO(source) if isinstance(source, bytes) else open_private(source)
    staged = temporary_path(function_dir)
    try:
        with stream, os_errors_are_unusable("file", staged):
            make_private_directories(function_dir)
            with create_private(staged) as file:
                digest = copy_and_digest(stream, file)
                file.flush()
                os.fsync(file.fileno())
        if expected not in (None, digest):
            raise Corrupt(what="artifact", where=where, expected=str(expected), actual=str(digest))
        placed = place_file(function_dir, staged, digest, beside=beside)
    finally:
        staged.unlink(missing_ok=True)
    with os_errors_are_unusable("directory", function_dir):
        sync_directory(function_dir)
    return placed


def place_file(
    function_dir: Path,
    staged: Path,
    digest: Digest,
    *,
    beside: str = "",
    digest_of: _DigestOf = digest_private,
) -> Path:
    """Give a staged file of the same file system its name, a variant the next; ``staged`` is gone afterwards.

    Return it, or the variant that already held these bytes. Raises `Corrupt` for a companion whose bytes are
    not what its name says.
    """
    try:
        if beside:
            return _place_companion(function_dir / beside, staged, digest, digest_of)
        with os_errors_are_unusable("directory", function_dir):
            make_private_directories(function_dir)
            placed = _link_next(function_dir, staged, digest, digest_of)
            _trim(function_dir)
            sweep_debris(function_dir, ".", ".tmp")
            return placed
    finally:
        staged.unlink(missing_ok=True)


def place_directory(function_dir: Path, staged_dir: Path) -> bool:
    """Give a staged directory the name of a function that has no variants, in one rename; False if it has."""
    with os_errors_are_unusable("directory", function_dir):
        try:
            try:
                staged_dir.rename(function_dir)
            except FileNotFoundError:
                make_private_directories(function_dir.parent)
                staged_dir.rename(function_dir)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return False
            raise
    return True


def _place_companion(path: Path, staged: Path, digest: Digest, digest_of: _DigestOf) -> Path:
    if not holds_what_it_says(path.name, digest):
        raise Corrupt(what="file", where=str(path), expected=path.name, actual=str(digest))
    with os_errors_are_unusable("file", path):
        try:
            os.link(staged, path)
        except FileExistsError:
            if not _holds(path, digest, digest_of):
                set_aside(path)
                with contextlib.suppress(FileExistsError):  # another process put it back
                    os.link(staged, path)
    return path


def _holds(path: Path, expected: Digest, digest_of: _DigestOf) -> bool:
    try:
        with os_errors_are_unusable("file", path), contextlib.suppress(FileNotFoundError):
            return path.lstat().st_size == expected.size_bytes and digest_of(path) == expected
    except UnusableCache as error:
        logger.warning("Passed over: %s", error)
    return False


def _link_next(function_dir: Path, staged: Path, digest: Digest, digest_of: _DigestOf) -> Path:
    while True:
        # Listed before looking: whoever adds the same bytes after the look takes this very name.
        numbers = _variant_numbers(function_dir)
        if existing := find_file(function_dir, digest, digest_of=digest_of):
            return existing
        target = function_dir / variant_name(numbers[-1] + 1 if numbers else 0)
        with contextlib.suppress(FileExistsError):
            # The temporary name goes right after, so the file has one link, its own.
            os.link(staged, target)
            return target


def _trim(function_dir: Path) -> None:
    excess = variants(function_dir)[:-MAX_VARIANTS]
    for path in excess:
        with contextlib.suppress(FileNotFoundError):
            status = path.lstat()
            if time.time() - max(status.st_atime, status.st_mtime) > FRESH_S:
                path.unlink()
                logger.info("Removed %s: a function keeps its newest %d variants", path, MAX_VARIANTS)
    if excess:
        _drop_orphans(function_dir)


def _drop_orphans(function_dir: Path) -> None:
    """Remove companions that no variant names, unless they are fresh: their variant may follow."""
    found, texts = companions(function_dir), []
    for path in variants(function_dir) if found else ():
        with contextlib.suppress(OSError):
            texts.append(path.read_bytes())
    for path in found:
        with contextlib.suppress(FileNotFoundError):
            is_old = time.time() - path.lstat().st_mtime > FRESH_S
            if is_old and not any(path.name.encode() in text for text in texts):
                path.unlink()
                logger.info("Removed %s, which no variant needs any more", path)
