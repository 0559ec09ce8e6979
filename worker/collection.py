"""Python's garbage collector, kept out of what has to be quick.

Process safety: any number of threads may pause at once, and the collector goes on when the last one is done.
In a forked child it goes on at once.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Iterator


class _Pauses:
    """Pauses of the garbage collector, which may nest."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_pauses = 0
        self._was_enabled = False
        self._is_frozen = False

    def begin(self) -> None:
        with self._lock:
            if not self._num_pauses:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._num_pauses += 1

    def end(self) -> None:
        with self._lock:
            if self._num_pauses != 1:  # others pause, or this is a child that was forked meanwhile
                self._num_pauses = max(0, self._num_pauses - 1)
                return
            self._num_pauses = 0
            if not self._was_enabled:
                return
            # What somebody froze stays frozen. Counting it takes 40 ms beside torch, so it is done once.
            self._is_frozen = self._is_frozen or gc.get_freeze_count() > 0
            if not self._is_frozen:
                # All that is young moves to the oldest generation, unseen, and the counts start at zero.
                gc.freeze()
                gc.unfreeze()
            gc.enable()

    def freeze(self) -> None:
        with self._lock:
            gc.freeze()
            self._is_frozen = True

    def forked(self) -> None:
        """In a child, whose other threads are gone."""
        if self._num_pauses and self._was_enabled:
            gc.enable()
        self._lock = threading.Lock()  # another thread may have held it
        self._num_pauses = 0


_PAUSES = _Pauses()
os.register_at_fork(after_in_child=_PAUSES.forked)


def freeze() -> None:
    """Leave everything that is there now out of all collections to come: it lives as long as the process."""
    _PAUSES.freeze()


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """The collector waits, in the whole process.

    A load and a capture make many small objects, which in a new process sets off a full collection: all of
    torch's objects, a tenth of a second, in the first call. What was made here is old at the end: the next
    full collection looks at it, but none is due because of it.
    """
    _PAUSES.begin()
    try:
        yield
    finally:
        _PAUSES.end()
