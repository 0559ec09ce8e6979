"""Errors as blocks, values as JSON."""

from __future__ import annotations

import errno
import os
import signal
import socket
import time

import pytest
import typer

from warmrank.cache_store.errors import Corrupt
from warmrank.orchestrator.causes import WorkerFailure
from warmrank.orchestrator.cli.console import describe, exit_code_of, session
from warmrank.orchestrator.errors import CannotStart, ConfigError, ConfigProblem, DemoFailed, LaunchFailed
from warmrank.orchestrator.gang import ray_session
from warmrank.orchestrator.signals import undisturbed
from warmrank.worker.errors import NotYet


def problem(key: str) -> ConfigProblem:
    return ConfigProblem(place="a.yaml", key=key, found="'x' (str)", expected="an int", nearest="")


def launch_failed(*kinds: str) -> LaunchFailed:
    failures = [
        WorkerFailure(rank=rank, stage="build", kind=kind, message="") for rank, kind in enumerate(kinds)
    ]
    return LaunchFailed("build", failures, num_ranks=2)


def caused_by(cause: Exception) -> CannotStart:
    message = "no Ray cluster can be joined at '10.0.0.1:6379'"
    return CannotStart(message, blames_cluster=ray_session.is_unreachable(cause))


@pytest.fixture(autouse=True)
def ctrl_c_raises():
    """Also where the tests run in the background of a shell, which lets its jobs ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def receive(number: signal.Signals) -> None:
    """Get a signal, and give its handler the time to run."""
    os.kill(os.getpid(), number)
    time.sleep(0.1)


def test_sigterm_ends_a_command_as_ctrl_c_does():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(typer.Exit) as caught, session():
        receive(signal.SIGTERM)
    assert caught.value.exit_code == 143
    assert signal.getsignal(signal.SIGTERM) is before


def test_teardown_is_not_cut_short():
    with undisturbed():
        receive(signal.SIGINT)
        receive(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        receive(signal.SIGINT)


def test_config_error_has_a_block_for_each_problem():
    head, blocks, rest = describe(ConfigError([problem("ranks"), problem("device")]))
    assert head == "the config cannot be used: 2 problems"
    assert [block[0] for block in blocks] == [("where", "a.yaml: ranks"), ("where", "a.yaml: device")]
    assert rest == ()


def test_store_error_shows_its_fields_as_rows():
    error = Corrupt(what="blob 12", where="cas/12", expected="sha256 1", actual="sha256 2", remedy="publish")
    head, (rows,), _ = describe(error)
    assert head == "corrupt: blob 12"
    assert dict(rows) == {"where": "cas/12", "expected": "sha256 1", "found": "sha256 2", "remedy": "publish"}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError([]), 2),
        (NotYet("cuda", instead="use cpu"), 2),
        (CannotStart("no CPUs"), 1),
        (caused_by(ConnectionRefusedError()), 5),
        (caused_by(TimeoutError()), 5),
        (caused_by(OSError(errno.EHOSTUNREACH, "no route")), 5),
        (caused_by(socket.gaierror(socket.EAI_NONAME, "no such host")), 1),
        (DemoFailed("cold failed", exit_code=3), 3),
        (PermissionError("denied"), 1),
        (launch_failed("WorkloadError"), 2),
        (launch_failed("UnusableCache", "UnusableCache"), 4),
        (launch_failed("WorkloadError", "died"), 5),
    ],
)
def test_exit_code_of_error(error: Exception, code: int):
    assert exit_code_of(error) == code
