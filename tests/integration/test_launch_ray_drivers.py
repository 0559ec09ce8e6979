"""Drivers in processes of their own: they join a Ray or have one, and leave nothing when they are stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.checkout import PYTHONPATH, ROOT
from tests.support.launching import ENTRYPOINT, counts, data_of
from tests.support.processes import marked, still_there
from warmrank.orchestrator.launch.report import from_json

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]


def alone(fault: str) -> dict[str, Any]:
    """A single rank that fails."""
    arguments = {"fault": fault, "faulty_rank": 0}
    workload = {"entrypoint": "here:workload", "arguments": arguments}
    return {"workload": workload, "ranks": 1, "parallel": {}}


StartDriver = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start_driver(tmp_path: Path, temp_dir: Path) -> Iterator[StartDriver]:
    """Starts drivers in a directory that holds nothing but an entrypoint; none outlives the test."""
    started = []
    (tmp_path / "here.py").write_text(f"from {ENTRYPOINT.replace(':', ' import ')}\n")

    def start(mark: str, **changes: Any) -> subprocess.Popen[str]:
        data = data_of(tmp_path, **{"workload": {"entrypoint": "here:workload"}, **changes})
        (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(data))
        environ = {
            name: value for name, value in os.environ.items() if not name.startswith("RAY_ADDRESS")
        } | {"PYTHONPATH": PYTHONPATH, "WARMRANK_TEST": mark, "TMPDIR": str(temp_dir)}
        driver = subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "support" / "driver.py"), "tiny.yaml"],
            cwd=tmp_path,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(driver)
        return driver

    yield start
    for driver in started:
        driver.kill()
        driver.communicate()


@pytest.mark.slow
def test_cluster_is_joined_by_address_with_a_copy_of_the_directory(
    cluster: str, start_driver: StartDriver
) -> None:
    output, errors = start_driver(uuid.uuid4().hex, ray={"address": cluster}).communicate(timeout=250)
    assert counts(from_json(output)) == (2, 0, 2), errors


@pytest.mark.parametrize(
    ("number", "status"), [pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow), (signal.SIGTERM, 143)]
)
@pytest.mark.slow
def test_stopped_launch_ends_its_local_ray_and_leaves_no_process(
    start_driver: StartDriver, temp_dir: Path, number: signal.Signals, status: int
) -> None:
    mark = uuid.uuid4().hex
    driver = start_driver(mark, **alone("hang"))
    assert driver.stderr is not None
    assert any(line.startswith("build: on") for line in driver.stderr)
    (own,) = temp_dir.glob("warmrank-*")
    assert own.stat().st_mode & 0o777 == 0o700
    driver.send_signal(number)
    _, errors = driver.communicate(timeout=120)
    assert driver.returncode == status
    assert "SIGTERM received" not in errors  # as Ray's own handler says, and then allows three seconds
    assert still_there(marked(mark)) == []
    assert list(temp_dir.glob("warmrank-*")) == []
