"""One fetch at a time into one cache directory, on one node.

Invariants: it saves work only; without it the result is the same. The wait is bounded, and a holder that
died is no holder: the lock is the kernel's, never a soft one, which would outlive its holder.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from cache_store.node.private_files import ensure_cache_dir, make_private_directories, os_errors_are_unusable

logger = logging.getLogger(__name__)

LOCK_TIMEOUT_S = 60.0
LOCKS = ".locks"
LOCK_NAME = "fetch.lock"


@contextlib.contextmanager
def single_flight(cache_root: Path, *, timeout_s: float) -> Iterator[None]:
    """Hold the lock of a cache directory, made if absent; go on beside its holder after ``timeout_s``.

    Held around the whole of a fetch, also where that is tried again because a part of the store fell silent:
    what was left behind of the first try must not keep the second one waiting.

    Raises:
        UnusableCache: the cache directory cannot be used, or has no place for the lock.
    """
    ensure_cache_dir(cache_root)
    locks = cache_root / LOCKS
    with os_errors_are_unusable("directory", locks):
        make_private_directories(locks)
    lock = FileLock(locks / LOCK_NAME, timeout=timeout_s, mode=0o600, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        logger.warning("%s was held for %.0f s; fetching beside its holder", lock.lock_file, timeout_s)
    except (OSError, NotImplementedError) as error:
        logger.warning("Fetching without a lock, which may copy twice: %s", error)
    try:
        yield
    finally:
        lock.release()
