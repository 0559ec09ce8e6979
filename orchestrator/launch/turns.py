"""The first launch of its kind into a cache directory of this machine: another one waits until it is over.

Invariants: it saves work only, and the wait is bounded; a launch that died holds nothing, because the lock is
the kernel's. Once a launch of the kind ended well, later ones do not wait for each other.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from filelock import FileLock, Timeout

from warmrank.cache_store.cache_dir.single_flight import LOCKS, lock_in
from warmrank.cache_store.errors import UnusableCache
from warmrank.orchestrator.config.models import Config
from warmrank.orchestrator.gang.ray_session import way_in_now
from warmrank.orchestrator.launch.identity import launch_key

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def turn(config: Config) -> Iterator[None]:
    """Wait while another launch of the same workload fills this machine's cache directory for the first time.

    Only where ranks run on this machine: what other nodes have is not known here. A directory that cannot be
    used is left to the ranks to tell of.
    """
    kind = config.cache_dir / LOCKS / f"launch-{launch_key(config)[:12]}"
    ended = kind.with_suffix(".ended")
    if way_in_now(config.ray) != "local" or ended.exists():
        yield
        return
    lock: FileLock | None = None
    try:
        with contextlib.suppress(UnusableCache):
            lock = lock_in(config.cache_dir, kind.with_suffix(".lock").name)
            _wait(lock, config)
        yield
        with contextlib.suppress(OSError):
            ended.touch(mode=0o600)
    finally:
        if lock is not None:
            lock.release()


def _wait(lock: FileLock, config: Config) -> None:
    try:
        try:
            lock.acquire()
        except Timeout:
            logger.warning(
                "Another launch fills %s for the first time: waiting for its end", config.cache_dir
            )
            lock.acquire(timeout=config.timeouts.compile_s)
    except Timeout:
        logger.warning("It did not end within timeouts.compile_s, %g s: going on", config.timeouts.compile_s)
    except (OSError, NotImplementedError) as error:
        logger.warning("Launching without a lock, which may compile twice: %s", error)
