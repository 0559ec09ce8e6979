"""Launches that lose their ranks: another attempt, or a true error with a report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_rank import FakeWorld
from tests.support.launching import Recorder
from tests.support.stored import store_config
from warmrank.orchestrator.causes import DIED, NODE_LOST, TIMEOUT, WorkerFailure
from warmrank.orchestrator.cli import console
from warmrank.orchestrator.cli.console import ExitCode
from warmrank.orchestrator.config.reading import Config, parse
from warmrank.orchestrator.errors import CannotStart, LaunchFailed
from warmrank.orchestrator.gang.in_process import InProcessLauncher
from warmrank.orchestrator.gang.launcher import ProcessStatus
from warmrank.orchestrator.launch.driver import Launch
from warmrank.orchestrator.launch.report import Report, from_json, to_json
from warmrank.orchestrator.seats import Gang
from warmrank.orchestrator.store.stores import make


def config_of(tmp_path: Path, **changes: Any) -> Config:
    data: dict[str, Any] = {
        "name": "tiny",
        "workload": {"entrypoint": "models.tiny:workload"},
        "ranks": 2,
        "parallel": {"tp": 2},
        "cache_dir": str(tmp_path / "cache"),
        "store": store_config(tmp_path / "store"),
        **changes,
    }
    return parse(data)


class Losing(InProcessLauncher):
    """Loses rank 1 in one stage of the first so many gangs, or does not bring them up."""

    def __init__(self, world: FakeWorld, stage: str, times: int = 1, kind: str = DIED) -> None:
        super().__init__(world.make_worker)
        self.stage, self.times, self.kind = stage, times, kind
        self.log: list[str] = []

    def start(self, num_ranks: int, *, timeout_s: float) -> Gang:
        self.log.append("start")
        if self.stage == "start" and self.times > 0:
            self.times -= 1
            msg = "1 of 2 rank processes did not start in time"
            raise CannotStart(msg, may_pass=self.kind == DIED)
        return super().start(num_ranks, timeout_s=timeout_s)

    def call(
        self, stage: str, method: str, arguments: Mapping[int, tuple[Any, ...]], *, timeout_s: float
    ) -> Iterator[tuple[int, Any]]:
        if stage == self.stage and self.times > 0:
            self.times -= 1
            yield 1, ProcessStatus(state="R", doing="something")
            yield 1, WorkerFailure(rank=1, stage=stage, kind=self.kind, message="its process ended")
            return
        yield from super().call(stage, method, arguments, timeout_s=timeout_s)

    def release(self) -> None:
        self.log.append("release")
        super().release()


@pytest.fixture
def world() -> FakeWorld:
    return FakeWorld()


def run(config: Config, launcher: Losing, heard: Recorder | None = None) -> Report:
    return Launch(config, launcher=launcher, listener=heard).run()


STAGES = ("start", "fetch", "build", "probe", "compile", "load", "capture", "first_call", "verify", "commit")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("stage", STAGES)
def test_rank_lost_in_any_stage_costs_an_attempt_and_no_more(
    tmp_path: Path, world: FakeWorld, stage: str
) -> None:
    launcher = Losing(world, stage)
    report = run(config_of(tmp_path), launcher)
    assert (report.outcome, report.exit_code, report.failure) == ("warm", 0, None)
    assert [attempt.failed_stage for attempt in report.course.attempts] == [stage, ""]
    assert launcher.log == ["start", "release", "start", "release"]
    assert report.record


def test_budget_that_is_spent_ends_the_launch_with_its_report(tmp_path: Path, world: FakeWorld) -> None:
    launch = Launch(config_of(tmp_path), launcher=Losing(world, "load", times=2))
    with pytest.raises(LaunchFailed) as caught:
        launch.run()
    report = launch.failed(caught.value, exit_code=5)
    assert from_json(to_json(report)) == report
    assert (report.outcome, report.exit_code, report.record) == ("failed", 5, "")
    assert report.failure is not None
    assert (report.failure.stage, report.failure.causes[0].kind) == ("load", DIED)
    assert [attempt.failed_stage for attempt in report.course.attempts] == ["load", "load"]
    assert [rank.rank for rank in report.ranks] == [0, 1]
    assert not list((tmp_path / "store").glob("launch/*/*"))


def test_error_that_would_come_again_is_not_tried_again(tmp_path: Path, world: FakeWorld) -> None:
    launcher = Losing(world, "build", kind="WorkloadError")
    with pytest.raises(LaunchFailed):
        run(config_of(tmp_path), launcher)
    assert launcher.log.count("start") == 1


class NoRoomLeft(Losing):
    """Loses a node, and has no other for the next attempt."""

    def start(self, num_ranks: int, *, timeout_s: float) -> Gang:
        if self.log:
            raise CannotStart("2 ranks do not fit on the Ray cluster")
        return super().start(num_ranks, timeout_s=timeout_s)


@pytest.mark.parametrize(("kind", "code"), [(NODE_LOST, ExitCode.LOST), (DIED, ExitCode.FAILED)])
def test_launch_that_fits_no_more_because_it_lost_nodes_blames_the_cluster(
    tmp_path: Path, world: FakeWorld, kind: str, code: ExitCode
) -> None:
    with pytest.raises(CannotStart) as caught:
        run(config_of(tmp_path), NoRoomLeft(world, "load", kind=kind))
    assert console.exit_code_of(caught.value) == code


def test_interrupted_launch_has_a_report_that_says_so(tmp_path: Path, world: FakeWorld) -> None:
    world.raises["build", 0] = KeyboardInterrupt()  # type: ignore[assignment]
    launch = Launch(config_of(tmp_path), launcher=Losing(world, "never"))
    with pytest.raises(KeyboardInterrupt) as caught:
        launch.run()
    report = launch.failed(caught.value, exit_code=130)
    assert report.failure is not None
    assert (report.failure.kind, report.failure.message) == ("KeyboardInterrupt", "stopped (Ctrl-C)")
    assert report.failure.stage == "build"


class Hanging(Losing):
    """Rank 1 never answers in a stage."""

    def call(
        self, stage: str, method: str, arguments: Mapping[int, tuple[Any, ...]], *, timeout_s: float
    ) -> Iterator[tuple[int, Any]]:
        called = {rank: values for rank, values in arguments.items() if stage != self.stage or rank == 0}
        yield from super(Losing, self).call(stage, method, called, timeout_s=timeout_s)


def stored(tmp_path: Path, **place: str) -> dict[str, Any]:
    return {"store": {"path": str(tmp_path / "store"), "trust": {"policy": "off"}, **place}}


def test_publish_that_hangs_leaves_a_warm_launch_without_a_record(tmp_path: Path, world: FakeWorld) -> None:
    report = run(config_of(tmp_path, **stored(tmp_path)), Hanging(world, "commit"))
    assert (report.outcome, report.record) == ("warm", "")
    assert "not committed: rank 1 could not publish to the store" in report.problems


def test_publish_that_hangs_ends_a_launch_that_may_not_do_without_the_store(
    tmp_path: Path, world: FakeWorld
) -> None:
    config = config_of(tmp_path, **stored(tmp_path, mode="required"), retries={"hang": 0})
    assert config.store is not None
    make(config.store)
    with pytest.raises(LaunchFailed) as caught:
        run(config, Hanging(world, "commit"))
    assert [(cause.kind, cause.ranks) for cause in caught.value.causes] == [(TIMEOUT, (1,))]


class LostLate(Losing):
    """Loses rank 0 when all is committed, before it has said what became of its node's artifacts."""

    def call(
        self, stage: str, method: str, arguments: Mapping[int, tuple[Any, ...]], *, timeout_s: float
    ) -> Iterator[tuple[int, Any]]:
        if method == "node_report":
            yield 0, WorkerFailure(rank=0, stage=stage, kind=DIED, message="its process ended")
            return
        yield from super().call(stage, method, arguments, timeout_s=timeout_s)


def test_rank_lost_after_the_commit_costs_no_attempt(tmp_path: Path, world: FakeWorld) -> None:
    node_caches = {"operators": {"path": str(tmp_path / "operators")}}
    launcher = LostLate(world, "never")
    report = run(config_of(tmp_path, node_caches=node_caches), launcher)
    assert report.record
    assert launcher.log.count("start") == 1
    (problem,) = (text for text in report.problems if "node artifacts" in text)
    assert "its process ended" in problem
