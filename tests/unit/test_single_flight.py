from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest
from filelock import FileLock, Timeout

from tests.support.ray_cluster import Clock
from tests.support.stored import REPOSITORY
from warmrank.cache_store.cache_dir import single_flight as flight
from warmrank.cache_store.cache_dir.single_flight import LOCK_NAME, LOCKS, acquire, one_compile, single_flight
from warmrank.cache_store.errors import UnusableCache

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


def test_lock_is_held_for_as_long_as_the_work_lasts(tmp_path):
    with single_flight(tmp_path / "cache", timeout_s=1.0):
        assert not is_free(tmp_path / "cache")
    assert is_free(tmp_path / "cache")


def test_directory_of_others_is_refused(tmp_path):
    tmp_path.chmod(0o777)
    refused = pytest.raises(UnusableCache, match="not writable by group or others")
    with refused, single_flight(tmp_path, timeout_s=1.0):
        pass


def test_holder_that_was_killed_holds_no_lock(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY) as holder:
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
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY) as holder:
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


class HeldLock:
    """A lock that another process has for so many looks, and gets on with its work during some of them."""

    def __init__(self, now: Clock, beat_file: Path, *, looks: int, beats: int) -> None:
        self.timeout = 0.0
        self.is_taken = False
        self._now, self._beat_file = now, beat_file
        self._looks, self._beats = looks, beats

    def acquire(self) -> None:
        self._now.now_s += self.timeout
        self._looks, self._beats = self._looks - 1, self._beats - 1
        if self._beats >= 0:
            self._beat_file.touch()
            os.utime(self._beat_file, (self._now.now_s, self._now.now_s))
        if self._looks >= 0:
            raise Timeout("fetch.lock")
        self.is_taken = True


def test_waiter_goes_on_beside_a_holder_that_fell_silent(tmp_path: Path):
    now = Clock()
    lock = HeldLock(now, tmp_path / "beat", looks=500, beats=100)
    with pytest.raises(Timeout):
        acquire(cast("FileLock", lock), tmp_path / "beat", 60.0, clock=now)
    assert now.now_s - 1000.0 == pytest.approx(161.0, abs=2.0)
