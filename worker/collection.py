"""Python's garbage collector, kept out of what has to be quick."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """The collector waits, in the whole process.

    A load and a capture make many small objects, which in a new process sets off a full collection: all of
    torch's objects, a tenth of a second, in the first call. What was made here is old at the end: the next
    full collection looks at it, but none is due because of it.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if not gc.get_freeze_count():  # what somebody froze stays frozen
                # All that is young moves to the oldest generation, unseen, and the counts start at zero.
                gc.freeze()
                gc.unfreeze()
            gc.enable()
