"""The reaper of ranks and commands, signals to the driver, and who is lost."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.checkout import PYTHONPATH
from tests.support.processes import await_true, marked, still_there
from tests.support.ray_cluster import free_ports
from warmrank.orchestrator import reaper
from warmrank.orchestrator.config.models import WatchConfig
from warmrank.orchestrator.errors import DIED, NODE_LOST, STOPPED
from warmrank.orchestrator.gang import placement
from warmrank.orchestrator.gang.launcher import ProcessStatus
from warmrank.orchestrator.gang.node_watch import Charge, NodeWatch
from warmrank.orchestrator.gang.placement import Liveness
from warmrank.orchestrator.gang.ray_watch import Watching
from warmrank.orchestrator.reaper import MARK
from warmrank.orchestrator.reaper_client import KILLED, Chunk, ReapedCommand, ReapedRanks
from warmrank.orchestrator.signals import (
    EXIT_HUNG_UP,
    EXIT_TERMINATED,
    Terminated,
    exit_code_of,
    held_back,
    kept,
    sigterm_raises,
)

WAIT_S = 60.0
IGNORES = "trap '' TERM INT; echo up; while :; do sleep 0.1; done"

Start = Callable[..., ReapedCommand]


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


@pytest.mark.parametrize(
    ("grace_s", "numbers"), [(0.2, [signal.SIGTERM]), (WAIT_S, [signal.SIGTERM, signal.SIGKILL])]
)
def test_command_that_ignores_signals_is_killed_after_the_grace_or_when_told(
    start: Start, grace_s: float, numbers: list[int]
) -> None:
    command = start("bash", "-c", IGNORES, grace_s=grace_s)
    assert await_true(lambda: ("out", b"up\n") in command.poll(0.05)[0], timeout_s=WAIT_S)
    for number in numbers:
        command.signal(number)
    assert ended(command)[0] == KILLED


def test_descendants_that_ignore_sigterm_are_killed(start: Start, mark: str) -> None:
    code = f'setsid bash -c "{IGNORES.replace("echo up", "echo $$ > /dev/null")}" & sleep 0.3; exit 0'
    assert ended(start("bash", "-c", code, grace_s=0.2))[0] == 0
    assert still_there(marked(mark), timeout_s=0) == []


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
        env={**os.environ, "WARMRANK_TEST": mark, "PYTHONPATH": PYTHONPATH},
        stdout=subprocess.PIPE,
    )
    assert driver.stdout is not None
    with driver:
        assert driver.stdout.readline() == b"up\n"
        driver.kill()
    assert still_there(marked(mark)) == []


LONG_S = 600.0

# A rank with a child, and a grandchild in a session of its own whose parent is gone.
RANK = """
import os, subprocess, sys, time
sleep = ["sleep", "600"]
child = subprocess.Popen(sleep)
quiet = {"start_new_session": True, "stdout": subprocess.DEVNULL}
middle = f"import subprocess, sys; print(subprocess.Popen(sys.argv[1:], **{quiet}).pid)"
orphan = subprocess.run([sys.executable, "-I", "-S", "-c", middle, *sleep], stdout=subprocess.PIPE, text=True)
print(os.getpid(), child.pid, orphan.stdout.strip(), flush=True)
time.sleep(600)
"""

Guard = Callable[..., ReapedRanks]


class Rank:
    """Processes that stand for one rank; all are ended with the test."""

    def __init__(self, mark: str) -> None:
        self.mark = mark
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", RANK],
            env={**os.environ, MARK: mark},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.pid, self.child, self.orphan = (int(word) for word in self.process.stdout.readline().split())

    def left(self) -> list[int]:
        """Which of them are there still, once they have had time to go."""
        self.process.poll()
        return still_there((self.pid, self.child, self.orphan))

    def end(self) -> None:
        for pid in (self.pid, self.child, self.orphan):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture
def ranks() -> Iterator[tuple[Rank, Rank]]:
    both = (Rank(uuid.uuid4().hex), Rank(uuid.uuid4().hex))
    yield both
    for rank in both:
        rank.end()


@pytest.fixture
def guard() -> Iterator[Guard]:
    """Starts a reaper that guards ranks."""
    started: list[ReapedRanks] = []

    def start(*ranks: Rank, asked_s: float = 0.1, **told: Any) -> ReapedRanks:
        started.append(ReapedRanks({rank.pid: rank.mark for rank in ranks}, asked_s=asked_s, **told))
        return started[-1]

    yield start
    for process in started:
        process.abandon()


def test_all_ends_when_whoever_started_it_is_gone(
    ranks: tuple[Rank, Rank], guard: Guard, tmp_path: Path
) -> None:
    (tmp_path / "left" / "behind").mkdir(parents=True)
    guard(*ranks, remove=[str(tmp_path / "left")]).abandon()
    assert [rank.left() for rank in ranks] == [[], []]
    assert not (tmp_path / "left").exists()


def test_process_that_has_the_id_of_a_rank_that_ended_is_left_alone(ranks: tuple[Rank, Rank]) -> None:
    first, second = ranks
    marks = {first.pid: "of a rank that ended", second.pid: second.mark}
    started = {first.pid: reaper.start_of(first.pid) - 1}
    ReapedRanks(marks, started=started, asked_s=0.1).end()
    assert first.process.poll() is None
    assert second.left() == []


@pytest.fixture
def user() -> Iterator[Callable[[Path], subprocess.Popen[bytes]]]:
    """Starts processes that have a file open, and do not say so on their command line."""
    started: list[subprocess.Popen[bytes]] = []

    def start(file: Path) -> subprocess.Popen[bytes]:
        with file.open("w") as stream:
            command = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
            started.append(subprocess.Popen(command, stdout=stream))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_who_uses_a_directory_that_goes_ends_with_it_unless_spared(
    guard: Guard, user: Callable[[Path], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    (tmp_path / "left").mkdir()
    (tmp_path / "left2").mkdir()
    inside, spared = user(tmp_path / "left" / "a"), user(tmp_path / "left" / "b")
    beside = user(tmp_path / "left2" / "c")
    guard(remove=[str(tmp_path / "left")], spare=[spared.pid]).abandon()
    assert inside.wait(timeout=60) == -signal.SIGKILL
    assert (spared.poll(), beside.poll()) == (None, None)
    assert not (tmp_path / "left").exists()


def test_rank_that_is_gone_takes_its_own_with_it_and_no_other_s(
    ranks: tuple[Rank, Rank], guard: Guard
) -> None:
    guard(*ranks)
    first, second = ranks
    first.process.kill()
    first.process.wait()
    assert first.left() == []
    assert all(Path(f"/proc/{pid}").exists() for pid in (second.pid, second.child, second.orphan))


@pytest.mark.parametrize("lists", [True, False])
def test_descendants_that_were_seen_end_with_their_rank_however_they_were_found(
    ranks: tuple[Rank, Rank], monkeypatch: pytest.MonkeyPatch, lists: bool
) -> None:
    """The mark is another here, so that only the chain of parents leads to them."""
    if not lists:
        monkeypatch.setattr(reaper, "children", lambda: reaper.scanned(reaper.table()))
    rank = ranks[0]
    guarded = reaper.RankReaper(
        marks={str(rank.pid): "another mark"},
        started={},
        lease=(LONG_S, None),
        remove=[],
        spare=[],
        asked_s=0.1,
    )
    guarded.look()
    assert rank.process.poll() is None
    rank.process.kill()
    rank.process.wait()
    guarded.look()
    assert still_there([rank.child]) == []
    assert still_there([rank.orphan], timeout_s=0) == [rank.orphan]


@pytest.mark.parametrize(("is_over", "lease_s"), [(False, 0.2), (True, LONG_S)])
def test_who_renews_the_lease_ends_last_when_it_runs_out_and_only_then(
    ranks: tuple[Rank, Rank], guard: Guard, is_over: bool, lease_s: float
) -> None:
    guarded, watch = ranks
    process = guard(guarded, lease=(lease_s, watch.pid))
    if is_over:
        process.end()
    assert guarded.left() == []
    if is_over:
        assert watch.process.poll() is None
    else:
        assert watch.process.wait(timeout=20) == -signal.SIGKILL


def call_native_code() -> None:
    """Run the handler as ray.get does."""
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except Terminated:
        raise KeyboardInterrupt from None


def test_interrupt_that_native_code_raises_for_a_sigterm_is_terminated():
    with pytest.raises(KeyboardInterrupt) as caught, sigterm_raises():
        call_native_code()
    assert exit_code_of(caught.value) == EXIT_TERMINATED


def go_on_after(number: signal.Signals, done: list[str]) -> None:
    with sigterm_raises(), held_back():
        os.kill(os.getpid(), number)
        done.append("all")


@pytest.mark.usefixtures("heeds_signals")
@pytest.mark.parametrize(
    ("number", "raised"),
    [(signal.SIGTERM, Terminated), (signal.SIGHUP, Terminated), (signal.SIGINT, KeyboardInterrupt)],
)
def test_signal_that_is_held_back_waits_for_the_end_and_is_not_lost(
    number: signal.Signals, raised: type[BaseException]
) -> None:
    done: list[str] = []
    with pytest.raises(raised):
        go_on_after(number, done)
    assert done == ["all"]


@pytest.mark.usefixtures("heeds_signals")
def test_hang_up_that_is_ignored_stays_so_and_else_has_its_own_exit_code():
    with kept(signal.SIGHUP):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        go_on_after(signal.SIGHUP, [])
    with pytest.raises(Terminated) as caught:
        go_on_after(signal.SIGHUP, [])
    assert exit_code_of(caught.value) == EXIT_HUNG_UP


@pytest.mark.parametrize(
    ("code", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", KILLED), ("kill -15 $$", 143)]
)
def test_status_is_as_a_shell_has_it(start: Start, code: str, status: int) -> None:
    assert ended(start("sh", "-c", code))[0] == status


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
    assert found.is_in_doubt(106.0, others_wait=False)  # or nobody would look for failures any more
    assert not found.is_in_doubt(106.5, others_wait=False)


def test_node_whose_watch_has_ended_stays_lost_whatever_else_is_heard_of_it() -> None:
    found = watching()
    found.ended(1)
    seen(found, 1, {}, 100.5)
    assert kinds(found, 101.0) == {2: NODE_LOST, 3: NODE_LOST}


def test_node_that_is_lost_after_all_its_ranks_were_seen_to_end_is_lost() -> None:
    found = watching()
    seen(found, 1, {2: ProcessStatus(state=""), 3: ProcessStatus(state="")}, 100.5)
    assert kinds(found, 103.5) == {2: DIED, 3: DIED}
    found.ended(1)
    assert kinds(found, 103.6) == {2: NODE_LOST, 3: NODE_LOST}


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


def test_time_in_which_the_driver_stood_still_is_no_silence_of_the_head(monkeypatch) -> None:
    # Not a port of the kernel's choice, which anybody may get when it is closed.
    with socket.create_server(("127.0.0.1", *free_ports(1))) as head:
        watch = Liveness([("127.0.0.1", head.getsockname()[1])], PATIENT)
        monkeypatch.setattr(watch, "_looked_s", watch._looked_s - 3600)
        assert watch.lost == set()
        monkeypatch.setattr(placement, "knock", lambda _place: "silent")
        watch.look()
        assert watch.lost == set()


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


def test_reaper_that_is_killed_is_replaced_and_costs_no_rank(
    mark: str, ranks: tuple[Rank, Rank], watch: NodeWatch, tmp_path: Path
) -> None:
    rank = ranks[0]
    log = tmp_path / "name" / "launch" / "rank0.log"
    watch.guard({0: Charge(pid=rank.pid, mark=rank.mark, log=log)}, LONG_S, 1.0)
    (first,) = reapers(mark)
    os.kill(first, signal.SIGKILL)
    assert still_there([first]) == []
    assert not watch.look()[0].is_gone
    (second,) = reapers(mark)
    assert second != first
    watch.release()
    assert rank.process.wait(timeout=60) == -signal.SIGKILL
