"""Launches on Ray: where ranks go, session, errors, who is lost, jobs."""

from __future__ import annotations

import json
import os
import re
import signal
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from ray import exceptions
from ray._private.thirdparty.pathspec.pathspec import PathSpec
from typer.testing import Result

from tests.support.command_line import run
from tests.support.launching import loaded_config
from tests.support.processes import marked
from warmrank.orchestrator import reaper, signals
from warmrank.orchestrator.cli.launch import follow, job_exit_code
from warmrank.orchestrator.config.models import RayConfig
from warmrank.orchestrator.config.reading import written_places
from warmrank.orchestrator.errors import CannotStart, OrchestratorError, first_line
from warmrank.orchestrator.exec.driver import choose_nodes
from warmrank.orchestrator.exec.node import When, parse_when
from warmrank.orchestrator.gang import ray_session
from warmrank.orchestrator.gang.node_group import failure_of_ray
from warmrank.orchestrator.gang.ray_session import way_in
from warmrank.orchestrator.gang.upload import private_keys, runtime_env, say_kept
from warmrank.orchestrator.nodes import Node
from warmrank.orchestrator.reaper_client import ReapedRanks
from warmrank.orchestrator.signals import Terminated, sigterm_raises

LONG_S = 600.0
HERE = RayConfig()
THERE = RayConfig(address="10.0.0.1:6379")
JOB = {"RAY_JOB_CONFIG_JSON_ENV_VAR": "{}", "RAY_ADDRESS": "10.0.0.1:6379"}


@pytest.fixture(autouse=True)
def _stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever happens to a Ray here, this process goes on."""
    monkeypatch.setattr(signals, "_at_once", [])


@pytest.mark.parametrize(
    ("config", "environ", "initialized", "expected"),
    [
        (HERE, {}, False, "local"),
        (HERE, {"RAY_ADDRESS": ""}, False, "local"),
        (HERE, {"RAY_ADDRESS": "10.0.0.1:6379"}, False, "address"),
        (THERE, {}, False, "address"),
        (HERE, JOB, False, "job"),
        (THERE, JOB, False, "job"),
        (HERE, {}, True, "initialized"),
        (THERE, JOB, True, "initialized"),
    ],
)
def test_way_in_follows_config_and_environment(
    config: RayConfig, environ: dict[str, str], expected: str, *, initialized: bool
) -> None:
    assert way_in(config, environ, initialized=initialized) == expected


@pytest.mark.parametrize(
    ("device", "expected"),
    [("cpu", {"CPU": 0.5}), ("cuda", {"CPU": 0.5, "GPU": 1.0}), ("npu", {"CPU": 0.5, "NPU": 1.0})],
)
def test_each_rank_asks_for_one_accelerator(device: str, expected: dict[str, float]) -> None:
    config = RayConfig(num_cpus_per_rank=0.5)
    assert ray_session.rank_resources(config, device) == expected


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[threading.Event]:
    """A Ray that never comes up; set when it has begun to."""
    begun, over = threading.Event(), threading.Event()

    def join(*_arguments: object) -> None:
        begun.set()
        over.wait()

    monkeypatch.setattr(ray_session, "join", join)
    monkeypatch.setattr(ray_session, "_is_initialized", lambda: False)  # another test's Ray may be up
    monkeypatch.setattr(ray_session, "_short_temp_dir", lambda: tempfile.mkdtemp(dir=tmp_path))
    yield begun
    over.set()


def test_ray_that_does_not_come_up_in_time_is_given_up_and_leaves_nothing(
    hanging: threading.Event, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mark = uuid.uuid4().hex
    monkeypatch.setenv("WARMRANK_TEST", mark)
    with pytest.raises(CannotStart, match="a local Ray was not up after 0 s") as caught:
        ray_session.enter(HERE, timeout_s=0.1)
    assert hanging.wait(LONG_S)
    assert "timeouts.start_s" in str(caught.value)
    assert caught.value.budget is None  # another attempt would meet the first one in this process
    assert list(tmp_path.iterdir()) == []
    assert [command for command in marked(mark).values() if reaper.__file__ in command] == []
    assert signals._at_once


def test_sigterm_is_heeded_while_ray_does_not_come_up_and_heard_of_before_the_clean_up(
    hanging: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    said: list[str] = []
    clean_up = ray_session.abandon

    def abandon(session: ray_session.Session) -> None:
        said.append(caplog.text)
        clean_up(session)

    def terminate() -> None:
        hanging.wait()
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(ray_session, "abandon", abandon)
    threading.Thread(target=terminate).start()
    with sigterm_raises(), pytest.raises(Terminated):
        ray_session.enter(HERE, timeout_s=LONG_S)
    assert "stopping" in said[0]
    assert list(tmp_path.iterdir()) == []
    assert signals._at_once


def test_directory_of_an_own_ray_goes_even_when_its_reaper_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = uuid.uuid4().hex
    monkeypatch.setenv("WARMRANK_TEST", mark)
    own = tmp_path / "own"
    own.mkdir()
    own_reaper = ReapedRanks({}, remove=[str(own)], spare=[os.getpid()])
    (pid,) = (pid for pid, command in marked(mark).items() if reaper.__file__ in command)
    os.kill(pid, signal.SIGKILL)
    ray_session.leave(ray_session.Session(way_in="local", temp_dir=str(own), reaper=own_reaper))
    assert not own.exists()


def death(detail: str) -> Exception:
    """As Ray tells of the end of a process, in the words of who saw it."""
    error = exceptions.ActorDiedError()
    error.error_msg = (
        "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR "
        f"Worker exit detail: {detail}"
    )
    return error


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (exceptions.OutOfMemoryError("killed"), "died", "its node ran out of memory"),
        (exceptions.NodeDiedError("lost"), "node lost", "lost"),
        (exceptions.ActorUnschedulableError("the node does not exist"), "node lost", "does not exist"),
        (exceptions.RuntimeEnvSetupError("no space"), "environment", "runtime environment"),
        (exceptions.GetTimeoutError("late"), "GetTimeoutError", "late"),
        (death("Worker unexpectedly exits with a connection error code 2. Guesses."), "died", "all at once"),
        (death("Worker exits by a signal. Guesses."), "died", "(SYSTEM_ERROR: Worker exits by a signal.)"),
    ],
)
def test_every_error_of_ray_becomes_a_failure(error: Exception, kind: str, said: str) -> None:
    failure = failure_of_ray(error, rank=0, stage="load")
    assert (failure.kind, said in failure.message) == (kind, True)


NAMES = ("a", "bb", "ccc")
ONE, TWO, THREE = (Node(node_id=name, address=f"10.0.0.{len(name)}", host=name) for name in NAMES)
ROOMS = {THREE: 2, ONE: 4, TWO: 4}


@pytest.mark.parametrize(
    ("num_ranks", "named", "nodes"),
    [
        (4, False, (ONE,)),  # the fewest
        (8, False, (ONE, TWO)),  # the roomier, in the order of the cluster
        (6, False, (ONE, TWO)),  # as many on each
        (6, True, (THREE, ONE, TWO)),  # all that were named
    ],
)
def test_fewest_nodes_that_hold_as_many_ranks_each_are_taken(
    num_ranks: int, named: bool, nodes: tuple[Node, ...]
) -> None:
    assert choose_nodes(ROOMS, num_ranks, named=named) == nodes


@pytest.mark.parametrize(("num_ranks", "named"), [(10, False), (4, True), (9, True)])
def test_ranks_that_do_not_fit_are_refused(num_ranks: int, named: bool) -> None:
    with pytest.raises(CannotStart, match=rf"{num_ranks} ranks do not fit .* a \(10.0.0.1\) holds 4.*--node"):
        choose_nodes(ROOMS, num_ranks, named=named)


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


@dataclass
class Status:
    name: str

    def is_terminal(self) -> bool:
        return self.name in ("SUCCEEDED", "FAILED", "STOPPED")

    def __str__(self) -> str:
        return self.name


@dataclass
class Info:
    status: Status
    driver_exit_code: int | None
    message: str = "as Ray says, last available logs (truncated to 20,000 chars):\nerror"


class FakeClient:
    """Plays one job: each look at its log gives a text or an error, each look at the job a status."""

    def __init__(self, logs: list[str | BaseException], statuses: list[str], code: int = 0) -> None:
        self.logs, self.statuses, self.code = logs, statuses, code
        self.num_silent = 0  # times that the job server does not answer
        self.stopped: list[str] = []

    def get_job_info(self, job_id: str) -> Info:
        if self.num_silent > 0:
            self.num_silent -= 1
            raise ConnectionRefusedError("nobody there")
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        return Info(status=Status(status), driver_exit_code=self.code)

    def get_job_logs(self, job_id: str) -> str:
        found = self.logs.pop(0) if len(self.logs) > 1 else self.logs[0]
        if isinstance(found, BaseException):
            raise found
        return found

    def stop_job(self, job_id: str) -> bool:
        self.stopped.append(job_id)
        return True


def followed(client: FakeClient) -> tuple[int, str, str]:
    """Exit code, Ray's words and the log."""
    written: list[str] = []
    code, said = follow(client, "job-1", write=written.append, poll_s=0)  # type: ignore[arg-type]
    return code, said, "".join(written)


def test_failed_job_ends_with_the_drivers_own_code_and_its_log_stands_once():
    client = FakeClient(["one\n", "one\ntw", "one\ntwo\n"], ["RUNNING", "RUNNING", "FAILED"], code=3)
    assert followed(client) == (3, "FAILED: as Ray says", "one\ntwo\n")


def test_long_log_which_comes_whole_each_time_is_asked_for_less_often(monkeypatch):
    client, sleep, pauses = FakeClient(["one\n"], ["RUNNING", "SUCCEEDED"]), time.sleep, list[float]()
    monkeypatch.setattr(time, "sleep", pauses.append)
    monkeypatch.setattr(client, "get_job_logs", lambda _: sleep(0.02) or "one\n")
    assert followed(client) == (0, "SUCCEEDED: as Ray says", "one\n")
    assert pauses[0] >= 0.2


def test_job_server_that_is_away_for_a_while_is_waited_for():
    cut = ConnectionResetError("cut")
    client = FakeClient(
        ["one\n", *[cut] * 5, "one\n", *[cut] * 5, "one\ntwo\n"], [*["RUNNING"] * 12, "SUCCEEDED"]
    )
    assert followed(client) == (0, "SUCCEEDED: as Ray says", "one\ntwo\n")


def test_end_of_a_job_whose_log_cannot_be_read_any_more_is_told():
    client = FakeClient(["one\n", RuntimeError("no such node")], ["RUNNING", "RUNNING", "FAILED"], code=3)
    log = "one\n\nthe rest of the log cannot be read: no such node\n"
    assert followed(client) == (3, "FAILED: as Ray says", log)


def test_cluster_that_does_not_answer_any_more_is_named():
    client = FakeClient([""], ["RUNNING"])
    client.num_silent = 6
    with pytest.raises(OrchestratorError, match="ask with: ray job status job-1"):
        followed(client)


def test_traceback_of_ray_s_server_is_told_by_its_error() -> None:
    trace = "Traceback (most recent call last):\n  File 'x', line 1, in y\n"
    text = (
        f"Request failed with status code 500: {trace}KeyError: 1\n\n{trace}ValueError: Job a exists.\nUse b."
    )
    assert first_line(RuntimeError(text)) == "ValueError: Job a exists"


@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt(), 130), (Terminated(), 143)])
def test_interrupt_stops_the_job_and_waits_for_its_end(stop: KeyboardInterrupt, code: int):
    client = FakeClient(["one\n", stop], ["RUNNING", "RUNNING", "STOPPED"])
    assert followed(client)[:2] == (code, "STOPPED: as Ray says")
    assert client.stopped == ["job-1"]


@pytest.mark.parametrize("num_silent", [0, 1])
def test_interrupted_job_whose_server_does_not_stop_it_may_run_on(num_silent: int) -> None:
    client = FakeClient(["one\n", KeyboardInterrupt()], ["RUNNING"])

    def refuse(job_id: str) -> bool:
        raise RuntimeError("cut")

    def lose(job_id: str) -> bool:
        client.num_silent = num_silent
        return True

    client.stop_job = lose if num_silent else refuse  # type: ignore[method-assign]
    code, said, log = followed(client)
    assert (code, "may run on" in said, "ray job stop job-1" in said) == (130, True, True)
    assert log == "one\n\nstopping job job-1 ...\n"


@pytest.mark.parametrize(
    ("status", "driver", "code"),
    [
        ("SUCCEEDED", 0, 0),
        ("FAILED", 4, 4),
        ("FAILED", None, 1),
        ("FAILED", 0, 1),
        ("FAILED", -9, 137),
        ("STOPPED", None, 130),
    ],
)
def test_exit_code_of_job(status: str, driver: int | None, code: int):
    assert job_exit_code(status, driver) == code


@pytest.fixture
def job_server() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The URL of what takes jobs, and the requests that it got."""
    taken: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.respond({"version": "4", "ray_version": "2.60.0", "ray_commit": "", "session_name": ""})

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            taken.append(asked)
            if asked.get("submission_id") == "taken":
                self.respond({}, status=500)
            else:
                self.respond({"job_id": None, "submission_id": "raysubmit_1"})

        def respond(self, value: dict[str, Any], *, status: int = 200) -> None:
            data = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Nothing goes to stderr."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"127.0.0.1:{server.server_port}", taken
        server.shutdown()


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "project"
    path.mkdir()
    monkeypatch.chdir(path)
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "")  # which the command sets
    return path


def submit(name: str, *words: str, **config: Any) -> Result:
    data = {"workload": {"script": "a.py"}, "ranks": 2, "cache_dir": "/there", **config}
    Path(name).write_text(json.dumps(data))
    Path("a.py").touch()
    return run("submit", name, *words)


def test_job_runs_the_launch_with_the_id_and_the_metadata_of_the_command_line(
    directory: Path, job_server: tuple[str, list[dict[str, Any]]]
):
    address, taken = job_server
    words = ["--address", address, "--no-wait", "--job-id", "mine", "--metadata", "team=a=b"]
    launch = ["--set", "name=a", "--no-compile", "--json", "/var/a.json"]
    result = submit("my launch.yaml", *words, *launch)
    assert (result.exit_code, "job raysubmit_1 submitted" in result.stdout) == (0, True), result.output
    command = "python -m warmrank launch 'my launch.yaml' --set name=a --json /var/a.json --no-compile"
    assert (taken[0]["entrypoint"], taken[0]["submission_id"]) == (command, "mine")
    assert taken[0]["metadata"] == {"team": "a=b"}
    assert taken[0]["runtime_env"]["working_dir"].startswith("gcs://")
    refused = submit("a.yaml", "--address", address, "--job-id", "taken")
    assert (refused.exit_code, "the cluster refused the job" in refused.stderr) == (1, True)


def test_job_that_could_publish_nothing_is_refused_here_wherever_its_keys_are(directory: Path):
    trust = {"policy": "require", "trusted_keys": {"ci": "/there/ci.pub.pem"}}
    result = submit("a.yaml", "--no-wait", store={"path": "/shared", "trust": trust})
    assert (result.exit_code, "no key that signs" in result.stderr) == (2, True), result.output


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"cache_dir": "here"}, "cache_dir"),
        ({"store": {"path": "store"}}, "store.path"),
        ({"store": {"tiers": [{"path": "s3://b/c"}, {"path": "a/b"}]}}, "store.tiers.1.path"),
        ({"store": {"tiers": [{"path": "a/b"}]}}, "store.tiers.0.path"),
    ],
)
def test_place_that_would_lie_in_the_directory_of_the_job_is_refused(
    directory: Path, config: dict[str, Any], key: str, monkeypatch: pytest.MonkeyPatch
):
    result = submit("a.yaml", **config)
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    for refused in (result, run("launch", "a.yaml")):
        assert refused.exit_code == 2
        assert f"a.yaml: {key}" in refused.stderr
        (advised,) = re.findall(r"--set ([\w.]+=/var/tmp/warmrank/\w+)", refused.stderr)
        assert key in written_places("a.yaml", (advised,))


@pytest.mark.parametrize(
    "words",
    [["preseed"], ["preseed", "--watch"], ["doctor", "--all-nodes"], ["exec", "--", "true"], ["launch"]],
    ids=" ".join,
)
def test_module_of_the_user_that_hides_this_package_is_refused_before_ray_starts(
    directory: Path, words: list[str]
):
    Path("warmrank.py").touch()
    store = {"path": str(directory / "store"), "trust": {"policy": "off"}}
    config = {"workload": {"script": "warmrank.py"}, "ray": {"address": "10.255.255.1:1"}, "store": store}
    Path("a.yaml").write_text(json.dumps(config))
    result = run(words[0], "a.yaml", *words[1:])
    assert (result.exit_code, "in place of the library warmrank" in result.stderr) == (2, True)


def fill(directory: Path, **sizes: int) -> None:
    for name, size in sizes.items():
        path = directory / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)


PEM = "-----BEGIN PRIVATE KEY-----\nMC4=\n-----END PRIVATE KEY-----\n"


def uploaded(env: dict[str, Any]) -> set[str]:
    """The files that Ray takes with this runtime environment."""
    root = Path(env["working_dir"])
    excludes = PathSpec.from_lines("gitwildmatch", env["excludes"])
    paths = (path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
    return {path for path in paths if not excludes.match_file(path)}


@pytest.mark.parametrize("name", ["publisher.pem", "sub/my [1] #key.key", "id_rsa"])
def test_private_key_is_not_uploaded(tmp_path: Path, name: str):
    fill(tmp_path, a=3)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(PEM)
    assert uploaded(runtime_env(tmp_path)) == {"a"}
    notes: list[str] = []
    say_kept(tmp_path, notes.append)
    assert f"not uploaded: {name}" in notes[0]


def test_private_key_behind_a_linked_directory_is_found(tmp_path: Path):
    project, keys = tmp_path / "project", tmp_path / "keys"
    fill(project, a=3)
    fill(keys, b=3)
    (keys / "k.key").write_text(PEM)
    (project / "linked").symlink_to(keys)
    (project / "loop").symlink_to(project)
    assert private_keys(project) == ("linked/k.key",)


def test_signing_key_cache_and_store_of_the_config_are_not_uploaded(tmp_path: Path):
    fill(tmp_path, a=3, cache__x=4, store__FORMAT=5, signer=6)
    trust = {"signing_key": str(tmp_path / "signer")}
    config = loaded_config(tmp_path, store={"path": str(tmp_path / "store"), "trust": trust})
    assert uploaded(runtime_env(tmp_path, config)) == {"a", "tiny.yaml"}
