"""One fetch at a time into one cache directory, and one compile of the same, on one node.

It saves work only; without it the result is the same. The wait ends when the holder makes no progress for too
long. The lock is the kernel's, never a soft one, which would outlive its holder. A cache directory that
cannot be used is `UnusableCache`.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from warmrank.cache_store.cache_dir.private_files import (
    ensure_cache_dir,
    make_private_directories,
    os_errors_are_unusable,
)
from warmrank.cache_store.parallel import nothing

logger = logging.getLogger(__name__)
LOCK_TIMEOUT_S = 60.0
COMPILE_TIMEOUT_S = 600.0
LOCKS = ".locks"
LOCK_NAME = "fetch.lock"
_BEAT_NAME = "fetch.beat"
_LOOK_EVERY_S = 1.0
_compiled_here: set[str] = set()
"""Locks that this process holds: it does not wait for itself."""


def lock_in(cache_root: Path, name: str) -> FileLock:
    """A lock of a cache directory, which is made if absent; not held yet, and without patience."""
    ensure_cache_dir(cache_root)
    with os_errors_are_unusable("directory", cache_root / LOCKS):
        make_private_directories(cache_root / LOCKS)
    return FileLock(cache_root / LOCKS / name, timeout=0, mode=0o600, fallback_to_soft=False)


@contextlib.contextmanager
def single_flight(cache_root: Path, *, timeout_s: float) -> Iterator[Callable[[], None]]:
    """Hold the lock of a cache directory, made if absent; yields a call that notes progress.

    Goes on beside its holder once that noted none for ``timeout_s``. Held around the whole of a fetch and its
    retries: the first try, left behind, must not keep the second one waiting.
    """
    lock, beat_file = lock_in(cache_root, LOCK_NAME), cache_root / LOCKS / _BEAT_NAME

    told_s = float("-inf")

    def beat() -> None:
        nonlocal told_s
        if (now_s := time.monotonic()) - told_s < _LOOK_EVERY_S:
            return  # called for each of very many files
        told_s = now_s
        with contextlib.suppress(OSError):  # then the others wait for as long as they do without
            beat_file.touch(mode=0o600)

    try:
        _acquire(lock, beat_file, timeout_s)
    except Timeout:
        logger.warning("%s was held for %.0f s; fetching beside its holder", lock.lock_file, timeout_s)
    except (OSError, NotImplementedError) as error:
        logger.warning("Fetching without a lock, which may copy twice: %s", error)
    try:
        yield beat if lock.is_locked else nothing
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


def _acquire(lock: FileLock, beat_file: Path, timeout_s: float) -> None:
    """Wait for the lock for ``timeout_s``, counted anew each time its holder gets on; raises `Timeout`."""
    last_beat, since_s = _beat_ns(beat_file), time.monotonic()
    while True:
        try:
            lock.timeout = max(0.0, min(_LOOK_EVERY_S, since_s + timeout_s - time.monotonic()))
            lock.acquire()
        except Timeout:
            if (beat := _beat_ns(beat_file)) != last_beat:
                last_beat, since_s = beat, time.monotonic()
            elif time.monotonic() - since_s >= timeout_s:
                raise
        else:
            return


def _beat_ns(beat_file: Path) -> int:
    try:
        return beat_file.stat().st_mtime_ns
    except OSError:
        return 0
