"""The launch command, with ranks that live in this process."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from orchestrator import leaving
from orchestrator.cli.console import ExitCode
from orchestrator.cli.main import app
from orchestrator.gang.in_process import InProcessLauncher
from orchestrator.launch import driver
from orchestrator.show import outputs
from tests.support.fake_rank import FakeWorld
from worker.errors import WorkloadError


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> FakeWorld:
    found = FakeWorld()
    monkeypatch.setattr(driver, "ray_launcher", lambda _config: InProcessLauncher(found.make_worker))
    return found


def launch(tmp_path: Path, *options: str) -> Result:
    data: dict[str, Any] = {
        "workload": {"entrypoint": "a:b"},
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
