"""One fetch at a time into one cache directory, and one compile of the same, on one node.

It saves work only; without it the result is the same, so no wait is for ever. The lock is the kernel's, never
a soft one, which would outlive its holder. A cache directory that cannot be used is `UnusableCache`.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from warmrank.cache_store.cache_dir.private_files import (
    ensure_cache_dir,
    make_private_directories,
    os_errors_are_unusable,
)

logger = logging.getLogger(__name__)
LOCK_TIMEOUT_S = 300.0
COMPILE_TIMEOUT_S = 600.0
LOCKS = ".locks"
LOCK_NAME = "fetch.lock"
_compiled_here: set[str] = set()
"""Locks that this process holds: it does not wait for itself."""


def lock_in(cache_root: Path, name: str) -> FileLock:
    """A lock of a cache directory, which is made if absent; not held yet, and without patience."""
    ensure_cache_dir(cache_root)
    with os_errors_are_unusable("directory", cache_root / LOCKS):
        make_private_directories(cache_root / LOCKS)
    return FileLock(cache_root / LOCKS / name, timeout=0, mode=0o600, fallback_to_soft=False)


@contextlib.contextmanager
def single_flight(cache_root: Path, *, timeout_s: float) -> Iterator[None]:
    """Hold the lock of a cache directory, made if absent; goes on beside its holder after ``timeout_s``."""
    lock = lock_in(cache_root, LOCK_NAME)
    try:
        lock.acquire(timeout=timeout_s)
    except Timeout:
        logger.warning("%s was held for %.0f s; fetching beside its holder", lock.lock_file, timeout_s)
    except (OSError, NotImplementedError) as error:
        logger.warning("Fetching without a lock, which may copy twice: %s", error)
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def one_compile(cache_root: Path, what: str) -> Iterator[bool]:
    """Hold the lock of a compile; or wait for its holder, and go on without it. Yields whether it waited.

    ``what`` is equal for those that may use one artifact; who waited may find what the holder made.
    """
    name = f"compile-{hashlib.sha256(what.encode()).hexdigest()[:16]}.lock"
    lock, path = lock_in(cache_root, name), str(cache_root / LOCKS / name)
    has_waited = False
    try:
        if path not in _compiled_here:
            lock.acquire()
            _compiled_here.add(path)
    except Timeout:
        has_waited = True
        with contextlib.suppress(Timeout), lock.acquire(timeout=COMPILE_TIMEOUT_S):
            Path(path).unlink(missing_ok=True)
    except (OSError, NotImplementedError) as error:
        logger.warning("Compiling without a lock, so perhaps twice: %s", error)
    try:
        yield has_waited
    finally:
        if lock.is_locked:
            _compiled_here.discard(path)
            Path(path).unlink(missing_ok=True)  # whoever waits has it open, and compiles without it
            lock.release()
