"""Calls into a store that may hang, such as one on a network disk that went away."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from cache_store.errors import StoreUnavailable

T = TypeVar("T")


def within(call: Callable[[], T], *, timeout_s: float, setting: str, where: Path) -> T:
    """What ``call`` returns or raises; past the time-out it is left behind in its daemon thread.

    Raises:
        StoreUnavailable: it did not end in time.
    """
    outcome: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            outcome.put((call(), None))
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            outcome.put((None, error))

    threading.Thread(target=run, name="store", daemon=True).start()
    try:
        result, error = outcome.get(timeout=timeout_s)
    except queue.Empty:
        raise StoreUnavailable(
            what="store",
            where=str(where),
            reason=f"no answer within {timeout_s:g} s",
            remedy=f"check that its file system answers, or raise {setting}",
        ) from None
    if error is not None:
        raise error
    return result  # type: ignore[return-value]
