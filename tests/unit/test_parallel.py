from __future__ import annotations

import queue
import subprocess
import sys
import threading

import pytest

from tests.support.stored import REPOSITORY
from warmrank.cache_store.parallel import each


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
