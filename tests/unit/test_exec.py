"""Commands that run on nodes: stores before and after, output, signals."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.support import command_line
from tests.support.checkout import PYTHONPATH
from tests.support.launching import loaded_config, write_config
from tests.support.processes import marked, still_there
from tests.support.ray_cluster import free_ports
from tests.support.stored import open_store
from warmrank.cache_store.cache_dir.marks import mark_signers
from warmrank.cache_store.errors import StoreUnavailable
from warmrank.cache_store.publish_pending import publish_pending
from warmrank.cache_store.signing.keyring import generate
from warmrank.orchestrator.config.models import launch_key
from warmrank.orchestrator.config.reading import Config
from warmrank.orchestrator.exec.driver import Options, Outcome, execute
from warmrank.orchestrator.exec.node import HostGroup, parse_when

RANKS = (sys.executable, "-m", "tests.support.exec_rank")
WAIT_S = 90.0

Runs = Callable[..., Outcome]


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def run(said: list[str]) -> Runs:
    def run(
        config: Config, words: Sequence[str], when: str = "exit", *, hosts: HostGroup | None = None
    ) -> Outcome:
        options = Options(here=True, when=parse_when(when), grace_s=10.0, hosts=hosts)
        return execute(config, words, options, say=said.append, out=io.BytesIO(), err=io.BytesIO())

    return run


def shell(code: str) -> tuple[str, str, str]:
    return ("sh", "-c", code)


def num_launches(config: Config) -> int:
    assert config.store is not None
    path = Path(config.store.tiers[0].path)
    return len(open_store(path).launches(launch_key(config))) if (path / "FORMAT").exists() else 0


def test_what_the_ranks_compiled_is_in_the_store_at_the_end(tmp_path: Path, run: Runs) -> None:
    config = loaded_config(tmp_path)
    outcome = run(config, RANKS)
    assert (outcome.exit_code, outcome.problems, bool(outcome.record)) == (0, (), True)
    (record,) = open_store(tmp_path / "store").launches(launch_key(config))
    assert [ref.partition for ref in record.partitions] == ["world2global_rank0", "world2global_rank1"]
    assert not (config.cache_dir / ".journal").exists()
    assert list((config.cache_dir / ".queue").iterdir()) == []


def test_what_was_loaded_from_this_disk_is_published_unless_the_store_has_it(
    tmp_path: Path, run: Runs, said: list[str]
) -> None:
    config = loaded_config(tmp_path)
    assert run(config, (*RANKS, "--status", "3")).record == ""
    loads = (*RANKS, "--outcome", "loaded")
    first = run(config, loads)
    assert (bool(first.record), num_launches(config)) == (True, 1)
    assert run(config, loads).record == ""
    assert said[-1] == "nothing new to publish: 2 functions loaded, 0 compiled"
    shutil.rmtree(tmp_path / "store")
    assert (bool(run(config, loads).record), num_launches(config)) == (True, 1)


def test_last_host_of_a_world_commits_what_all_of_them_published(
    tmp_path: Path, run: Runs, said: list[str]
) -> None:
    def host(node: int, run_id: str = "job 7") -> Outcome:
        config = loaded_config(tmp_path, cache_dir=str(tmp_path / f"cache{node}"))
        hosts = HostGroup(nnodes=2, node_rank=node, run_id=run_id)
        return run(config, (*RANKS, "--ranks", str(node)), hosts=hosts)

    first = host(0)
    assert (first.exit_code, first.record, first.problems) == (0, "", ())
    assert "published 1 rank; the last of 2 hosts commits the launch" in said
    assert host(1, "job 8").record == ""  # another run's host is none of this world
    last = host(1)
    assert (bool(last.record), last.problems) == (True, ())
    config = loaded_config(tmp_path)
    (record,) = open_store(tmp_path / "store").launches(launch_key(config))
    assert [ref.partition for ref in record.partitions] == ["world2global_rank0", "world2global_rank1"]
    assert host(0).record == last.record


@pytest.mark.parametrize(
    ("ranks", "key", "reason"),
    [
        pytest.param(
            "0",
            "",
            "each of 2 ranks has to be on one host, and found was rank 0 on 2 hosts, rank 1 on 0 hosts",
            marks=pytest.mark.slow,
        ),
        ("1", "other", "a usable note of host 0 of 2"),
    ],
)
def test_notes_that_are_there_and_make_no_world_are_a_problem(
    tmp_path: Path, run: Runs, ranks: str, key: str, reason: str
) -> None:
    def host(node: int, ranks: str, key: str) -> Outcome:
        trust: dict[str, object] = {"policy": "off"}
        if key:
            generate(keyring := tmp_path / f"keys {node}", key)
            trust = {"policy": "require", "keyring": str(keyring), "signing_key": key}
        store = {"path": str(tmp_path / "store"), "trust": trust}
        config = loaded_config(tmp_path, cache_dir=str(tmp_path / f"cache{node}"), store=store)
        hosts = HostGroup(nnodes=2, node_rank=node, run_id="7")
        return run(config, (*RANKS, "--ranks", ranks), hosts=hosts)

    assert host(0, "0", key).problems == ()
    outcome = host(1, ranks, key)
    assert (outcome.exit_code, outcome.record) == (0, "")
    assert reason in " ".join(outcome.problems)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("options", "nnodes", "reason"),
    [
        (("--ranks", "0"), 1, "rank 1 of 2 loaded or compiled nothing"),
        (("--ranks", ""), 2, ""),
        (("--world", "4", "--ranks", "0"), 2, "a world of 4, and the config has ranks: 2"),
        (("--world", "4", "--ranks", "0,1,2,3"), 1, "a world of 4, and the config has ranks: 2"),
        (("--torch", "1.0"), 1, "the command compiled with torch 1.0, and warmrank runs with"),
        (("--status", "3"), 1, "ended with status 3"),
    ],
)
def test_what_is_not_whole_is_not_published(
    tmp_path: Path, run: Runs, options: tuple[str, ...], nnodes: int, reason: str
) -> None:
    config = loaded_config(tmp_path)
    hosts = HostGroup(nnodes=nnodes, node_rank=0, run_id="7") if nnodes > 1 else None
    outcome = run(config, (*RANKS, *options), hosts=hosts)
    assert (outcome.record, num_launches(config)) == ("", 0)
    assert (reason in " ".join(outcome.problems)) if reason else not outcome.problems


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["file", "port"])
def test_server_publishes_while_it_runs(tmp_path: Path, run: Runs, kind: str) -> None:
    config = loaded_config(tmp_path)
    (port,) = free_ports(1)
    when, options = {
        "file": ("{cache_dir}/ready", ("--file", str(config.cache_dir / "ready"))),
        "port": (str(port), ("--port", str(port))),
    }[kind]
    seen: list[int] = []
    has_ended = threading.Event()

    def stop_when_published() -> None:
        deadline = time.monotonic() + WAIT_S
        while not num_launches(config) and time.monotonic() < deadline and not has_ended.wait(0.05):
            continue
        seen.append(num_launches(config))
        if not has_ended.is_set():  # else nobody takes the signal but the tests themselves
            os.kill(os.getpid(), signal.SIGTERM)

    watcher = threading.Thread(target=stop_when_published)
    watcher.start()
    try:
        outcome = run(config, (*RANKS, *options, "--stay"), when)
    finally:
        has_ended.set()
        watcher.join()
    assert seen == [1]
    assert (outcome.exit_code, outcome.problems) == (143, ())


def test_command_runs_without_its_store_and_what_it_made_waits(tmp_path: Path, run: Runs) -> None:
    (tmp_path / "store").write_text("in the way")
    config = loaded_config(tmp_path)
    outcome = run(config, RANKS)
    assert outcome.exit_code == 0
    assert "waits for warmrank store publish" in " ".join(outcome.problems)
    (tmp_path / "store").unlink()
    late = publish_pending(open_store(tmp_path / "store"), config.cache_dir)
    assert (len(late.published), len(late.committed), late.kept) == (2, 1, {})


def test_directories_of_tools_come_and_go(tmp_path: Path, run: Runs, said: list[str]) -> None:
    sync = {"sync": [{"tool": "vllm"}, {"tool": "mine", "variable": "MY_CACHE"}], "keys": ["model=llama"]}
    config = loaded_config(tmp_path, exec=sync)
    fill = 'echo graph > "$VLLM_CACHE_ROOT/graph"; mkdir -p "$MY_CACHE"; echo mine > "$MY_CACHE/file"'
    made = run(config, shell(f'mkdir -p "$VLLM_CACHE_ROOT"; {fill}'))
    assert (made.exit_code, made.problems) == (0, ())
    other = loaded_config(tmp_path, exec=sync, cache_dir=str(tmp_path / "other"))
    look = 'grep -q graph "$VLLM_CACHE_ROOT/graph" && grep -q mine "$MY_CACHE/file"'
    assert run(other, shell(look)).exit_code == 0
    assert "vllm: pulled 1 new of 1 file" in said


Cli = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def cli(tmp_path: Path, mark: str) -> Iterator[Cli]:
    """Starts the command line; neither it nor what it started outlives the test."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **changes: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "warmrank", "exec", str(write_config(tmp_path, **changes)), *arguments],
            env={**os.environ, "WARMRANK_TEST": mark},
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


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (["--here", "--node", "a"], "--here and --node exclude each other"),
        (["--nnodes", "2", "--node-rank", "0", "--run-id", "7"], "--nnodes goes with --here"),
        (["--here", "--nnodes", "2", "--node-rank", "2", "--run-id", "7"], "--node-rank"),
        (["--here", "--nnodes", "2", "--node-rank", "0"], "--run-id"),
        (["--here", "--nnodes", "3", "--node-rank", "0", "--run-id", "7"], "not as many on each of 3 hosts"),
        (["--publish-when", "0"], "expected exit, none, a port"),
        (["--publish-when", "99999999"], "expected exit, none, a port"),
        (["--publish-when", "host:abc"], "expected exit, none, a port"),
    ],
)
def test_options_that_cannot_be_are_refused(tmp_path: Path, arguments: list[str], wrong: str) -> None:
    done = command_line.run("exec", write_config(tmp_path), *arguments, "--", "true")
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


@pytest.mark.usefixtures("heeds_signals")
@pytest.mark.parametrize(
    ("number", "status"),
    [pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
)
def test_signals_go_to_the_command_and_nothing_is_left(
    cli: Cli, mark: str, number: signal.Signals, status: int
) -> None:
    driver = cli("--", "bash", "-c", "setsid sleep 600 & echo up; exec sleep 600")
    assert driver.stdout is not None
    assert driver.stdout.readline() == "up\n"
    driver.send_signal(number)
    assert driver.wait(WAIT_S) == status
    assert still_there(marked(mark), timeout_s=0) == []


def test_required_store_that_is_away_keeps_the_command_from_starting(tmp_path: Path, run: Runs) -> None:
    store = {"path": str(tmp_path / "store"), "mode": "required", "trust": {"policy": "off"}}
    with pytest.raises(StoreUnavailable):
        run(loaded_config(tmp_path, store=store), shell(f"touch {tmp_path}/ran"))
    assert not (tmp_path / "ran").exists()
