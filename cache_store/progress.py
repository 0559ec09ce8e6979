"""Progress of a long copy, for a caller's bar and for the log.

A caller hears at most once in `CALL_EVERY_S`, and of the end; the log has a line each `LOG_EVERY_S`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from warmrank.cache_store.backends.places import TieredBackend

logger = logging.getLogger(__name__)
CALL_EVERY_S = 0.25
LOG_EVERY_S = 10.0


def nothing(*_: object, **__: object) -> None:
    """For what nobody waits for, or wants to know."""


class Progress(NamedTuple):
    """Bytes and files done, of all."""

    done_bytes: int
    total_bytes: int
    done_files: int
    total_files: int


OnProgress = Callable[[Progress], None]


def while_asked(on_progress: OnProgress | None, view: TieredBackend) -> OnProgress | None:
    """As ``on_progress``, which hears nothing more of a verb once its view was left."""
    if on_progress is None:
        return None

    def tell(progress: Progress) -> None:
        if not view.is_left:
            on_progress(progress)

    return tell


class Meter:
    """Counts for several threads; ``what`` is for the log, such as ``Fetching into /cache``."""

    def __init__(
        self,
        what: str,
        *,
        total_bytes: int,
        total_files: int,
        on_progress: OnProgress | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what = what
        self._progress = Progress(0, total_bytes, 0, total_files)
        self._on_progress = on_progress
        self._clock = clock
        self._lock = threading.Lock()
        self._counted: deque[tuple[int, int]] = deque()
        self._called_s = self._logged_s = self._started_s = clock()

    def count(self, num_bytes: int, num_files: int = 0) -> None:
        """Add to what is done; what turned out bad is taken back by a negative number."""
        self._counted.append((num_bytes, num_files))
        if self._lock.acquire(blocking=False):  # else whoever comes next adds this up: no thread waits here
            try:
                self._add_up()
            finally:
                self._lock.release()

    def finish(self) -> None:
        """Tell the caller how far it came in the end."""
        with self._lock:
            self._called_s = float("-inf")
            self._add_up()

    def _add_up(self) -> None:
        done_bytes, total_bytes, done_files, total_files = self._progress
        while self._counted:
            num_bytes, num_files = self._counted.popleft()
            done_bytes, done_files = done_bytes + num_bytes, done_files + num_files
        self._progress = Progress(done_bytes, total_bytes, done_files, total_files)
        moment_s = self._clock()
        if moment_s - self._called_s >= CALL_EVERY_S:
            self._called_s = moment_s
            if self._on_progress is not None:
                self._on_progress(self._progress)
        if moment_s - self._logged_s >= LOG_EVERY_S:
            self._logged_s = moment_s
            seconds = moment_s - self._started_s
            logger.info("%s: %d of %d bytes, %d of %d files, %.0f s", self._what, *self._progress, seconds)
