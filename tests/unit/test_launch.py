"""The driver from start to commit, over ranks without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_rank import FUNCTIONS, FakeWorld
from tests.support.launching import Recorder
from warmrank.cache_store.errors import Conflict, NewerFormat
from warmrank.orchestrator.config.reading import Config, parse
from warmrank.orchestrator.errors import CompileForbidden, LaunchFailed
from warmrank.orchestrator.gang.in_process import InProcessLauncher
from warmrank.orchestrator.launch.driver import launch
from warmrank.orchestrator.launch.report import Report
from warmrank.worker.errors import CompileForbidden as ForbiddenOnRank


def config_of(tmp_path: Path, num_ranks: int = 2, **changes: Any) -> Config:
    data: dict[str, Any] = {
        "name": "tiny",
        "workload": {"entrypoint": "models.tiny:workload"},
        "ranks": num_ranks,
        "parallel": {"tp": num_ranks},
        "cache_dir": str(tmp_path / "cache"),
        **changes,
    }
    return parse(data)


class Launches:
    """Launches over one fake world, one after the other."""

    def __init__(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path
        self.world = FakeWorld()
        self.recorder = Recorder()

    def __call__(self, num_ranks: int = 2, *, no_compile: bool = False, **changes: Any) -> Report:
        self.world.calls.clear()
        return launch(
            config_of(self.tmp_path, num_ranks, **changes),
            no_compile=no_compile,
            listener=self.recorder,
            launcher=InProcessLauncher(self.world.make_worker),
        )

    def failure(self, num_ranks: int = 2, **changes: Any) -> LaunchFailed:
        with pytest.raises(LaunchFailed) as caught:
            self(num_ranks, **changes)
        return caught.value


@pytest.fixture
def launches(tmp_path: Path) -> Launches:
    return Launches(tmp_path)


def outcomes(report: Report) -> dict[tuple[int, str], str]:
    return {(rank.rank, found.function): found.outcome for rank in report.ranks for found in rank.functions}


def test_cold_launch_compiles_each_function_once_and_others_adopt(launches: Launches) -> None:
    assert outcomes(launches()) == {
        (0, FUNCTIONS[0]): "compiled",
        (1, FUNCTIONS[0]): "adopted",
        (0, FUNCTIONS[1]): "adopted",
        (1, FUNCTIONS[1]): "compiled",
    }


def test_rank_without_a_partition_adopts_from_one_that_has_it(launches: Launches) -> None:
    launches()
    del launches.world.held[1, FUNCTIONS[0]]
    assert outcomes(launches())[1, FUNCTIONS[0]] == "adopted"


def test_ranks_whose_guards_fail_compile_in_a_class_of_their_own(launches: Launches) -> None:
    launches.world.kind_of = lambda rank: rank // 2
    report = launches(4)
    assert report.totals.num_compiled == 4
    assert report.totals.num_adopted == 4
    assert report.totals.num_artifacts == 4


def test_rounds_are_bounded(launches: Launches) -> None:
    launches.world.kind_of = lambda rank: rank
    report = launches(6, max_rounds=2)
    assert report.totals.num_compiled == 12
    assert len([name for name, _ in launches.recorder.started if name == "compile"]) == 3


def test_no_compile_lists_every_miss_with_its_reason_and_ranks(launches: Launches) -> None:
    with pytest.raises(CompileForbidden) as caught:
        launches(no_compile=True)
    assert [(miss.function, miss.ranks) for miss in caught.value.misses] == [
        (FUNCTIONS[0], (0, 1)),
        (FUNCTIONS[1], (0, 1)),
    ]
    assert "Model.decode on ranks 0-1: nothing lies there" in str(caught.value)


@pytest.mark.parametrize("method", ["build", "first_call", "verify"])
def test_rank_that_would_have_to_compile_in_any_stage_is_a_miss(launches: Launches, method: str) -> None:
    error = ForbiddenOnRank("Model.f misses", function="Model.f")
    launches.world.raises = {(method, rank): error for rank in (0, 1)}
    with pytest.raises(CompileForbidden) as caught:
        launches()
    assert [(miss.function, miss.reason, miss.ranks) for miss in caught.value.misses] == [
        ("Model.f", "Model.f misses", (0, 1))
    ]


@pytest.mark.parametrize(
    "error",
    [
        NewerFormat(what="record", where="/s", found=2, supported=1),
        Conflict(what="manifest", where="/s", expected="a", actual="b", remedy="look"),
    ],
)
def test_store_that_refuses_the_commit_does_not_end_a_warm_launch(launches, error):
    launches.world.raises = {("publish", 1): error}
    report = launches(store={"path": str(launches.tmp_path / "store"), "trust": {"policy": "off"}})
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


def test_ranks_in_different_environments_become_a_problem(launches: Launches) -> None:
    launches.world.environments = {1: {"python": "cpython 3.12"}, 0: {"python": "cpython 3.11"}}
    report = launches()
    (problem,) = report.problems
    assert "rank 1: another environment than rank 0: " in problem
    assert "cpython 3.11" in problem
    (other,) = report.other_environments
    assert (other.ranks, other.environment) == ((1,), {"python": "cpython 3.12"})
