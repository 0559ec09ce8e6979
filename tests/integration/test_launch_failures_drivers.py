"""Launches in processes of their own: stopped, without their head or a node; nothing is left of any."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.checkout import PYTHONPATH
from tests.support.fault_workload import fault, helpers_of
from tests.support.launching import ENTRYPOINT, counts, data_of
from tests.support.processes import LaunchProcess, await_true, still_there
from tests.support.ray_cluster import ray_cluster
from warmrank.orchestrator.cli.console import ExitCode
from warmrank.orchestrator.errors import DIED, NODE_LOST

pytestmark = [pytest.mark.ray, pytest.mark.timeout(480)]

# What is silent counts as lost after three seconds; ranks whose driver is silent end after six.
WATCH = {"every_s": 0.5, "node_silent_s": 3, "lease_s": 6}

Start = Callable[..., LaunchProcess]


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    path = tmp_path / "marks"
    path.mkdir()
    return path


@pytest.fixture
def start(tmp_path: Path, temp_dir: Path, marks: Path) -> Iterator[Start]:
    """Starts a launch whose ranks meet faults; nothing of it outlives the test."""
    started: list[LaunchProcess] = []

    def begin(
        *faults: dict[str, Any], environ: Mapping[str, str] | None = None, **changes: Any
    ) -> LaunchProcess:
        arguments = {"marks": str(marks), "faults": list(faults), "helpers": True}
        workload = {"entrypoint": "tests.support.fault_workload:workload", "arguments": arguments}
        data = data_of(tmp_path, **{"workload": workload, "watch": WATCH, **changes})
        started.append(LaunchProcess(tmp_path, data, temp_dir=temp_dir, environ=environ))
        return started[-1]

    yield begin
    for launch in started:
        launch.end()


def stored_launches(root: Path) -> list[Path]:
    return [path for path in (root / "store" / "launch").rglob("*") if path.is_file()]


def reached(launch: LaunchProcess, marks: Path, index: int = 0) -> None:
    """Wait until a rank has begun its fault."""
    file = marks / f"fault{index}"
    assert await_true(lambda: file.exists() or launch.process.poll() is not None, timeout_s=180)
    assert file.exists(), launch.said()


def test_driver_that_is_killed_takes_ranks_helpers_and_its_own_ray_along(
    start: Start, marks: Path, tmp_path: Path
) -> None:
    launch = start(fault("compile", "stay"), watch={})  # the reapers see it, whatever is silent when
    reached(launch, marks)
    assert list(launch.temp_dir.glob("warmrank-*")) != []
    launch.process.kill()
    assert launch.wait() == -signal.SIGKILL
    assert launch.left_over() == []
    assert still_there(helpers_of(marks)) == []
    assert stored_launches(tmp_path) == []


@pytest.mark.slow
def test_node_whose_raylet_is_killed_is_lost_and_the_launch_goes_on_elsewhere(
    start: Start, marks: Path
) -> None:
    # A rank on each node; afterwards the first has room for both.
    with ray_cluster(2, {"PYTHONPATH": PYTHONPATH}) as cluster:
        ray = {"address": cluster.address, "ship_code": False, "placement": "SPREAD"}
        launch = start(fault("first_call", "stay", 0), ray=ray, parallel={"dp": 2}, environ=cluster.environ)
        reached(launch, marks)
        os.kill(cluster.raylet(1), signal.SIGKILL)
        report = launch.report_of(ExitCode.OK)
        assert [attempt.failed_stage for attempt in report.course.attempts] == ["first_call", ""]
        assert f": {NODE_LOST} (retries.node: 1 of 2)" in report.course.attempts[1].reason
        assert launch.left_over() == []
        assert still_there(helpers_of(marks)) == []


@pytest.mark.slow
def test_ranks_and_watches_end_under_a_driver_that_stands_still_and_it_says_so_when_it_goes_on(
    start: Start, marks: Path
) -> None:
    launch = start(fault("compile", "stay"), watch={**WATCH, "lease_s": 3})
    reached(launch, marks)
    launch.process.send_signal(signal.SIGSTOP)
    assert await_true(lambda: not of_attempt(launch), timeout_s=30), of_attempt(launch)
    launch.process.send_signal(signal.SIGCONT)
    report = launch.report_of(ExitCode.OK)
    first, second = report.course.attempts
    assert "because this driver had not looked for" in first.error
    assert f": {DIED} (retries.rank: 1 of 1)" in second.reason
    assert launch.left_over() == []


def of_attempt(launch: LaunchProcess) -> list[str]:
    """Ranks, and watches of nodes, that are there."""
    kinds = ("ray::RankActor", "ray::NodeWatch")
    return [text for text in launch.processes().values() if text.startswith(kinds)]


@pytest.mark.slow
def test_ray_that_does_not_come_up_is_given_up_in_time_and_leaves_nothing(start: Start) -> None:
    launch = start(timeouts={"start_s": 8})
    assert await_true(lambda: bool(launch.of_ray("gcs_server")), timeout_s=60), launch.said()
    (head,) = launch.of_ray("gcs_server")
    os.kill(head, signal.SIGSTOP)
    report = launch.report_of(ExitCode.FAILED)
    assert report.failure is not None
    assert "a local Ray was not up after 8 s" in report.failure.message
    assert launch.left_over() == []


@pytest.mark.slow
def test_cluster_is_joined_by_address_with_a_copy_of_the_directory(
    cluster: str, start: Start, tmp_path: Path
) -> None:
    (tmp_path / "here.py").write_text(f"from {ENTRYPOINT.replace(':', ' import ')}\n")
    token = {name: text for name, text in os.environ.items() if name.startswith("RAY_AUTH_")}
    launch = start(workload={"entrypoint": "here:workload"}, ray={"address": cluster}, environ=token)
    report = launch.report_of(ExitCode.OK)
    assert counts(report) == (2, 0, 2)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_launch_ends_its_local_ray_and_leaves_no_process(
    start: Start, marks: Path, number: signal.Signals, status: int
) -> None:
    launch = start(fault("build", "stay"))
    reached(launch, marks)
    (own,) = launch.temp_dir.glob("warmrank-*")
    assert own.stat().st_mode & 0o777 == 0o700
    launch.process.send_signal(number)
    assert launch.wait() == status, launch.said()
    assert "SIGTERM received" not in launch.said()  # as Ray's own handler says, and then allows three seconds
    assert launch.left_over() == []
