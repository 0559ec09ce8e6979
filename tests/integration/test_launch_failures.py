"""What befalls ranks of a launch on Ray: seen, told, and survived where the budgets allow it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.fault_workload import fault, helpers_of
from tests.support.launching import data_of
from tests.support.processes import still_there
from warmrank.orchestrator.causes import DIED, STOPPED, TIMEOUT, WorkerFailure
from warmrank.orchestrator.cli.console import ExitCode, exit_code_of
from warmrank.orchestrator.config.reading import parse
from warmrank.orchestrator.errors import LaunchFailed
from warmrank.orchestrator.gang.ray_launcher import RayLauncher
from warmrank.orchestrator.launch.driver import Launch
from warmrank.orchestrator.launch.report import Report

pytestmark = [pytest.mark.ray, pytest.mark.timeout(480)]

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

    def stored(self, kind: str) -> list[Path]:
        """Files of the store below one of its directories."""
        return [path for path in (self.root / "store" / kind).rglob("*") if path.is_file()]

    def check_nothing_left(self) -> None:
        """Check that ranks and their helpers have ended, those in sessions of their own too."""
        helpers = helpers_of(self.marks)
        assert helpers
        assert still_there(helpers) == []


def check_warm(report: Report, *failed_stages: str) -> None:
    """Check that all is as it must be after attempts that ended in these stages."""
    assert (report.outcome, report.exit_code, report.failure) == ("warm", 0, None)
    assert [attempt.failed_stage for attempt in report.course.attempts] == [*failed_stages, ""]
    assert all(rank.verification is not None and rank.verification.ok for rank in report.ranks)
    assert report.record


def reasons(report: Report) -> list[str]:
    """The kind of failure that each further attempt names as its reason."""
    return [attempt.reason.partition(" (")[0].rpartition(": ")[2] for attempt in report.course.attempts[1:]]


@pytest.mark.slow
def test_ranks_killed_and_stopped_cost_an_attempt_each_and_take_their_helpers_along(
    cluster: str, tmp_path: Path
) -> None:
    faults = (fault("compile", "kill"), fault("capture", "stop", 0), fault("commit", "kill"))
    trial = Trial(tmp_path, *faults, retries=MANY_RETRIES)
    report = trial.run()
    check_warm(report, "compile", "capture", "commit")
    assert reasons(report) == [DIED, STOPPED, DIED]
    assert report.totals.num_compiled == 0  # the second attempt compiled, the others loaded
    assert len(trial.stored("launch")) == 1
    assert len(list(trial.marks.glob("helpers*"))) == 4 * 2
    trial.check_nothing_left()


@pytest.mark.slow
def test_rank_that_hangs_in_native_code_is_named_with_what_it_was_doing(cluster: str, tmp_path: Path) -> None:
    trial = Trial(tmp_path, fault("compile", "native", 0), retries=NO_RETRIES, timeouts={"compile_s": 5})
    error, report = trial.fail()
    assert (error.stage, report.exit_code) == ("compile", ExitCode.LOST)
    assert [(cause.ranks, cause.kind) for cause in error.causes] == [((0,), TIMEOUT)]
    assert "no answer within 5 s, last seen in 'compile Tiny." in str(error)
    assert report.failure is not None
    assert report.failure.causes == error.causes
    trial.check_nothing_left()


@pytest.mark.slow
def test_rank_that_is_stopped_again_and_again_ends_the_launch_and_leaves_the_store_as_it_was(
    cluster: str, tmp_path: Path
) -> None:
    faults = (fault("verify", "stop"), fault("commit", "stop", 0))
    trial = Trial(tmp_path, *faults, retries={**NO_RETRIES, "hang": 1})
    error, report = trial.fail()
    assert (error.stage, report.exit_code) == ("commit", ExitCode.LOST), str(error)
    assert [(cause.ranks, cause.kind) for cause in error.causes] == [((0,), STOPPED)]
    assert [attempt.failed_stage for attempt in report.course.attempts] == ["verify", "commit"]
    assert trial.stored("launch") == []
    trial.check_nothing_left()


@pytest.mark.slow
def test_ranks_end_when_their_driver_looks_at_them_no_more(cluster: str, tmp_path: Path) -> None:
    trial = Trial(tmp_path, watch={**WATCH, "lease_s": 1})
    launcher = RayLauncher(trial.config)
    try:
        gang = launcher.start(2, timeout_s=120)
        assert still_there((seat.pid for seat in gang.seats), timeout_s=30) == []
        answers = launcher.call("build", "build", {0: (), 1: ()}, timeout_s=30)
        kinds = {rank: found.kind for rank, found in answers if isinstance(found, WorkerFailure)}
        assert kinds == {0: DIED, 1: DIED}
    finally:
        launcher.stop()


class Hitting(RayLauncher):
    """Kills rank 0, which every stage calls, just before it is called, the first time that a stage comes."""

    def __init__(self, trial: Trial, *stages: str) -> None:
        super().__init__(trial.config)
        self._stages = list(stages)
        self._pids: dict[int, int] = {}

    def start(self, num_ranks: int, *, timeout_s: float) -> Any:
        gang = super().start(num_ranks, timeout_s=timeout_s)
        self._pids = {seat.rank: seat.pid for seat in gang.seats}
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
