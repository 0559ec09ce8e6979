"""What watches the ranks of a node, with a real process that stands in for a rank, and a real reaper."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import marked, still_there
from warmrank.orchestrator import reaper
from warmrank.orchestrator.gang.node_watch import Charge, NodeWatch

LONG_S = 600.0


@pytest.fixture
def rank() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def watch() -> Iterator[NodeWatch]:
    found = NodeWatch(asked_s=0.1, is_alone=False)
    yield found
    found.release()


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> str:
    """What all that this test starts has in its environment."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv("WARMRANK_TEST", mark)
    return mark


def reapers(mark: str) -> list[int]:
    return [pid for pid, command in marked(mark).items() if reaper.__file__ in command]


def charge(rank: subprocess.Popen[bytes], tmp_path: Path) -> Charge:
    return Charge(pid=rank.pid, mark=uuid.uuid4().hex, log=tmp_path / "name" / "launch" / "rank0.log")


def test_reaper_that_is_killed_is_replaced_and_costs_no_rank(
    mark: str, rank: subprocess.Popen[bytes], watch: NodeWatch, tmp_path: Path
) -> None:
    watch.guard({0: charge(rank, tmp_path)}, LONG_S)
    (first,) = reapers(mark)
    os.kill(first, signal.SIGKILL)
    assert still_there([first]) == []
    assert not watch.look()[0].is_gone
    (second,) = reapers(mark)
    assert second != first
    watch.release()
    assert rank.wait(timeout=60) == -signal.SIGKILL


def test_rank_is_gone_when_the_lease_ran_out_while_nobody_looked(
    mark: str, rank: subprocess.Popen[bytes], watch: NodeWatch, tmp_path: Path
) -> None:
    watch.guard({0: charge(rank, tmp_path)}, 0.2)
    assert still_there(reapers(mark)) == []
    assert rank.wait(timeout=60) == -signal.SIGKILL
    assert watch.look()[0].is_gone
