"""A command and all below it: its status, its output, its signals, and that nothing is left."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.processes import marked, still_there
from warmrank.orchestrator.serve import command as command_room
from warmrank.orchestrator.serve.command import KILLED, CannotRun, Chunk, Command

ROOT = Path(__file__).parents[2]
WAIT_S = 60.0
Start = Callable[..., Command]

IGNORES = "trap '' TERM INT; echo up; while :; do sleep 0.1; done"


@pytest.fixture
def mark() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def start(mark: str) -> Iterator[Start]:
    """Starts commands whose processes carry the mark; none outlives the test."""
    started: list[Command] = []

    def run(*words: str, grace_s: float = WAIT_S) -> Command:
        command = Command(
            words, environ={**os.environ, "WARMRANK_TEST": mark}, grace_s=grace_s, captured=True
        )
        started.append(command)
        return command

    yield run
    for command in started:
        command.close()
    assert still_there(marked(mark)) == []


def ended(command: Command) -> tuple[int, bytes]:
    """Status and standard output of a command that ends by itself."""
    out: list[Chunk] = []
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        out += command.output()
        if command.poll(0.1) is not None and command.is_drained:
            assert command.status is not None
            out += command.output()
            return command.status, b"".join(data for stream, data in out if stream == "out")
    raise AssertionError("the command did not end")


def await_line(command: Command, line: bytes) -> None:
    text, deadline = b"", time.monotonic() + WAIT_S
    while line not in text:
        assert time.monotonic() < deadline, text
        command.poll(0.05)
        text += b"".join(data for _, data in command.output())


@pytest.mark.parametrize(
    ("code", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", KILLED), ("kill -15 $$", 143)]
)
def test_status_is_as_a_shell_has_it(start: Start, code: str, status: int) -> None:
    assert ended(start("sh", "-c", code))[0] == status


def test_output_comes_whole(start: Start) -> None:
    status, text = ended(start("sh", "-c", "seq 1 200000"))
    assert (status, text) == (0, b"".join(b"%d\n" % number for number in range(1, 200001)))


def test_standard_error_comes_apart(start: Start) -> None:
    command = start("sh", "-c", "echo no >&2; printf yes")
    assert ended(command) == (0, b"yes")


def test_program_that_is_not_there_is_named(start: Start, mark: str) -> None:
    with pytest.raises(CannotRun, match="'nosuch' cannot be run on this node: No such file") as caught:
        start("nosuch")
    assert caught.value.exit_code == 127
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own bytes
    assert (str(again), again.exit_code) == (str(caught.value), 127)
    assert still_there(marked(mark)) == []


def test_file_that_is_no_program_is_named(start: Start, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("")
    with pytest.raises(CannotRun, match="Permission denied") as caught:
        start(str(tmp_path / "text"))
    assert caught.value.exit_code == 126


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_reaches_the_whole_process_group(start: Start, number: int) -> None:
    code = f"trap 'exit 5' {number}; echo up; sleep 600 & wait"
    command = start("bash", "-c", code)
    await_line(command, b"up")
    command.signal(number)
    assert ended(command)[0] == 5


def test_command_that_ignores_signals_is_killed_after_the_grace(start: Start) -> None:
    command = start("bash", "-c", IGNORES, grace_s=0.2)
    await_line(command, b"up")
    command.signal(signal.SIGTERM)
    assert ended(command)[0] == KILLED


def test_second_word_kills_at_once(start: Start) -> None:
    command = start("bash", "-c", IGNORES)
    await_line(command, b"up")
    command.signal(signal.SIGTERM)
    command.kill()
    assert ended(command)[0] == KILLED


def test_what_the_command_leaves_in_sessions_of_their_own_is_ended_too(start: Start, mark: str) -> None:
    status, _ = ended(start("sh", "-c", "setsid sh -c 'sleep 600' & sleep 600 & exit 3"))
    assert status == 3
    assert still_there(marked(mark), timeout_s=0) == []


def test_descendants_that_ignore_sigterm_are_killed(start: Start, mark: str) -> None:
    code = f'setsid bash -c "{IGNORES.replace("echo up", "echo $$ > /dev/null")}" & sleep 0.3; exit 0'
    assert ended(start("bash", "-c", code, grace_s=0.2))[0] == 0
    assert still_there(marked(mark), timeout_s=0) == []


def test_status_that_comes_together_with_the_start_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short command may have ended before anybody hears that it began."""
    keeper = tmp_path / "keeper.py"
    keeper.write_text(
        "import socket, sys\n"
        'socket.socket(fileno=int(sys.argv[1])).sendall(b\'{"pid": 1}\\n{"ended": 3}\\n\')\n'
    )
    monkeypatch.setattr(command_room, "keeper", SimpleNamespace(__file__=str(keeper)))
    command = Command(["true"], environ=os.environ, grace_s=1.0, captured=False)
    try:
        assert command.poll(WAIT_S) == 3
    finally:
        command.close()


def test_command_ends_with_whoever_started_it(mark: str) -> None:
    program = """
    import os, time
    from warmrank.orchestrator.serve.command import Command
    words = ["sh", "-c", "setsid sleep 600 & echo up; wait"]
    kept = Command(words, environ=os.environ, grace_s=5, captured=False)
    time.sleep(600)
    """
    driver = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, "WARMRANK_TEST": mark, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
    )
    assert driver.stdout is not None
    with driver:
        assert driver.stdout.readline() == b"up\n"
        driver.kill()
    assert still_there(marked(mark)) == []


def test_command_gets_a_signal_when_its_keeper_is_killed(start: Start, mark: str) -> None:
    command = start("sleep", "600")
    (keeper,) = (pid for pid, line in marked(mark).items() if "keeper.py" in line)
    os.kill(keeper, signal.SIGKILL)
    assert ended(command)[0] == KILLED


def test_command_has_ended_when_its_keeper_has_too() -> None:
    ours, theirs = socket.socketpair()
    command = Command.__new__(Command)
    command.status, command._text, command._channel = None, b"", ours
    command._keeper = SimpleNamespace(wait=lambda: 0)  # type: ignore[assignment]
    has_ended = threading.Event()

    def end() -> None:
        has_ended.set()
        theirs.close()

    theirs.sendall(b'{"ended": 3}\n')
    ending = threading.Timer(0.2, end)
    ending.start()
    assert command.poll(WAIT_S) == 3
    assert has_ended.is_set()
    ending.join()
    ours.close()
