from __future__ import annotations

import queue
import subprocess
import sys
import threading

import pytest

from tests.support.stored import REPOSITORY
from warmrank.cache_store import parallel
from warmrank.cache_store.parallel import NUM_THREADS, each, each_short, threads_for


@pytest.mark.parametrize("count", [0, 1, 2, 100])
@pytest.mark.parametrize("num_threads", [1, 4])
def test_each_keeps_the_order(count, num_threads):
    assert each(lambda item: item * 2, range(count), num_threads=num_threads) == [
        item * 2 for item in range(count)
    ]


def test_each_runs_items_at_once_and_not_more_than_asked():
    barrier = threading.Barrier(3)
    threads: set[int] = set()

    def meet(_: int) -> None:
        threads.add(threading.get_ident())
        barrier.wait(30)

    each(meet, range(12), num_threads=3)
    assert len(threads) == 3


def test_each_raises_the_first_error_in_order_after_all_threads_ended():
    barrier = threading.Barrier(2)
    done: list[int] = []

    def fail(item: int) -> None:
        barrier.wait(30)
        done.append(item)
        raise ValueError(f"item {item}")

    with pytest.raises(ValueError, match="item 0"):
        each(fail, range(2), num_threads=2)
    assert sorted(done) == [0, 1]


def test_each_begins_nothing_after_an_error():
    begun: list[int] = []
    failing: queue.SimpleQueue[threading.Thread] = queue.SimpleQueue()

    def work(item: int) -> None:
        begun.append(item)
        if item == 0:
            failing.put(threading.current_thread())
            raise ValueError("item 0")
        failing.get(timeout=30).join(30)

    with pytest.raises(ValueError, match="item 0"):
        each(work, range(1000), num_threads=2)
    assert sorted(begun) == [0, 1]


@pytest.mark.parametrize(
    ("num_files", "size_bytes", "threads"),
    [(1, 100, 1), (16, 4 << 20, 1), (17, 100, NUM_THREADS), (2, 5 << 20, NUM_THREADS)],
)
def test_threads_are_for_many_files_or_bytes(num_files, size_bytes, threads):
    assert threads_for(num_files, size_bytes) == threads


@pytest.mark.parametrize("count", [0, 1, 64, 65, 300])
@pytest.mark.parametrize("worth_a_thread_s", [-1.0, 1e9])
def test_each_short_keeps_the_order_whether_or_not_threads_help(monkeypatch, count, worth_a_thread_s):
    monkeypatch.setattr(parallel, "_WORTH_A_THREAD_S", worth_a_thread_s)
    assert each_short(lambda item: item * 2, range(count), num_threads=4) == [
        item * 2 for item in range(count)
    ]


def test_each_short_makes_calls_that_do_not_wait_in_one_thread(monkeypatch):
    monkeypatch.setattr(parallel, "_WORTH_A_THREAD_S", 1e9)
    assert set(each_short(lambda _: threading.get_ident(), range(200), num_threads=4)) == {
        threading.get_ident()
    }


def test_each_short_makes_calls_that_wait_side_by_side():
    first = threading.Event()
    barrier = threading.Barrier(3)

    def wait(item: int) -> None:
        if item == 0:
            first.wait(0.05)  # longer than what is worth a thread, and nobody sets it
        else:
            barrier.wait(30)

    each_short(wait, range(13), num_threads=3)


def test_each_short_raises_the_first_error_and_begins_nothing_after_it(monkeypatch):
    monkeypatch.setattr(parallel, "_WORTH_A_THREAD_S", 1e9)
    begun: list[int] = []

    def work(item: int) -> None:
        begun.append(item)
        if item == 70:
            raise ValueError("item 70")

    with pytest.raises(ValueError, match="item 70"):
        each_short(work, range(1000), num_threads=4)
    assert begun == list(range(71))


STUCK = """
import threading
from warmrank.cache_store.parallel import each
begun = threading.Barrier(3)
def hang(_):
    begun.wait()
    threading.Event().wait()
threading.Thread(target=each, args=(hang, range(2)), kwargs={"num_threads": 2}, daemon=True).start()
begun.wait()
"""


def test_call_that_never_returns_keeps_no_process_from_ending():
    subprocess.run([sys.executable, "-c", STUCK], check=True, timeout=60, cwd=REPOSITORY)
