"""Looks at places that may hang."""

from __future__ import annotations

import threading

from warmrank.cache_store.backends.deadline import Ticks
from warmrank.orchestrator.bounded import all_within


def test_all_silent_calls_together_cost_one_timeout() -> None:
    released = threading.Event()
    now_s = 0.0
    waits: list[float] = []

    def wait(event: threading.Event, seconds: float) -> bool:
        nonlocal now_s
        waits.append(seconds)
        now_s += seconds
        return event.is_set()

    try:
        ticks = Ticks(clock=lambda: now_s, wait=wait)
        assert all_within([released.wait] * 5, timeout_s=0.5, ticks=ticks) == (None,) * 5
    finally:
        released.set()
    assert 0.5 <= sum(waits) < 0.7


def test_time_in_which_this_process_did_not_run_is_not_counted() -> None:
    asked = threading.Event()
    now_s = 0.0

    def wait(event: threading.Event, seconds: float) -> bool:
        nonlocal now_s
        now_s += 100  # far more than was asked for
        asked.set()
        return event.wait(60) if now_s > 250 else False

    def answer() -> str:
        asked.wait(60)
        return "here"

    ticks = Ticks(clock=lambda: now_s, wait=wait)
    assert all_within([answer], timeout_s=0.5, ticks=ticks) == ("here",)
