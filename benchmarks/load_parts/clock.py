"""Seconds since the end of ``import torch``, and calls timed in turns."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any


class Clock:
    """Runs from its making, and stands while what is equal for all ways is done."""

    def __init__(self) -> None:
        self._started = perf_counter()
        self._stood_s = 0.0

    @contextmanager
    def standing(self) -> Iterator[None]:
        """What happens in here is not counted."""
        stopped = perf_counter()
        yield
        self._stood_s += perf_counter() - stopped

    def seconds(self) -> float:
        """Seconds counted so far."""
        return perf_counter() - self._started - self._stood_s


def in_turns(calls: Sequence[Callable[[], Any]], rounds: int) -> list[list[float]]:
    """Seconds of every call, round by round, so that noise falls on all alike."""
    seconds: list[list[float]] = [[] for _ in calls]
    for number in range(rounds + 1):
        for call, taken in zip(calls, seconds, strict=True):
            started = perf_counter()
            call()
            ended = perf_counter()
            if number:  # the first round only warms up
                taken.append(ended - started)
    return seconds


def median_difference(more: Sequence[float], less: Sequence[float]) -> float:
    """Median of the differences within each round."""
    return statistics.median(one - other for one, other in zip(more, less, strict=True))
