"""A command under its reaper: its status, its output, its signals, and that nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.processes import marked, still_there
from warmrank.orchestrator.reaper_client import KILLED, Chunk, ReapedCommand

ROOT = Path(__file__).parents[2]
WAIT_S = 60.0
IGNORES = "trap '' TERM INT; echo up; while :; do sleep 0.1; done"

Start = Callable[..., ReapedCommand]


@pytest.fixture
def mark() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def start(mark: str) -> Iterator[Start]:
    """Starts commands whose processes carry the mark; none outlives the test."""
    started: list[ReapedCommand] = []

    def run(*words: str, grace_s: float = WAIT_S, lease_s: float | None = None) -> ReapedCommand:
        environ = {**os.environ, "WARMRANK_TEST": mark}
        command = ReapedCommand(words, environ=environ, grace_s=grace_s, lease_s=lease_s, captured=True)
        started.append(command)
        return command

    yield run
    for command in started:
        command.close()
    assert still_there(marked(mark)) == []


def ended(command: ReapedCommand) -> tuple[int, bytes, bytes]:
    """Status and output of a command that ends by itself."""
    chunks: list[Chunk] = []
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        more, status = command.poll(0.1)
        chunks += more
        if status is not None:
            out, err = (
                b"".join(data for name, data in chunks if name == wanted) for wanted in ("out", "err")
            )
            return status, out, err
    raise AssertionError("the command did not end")


def await_up(command: ReapedCommand) -> None:
    deadline = time.monotonic() + WAIT_S
    while ("out", b"up\n") not in command.poll(0.05)[0]:
        assert time.monotonic() < deadline


@pytest.mark.parametrize(
    ("code", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", KILLED), ("kill -15 $$", 143)]
)
def test_status_is_as_a_shell_has_it(start: Start, code: str, status: int) -> None:
    assert ended(start("sh", "-c", code))[0] == status


def test_output_comes_whole_and_errors_apart(start: Start) -> None:
    found = ended(start("sh", "-c", "echo no >&2; seq 1 200000"))
    assert found == (0, b"".join(b"%d\n" % number for number in range(1, 200001)), b"no\n")


def test_output_that_is_not_read_holds_up_the_command_and_its_status(start: Start, tmp_path: Path) -> None:
    command = start("sh", "-c", f"seq 1 100000; touch {tmp_path}/printed")
    for _ in range(5):
        assert command.poll(0.1, reads=False) == ([], None)
    assert not (tmp_path / "printed").exists()
    assert ended(command)[0] == 0


@pytest.mark.parametrize(
    ("words", "status", "reason"),
    [(["nosuch"], 127, b"No such file"), ([str(ROOT / "README.md")], 126, b"Permission denied")],
)
def test_program_that_cannot_run_is_named(start: Start, words: list[str], status: int, reason: bytes) -> None:
    found, _, err = ended(start(*words))
    assert found == status
    assert f"the command {words[0]!r} cannot be run on this node: ".encode() + reason in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_reaches_the_whole_process_group(start: Start, number: int) -> None:
    command = start("bash", "-c", f"trap 'exit 5' {number}; echo up; sleep 600 & wait")
    await_up(command)
    command.signal(number)
    assert ended(command)[0] == 5


@pytest.mark.parametrize(
    ("grace_s", "numbers"), [(0.2, [signal.SIGTERM]), (WAIT_S, [signal.SIGTERM, signal.SIGKILL])]
)
def test_command_that_ignores_signals_is_killed_after_the_grace_or_when_told(
    start: Start, grace_s: float, numbers: list[int]
) -> None:
    command = start("bash", "-c", IGNORES, grace_s=grace_s)
    await_up(command)
    for number in numbers:
        command.signal(number)
    assert ended(command)[0] == KILLED


def test_what_the_command_leaves_in_sessions_of_their_own_is_ended_too(start: Start, mark: str) -> None:
    assert ended(start("sh", "-c", "setsid sh -c 'sleep 600' & sleep 600 & exit 3"))[0] == 3
    assert still_there(marked(mark), timeout_s=0) == []


def test_descendants_that_ignore_sigterm_are_killed(start: Start, mark: str) -> None:
    code = f'setsid bash -c "{IGNORES.replace("echo up", "echo $$ > /dev/null")}" & sleep 0.3; exit 0'
    assert ended(start("bash", "-c", code, grace_s=0.2))[0] == 0
    assert still_there(marked(mark), timeout_s=0) == []


def test_command_ends_when_nobody_asks_for_it_in_time(start: Start, mark: str) -> None:
    command = start("sh", "-c", "setsid sleep 600 & echo up; sleep 600", lease_s=1.0)
    await_up(command)
    for _ in range(15):
        assert command.poll(0.1)[1] is None
    assert still_there(marked(mark)) == []


def test_command_ends_with_whoever_started_it(mark: str) -> None:
    program = """
    import os, time
    from warmrank.orchestrator.reaper_client import ReapedCommand
    words = ["sh", "-c", "setsid sleep 600 & echo up; wait"]
    kept = ReapedCommand(words, environ=os.environ, grace_s=5, captured=False)
    time.sleep(600)
    """
    driver = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={
            **os.environ,
            "WARMRANK_TEST": mark,
            "PYTHONPATH": str(ROOT / "src"),
        },
        stdout=subprocess.PIPE,
    )
    assert driver.stdout is not None
    with driver:
        assert driver.stdout.readline() == b"up\n"
        driver.kill()
    assert still_there(marked(mark)) == []


def test_command_gets_a_signal_when_its_reaper_is_killed(start: Start, mark: str) -> None:
    command = start("sleep", "600")
    (reaper,) = (pid for pid, line in marked(mark).items() if "reaper.py" in line)
    os.kill(reaper, signal.SIGKILL)
    assert ended(command)[0] == KILLED


def test_modules_of_the_command_s_environment_are_not_the_reaper_s(tmp_path: Path) -> None:
    for name in ("select", "subprocess", "warmrank"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('shadowed')\n")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = ReapedCommand(["true"], environ=environ, grace_s=1.0, captured=True)
    assert ended(command)[0] == 0
    command.close()
