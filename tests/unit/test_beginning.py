"""Something that may hang, begun in a thread that stays as long as what it began."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from warmrank.orchestrator.gang.ray_session import Beginning, TookTooLong

LONG_S = 600.0

# A child that asks to die with the thread that started it, as Ray's processes do.
CHILD = """
import ctypes, signal, time
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
print("up", flush=True)
time.sleep(600)
"""


def test_what_its_call_raises_is_raised_where_it_is_waited_for() -> None:
    def fail() -> None:
        raise ValueError("no such luck")

    with pytest.raises(ValueError, match="no such luck"):
        Beginning(fail).wait(LONG_S)


def test_what_takes_too_long_goes_on() -> None:
    go_on, ended = threading.Event(), threading.Event()

    def begin() -> None:
        go_on.wait()
        ended.set()

    beginning = Beginning(begin)
    with pytest.raises(TookTooLong):
        beginning.wait(0.01)
    go_on.set()
    beginning.wait(LONG_S)
    assert ended.is_set()
    beginning.end()


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
def test_process_that_dies_with_its_thread_lives_until_the_end() -> None:
    started: list[subprocess.Popen[str]] = []

    def begin() -> None:
        command = [sys.executable, "-I", "-S", "-c", CHILD]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))

    beginning = Beginning(begin)
    beginning.wait(LONG_S)
    (child,) = started
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        assert child.poll() is None
        beginning.end()
        assert child.wait(timeout=20) == -9
