"""A launch: outcomes, failures, further attempts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.support.fake_rank import FUNCTIONS, FakeWorld
from tests.support.in_process import InProcessLauncher
from tests.support.launching import NodeLauncher, data_of
from tests.support.stored import store_config
from warmrank.cache_store.errors import Conflict, NewerFormat
from warmrank.cache_store.store import Store
from warmrank.orchestrator.config.reading import Config, parse
from warmrank.orchestrator.errors import DIED, TIMEOUT, CannotStart, LaunchFailed, WorkerFailure
from warmrank.orchestrator.gang.launcher import Launcher, ProcessStatus
from warmrank.orchestrator.launch import stages
from warmrank.orchestrator.launch.driver import Launch, launch
from warmrank.orchestrator.launch.events import silence
from warmrank.orchestrator.launch.report import Report, from_json, to_json
from warmrank.orchestrator.launch.rounds import settle_all
from warmrank.orchestrator.launch.run import Run
from warmrank.orchestrator.nodes import Gang


class Launches:
    """Launches over one fake world, one after the other."""

    def __init__(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path
        self.world = FakeWorld()

    def config(self, num_ranks: int = 2, **changes: Any) -> Config:
        asked = {"ranks": num_ranks, "parallel": {"tp": num_ranks}, "store": None, **changes}
        return parse(data_of(self.tmp_path, **asked))

    def __call__(self, num_ranks: int = 2, **changes: Any) -> Report:
        return launch(self.config(num_ranks, **changes), launcher=self.launcher())

    def launcher(self) -> Launcher:
        return InProcessLauncher(self.world.make_worker)

    def failure(self, num_ranks: int = 2, **changes: Any) -> LaunchFailed:
        with pytest.raises(LaunchFailed) as caught:
            self(num_ranks, **changes)
        return caught.value

    def store(self, **place: str) -> dict[str, Any]:
        return {**store_config(self.tmp_path / "store"), **place}


@pytest.fixture
def launches(tmp_path: Path) -> Launches:
    return Launches(tmp_path)


@pytest.mark.parametrize(
    "error",
    [
        NewerFormat(what="record", where="/s", found=2, supported=1),
        Conflict(what="manifest", where="/s", expected="a", actual="b", remedy="look"),
    ],
)
def test_store_that_refuses_the_commit_does_not_end_a_warm_launch(launches, error, monkeypatch):
    monkeypatch.setattr(Store, "publish_partitions", Mock(side_effect=error))
    report = launches(store=launches.store())
    assert report.record == ""
    assert f"stage commit: {error}" in report.problems
    assert any(problem.startswith("not committed: ") for problem in report.problems)


def test_ranks_with_different_numbers_of_captures_fail_by_name(launches: Launches) -> None:
    launches.world.num_captures = lambda rank: 3 if rank == 2 else 2
    text = str(launches.failure(3))
    assert "ranks 0-1: CaptureMismatch: 2 captures" in text
    assert "rank 2: CaptureMismatch: 3 captures" in text


STAGE_OF = {
    "start": "start",
    "build": "build",
    "probe": "probe",
    "adopt": "load",
    "capture": "capture",
    "first_call": "first_call",
    "verify": "verify",
}


@pytest.mark.parametrize(("method", "stage"), STAGE_OF.items())
def test_failure_stops_the_launch_and_names_stage_rank_and_cause(launches, method, stage):
    launches.world.raises = {(method, 1): RuntimeError("no such luck")}
    error = launches.failure()
    assert error.stage == stage
    assert [(failure.rank, failure.kind) for failure in error.failures] == [(1, "RuntimeError")]
    assert "rank 1: RuntimeError: no such luck" in str(error)


def test_output_that_differs_from_the_reference_fails_the_launch(launches: Launches) -> None:
    launches.world.max_error = 0.5
    assert "logits with eager: largest difference 0.5, allowed 0.1" in str(launches.failure())


def test_ranks_are_taken_down_after_an_interrupt(launches: Launches) -> None:
    def interrupt(rank: int) -> int:
        raise KeyboardInterrupt

    launches.world.num_captures = interrupt
    with pytest.raises(KeyboardInterrupt):
        launches()
    assert launches.world.stopped == [0, 1]


class Losing(Launcher):
    """Loses a rank in one stage, or one call, of the first so many gangs, or does not bring them up.

    Or the rank does not answer there, however often it is asked.
    """

    def __init__(
        self, launcher: Launcher, where: str, *, rank: int = 1, times: int = 1, hangs: bool = False
    ) -> None:
        self.launcher, self.where, self.rank, self.times, self.hangs = launcher, where, rank, times, hangs
        self.log: list[str] = []

    def start(self, num_ranks: int, *, timeout_s: float) -> Gang:
        self.log.append("start")
        if self.where == "start" and self.times > 0:
            self.times -= 1
            raise CannotStart("1 of 2 rank processes did not start in time", budget="start")
        return self.launcher.start(num_ranks, timeout_s=timeout_s)

    def call(
        self, stage: str, method: str, arguments: Mapping[int, tuple[Any, ...]], *, timeout_s: float
    ) -> Iterator[tuple[int, Any]]:
        is_here = self.where in (stage, method)
        if is_here and self.hangs:
            arguments = {rank: values for rank, values in arguments.items() if rank != self.rank}
        elif is_here and self.times > 0:
            self.times -= 1
            yield self.rank, ProcessStatus(state="R", doing="something")
            failure = WorkerFailure(rank=self.rank, stage=stage, kind=DIED, message="its process ended")
            yield self.rank, failure
            return
        yield from self.launcher.call(stage, method, arguments, timeout_s=timeout_s)

    def release(self) -> None:
        self.log.append("release")
        self.launcher.release()


STAGES = ("start", "fetch", "build", "probe", "compile", "load", "capture", "first_call", "verify", "commit")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("stage", STAGES)
def test_rank_lost_in_any_stage_costs_an_attempt_and_no_more(launches: Launches, stage: str) -> None:
    launcher = Losing(launches.launcher(), stage)
    report = launch(launches.config(store=launches.store()), launcher=launcher)
    assert (report.outcome, report.exit_code, report.failure) == ("warm", 0, None)
    assert [attempt.failed_stage for attempt in report.timeline.attempts] == [stage, ""]
    assert launcher.log == ["start", "release", "start", "release"]
    assert report.record


def test_budget_that_is_spent_ends_the_launch_with_its_report(launches: Launches) -> None:
    config = launches.config(store=launches.store())
    run = Launch(config, launcher=Losing(launches.launcher(), "load", times=2))
    with pytest.raises(LaunchFailed) as caught:
        run.run()
    report = run.failed(caught.value, exit_code=5)
    assert from_json(to_json(report)) == report
    assert (report.outcome, report.exit_code, report.record) == ("failed", 5, "")
    assert report.failure is not None
    assert (report.failure.stage, report.failure.causes[0].kind) == ("load", DIED)
    assert [attempt.failed_stage for attempt in report.timeline.attempts] == ["load", "load"]
    assert [rank.rank for rank in report.ranks] == [0, 1]
    assert not list((launches.tmp_path / "store").glob("launch/*/*"))


def test_report_of_a_failed_launch_counts_what_ranks_had_told(launches: Launches) -> None:
    launches.world.max_error = 0.5
    run = Launch(launches.config(), launcher=launches.launcher())
    with pytest.raises(LaunchFailed) as caught:
        run.run()
    report = run.failed(caught.value, exit_code=1)
    launches.world.max_error = 0.0
    warm = launches()
    assert (report.totals.num_compiled, report.totals.num_adopted) == (2, 2)
    failed, found = (
        [(each.function, each.request_key, each.digest) for rank in one.ranks for each in rank.functions]
        for one in (report, warm)
    )
    assert failed == found


def test_publish_that_hangs_leaves_a_warm_launch_without_a_record_unless_the_store_is_required(
    launches: Launches,
) -> None:
    hanging = Losing(launches.launcher(), "commit", hangs=True)
    report = launch(launches.config(store=launches.store()), launcher=hanging)
    assert (report.outcome, report.record) == ("warm", "")
    assert "not committed: rank 1 could not publish to the store" in report.problems
    config = launches.config(store=launches.store(mode="required"), retries={"hang": 0})
    with pytest.raises(LaunchFailed) as caught:
        launch(config, launcher=hanging)
    assert [(cause.kind, cause.ranks) for cause in caught.value.causes] == [(TIMEOUT, (1,))]


def test_rank_lost_after_the_commit_costs_no_attempt(launches: Launches) -> None:
    node_caches = {"operators": {"path": str(launches.tmp_path / "operators")}}
    launcher = Losing(launches.launcher(), "node_report", rank=0)
    report = launch(launches.config(store=launches.store(), node_caches=node_caches), launcher=launcher)
    assert report.record
    assert launcher.log.count("start") == 1
    (problem,) = (text for text in report.problems if "node artifacts" in text)
    assert "its process ended" in problem


NODES = ("a", "a", "b", "b")
PREFILL, DECODE = FUNCTIONS


class Rounds:
    """The rounds of launches of four ranks on two nodes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.world = FakeWorld()
        self.problems: tuple[str, ...] = ()

    def __call__(self, *, nodes: tuple[str, ...] = NODES) -> Any:
        config = parse(
            {"workload": {"entrypoint": "a:b"}, "ranks": len(nodes), "parallel": {"dp": len(nodes)}}
        )
        run = Run(config, NodeLauncher(nodes, self.root, self.world.make_worker), silence)
        stages.start(run, None, no_compile=False)
        try:
            return settle_all(run, stages.build_and_probe(run), no_compile=False)
        finally:
            self.problems = run.problems

    def failure(self, function: str, why: str, *, nodes: tuple[str, ...] = NODES) -> LaunchFailed:
        """Of a function that compiles nowhere."""
        self.world.broken = {function: why}
        with pytest.raises(LaunchFailed) as caught:
            self(nodes=nodes)
        return caught.value

    def compiled(self) -> list[tuple[int, str]]:
        return [(rank, *functions) for rank, functions in self.world.called("compile")]


@pytest.fixture
def rounds(tmp_path: Path) -> Rounds:
    return Rounds(tmp_path)


def test_failed_compile_is_retried_on_another_node(rounds: Rounds) -> None:
    rounds.world.raises = {("compile", 0): RuntimeError("no such luck")}
    ledger = rounds()
    assert rounds.compiled() == [(0, PREFILL), (2, DECODE), (2, PREFILL)]
    outcomes = [ledger[rank, PREFILL].outcome for rank in range(4)]
    assert outcomes == ["adopted", "adopted", "compiled", "adopted"]


def test_second_failure_ends_the_launch_when_the_others_have_loaded(rounds: Rounds) -> None:
    error = rounds.failure(PREFILL, "GraphBreak: line 3")
    assert error.stage == "compile"
    assert [(failure.rank, failure.kind, failure.function) for failure in error.failures] == [
        (0, "GraphBreak", PREFILL),
        (2, "GraphBreak", PREFILL),
    ]
    assert {slot for slot in rounds.world.held if slot[1] == DECODE} == {(rank, DECODE) for rank in range(4)}


def test_a_single_rank_does_not_retry_what_comes_again(rounds: Rounds) -> None:
    rounds.failure(PREFILL, "GraphBreak: line 3", nodes=("a",))
    assert (rounds.compiled(), rounds.problems) == ([(0, PREFILL), (0, DECODE)], ())


def test_error_of_the_function_itself_is_not_tried_on_another_leader(rounds: Rounds) -> None:
    error = rounds.failure(PREFILL, "FunctionRaised: ValueError: bad shape (m.py:3 in M.prefill)")
    assert (rounds.compiled(), rounds.problems) == ([(0, PREFILL), (2, DECODE)], ())
    (failure,) = error.failures
    assert (failure.rank, failure.kind) == (0, "FunctionRaised")
    assert failure.message == "ValueError: bad shape (m.py:3 in M.prefill)"
    assert failure.remedy.startswith("correct the function")
    assert {slot for slot in rounds.world.held if slot[1] == DECODE} == {(rank, DECODE) for rank in range(4)}


def test_launch_goes_on_in_another_attempt_with_another_leader(rounds: Rounds, tmp_path: Path) -> None:
    launcher = Losing(NodeLauncher(NODES, tmp_path, rounds.world.make_worker), "compile", rank=0)
    config = parse({"workload": {"entrypoint": "a:b"}, "ranks": 4, "parallel": {"dp": 4}})
    report = launch(config, launcher=launcher)
    compiled = [
        (rank.host, found.function)
        for rank in report.ranks
        for found in rank.functions
        if found.outcome == "compiled"
    ]
    assert sorted(compiled) == [("a", DECODE), ("b", PREFILL)]
