"""Python's garbage collector, kept out of what has to be quick."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """The collector waits, in the whole process.

    A load and a capture make many small objects, which in a new process sets off a full collection: all of
    torch's objects, a tenth of a second, in the first call.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
