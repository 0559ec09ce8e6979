"""Jobs on Ray, and what of a directory goes with them."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from ray._private.thirdparty.pathspec.pathspec import PathSpec
from typer.testing import CliRunner, Result

from tests.support.launching import loaded_config
from warmrank.orchestrator.cli.main import app
from warmrank.orchestrator.cli.submit import exit_code_of, follow
from warmrank.orchestrator.errors import OrchestratorError, first_line
from warmrank.orchestrator.gang.upload import private_keys, runtime_env, say_kept
from warmrank.orchestrator.signals import Terminated


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
    """Plays one job: each tail is a list of texts or an error, each look at the job a status."""

    def __init__(self, tails: list[list[str | BaseException]], statuses: list[str], code: int = 0) -> None:
        self.tails, self.statuses, self.code = tails, statuses, code
        self.num_silent = 0  # times that the job server does not answer
        self.stopped: list[str] = []

    def get_job_info(self, job_id: str) -> Info:
        if self.num_silent > 0:
            self.num_silent -= 1
            raise ConnectionRefusedError("nobody there")
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        return Info(status=Status(status), driver_exit_code=self.code)

    async def tail_job_logs(self, job_id: str) -> AsyncIterator[str]:
        for item in self.tails.pop(0) if self.tails else []:
            if isinstance(item, BaseException):
                raise item
            yield item

    def stop_job(self, job_id: str) -> bool:
        self.stopped.append(job_id)
        return True


def followed(client: FakeClient) -> tuple[int, str, str]:
    """Exit code, Ray's words and the log."""
    written: list[str] = []
    code, said = follow(client, "job-1", write=written.append, poll_s=0)  # type: ignore[arg-type]
    return code, said, "".join(written)


def test_line_of_an_error_of_ray_goes_on_in_a_sentence():
    error = ConnectionError("Failed to connect to Ray at address: http://127.0.0.1:8265.\nCheck ...")
    assert first_line(error) == "Failed to connect to Ray at address: http://127.0.0.1:8265"


def test_failed_job_ends_with_the_drivers_own_code_and_its_log_stands_once():
    client = FakeClient([["one\n", "two\n"]], ["FAILED"], code=3)
    assert followed(client) == (3, "FAILED: as Ray says", "one\ntwo\n")


def test_job_whose_log_cannot_be_followed_is_waited_for_as_long_as_its_cluster_answers():
    broken: list[list[str | BaseException]] = [[ConnectionResetError("no websockets here")]] * 9
    client = FakeClient([["one\n", ConnectionResetError("cut")], *broken], [*["RUNNING"] * 9, "SUCCEEDED"])
    assert followed(client) == (0, "SUCCEEDED: as Ray says", "one\n")


def test_cluster_that_does_not_answer_any_more_is_named():
    client = FakeClient([], ["RUNNING"])
    client.num_silent = 6
    with pytest.raises(OrchestratorError, match="ask with: ray job status job-1"):
        followed(client)


@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt(), 130), (Terminated(), 143)])
def test_interrupt_stops_the_job_and_waits_for_its_end(stop: KeyboardInterrupt, code: int):
    client = FakeClient([["one\n", stop]], ["RUNNING", "STOPPED"])
    assert followed(client)[:2] == (code, "STOPPED: as Ray says")
    assert client.stopped == ["job-1"]


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
    assert exit_code_of(status, driver) == code


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
    return CliRunner(env={"COLUMNS": "400"}).invoke(app, ["submit", name, *words])


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


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"cache_dir": "here"}, "cache_dir"),
        ({"store": {"path": "store"}}, "store.path"),
        ({"store": {"tiers": [{"path": "s3://b/c"}, {"path": "a/b"}]}}, "store.tiers.1.path"),
    ],
)
def test_place_that_would_lie_in_the_directory_of_the_job_is_refused(
    directory: Path, config: dict[str, Any], key: str
):
    result = submit("a.yaml", **config)
    assert result.exit_code == 2
    assert f"a.yaml: {key}" in result.stderr
    assert f"--set {key}=/var/tmp/warmrank/" in result.stderr


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
