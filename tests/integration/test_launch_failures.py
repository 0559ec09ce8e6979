"""Launches whose ranks, disks, nodes or Ray fail, or that are stopped; nothing is left of any."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.checkout import PYTHONPATH
from tests.support.fault_workload import fault, helpers_of
from tests.support.launching import ENTRYPOINT, counts, data_of
from tests.support.processes import LaunchProcess, await_true, still_there
from tests.support.ray_cluster import ray_cluster
from tests.support.stored import open_store, stored
from warmrank.orchestrator.cli.console import ExitCode, exit_code_of
from warmrank.orchestrator.config.reading import parse
from warmrank.orchestrator.errors import DIED, NODE_LOST, STOPPED, TIMEOUT, LaunchFailed
from warmrank.orchestrator.gang.ray_launcher import RayLauncher
from warmrank.orchestrator.inspect.store_contents import verify
from warmrank.orchestrator.launch.driver import Launch
from warmrank.orchestrator.launch.report import Report

pytestmark = pytest.mark.ray

# A rank that is stopped counts as such after a second; the stage itself would wait for minutes.
WATCH = {"every_s": 0.25, "stopped_s": 1}
NO_RETRIES = {"rank": 0, "node": 0, "hang": 0, "start": 0}
MANY_RETRIES = {"rank": 20, "node": 20, "hang": 20, "start": 20}


class Trial:
    """A launch whose ranks meet faults, with a cache directory and a store of its own."""

    def __init__(self, root: Path, *faults: dict[str, Any], **changes: Any) -> None:
        self.root, self.marks = root, root / "marks"
        self.marks.mkdir()
        arguments = {"marks": str(self.marks), "faults": list(faults), "helpers": True}
        workload = {"entrypoint": "tests.support.fault_workload:workload", "arguments": arguments}
        self.config = parse(data_of(root, **{"workload": workload, "watch": WATCH, **changes}))

    def run(self, launcher: RayLauncher | None = None) -> Report:
        """Launch, which must end warm."""
        return Launch(self.config, launcher=launcher).run()

    def fail(self) -> tuple[LaunchFailed, Report]:
        """Launch, which must fail; its error and its report."""
        launch = Launch(self.config)
        with pytest.raises(LaunchFailed) as caught:
            launch.run()
        error = caught.value
        return error, launch.failed(error, exit_code=exit_code_of(error))

    def check_nothing_left(self) -> None:
        """Check that ranks and their helpers have ended, those in sessions of their own too."""
        helpers = helpers_of(self.marks)
        assert helpers
        assert still_there(helpers) == []


def check_warm(report: Report, *failed_stages: str) -> None:
    """Check that all is as it must be after attempts that ended in these stages."""
    assert (report.outcome, report.exit_code, report.failure) == ("warm", 0, None)
    assert [attempt.failed_stage for attempt in report.timeline.attempts] == [*failed_stages, ""]
    assert all(rank.verification is not None and rank.verification.ok for rank in report.ranks)
    assert report.record


def reasons(report: Report) -> list[str]:
    """The kind of failure that each further attempt names as its reason."""
    return [attempt.reason.partition(" (")[0].rpartition(": ")[2] for attempt in report.timeline.attempts[1:]]


@pytest.mark.slow
def test_rank_that_is_stopped_again_and_again_ends_the_launch_and_leaves_the_store_as_it_was(
    cluster: str, tmp_path: Path
) -> None:
    faults = (fault("verify", "stop"), fault("commit", "stop", 0))
    trial = Trial(tmp_path, *faults, retries={**NO_RETRIES, "hang": 1})
    error, report = trial.fail()
    assert (error.stage, report.exit_code) == ("commit", ExitCode.LOST), str(error)
    assert [(cause.ranks, cause.kind) for cause in error.causes] == [((0,), STOPPED)]
    assert [attempt.failed_stage for attempt in report.timeline.attempts] == ["verify", "commit"]
    assert stored(tmp_path / "store", "launch") == []
    trial.check_nothing_left()


class Hitting(RayLauncher):
    """Kills rank 0, which every stage calls, just before it is called, the first time that a stage comes."""

    def __init__(self, trial: Trial, *stages: str) -> None:
        super().__init__(trial.config)
        self._stages = list(stages)
        self._pids: dict[int, int] = {}

    def start(self, num_ranks: int, *, timeout_s: float) -> Any:
        gang = super().start(num_ranks, timeout_s=timeout_s)
        self._pids = {placement.rank: placement.pid for placement in gang.placements}
        return gang

    def call(
        self, stage: str, method: str, arguments: Mapping[int, tuple[Any, ...]], *, timeout_s: float
    ) -> Iterator[tuple[int, Any]]:
        if self._stages and stage == self._stages[0]:
            self._stages.pop(0)
            os.kill(self._pids[0], signal.SIGKILL)
        yield from super().call(stage, method, arguments, timeout_s=timeout_s)


@pytest.mark.slow
def test_rank_killed_in_every_stage_costs_an_attempt_each(cluster: str, tmp_path: Path) -> None:
    stages = ("build", "probe", "compile", "load", "capture", "first_call", "verify", "commit")
    trial = Trial(tmp_path, *(fault(stage, "kill") for stage in stages), retries=MANY_RETRIES)
    report = trial.run(Hitting(trial, "start", "fetch"))
    check_warm(report, "start", "fetch", *stages)
    assert reasons(report) == [DIED] * 10
    trial.check_nothing_left()


@pytest.mark.slow
def test_rank_stopped_in_every_stage_costs_an_attempt_each(cluster: str, tmp_path: Path) -> None:
    stages = ("build", "probe", "compile", "load", "capture", "first_call", "verify", "commit")
    trial = Trial(tmp_path, *(fault(stage, "stop") for stage in stages), retries=MANY_RETRIES)
    report = trial.run()
    check_warm(report, *stages)
    assert reasons(report) == [STOPPED] * 8
    trial.check_nothing_left()


@pytest.mark.slow
def test_rank_hung_in_native_code_costs_an_attempt_but_for_the_commit(cluster: str, tmp_path: Path) -> None:
    stages = ("build", "compile", "capture", "commit")
    timeouts = {f"{stage}_s": 30 for stage in stages}
    faults = (fault(stage, "native") for stage in stages)
    trial = Trial(tmp_path, *faults, retries=MANY_RETRIES, timeouts=timeouts)
    report = trial.run()
    assert report.outcome == "warm"
    assert reasons(report) == [TIMEOUT] * 3
    # The ranks are warm by the commit: what hangs then is taken for the store.
    assert report.record == ""
    assert any("not committed: rank 1" in problem for problem in report.problems)
    trial.check_nothing_left()


# What is silent counts as lost after three seconds; ranks whose driver is silent end after six.
WATCH_NODES = {"every_s": 0.5, "node_silent_s": 3, "lease_s": 6}

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
        *faults: dict[str, Any],
        environ: Mapping[str, str] | None = None,
        words: tuple[str, ...] = (),
        **changes: Any,
    ) -> LaunchProcess:
        arguments = {"marks": str(marks), "faults": list(faults), "helpers": True}
        workload = {"entrypoint": "tests.support.fault_workload:workload", "arguments": arguments}
        data = data_of(tmp_path, **{"workload": workload, "watch": WATCH_NODES, **changes})
        started.append(LaunchProcess(tmp_path, data, temp_dir=temp_dir, environ=environ, words=words))
        return started[-1]

    yield begin
    for launch in started:
        launch.end()


def reached(launch: LaunchProcess, marks: Path, index: int = 0) -> None:
    """Wait until a rank has begun its fault."""
    file = marks / f"fault{index}"
    assert await_true(lambda: file.exists() or launch.process.poll() is not None, timeout_s=180)
    assert file.exists(), launch.said()


MOUNTS = ("unshare", "--mount")
# A disk of so many bytes, in a mount namespace that ends with the launch; what lay on it is copied back.
MOUNTED = """
set -e
disk=$1 size=$2; shift 2
mkdir -p "$disk"
mount -t tmpfs -o "size=$size,mode=700" tmpfs "$disk"
set +e
"$@"
code=$?
mkdir "$disk-copy" && cp -a "$disk/." "$disk-copy"
exit $code
"""


@pytest.fixture
def launch(start: Start, tmp_path: Path) -> Callable[[str, str], LaunchProcess]:
    """Launches with a small disk at a place below the test's directory."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    tried = subprocess.run((*MOUNTS, "true"), capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no mount namespaces here: {tried.stderr.strip()}")

    def begin(place: str, size: str) -> LaunchProcess:
        words = (*MOUNTS, "sh", "-c", MOUNTED, "sh", str(tmp_path / place), size)
        return start(words=words, workload={"entrypoint": ENTRYPOINT}, watch={})

    return begin


@pytest.mark.slow
def test_full_disk_under_the_cache_directory_is_named_and_nothing_half_written_stays(
    launch: Callable[[str, str], LaunchProcess], tmp_path: Path
) -> None:
    found = launch("cache", "16k")
    code = found.wait()
    assert code == ExitCode.FAULT, found.said()
    report = found.report
    assert report is not None
    assert report.failure is not None
    assert "No space left on device" in report.failure.message
    assert str(tmp_path / "cache") in report.failure.message
    assert verify(None, tmp_path / "cache-copy", signatures_checked=False).faults == ()
    assert stored(tmp_path / "store", "launch") == []
    assert found.left_over() == []


@pytest.mark.slow
def test_full_disk_under_the_store_leaves_the_launch_warm_and_not_committed(
    launch: Callable[[str, str], LaunchProcess], tmp_path: Path
) -> None:
    found = launch("store", "16k")
    assert found.wait() == ExitCode.OK, found.said()
    report = found.report
    assert report is not None
    assert (report.outcome, report.record) == ("warm", "")
    assert any("No space left on device" in problem for problem in report.problems), report.problems
    assert verify(open_store(tmp_path / "store-copy"), None, signatures_checked=False).faults == ()
    assert found.left_over() == []


@pytest.mark.slow
@pytest.mark.parametrize("killed", [("raylet",), ("gcs_server",), ("gcs_server", "raylet")])
def test_own_ray_without_raylet_or_gcs_is_replaced_and_the_launch_ends_warm(
    start: Start, marks: Path, tmp_path: Path, killed: tuple[str, ...]
) -> None:
    # An own Ray is seen to be over by its processes, not by silence.
    launch = start(fault("compile", "stay"), watch={"every_s": 0.5})
    reached(launch, marks)
    for process in [process for program in killed for process in launch.of_ray(program)]:
        os.kill(process, signal.SIGKILL)
    report = launch.report_of(ExitCode.OK)
    assert [attempt.failed_stage for attempt in report.timeline.attempts] == ["compile", ""]
    assert f": {NODE_LOST} (retries.node: 1 of 2)" in report.timeline.attempts[1].reason
    assert [Path(rank.log).name for rank in report.ranks] == ["rank0.attempt2.log", "rank1.attempt2.log"]
    (log_file,) = (tmp_path / "cache" / ".logs" / "tiny").glob("*/rank0.log")
    log = log_file.read_text()
    assert re.search(r"rank 0 .*: Process \d+ on ", log.splitlines()[0])
    assert "Tiny" in log
    assert launch.left_over() == []
    assert still_there(helpers_of(marks)) == []


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
    assert stored(tmp_path / "store", "launch") == []


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
        assert [attempt.failed_stage for attempt in report.timeline.attempts] == ["first_call", ""]
        assert f": {NODE_LOST} (retries.node: 1 of 2)" in report.timeline.attempts[1].reason
        assert launch.left_over() == []
        assert still_there(helpers_of(marks)) == []


@pytest.mark.slow
def test_ranks_and_watches_end_under_a_driver_that_stands_still_and_it_says_so_when_it_goes_on(
    start: Start, marks: Path
) -> None:
    launch = start(fault("compile", "stay"), watch={**WATCH_NODES, "lease_s": 3})
    reached(launch, marks)
    launch.process.send_signal(signal.SIGSTOP)
    assert await_true(lambda: not of_attempt(launch), timeout_s=30), of_attempt(launch)
    launch.process.send_signal(signal.SIGCONT)
    report = launch.report_of(ExitCode.OK)
    first, second = report.timeline.attempts
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
