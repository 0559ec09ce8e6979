"""Who is lost: ranks, nodes, heads, and drivers that stood still."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import marked, still_there
from tests.support.ray_cluster import free_ports
from warmrank.orchestrator import reaper
from warmrank.orchestrator.config.models import WatchConfig
from warmrank.orchestrator.errors import DIED, NODE_LOST, STOPPED
from warmrank.orchestrator.gang import liveness
from warmrank.orchestrator.gang.launcher import ProcessStatus
from warmrank.orchestrator.gang.liveness import HeadWatch
from warmrank.orchestrator.gang.node_watch import Charge, NodeWatch
from warmrank.orchestrator.gang.ray_watch import Watching

LIMITS = WatchConfig(node_silent_s=10, stopped_s=3)
AT_WORK = ProcessStatus(state="R")


def watching() -> Watching:
    """Two nodes of two ranks, at second 100."""
    return Watching({0: ("n1", (0, 1)), 1: ("n2", (2, 3))}, LIMITS, 100.0)


def seen(found: Watching, node: int, statuses: dict[int, ProcessStatus], now_s: float) -> None:
    """A node answers as soon as it is asked."""
    found.answered(node, statuses, asked_s=now_s, now_s=now_s)


def kinds(found: Watching, now_s: float) -> dict[int, str]:
    return {failure.rank: failure.kind for failure in found.failures("compile", now_s)}


def test_silent_node_is_lost_with_all_its_ranks_at_the_limit_and_not_before() -> None:
    found = watching()
    seen(found, 0, {}, 109.0)
    assert kinds(found, 109.9) == {}
    assert kinds(found, 110.0) == {2: NODE_LOST, 3: NODE_LOST}
    assert "node n2 has not answered for 10 s" in found.failures("build", 110.0)[0].message


def test_time_in_which_the_driver_itself_stood_still_counts_against_no_node() -> None:
    found = watching()
    found.paused(60.0)
    assert kinds(found, 165.0) == {}
    assert len(kinds(found, 170.0)) == 4


def test_rank_that_a_signal_holds_is_stopped_after_the_limit() -> None:
    found = watching()
    for now_s in (101.0, 103.0):
        seen(found, 0, {0: AT_WORK, 1: ProcessStatus(state="T")}, now_s)
    seen(found, 1, {}, 103.0)
    assert kinds(found, 103.9) == {}
    assert kinds(found, 104.0) == {1: STOPPED}


@pytest.mark.parametrize("state", ["", "Z", "X"])
def test_rank_without_a_process_died_whether_or_not_it_was_called(state: str) -> None:
    found = watching()
    seen(found, 1, {3: ProcessStatus(state=state)}, 101.0)
    assert kinds(found, 103.9) == {}  # Ray may say more of it
    seen(found, 1, {3: ProcessStatus(state=state)}, 103.9)
    assert kinds(found, 104.0) == {3: DIED}


def test_node_that_answers_nothing_after_a_death_is_lost_with_the_rank() -> None:
    found = watching()
    found.failed(3, 101.0, died=True)
    assert found.is_in_doubt(105.9, others_wait=False)
    assert kinds(found, 105.9) == {}
    assert kinds(found, 106.0) == {2: NODE_LOST, 3: NODE_LOST}
    assert not found.is_in_doubt(106.0, others_wait=False)


def test_node_whose_watch_has_ended_stays_lost_whatever_else_is_heard_of_it() -> None:
    found = watching()
    found.note(1, "ended")
    found.note(1, "unavailable")
    assert kinds(found, 101.0) == {2: NODE_LOST, 3: NODE_LOST}


def test_rank_that_is_gone_is_waited_for_after_the_error_of_its_peer_until_its_death_is_told() -> None:
    found = watching()
    found.failed(0, 101.0, died=False)
    seen(found, 0, {0: AT_WORK, 1: AT_WORK}, 102.6)
    seen(found, 1, {2: AT_WORK, 3: ProcessStatus(state="")}, 102.6)
    assert found.is_in_doubt(102.6, others_wait=True)
    assert kinds(found, 105.6) == {3: DIED}
    found.failed(3, 105.6, died=True)
    seen(found, 1, {2: AT_WORK, 3: ProcessStatus(state="")}, 107.1)
    assert not found.is_in_doubt(107.1, others_wait=True)


PATIENT = WatchConfig(every_s=300, node_silent_s=600, lease_s=600)


@pytest.fixture
def head() -> Iterator[socket.socket]:
    # Not one of the kernel's choice, which anybody may get when it is closed.
    with socket.create_server(("127.0.0.1", *free_ports(1))) as listening:
        yield listening


def test_time_in_which_the_driver_stood_still_is_no_silence_of_the_head(
    head: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = HeadWatch(f"127.0.0.1:{head.getsockname()[1]}", PATIENT)
    watch.stop()
    monkeypatch.setattr(watch, "_tried_s", watch._tried_s - 3600)
    assert watch.loss == ""
    monkeypatch.setattr(liveness, "knock", lambda _place: "silent")
    watch._try()
    assert watch.loss == ""


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
    watch.guard({0: charge(rank, tmp_path)}, LONG_S, 1.0)
    (first,) = reapers(mark)
    os.kill(first, signal.SIGKILL)
    assert still_there([first]) == []
    assert not watch.look()[0].is_gone
    (second,) = reapers(mark)
    assert second != first
    watch.release()
    assert rank.wait(timeout=60) == -signal.SIGKILL
