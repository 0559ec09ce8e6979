"""A launch's own Ray that is lost under it: another one is started for the next attempt."""

from __future__ import annotations

import os
import re
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fault_workload import fault, helpers_of
from tests.support.launching import data_of
from tests.support.processes import LaunchProcess, await_true, still_there
from warmrank.orchestrator.causes import NODE_LOST
from warmrank.orchestrator.cli.console import ExitCode

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(480)]

WATCH = {"every_s": 0.5}  # an own Ray is seen to be over by its processes, not by silence


@pytest.fixture
def temp_dir() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))  # a socket's path may have 107 bytes
    yield path
    shutil.rmtree(path)


@pytest.mark.parametrize("killed", [("raylet",), ("gcs_server",), ("gcs_server", "raylet")])
def test_own_ray_without_raylet_or_gcs_is_replaced_and_the_launch_ends_warm(
    tmp_path: Path, temp_dir: Path, killed: tuple[str, ...]
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    arguments = {"marks": str(marks), "faults": [fault("compile", "stay")], "helpers": True}
    workload = {"entrypoint": "tests.support.fault_workload:workload", "arguments": arguments}
    launch = LaunchProcess(tmp_path, data_of(tmp_path, workload=workload, watch=WATCH), temp_dir=temp_dir)
    try:
        assert await_true((marks / "fault0").exists, timeout_s=180), launch.said()
        for process in [process for program in killed for process in launch.of_ray(program)]:
            os.kill(process, signal.SIGKILL)
        assert launch.wait() == ExitCode.OK, launch.said()
        report = launch.report
        assert report is not None
        assert [attempt.failed_stage for attempt in report.course.attempts] == ["compile", ""]
        assert f": {NODE_LOST} (retries.node: 1 of 2)" in report.course.attempts[1].reason
        assert [Path(rank.log).name for rank in report.ranks] == ["rank0.attempt2.log", "rank1.attempt2.log"]
        (log_file,) = (tmp_path / "cache" / ".logs" / "tiny").glob("*/rank0.log")
        log = log_file.read_text()
        assert re.search(r"rank 0 .*: Process \d+ on ", log.splitlines()[0])
        assert "Tiny" in log
        assert launch.left_over() == []
        assert still_there(helpers_of(marks)) == []
    finally:
        launch.end()
