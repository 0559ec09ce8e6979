"""Looks at places that may hang, such as a network disk that went away: side by side, and not for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from warmrank.cache_store.backends.deadline import Ticks

T = TypeVar("T")


def all_within(
    calls: Sequence[Callable[[], T]], *, timeout_s: float, ticks: Ticks | None = None
) -> tuple[T | None, ...]:
    """Results of the calls, none of which may raise; None for one that is silent, and left in its thread.

    Only time in which this process ran counts, because an answer may wait unseen in any other.
    """
    ticks = ticks or Ticks()
    found: list[list[T]] = [[] for _ in calls]
    ended = [threading.Event() for _ in calls]
    for call, values, event in zip(calls, found, ended, strict=True):
        threading.Thread(target=_run, args=(call, values, event), name="store-look", daemon=True).start()
    spent_s = 0.0
    for event in ended:
        for seconds in ticks.until(event) if spent_s < timeout_s else ():
            spent_s += seconds
            if spent_s >= timeout_s:
                break
    return tuple(values[0] if values else None for values in found)


def _run(call: Callable[[], T], values: list[T], ended: threading.Event) -> None:
    try:
        values.append(call())
    finally:
        ended.set()
