"""One function over many items in a few threads, for work that gives up the GIL, and the progress of a copy.

Results come in the order of the items, and the first error in that order is raised when no thread runs any
more. A call that never returns keeps no process from ending. Short calls that wait for nothing get no
threads, which would take turns at the GIL (16,384 manifests of a local disk: 4.5 s instead of 0.9).

Of progress a caller hears at most once in `CALL_EVERY_S`, and of the end; the log has a line each
`LOG_EVERY_S`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

T = TypeVar("T")
R = TypeVar("R")

# Four hash 6 GiB/s, more than a disk takes; a rank's node has other ranks that want its cores.
NUM_THREADS: Final = min(4, os.cpu_count() or 1)
SHORT_BYTES = 64 << 10
_WORTH_A_THREAD_S = 0.0005
_ROUND = 64  # calls between two that are timed; one that is slow by chance must not decide for all
_SLOW_ROUND = 1024


class _Elsewhere(threading.local):
    worked_s = 0.0


elsewhere = _Elsewhere()
"""Seconds for which this thread waited while another one worked for it, so for no disk or machine."""


def each(
    function: Callable[[T], R], items: Sequence[T], *, num_threads: int, size_bytes: int | None = None
) -> list[R]:
    """Results of ``function`` for each of ``items``; raises what it raises.

    Small items of ``size_bytes`` in all are done in this thread, unless calls are seen to wait for
    a disk or another machine.
    """
    if size_bytes is not None and size_bytes <= len(items) * SHORT_BYTES:
        return _each_short(function, items, num_threads=num_threads)
    if min(num_threads, len(items)) < 2:
        return [function(item) for item in items]
    results: dict[int, R] = {}
    errors: dict[int, BaseException] = {}
    positions = iter(range(len(items)))  # to take the next one is one step of the interpreter

    def work() -> None:
        for position in positions:
            try:
                results[position] = function(items[position])
            except BaseException as error:  # noqa: BLE001 - raised again, in the caller's thread
                errors[position] = error
            if errors:
                return

    # No executor: its threads are waited for when the interpreter ends, and one may hang in a dead mount.
    threads = [
        threading.Thread(target=work, daemon=True, name=f"store-each-{number}")
        for number in range(min(num_threads, len(items)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[min(errors)]
    return [results[position] for position in range(len(items))]


def _each_short(function: Callable[[T], R], items: Sequence[T], *, num_threads: int) -> list[R]:
    """Now and then a call in this thread shows whether they wait; only then threads make the next ones."""
    results: list[R] = []
    while len(results) < len(items):
        began_s, worked_s = time.perf_counter(), time.thread_time() + elsewhere.worked_s
        results.append(function(items[len(results)]))
        waited_s = time.perf_counter() - began_s - (time.thread_time() + elsewhere.worked_s - worked_s)
        is_slow = waited_s > _WORTH_A_THREAD_S
        following = items[len(results) : len(results) + (_SLOW_ROUND if is_slow else _ROUND)]
        results += each(function, following, num_threads=num_threads if is_slow else 1)
    return results


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
        self._on_progress: OnProgress = on_progress or nothing
        self._clock = clock
        self._lock = threading.Lock()
        self._told_s = self._logged_s = self._started_s = clock()

    def count(self, num_bytes: int, num_files: int = 0) -> None:
        """Add to what is done."""
        now_s = self._clock()
        with self._lock:
            done_bytes, total_bytes, done_files, total_files = self._progress
            progress = Progress(done_bytes + num_bytes, total_bytes, done_files + num_files, total_files)
            self._progress = progress
            if is_told := now_s - self._told_s >= CALL_EVERY_S:
                self._told_s = now_s
            if is_logged := now_s - self._logged_s >= LOG_EVERY_S:
                self._logged_s = now_s
        if is_told:  # not while others wait for the lock
            self._on_progress(progress)
        if is_logged:
            seconds = now_s - self._started_s
            logger.info("%s: %d of %d bytes, %d of %d files, %.0f s", self._what, *progress, seconds)

    def finish(self) -> None:
        """Tell the caller how far it came in the end."""
        self._on_progress(self._progress)
