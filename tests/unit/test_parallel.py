"""Work of several threads and processes at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from filelock import FileLock

from tests.support.checkout import ROOT, python
from warmrank.cache_store.backends.deadline import Call, Ticks, all_within
from warmrank.cache_store.cache_dir import single_flight as flight
from warmrank.cache_store.cache_dir.single_flight import LOCK_NAME, LOCKS, one_compile

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
    python("-c", STUCK)


HOLD = """
import sys
from pathlib import Path
from warmrank.cache_store.cache_dir.single_flight import single_flight
with single_flight(Path(sys.argv[1]), timeout_s=0.0):
    print("held", flush=True)
    sys.stdin.read()
"""


def is_free(cache: Path) -> bool:
    lock = FileLock(cache / LOCKS / LOCK_NAME, blocking=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except TimeoutError:
        return False
    lock.release()
    return True


def test_holder_that_was_killed_holds_no_lock(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert not is_free(tmp_path)
        os.kill(holder.pid, signal.SIGKILL)
    assert is_free(tmp_path)


_HOLDER = """
import sys
from pathlib import Path
from warmrank.cache_store.cache_dir.single_flight import one_compile
with one_compile(Path(sys.argv[1]), "model/forward"):
    print("holds", flush=True)
    sys.stdin.read()
"""


def test_compile_waits_for_that_of_another_process_and_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight, "COMPILE_TIMEOUT_S", 0.0)
    command = [sys.executable, "-c", _HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"holds\n"
        assert one_waits(tmp_path, "model/other") is False
        assert one_waits(tmp_path, "model/forward") is True
        holder.communicate(b"")
    assert one_waits(tmp_path, "model/forward") is False
    assert not list(tmp_path.rglob("*.lock"))


def one_waits(root: Path, what: str) -> bool:
    with one_compile(root, what) as has_waited:
        return has_waited


def test_all_silent_calls_together_cost_one_timeout() -> None:
    released = threading.Event()
    now_s = 0.0
    waits: list[float] = []

    def wait(call: Call[object], seconds: float) -> bool:
        nonlocal now_s
        waits.append(seconds)
        now_s += seconds
        return call.wait(0.0)

    try:
        ticks = Ticks(clock=lambda: now_s, wait=wait)
        assert all_within([released.wait] * 5, timeout_s=0.5, ticks=ticks) == (None,) * 5
    finally:
        released.set()
    assert 0.5 <= sum(waits) < 0.7


def test_time_in_which_this_process_did_not_run_is_not_counted() -> None:
    asked = threading.Event()
    now_s = 0.0

    def wait(call: Call[object], seconds: float) -> bool:
        nonlocal now_s
        now_s += 100  # far more than was asked for
        asked.set()
        return call.wait(60) if now_s > 250 else False

    def answer() -> str:
        asked.wait(60)
        return "here"

    ticks = Ticks(clock=lambda: now_s, wait=wait)
    assert all_within([answer], timeout_s=0.5, ticks=ticks) == ("here",)
