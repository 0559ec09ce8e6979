"""Calls side by side: order, bound, the first error."""

from __future__ import annotations

import threading

import pytest

from cache_store.backends.objects.workers import for_each


@pytest.mark.parametrize("count", [0, 1, 100])
def test_results_stand_in_the_order_of_the_items(count):
    assert for_each(lambda item: item * item, range(count), num_at_once=8) == [n * n for n in range(count)]


def test_as_many_run_at_once_as_asked_for():
    barrier = threading.Barrier(4, timeout=30)
    assert len(for_each(lambda _: barrier.wait(), range(8), num_at_once=4)) == 8


def test_no_more_run_at_once_than_asked_for():
    lock = threading.Lock()
    running: set[int] = set()
    most = []

    def call(item: int) -> None:
        with lock:
            running.add(item)
            most.append(len(running))
        with lock:
            running.remove(item)

    for_each(call, range(500), num_at_once=3)
    assert max(most) <= 3


def test_first_error_is_raised_and_nothing_further_is_begun():
    called = []

    def call(item: int) -> None:
        called.append(item)
        raise ValueError(item)

    with pytest.raises(ValueError, match="0"):
        for_each(call, range(1000), num_at_once=1)
    assert called == [0]


def test_threads_do_not_hold_up_the_end_of_the_process():
    assert for_each(lambda _: threading.current_thread().daemon, range(2), num_at_once=2) == [True, True]
