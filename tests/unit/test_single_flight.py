from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from filelock import FileLock

from tests.support.stored import REPOSITORY
from warmrank.cache_store.errors import UnusableCache
from warmrank.cache_store.node.single_flight import LOCK_NAME, LOCKS, one_compile, single_flight

HOLD = """
import sys
from pathlib import Path
from warmrank.cache_store.node.single_flight import single_flight
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


def test_lock_is_given_back_by_work_that_fails(tmp_path):
    with pytest.raises(ValueError, match="work"), single_flight(tmp_path, timeout_s=1.0):
        raise ValueError("work")
    assert is_free(tmp_path)


def test_lock_lies_in_a_private_directory(tmp_path):
    with single_flight(tmp_path / "cache", timeout_s=1.0):
        paths = [tmp_path / "cache", tmp_path / "cache" / LOCKS, tmp_path / "cache" / LOCKS / LOCK_NAME]
    assert [stat.S_IMODE(path.stat().st_mode) for path in paths] == [0o700, 0o700, 0o600]


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
from warmrank.cache_store.node.single_flight import one_compile
with one_compile(Path(sys.argv[1]), "model/forward"):
    print("holds", flush=True)
    sys.stdin.read()
"""


def test_compile_waits_for_that_of_another_process_and_keeps_nobody_waiting(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _HOLDER, str(tmp_path)]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY) as holder,
        ThreadPoolExecutor() as pool,
    ):
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"holds\n"
        assert one_waits(tmp_path, "model/other") is False
        waiting = pool.submit(one_waits, tmp_path, "model/forward")
        pool.submit(holder.communicate, b"")
        assert waiting.result(timeout=60) is True
    assert one_waits(tmp_path, "model/forward") is False
    assert not list(tmp_path.rglob("*.lock"))


def one_waits(root: Path, what: str) -> bool:
    with one_compile(root, what) as has_waited:
        return has_waited


def test_compile_within_a_compile_of_this_process_does_not_wait(tmp_path: Path) -> None:
    with one_compile(tmp_path, "model/forward"):
        assert one_waits(tmp_path, "model/forward") is False
