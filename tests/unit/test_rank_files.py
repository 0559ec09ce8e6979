"""Files beside a rank's log: its step and its stacks, as its node sees them."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from warmrank.orchestrator.causes import WorkerFailure, causes_of
from warmrank.orchestrator.gang import rank_files
from warmrank.orchestrator.gang.rank_files import StepFile, read_step, step_file


def test_reader_sees_what_was_said_last(tmp_path: Path) -> None:
    path = step_file(tmp_path / "rank0.log")
    step = StepFile(path)
    step.note("compile Model.decode, which has a long name")
    step.note("load")
    assert read_step(path) == "load"
    step.note("")
    assert read_step(path) == ""


def test_file_is_private_and_goes_when_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "rank0.step"
    step = StepFile(path)
    assert path.stat().st_mode & 0o777 == 0o600
    step.close()
    step.note("later")
    assert not path.exists()


_CHILD = """
import ctypes, sys
from pathlib import Path
from warmrank.orchestrator.gang import rank_files
rank_files.record_stacks(Path(sys.argv[1]))
def in_native_code():
    print("up", flush=True)
    ctypes.PyDLL(None).sleep(600)  # holds the interpreter's lock
in_native_code()
"""


@pytest.fixture
def hung(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    path = tmp_path / "rank0.stacks"
    child = subprocess.Popen([sys.executable, "-c", _CHILD, str(path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "up\n"
    yield child, path
    child.kill()
    child.wait()
    child.stdout.close()


def test_process_that_hangs_in_native_code_says_where(hung: tuple[subprocess.Popen[str], Path]) -> None:
    child, path = hung
    said = rank_files.ask_stacks({child.pid: path})[path]
    assert "in in_native_code" in said
    assert rank_files.crash_in(said) == ""


def test_process_that_crashes_has_said_which_fault_it_was(hung: tuple[subprocess.Popen[str], Path]) -> None:
    child, path = hung
    child.send_signal(signal.SIGSEGV)
    child.wait()
    assert rank_files.crash_in(rank_files.read_stacks(path)) == "Segmentation fault"


def test_cause_has_the_traceback_of_the_first_rank_that_gave_one() -> None:
    failures = [
        WorkerFailure(rank=rank, stage="build", kind="E", message="m", traceback=text)
        for rank, text in ((2, "of 2"), (0, ""), (1, "of 1"))
    ]
    (cause,) = causes_of(failures, {})
    assert (cause.ranks, cause.traceback) == ((0, 1, 2), "of 1")
