"""Python's garbage collector, kept out of what has to be quick."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator


class _State:
    is_paused = False
    is_frozen = False


def _forked() -> None:
    """In a child it goes on at once: the thread that made it wait may not be there."""
    if _State.is_paused:
        _State.is_paused = False
        gc.enable()


os.register_at_fork(after_in_child=_forked)


def freeze() -> None:
    """Leave everything that is there now out of all collections to come: it lives as long as the process."""
    gc.freeze()
    _State.is_frozen = True


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """The collector waits, in the whole process, until the first one who let it wait is done.

    A load and a capture make many small objects, which in a new process sets off a full collection: all of
    torch's objects, a tenth of a second, in the first call. What was made here is old at the end: the next
    full collection looks at it, but none is due because of it.
    """
    if not gc.isenabled():
        yield
        return
    _State.is_paused = True
    gc.disable()
    try:
        yield
    finally:
        # What somebody froze stays frozen. Counting it takes 40 ms beside torch, so it is done once.
        _State.is_frozen = _State.is_frozen or gc.get_freeze_count() > 0
        if not _State.is_frozen:
            # All that is young moves to the oldest generation, unseen, and the counts start at zero.
            gc.freeze()
            gc.unfreeze()
        _State.is_paused = False
        gc.enable()
