"""`warmrank exec` as a process of its own: its output and status, signals, and what it leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support.launching import write_config
from tests.support.processes import PYTHONPATH, marked, still_there
from tests.support.stored import open_store
from warmrank.cache_store.cache_dir.marks import mark_signers
from warmrank.cache_store.signing.keyring import generate
from warmrank.orchestrator.cli.main import app

WAIT_S = 90.0

Cli = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def mark() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def cli(tmp_path: Path, mark: str) -> Iterator[Cli]:
    """Starts the command line; neither it nor what it started outlives the test."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **changes: object) -> subprocess.Popen[str]:
        environ = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
        process = subprocess.Popen(
            [sys.executable, "-m", "warmrank", "exec", str(write_config(tmp_path, **changes)), *arguments],
            env={**environ, "WARMRANK_TEST": mark, "PYTHONPATH": PYTHONPATH},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate(timeout=WAIT_S)
    assert still_there(marked(mark)) == []


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (["--here", "--node", "a"], "--here and --node exclude each other"),
        (["--nnodes", "2", "--node-rank", "0", "--run-id", "7"], "--nnodes goes with --here"),
        (["--here", "--nnodes", "2", "--node-rank", "2", "--run-id", "7"], "--node-rank"),
        (["--here", "--nnodes", "2", "--node-rank", "0"], "--run-id"),
        (["--here", "--nnodes", "3", "--node-rank", "0", "--run-id", "7"], "not as many on each of 3 hosts"),
        (["--publish-when", "0"], "expected exit, none, a port"),
    ],
)
def test_options_that_cannot_be_are_refused(tmp_path: Path, arguments: list[str], wrong: str) -> None:
    done = CliRunner().invoke(app, ["exec", str(write_config(tmp_path)), *arguments, "--", "true"])
    assert done.exit_code == 2
    assert wrong in " ".join(done.stderr.replace("│", " ").split())


@pytest.mark.parametrize("is_there", [pytest.param(True, marks=pytest.mark.slow), False])
def test_tool_s_directory_of_a_revoked_key_stops_the_command_though_nothing_is_pulled(
    cli: Cli, tmp_path: Path, is_there: bool
) -> None:
    if is_there:
        open_store(tmp_path / "store")
    (tmp_path / "mine").mkdir(mode=0o700)
    mark_signers(tmp_path / "mine", ["0" * 32])
    generate(tmp_path / "keys", "ci")
    trust = {"policy": "require", "keyring": str(tmp_path / "keys"), "revoked": ["0" * 32]}
    ended = cli(
        "--publish-when", "none", "--here", "--", "echo", "ran",
        store={"path": str(tmp_path / "store"), "trust": trust},
        exec={"sync": [{"tool": "mine", "path": str(tmp_path / "mine")}]},
    )  # fmt: skip
    out, err = ended.communicate(timeout=WAIT_S)
    assert (ended.returncode, out) == (4, ""), err
    assert "revoked" in err


@pytest.mark.parametrize(
    ("number", "status"), [pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow), (signal.SIGTERM, 143)]
)
def test_signals_go_to_the_command_and_nothing_is_left(
    cli: Cli, mark: str, number: signal.Signals, status: int
) -> None:
    driver = cli("--", "bash", "-c", "setsid sleep 600 & echo up; exec sleep 600")
    assert first_line(driver) == "up\n"
    driver.send_signal(number)
    assert driver.wait(WAIT_S) == status
    assert still_there(marked(mark), timeout_s=0) == []


def test_killed_driver_takes_the_command_with_it(cli: Cli, mark: str) -> None:
    driver = cli("--grace", "0.2", "--", "sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.1; done")
    assert first_line(driver) == "up\n"
    driver.kill()
    driver.wait(WAIT_S)
    assert still_there(marked(mark)) == []
