"""When a command counts as ready."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from warmrank.orchestrator.errors import BadArgument
from warmrank.orchestrator.serve.readiness import Readiness, When, parse_when


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("exit", When(kind="exit")),
        ("none", When(kind="none")),
        ("8000", When(kind="port", port=8000)),
        ("node7:8000", When(kind="port", host="node7", port=8000)),
        ("[::1]:8000", When(kind="port", host="::1", port=8000)),
        ("/run/ready", When(kind="file", path="/run/ready")),
        ("./8000", When(kind="file", path="./8000")),
        ("C:/x:1/y", When(kind="file", path="C:/x:1/y")),
    ],
)
def test_condition_is_read(text: str, expected: When) -> None:
    assert parse_when(text) == expected


@pytest.mark.parametrize("text", ["", "0", "65536", "node7:99999"])
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(BadArgument, match="expected exit, none, a port"):
        parse_when(text)


def test_examples_of_several_hosts_wait_for_the_port_of_the_first() -> None:
    text = (Path(__file__).parents[2] / "docs" / "schedulers.md").read_text()
    found = [parse_when(value) for value in re.findall(r"warmrank exec .*--publish-when (\S+)", text)]
    assert [(when.kind, bool(when.host)) for when in found] == [("port", True)] * 4


def test_file_is_ready_when_it_appears(tmp_path: Path) -> None:
    readiness = Readiness(When(kind="file", path=str(tmp_path / "ready")))
    assert not readiness.holds()
    (tmp_path / "ready").touch()
    assert readiness.holds()


def test_file_of_an_earlier_run_does_not_count(tmp_path: Path) -> None:
    file = tmp_path / "ready"
    file.touch()
    readiness = Readiness(When(kind="file", path=str(file)))
    assert not readiness.holds()
    os.utime(file, ns=(1, 1))
    assert readiness.holds()


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        yield server


def test_port_is_ready_when_it_accepts(listening: socket.socket) -> None:
    readiness = Readiness(When(kind="port", port=listening.getsockname()[1]))
    assert not readiness.holds()
    listening.listen()
    assert readiness.holds()


def test_port_of_somebody_else_is_refused(listening: socket.socket) -> None:
    listening.listen()
    with pytest.raises(BadArgument, match="already, before the command was started"):
        Readiness(When(kind="port", host="localhost", port=listening.getsockname()[1]))


@pytest.mark.parametrize("kind", ["exit", "none"])
def test_the_end_is_nothing_that_could_be_looked_at(kind: str) -> None:
    assert not Readiness(parse_when(kind)).holds()
