"""A Ray job's life, against a client that plays one."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from warmrank.orchestrator.cli.main import app
from warmrank.orchestrator.errors import BadArgument, OutsideDirectory, SubmitFailed
from warmrank.orchestrator.jobs.submit import (
    JobLost,
    JobOutcome,
    connect,
    exit_code_of,
    follow_job,
    job_entrypoint,
    parse_metadata,
    submit_job,
)
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

    def __init__(
        self,
        tails: list[list[str | BaseException]],
        statuses: list[str],
        driver_exit_code: int | None = 0,
        refusal: Exception | None = None,
    ) -> None:
        self.tails, self.statuses = tails, statuses
        self.driver_exit_code, self.refusal = driver_exit_code, refusal
        self.silent = 0  # times that the job server does not answer
        self.stopped: list[str] = []
        self.submitted: dict[str, Any] = {}

    def submit_job(self, **options: Any) -> str:
        if self.refusal:
            raise self.refusal
        self.submitted = options
        return "raysubmit_1"

    def get_job_info(self, job_id: str) -> Info:
        if self.silent > 0:
            self.silent -= 1
            raise ConnectionRefusedError("nobody there")
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        return Info(status=Status(status), driver_exit_code=self.driver_exit_code)

    async def tail_job_logs(self, job_id: str) -> AsyncIterator[str]:
        for item in self.tails.pop(0):
            if isinstance(item, BaseException):
                raise item
            yield item

    def stop_job(self, job_id: str) -> bool:
        self.stopped.append(job_id)
        return True


class Written(list[str]):
    @property
    def text(self) -> str:
        return "".join(self)


def ran(client: FakeClient) -> tuple[JobOutcome, Written]:
    written = Written()
    job = submit_job(client, entrypoint="python x", env={"working_dir": "."})
    outcome = follow_job(client, job, write=written.append, pause=lambda _: None)
    return outcome, written


def test_log_is_written_and_the_outcome_returned():
    outcome, written = ran(FakeClient([["one\n", "two\n"]], ["SUCCEEDED"]))
    assert (outcome.exit_code, outcome.status, written.text) == (0, "SUCCEEDED", "one\ntwo\n")


def test_failed_job_ends_with_the_drivers_own_code():
    outcome, _ = ran(FakeClient([["no\n"]], ["FAILED"], driver_exit_code=3))
    assert outcome.exit_code == 3
    assert outcome.message == "as Ray says"


def test_broken_connection_is_made_again_and_nothing_is_written_twice():
    tails: list[list[str | BaseException]] = [
        ["one\n", "tw", RuntimeError("closed")],
        ["one\ntwo\n", "three\n"],
    ]
    outcome, written = ran(FakeClient(tails, ["RUNNING", "SUCCEEDED"]))
    assert (outcome.exit_code, written.text) == (0, "one\ntwo\nthree\n")


def test_log_that_cannot_be_followed_is_given_up_but_the_outcome_awaited():
    tails: list[list[str | BaseException]] = [[RuntimeError("closed")] for _ in range(6)]
    outcome, _ = ran(FakeClient(tails, ["RUNNING"] * 8 + ["FAILED"], driver_exit_code=1))
    assert outcome.exit_code == 1


def test_job_that_ends_after_its_log_is_awaited():
    outcome, _ = ran(FakeClient([[], [], []], ["RUNNING", "RUNNING", "SUCCEEDED"]))
    assert outcome.status == "SUCCEEDED"


@pytest.mark.parametrize(("stop", "status"), [(KeyboardInterrupt(), 130), (Terminated(), 143)])
def test_interrupt_stops_the_job(stop: KeyboardInterrupt, status: int):
    client = FakeClient([["one\n", stop]], ["RUNNING", "STOPPED"])
    outcome, written = ran(client)
    assert client.stopped == ["raysubmit_1"]
    assert (outcome.exit_code, outcome.status) == (status, "STOPPED")
    assert "stopping job" in written.text


def test_job_server_that_is_silent_for_a_moment_is_asked_again():
    client = FakeClient([[]], ["SUCCEEDED"])
    client.silent = 3
    assert ran(client)[0].exit_code == 0


def test_cluster_that_goes_away_is_an_error():
    client = FakeClient([[]], ["RUNNING"])
    client.silent = 100
    with pytest.raises(JobLost, match="ray job status raysubmit_1"):
        ran(client)


def test_refused_job_is_an_error():
    with pytest.raises(SubmitFailed, match="too large"):
        ran(FakeClient([], [], refusal=RuntimeError("package too large\nmore")))


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


def test_entrypoint_runs_the_config_from_the_directory(tmp_path: Path):
    config = tmp_path / "configs" / "my launch.yaml"
    command = job_entrypoint(config, ["ranks=4", "name=a b"], directory=tmp_path, no_compile=True)
    assert command == (
        "python -m warmrank launch 'configs/my launch.yaml' --set ranks=4 --set 'name=a b' --no-compile"
    )


def test_files_of_the_launch_are_written_where_the_driver_runs(tmp_path: Path):
    files = {"--json": Path("/var/a.json"), "--report": None, "--metrics": Path("/var/a b.prom")}
    command = job_entrypoint(tmp_path / "a.yaml", [], directory=tmp_path, files=files)
    assert command == "python -m warmrank launch a.yaml --json /var/a.json --metrics '/var/a b.prom'"


@pytest.mark.parametrize("path", ["report.html", "-"])
def test_file_that_would_go_with_the_job_is_refused(tmp_path: Path, path: str):
    with pytest.raises(BadArgument, match=f"--report: expected an absolute path, found {path}"):
        job_entrypoint(tmp_path / "a.yaml", [], directory=tmp_path, files={"--report": Path(path)})


def test_command_refuses_such_a_file_before_it_asks_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text("workload: {entrypoint: a:b}\nranks: 1\ncache_dir: /there\n")
    for option in ("--json", "--report", "--trace", "--metrics"):
        result = CliRunner().invoke(app, ["submit", "a.yaml", option, "out/x", "--address", "127.0.0.1:9"])
        assert result.exit_code == 2
        assert f"error: {option}: expected an absolute path, found out/x" in result.stderr


def test_config_outside_of_the_directory_is_refused(tmp_path: Path):
    with pytest.raises(OutsideDirectory, match="outside"):
        job_entrypoint(tmp_path / "a.yaml", [], directory=tmp_path / "project")


def test_no_job_server_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "")
    with pytest.raises(SubmitFailed, match=r"at http://127\.0\.0\.1:9.*ray start --head"):
        connect("127.0.0.1:9", environ={})


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({}, "cache_dir"),
        ({"cache_dir": "here"}, "cache_dir"),
        ({"cache_dir": "/there", "store": {"path": "store"}}, "store.path"),
        (
            {"cache_dir": "/there", "store": {"tiers": [{"path": "s3://b/c"}, {"path": "a/b"}]}},
            "store.tiers.1.path",
        ),
    ],
)
def test_place_that_would_lie_in_the_directory_of_the_job_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], key: str
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text(json.dumps({"workload": {"script": "a.py"}, "ranks": 1, **changes}))
    result = CliRunner(env={"COLUMNS": "400"}).invoke(app, ["submit", "a.yaml"])
    assert result.exit_code == 2
    assert f"a.yaml: {key}" in result.stderr
    assert f"--set {key}=/var/tmp/warmrank/" in result.stderr


def test_job_has_the_id_and_the_metadata_of_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    client = FakeClient([], ["RUNNING"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("warmrank.orchestrator.jobs.submit.connect", lambda _address, environ: client)
    data = {"workload": {"script": "a.py"}, "ranks": 1, "cache_dir": "/there"}
    (tmp_path / "a.yaml").write_text(json.dumps(data))
    (tmp_path / "a.py").touch()
    words = ["submit", "a.yaml", "--no-wait", "--job-id", "mine", "--metadata", "team=a=b"]
    result = CliRunner().invoke(app, words)
    assert (result.exit_code, client.submitted["submission_id"]) == (0, "mine")
    assert client.submitted["metadata"] == {"team": "a=b"}
    assert "job raysubmit_1 submitted" in result.stdout


def test_metadata_without_a_value_is_refused():
    with pytest.raises(BadArgument, match="expected KEY=VALUE"):
        parse_metadata(["team"])
