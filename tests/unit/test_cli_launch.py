"""The launch command, with ranks that live in this process."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from tests.support.fake_rank import FakeWorld
from tests.support.stored import save_key_pair
from warmrank.cache_store.errors import UnwritableDisk
from warmrank.cache_store.signing.signing_keys import generate_key_pair
from warmrank.orchestrator.cli.console import ExitCode
from warmrank.orchestrator.cli.main import app
from warmrank.orchestrator.gang.in_process import InProcessLauncher
from warmrank.orchestrator.launch import driver
from warmrank.orchestrator.ui import outputs
from warmrank.worker.errors import WorkloadError


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> FakeWorld:
    found = FakeWorld()
    monkeypatch.setattr(driver, "ray_launcher", lambda _config: InProcessLauncher(found.make_worker))
    return found


def launch(tmp_path: Path, *options: str, **more: Any) -> Result:
    data: dict[str, Any] = {
        "workload": {"entrypoint": "json:dumps"},
        "ranks": 1,
        "cache_dir": str(tmp_path / "cache"),
        **more,
    }
    config = tmp_path / "launch.yaml"
    config.write_text(yaml.safe_dump(data))
    return CliRunner(env={"COLUMNS": "400"}).invoke(app, ["launch", str(config), *options])


def test_disk_that_is_too_full_for_the_report_does_not_hide_why_the_launch_failed(
    tmp_path, world, monkeypatch
):
    def refuse(path: Path, _text: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    world.raises["build", 0] = WorkloadError("no such model")
    monkeypatch.setattr(outputs, "write_whole", refuse)
    result = launch(tmp_path, "--json", str(tmp_path / "report.json"))
    assert result.exit_code == ExitCode.BAD_INPUT
    assert "WorkloadError: no such model" in result.stderr
    assert "report not written: [Errno 28] No space left on device" in result.stderr


def test_launch_that_could_publish_nothing_is_refused_unless_it_is_told_to_read_only(tmp_path, world):
    _, public = save_key_pair(generate_key_pair("ci"), tmp_path)
    trust = {"policy": "require", "trusted_keys": {"ci": str(public)}}
    store = {"path": str(tmp_path / "store"), "trust": trust}
    result = launch(tmp_path, store=store)
    assert (result.exit_code, world.called("build")) == (ExitCode.BAD_INPUT, [])
    assert "store.trust.signing_key" in result.stderr
    assert "mode: ro" in result.stderr
    assert launch(tmp_path, store={**store, "mode": "ro"}).exit_code != ExitCode.BAD_INPUT
    assert launch(tmp_path, "--no-compile", store=store).exit_code != ExitCode.BAD_INPUT


def test_full_disk_is_told_once_and_not_tried_again(tmp_path: Path, world: FakeWorld) -> None:
    world.raises["compile", 0] = UnwritableDisk(
        what="disk", where="/d", expected="space left", actual="none", remedy="free some"
    )
    result = launch(tmp_path)
    assert result.exit_code == ExitCode.FAULT
    told = result.stderr.partition("error: ")[2]
    assert told.count("disk /d") == 1
    assert len(world.called("compile")) == 1
    assert "logs" not in told


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ({"workload": {"entrypoint": "absent_of_all:f"}}, "workload.entrypoint"),
        ({"ray": {"num_cpus_per_rank": 4096.0}}, "ranks, ray.num_cpus_per_rank, ray.num_cpus"),
        ({"cache_dir": f"{__file__}/x"}, "cache_dir"),
    ],
)
def test_launch_refuses_in_the_words_of_config_check_what_every_rank_would_find(
    tmp_path, world, monkeypatch, more, key
):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("warmrank.orchestrator.gang.ray_session._is_initialized", lambda: False)
    result = launch(tmp_path, **more)
    checked = CliRunner(env={"COLUMNS": "400"}).invoke(
        app, ["config", "check", str(tmp_path / "launch.yaml")]
    )
    assert (result.exit_code, checked.exit_code) == (ExitCode.BAD_INPUT, ExitCode.BAD_INPUT)
    assert f"launch.yaml: {key}" in result.stderr
    assert f"error: {key}" in checked.stdout
    for line in checked.stdout.splitlines()[1:]:
        assert " ".join(line.split()) in " ".join(result.stderr.split())
    assert not [word for word in ("expected ", "rank was", "ranks were", "stage") if word in result.stderr]
    assert world.called("build") == []


def test_cache_directory_of_somebody_else_is_refused_before_anything_starts(tmp_path, world, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("warmrank.orchestrator.gang.ray_session._is_initialized", lambda: False)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    result = launch(tmp_path)
    assert (result.exit_code, world.called("build")) == (ExitCode.FAULT, [])
    assert "error: unusable cache" in result.stderr


def test_what_an_override_set_is_refused_with_the_override(tmp_path, world, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("warmrank.orchestrator.gang.ray_session._is_initialized", lambda: False)
    result = launch(tmp_path, "--set", "workload.entrypoint=json:dmups")
    assert "where   --set workload.entrypoint=json:dmups: workload.entrypoint" in result.stderr
    assert "did you mean json:dumps? (read in " in result.stderr
    assert world.called("build") == []
