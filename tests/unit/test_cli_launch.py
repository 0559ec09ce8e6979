"""The launch command, with ranks that live in this process."""

from __future__ import annotations

import errno
import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from tests.support.fake_rank import FakeWorld
from tests.support.key_pairs import save_key_pair
from warmrank.cache_store.errors import UnwritableDisk
from warmrank.cache_store.signing.signing_keys import generate_key_pair
from warmrank.orchestrator import leaving
from warmrank.orchestrator.cli.console import ExitCode
from warmrank.orchestrator.cli.main import app
from warmrank.orchestrator.cli.options import check_script
from warmrank.orchestrator.config.reading import parse
from warmrank.orchestrator.errors import ConfigError
from warmrank.orchestrator.gang.in_process import InProcessLauncher
from warmrank.orchestrator.launch import driver
from warmrank.orchestrator.ui import outputs
from warmrank.worker.errors import WorkloadError


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> FakeWorld:
    found = FakeWorld()
    monkeypatch.setattr(driver, "ray_launcher", lambda _config: InProcessLauncher(found.make_worker))
    return found


def launch(tmp_path: Path, *options: str, workload: dict[str, Any] | None = None, **more: Any) -> Result:
    data: dict[str, Any] = {
        **more,
        "workload": workload or {"entrypoint": "json:dumps"},
        "ranks": 1,
        "cache_dir": str(tmp_path / "cache"),
    }
    config = tmp_path / "launch.yaml"
    config.write_text(yaml.safe_dump(data))
    return CliRunner(env={"COLUMNS": "400"}).invoke(app, ["launch", str(config), *options])


def test_disk_that_is_too_full_for_the_report_does_not_hide_why_the_launch_failed(
    tmp_path: Path, world: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, _text: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    world.raises["build", 0] = WorkloadError("no such model")
    monkeypatch.setattr(outputs, "write_whole", refuse)
    result = launch(tmp_path, "--json", str(tmp_path / "report.json"))
    assert result.exit_code == ExitCode.BAD_INPUT
    assert "WorkloadError: no such model" in result.stderr
    assert "report not written: [Errno 28] No space left on device" in result.stderr


def test_interrupted_launch_ends_without_what_libraries_do_at_the_end(
    tmp_path: Path, world: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaving, "_at_once", [])
    world.raises["build", 0] = KeyboardInterrupt()  # type: ignore[assignment]
    assert launch(tmp_path).exit_code == ExitCode.INTERRUPTED
    assert leaving._at_once


def test_launch_that_could_publish_nothing_is_refused_unless_it_is_told_to_read_only(
    tmp_path: Path, world: FakeWorld
) -> None:
    _, public = save_key_pair(generate_key_pair("ci"), tmp_path)
    trust = {"policy": "require", "trusted_keys": {"ci": str(public)}}
    store = {"path": str(tmp_path / "store"), "trust": trust}
    result = launch(tmp_path, store=store)
    assert (result.exit_code, world.called("build")) == (ExitCode.BAD_INPUT, [])
    assert "store.trust.signing_key" in result.stderr
    assert "mode: ro" in result.stderr
    assert launch(tmp_path, store={**store, "mode": "ro"}).exit_code != ExitCode.BAD_INPUT
    assert launch(tmp_path, "--no-compile", store=store).exit_code != ExitCode.BAD_INPUT


def test_launch_of_a_config_without_a_workload_is_refused(tmp_path: Path, world: FakeWorld) -> None:
    (tmp_path / "a.yaml").write_text("ranks: 1\n")
    result = CliRunner(env={"COLUMNS": "400"}).invoke(app, ["launch", str(tmp_path / "a.yaml")])
    assert (result.exit_code, world.called("build")) == (ExitCode.BAD_INPUT, [])
    assert "a.yaml: workload" in result.stderr


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


def test_launch_beside_a_module_with_the_name_of_a_package_is_refused(
    tmp_path: Path, world: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "worker.py").touch()
    result = launch(tmp_path)
    assert (result.exit_code, world.called("build")) == (ExitCode.BAD_INPUT, [])
    assert "worker.py in place of warmrank's own package worker" in result.stderr


def test_script_that_is_not_there_is_bad_input_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_config: object) -> None:
        raise AssertionError("a launcher was made")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(driver, "ray_launcher", start)
    result = launch(tmp_path, workload={"script": "none.py"})
    assert result.exit_code == ExitCode.BAD_INPUT
    assert "workload.script" in result.stderr
    assert "no file none.py" in result.stderr


@pytest.mark.parametrize(("ship_code", "is_refused"), [(True, True), (False, False)])
def test_script_that_only_the_nodes_may_have_is_left_to_them(*, ship_code: bool, is_refused: bool) -> None:
    data = {
        "workload": {"script": "none.py"},
        "ranks": 1,
        "ray": {"address": "10.0.0.1:6379", "ship_code": ship_code},
    }
    with pytest.raises(ConfigError) if is_refused else nullcontext():
        check_script(parse(data), "a.yaml")


def test_launch_whose_module_is_missing_ends_before_any_rank_starts_and_leaves_a_report(
    tmp_path: Path, world: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    report = tmp_path / "report.json"
    result = launch(tmp_path, "--json", str(report), workload={"entrypoint": "absent_of_all:f"})
    assert result.exit_code == ExitCode.BAD_INPUT
    assert (
        "WorkloadError: entrypoint absent_of_all:f: module 'absent_of_all' does not import" in result.stderr
    )
    assert world.called("build") == []
    assert json.loads(report.read_text())["failure"]["stage"] == "build"
