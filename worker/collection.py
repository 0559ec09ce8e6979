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


class _State:
    """Pauses of the collector, which may nest, and what was found before the first of them."""

    lock = threading.Lock()
    num_pauses = 0
    was_enabled = False
    is_frozen = False


def _forked() -> None:
    """In a child, whose other threads are gone."""
    if _State.num_pauses and _State.was_enabled:
        gc.enable()
    _State.lock = threading.Lock()  # another thread may have held it
    _State.num_pauses = 0


os.register_at_fork(after_in_child=_forked)


def freeze() -> None:
    """Leave everything that is there now out of all collections to come: it lives as long as the process."""
    with _State.lock:
        gc.freeze()
        _State.is_frozen = True


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """The collector waits, in the whole process.

    A load and a capture make many small objects, which in a new process sets off a full collection: all of
    torch's objects, a tenth of a second, in the first call. What was made here is old at the end: the next
    full collection looks at it, but none is due because of it.
    """
    with _State.lock:
        if not _State.num_pauses:
            _State.was_enabled = gc.isenabled()
            gc.disable()
        _State.num_pauses += 1
    try:
        yield
    finally:
        with _State.lock:
            is_last = _State.num_pauses == 1  # it is 0 in a child that was forked meanwhile
            _State.num_pauses = max(0, _State.num_pauses - 1)
            if is_last and _State.was_enabled:
                # What somebody froze stays frozen. Counting it takes 40 ms beside torch, so it is done once.
                _State.is_frozen = _State.is_frozen or gc.get_freeze_count() > 0
                if not _State.is_frozen:
                    # All that is young moves to the oldest generation, unseen, and the counts start at zero.
                    gc.freeze()
                    gc.unfreeze()
                gc.enable()
