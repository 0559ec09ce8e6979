"""`warmrank up` and `down`: hosts that are this machine, real shells and processes, a stand-in for Ray."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.support.fake_hosts import calls, fake_hosts
from tests.support.processes import marked, still_there
from warmrank.orchestrator.cluster import bring, host_side
from warmrank.orchestrator.cluster.connections import Errand, read_answer, run_all
from warmrank.orchestrator.cluster.errors import HostsFailed
from warmrank.orchestrator.cluster.host_side import ANSWER, MARK
from warmrank.orchestrator.cluster.hosts import Hosts, load_hosts
from warmrank.orchestrator.cluster.script import nodes_request
from warmrank.orchestrator.cluster.table import render_cluster


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    with fake_hosts(tmp_path, "one", "two", "three", start_s=30, stop_s=20) as path:
        yield path


@pytest.fixture
def hosts(file: Path) -> Iterator[Hosts]:
    loaded = load_hosts(file)
    yield loaded
    for host in loaded.all:  # its processes end with the file; a `down` would take as long as an `up`
        shutil.rmtree(host.directory, ignore_errors=True)


def states(report: bring.ClusterReport) -> dict[str, str]:
    return {host.host: host.state for host in report.hosts}


def processes(hosts: Hosts, name: str = "") -> dict[int, str]:
    return marked(f"{MARK}={hosts.name}/{name}")


def end(hosts: Hosts, name: str) -> None:
    pids = processes(hosts, name)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert not still_there(pids)


def test_up_starts_the_head_and_then_the_others_at_its_address(file: Path, hosts: Hosts):
    report = bring.up(hosts)
    assert states(report) == {"one": "started", "two": "started", "three": "started"}
    assert (report.all_up, report.address) == (True, "10.9.9.9:6379")
    first, *others = calls(file)
    assert first.startswith("one start --head --port=6379 ")
    assert sorted(line.split()[0] for line in others) == ["three", "two"]
    assert all("start --address=10.9.9.9:6379 " in line for line in others)


def test_hosts_offer_what_the_head_counts_without_memory_and_names(hosts: Hosts):
    assert [host.resources for host in bring.up(hosts).hosts] == [{"CPU": 2.0}] * 3


def test_hosts_that_are_up_are_left_alone(file: Path, hosts: Hosts):
    bring.up(hosts)
    before = processes(hosts)
    assert set(states(bring.up(hosts)).values()) == {"up"}
    assert (processes(hosts), len(calls(file))) == (before, 3)


@pytest.mark.slow
def test_host_that_was_lost_is_started_again_alone(file: Path, hosts: Hosts):
    bring.up(hosts)
    end(hosts, "two")
    assert states(bring.status(hosts)) == {"one": "up", "two": "down", "three": "up"}
    assert states(bring.up(hosts)) == {"one": "up", "two": "started", "three": "up"}


@pytest.mark.slow
def test_hosts_of_a_head_that_is_gone_join_the_new_one(hosts: Hosts):
    bring.up(hosts)
    end(hosts, "one")
    before = processes(hosts)
    assert states(bring.up(hosts)) == {"one": "started", "two": "started", "three": "started"}
    assert not still_there(before)


@pytest.mark.slow
def test_down_ends_every_process_and_removes_every_directory(hosts: Hosts):
    bring.up(hosts)
    directories = [Path(host.directory) for host in hosts.all]
    assert all((path.stat().st_mode & 0o777) == 0o700 for path in directories)
    assert set(states(bring.down(hosts)).values()) == {"stopped"}
    assert (processes(hosts), [path for path in directories if path.exists()]) == ({}, [])


def test_down_of_what_is_down_is_no_error(hosts: Hosts):
    assert set(states(bring.down(hosts)).values()) == {"down"}


@pytest.mark.slow
def test_down_ends_a_process_that_ignores_sigterm(hosts: Hosts):
    bring.up(hosts)
    stubborn = (
        *("env", f"{MARK}={hosts.head.mark}", "bash", "-c"),
        "trap '' TERM; echo up; exec >&- 2>&-; while :; do sleep 1; done & wait",
    )
    starting = Errand(host="one", connect=("setsid", "-f", *stubborn), script="", timeout_s=20)
    run_all((starting,))
    assert len(processes(hosts, "one")) > 1
    bring.down(dataclasses.replace(hosts, stop_s=9.0))
    assert processes(hosts) == {}


def test_status_of_what_is_down_changes_nothing(file: Path, hosts: Hosts):
    report = bring.status(hosts)
    assert (set(states(report).values()), report.address, calls(file)) == ({"down"}, "", [])


@pytest.mark.slow
def test_hosts_that_fail_are_one_error_and_the_rest_stays_up(tmp_path: Path):
    env = {"FAKE_RAY_FAILS": "two three"}
    with fake_hosts(tmp_path, "one", "two", "three", "four", start_s=30, env=env) as path:
        loaded = load_hosts(path)
        with pytest.raises(HostsFailed) as caught:
            bring.up(loaded)
        assert str(caught.value).splitlines() == [
            "2 of 4 hosts did not come up",
            "  two, three: ray start ended with 3",
            "    | line one",
            "    | cannot reach the head",
            "  running: one, four",
            "  remedy: mend them, and run warmrank up again: what is up is left alone; or warmrank down",
        ]
        assert states(bring.status(loaded)) == {"one": "up", "two": "down", "three": "down", "four": "up"}
        bring.down(loaded)


def test_head_that_fails_ends_it_before_others_are_asked(tmp_path: Path):
    with fake_hosts(tmp_path, "one", "two", env={"FAKE_RAY_FAILS": "one"}) as path:
        with pytest.raises(HostsFailed, match="1 of 2 hosts did not come up") as caught:
            bring.up(load_hosts(path))
        assert [line.split()[0] for line in calls(path)] == ["one"]
        assert "the other hosts were not asked" in caught.value.remedy
        bring.down(load_hosts(path))


def test_host_that_starts_and_does_not_join_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def ask_once(address: str, expected: list[str], _timeout_s: float) -> dict[str, Any]:
        return nodes_request(address, expected, 0.0)

    monkeypatch.setattr(bring, "nodes_request", ask_once)
    with fake_hosts(tmp_path, "one", "two", env={"FAKE_RAY_LOST": "two"}, start_s=60) as path:
        with pytest.raises(HostsFailed, match="two: it started, and did not join the head within 60 s"):
            bring.up(load_hosts(path))
        bring.down(load_hosts(path))


@pytest.mark.slow
def test_silent_host_is_given_up_and_does_not_hold_up_the_others():
    silent = Errand(
        host="mute", connect=("bash", "-c", "echo Connecting; sleep 600"), script="", timeout_s=3.0
    )
    quick = Errand(host="one", connect=("sh",), script="echo 'warmrank-host: {}'", timeout_s=60)
    answered: list[str] = []
    mute, one = run_all((silent, quick), on_answer=lambda answer: answered.append(answer.host))
    assert (mute.trouble, mute.lines, mute.silent) == ("no answer within 3 s", ("Connecting",), True)
    assert (one.trouble, one.silent) == ("", False)
    assert sorted(answered) == ["mute", "one"]
    text = str(HostsFailed("come up", [mute], num_hosts=2, running=["one"], remedy="mend it"))
    assert "\n  not known what runs there: mute\n  running: one\n" in text


def test_down_names_hosts_that_do_not_answer_and_ends_all_others(tmp_path: Path):
    lost = {"host": "lost", "connect": "false"}
    with fake_hosts(tmp_path, "one", hosts=["one", lost], connect="env") as path:
        loaded = load_hosts(path)
        with pytest.raises(HostsFailed, match="1 of 2 hosts did not come up"):
            bring.up(loaded)
        assert processes(loaded)
        with pytest.raises(HostsFailed, match="1 of 2 hosts did not stop\n  lost: "):
            bring.down(loaded)
        assert processes(loaded) == {}


def test_directory_that_is_not_ours_is_neither_used_nor_removed(hosts: Hosts):
    directory = Path(hosts.head.directory)
    directory.mkdir()
    try:
        with pytest.raises(HostsFailed, match=f"{directory} is there, and warmrank did not make it"):
            bring.up(hosts)
        bring.down(hosts)
        assert directory.is_dir()
    finally:
        directory.rmdir()


def test_causes_are_equal_though_each_host_names_itself():
    answers = [read_answer(name, f"ssh: {name}: refused\n", 255) for name in ("a1", "a2")]
    error = HostsFailed("come up", answers, num_hosts=2, remedy="mend")
    assert "  a1, a2: the command that connects ended with 255\n    | ssh: a1: refused\n" in str(error)


def test_command_that_is_not_there_is_named():
    (answer,) = run_all((Errand(host="a", connect=("no-such-command",), script="", timeout_s=9),))
    assert (answer.trouble, answer.silent) == ("no-such-command: No such file or directory", True)


def test_interrupt_ends_what_was_started_here(tmp_path: Path):
    mark, before = f"CLUS_TEST={tmp_path}", set(threading.enumerate())
    waiting = Errand(host="a", connect=("env", mark, "sleep", "600"), script="", timeout_s=500)
    answered = Errand(host="b", connect=("true",), script="", timeout_s=500)

    def interrupt(_answer: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_all((waiting, answered), on_answer=interrupt)
    assert marked(mark) == {}
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("shell", ["bash", "sh"])
@pytest.mark.parametrize("python", ["no-such-python", "~/it's/bin/python", "/no/such/python"])
def test_interpreter_that_is_not_there_is_the_trouble(tmp_path: Path, shell: str, python: str):
    with fake_hosts(tmp_path, "one", "two", python=python, shell=shell) as path:
        loaded = load_hosts(path)
        with pytest.raises(HostsFailed) as raised:
            bring.down(loaded)
    expected = f"python: no program {python} was found on the host"
    assert all(answer.trouble.startswith(expected) for answer in raised.value.answers)
    assert all(answer.silent for answer in raised.value.answers)
    assert "not known what runs there: one, two" in str(raised.value)


@pytest.mark.slow
def test_table_of_hosts_that_are_down_offers_nothing(hosts: Hosts):
    def heads(report: bring.ClusterReport) -> list[str]:
        text = io.StringIO()
        Console(file=text, width=120).print(render_cluster(report))
        return text.getvalue().splitlines()[0].split()

    assert heads(bring.up(hosts)) == ["host", "state", "address", "offers"]
    assert heads(bring.down(hosts)) == ["host", "state", "note"]


def test_answer_is_found_among_what_else_a_host_prints():
    answer = read_answer("a", 'Welcome!\nwarmrank-host: {"up": true}\nlogout\n', 0)
    assert (answer.values, answer.trouble) == ({"up": True}, "")


@pytest.mark.parametrize("text", ["[1]", "{cut", '{"failed": 3}', "{}", "5"])
def test_answer_that_is_none_is_trouble_of_its_host(text: str):
    answer = read_answer("one", f"hello\n{ANSWER}{text}\n", 0, keys=("up",))
    assert (answer.trouble, answer.silent, answer.values) == ("its answer cannot be read", True, {})


def sleeper(mark: str, **options: Any) -> subprocess.Popen[bytes]:
    command = ["/bin/sh", "-c", "echo 1; exec sleep 600"]
    process = subprocess.Popen(command, env={**os.environ, MARK: mark}, stdout=subprocess.PIPE, **options)
    assert process.stdout is not None
    assert process.stdout.readline() == b"1\n"
    return process


def test_job_of_the_cluster_may_ask_for_its_end(tmp_path: Path):
    """It carries the mark itself."""
    mark = f"job/{tmp_path}"
    other = sleeper(mark)
    request = {"action": "stop", "mark": mark, "directory": str(tmp_path / "none"), "timeout_s": 10.0}
    command = [sys.executable, str(host_side.__file__), json.dumps(request)]
    with other:
        done = subprocess.run(
            command, env={**os.environ, MARK: mark}, capture_output=True, check=False, timeout=60
        )
    assert (done.returncode, other.returncode) == (0, -signal.SIGTERM)
    assert read_answer("here", done.stdout.decode(), 0).values["stopped"] == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root sees, and may end, processes of others")
def test_cluster_of_another_user_with_the_same_names_is_left_alone(tmp_path: Path):
    mark = f"same/{tmp_path}"
    other = sleeper(mark, user=65534, cwd="/")
    with other:
        try:
            assert host_side.marked(mark) == {}
        finally:
            other.kill()
