"""What every launcher must keep, whatever runs the ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.fake_rank import FUNCTIONS, make_alone
from tests.support.in_process import InProcessLauncher
from warmrank.orchestrator.config.reading import Config, parse
from warmrank.orchestrator.errors import CannotStart, WorkerFailure
from warmrank.orchestrator.gang.launcher import Launcher, ProcessStatus, Shared
from warmrank.orchestrator.gang.rank_host import init_of
from warmrank.orchestrator.gang.ray_launcher import RayLauncher
from warmrank.orchestrator.nodes import Gang

BOUND_S = 120.0
MakeLauncher = Callable[[], Launcher]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    return parse(
        {
            "workload": {"entrypoint": "models.tiny:workload"},
            "ranks": 2,
            "parallel": {"dp": 2},
            "cache_dir": str(tmp_path_factory.mktemp("cache")),
        }
    )


@pytest.fixture(params=["in_process", pytest.param("ray", marks=pytest.mark.ray)], scope="module")
def make(request: pytest.FixtureRequest, config: Config) -> MakeLauncher:
    if request.param == "in_process":
        return lambda: InProcessLauncher(make_alone)
    request.getfixturevalue("cluster")
    return lambda: RayLauncher(config, make_alone)


@pytest.fixture(scope="module")
def started(make: MakeLauncher) -> Iterator[tuple[Launcher, Gang]]:
    launcher = make()
    yield launcher, launcher.start(2, timeout_s=BOUND_S)
    launcher.stop()


@pytest.fixture(scope="module")
def launcher(started: tuple[Launcher, Gang], config: Config) -> Launcher:
    """A launcher whose ranks are up."""
    launcher, gang = started
    openings = {
        placement.rank: (
            init_of(
                config,
                placement,
                master_addr=gang.master_addr,
                master_port=gang.master_port,
            ),
        )
        for placement in gang.placements
    }
    assert len(call(launcher, "open", openings)) == 2
    return launcher


def call(launcher: Launcher, method: str, arguments: dict[int, tuple[Any, ...]]) -> dict[int, Any]:
    """What ranks answered; what nodes see of ranks meanwhile, whichever are called, comes when it comes."""
    found = launcher.call("a stage", method, arguments, timeout_s=BOUND_S)
    return {rank: answer for rank, answer in found if not isinstance(answer, ProcessStatus)}


def test_placements_name_each_rank_once_in_order(started: tuple[Launcher, Gang]) -> None:
    _, gang = started
    assert [placement.rank for placement in gang.placements] == [0, 1]
    assert [placement.local_rank for placement in gang.placements] == [0, 1]
    assert [[placement.rank for placement in own] for own in gang.by_node().values()] == [[0, 1]]


def test_every_rank_that_is_called_answers(launcher: Launcher) -> None:
    assert call(launcher, "build", {0: (), 1: ()}) == dict.fromkeys(range(2), FUNCTIONS)


def test_only_ranks_that_are_named_are_called(launcher: Launcher) -> None:
    assert call(launcher, "build", {1: ()}) == {1: FUNCTIONS}


def test_arguments_reach_their_own_rank(launcher: Launcher) -> None:
    answers = call(launcher, "compile", {0: (FUNCTIONS[:1], ()), 1: (FUNCTIONS[1:], ())})
    assert {rank: [found.function for found in results] for rank, results in answers.items()} == {
        0: [FUNCTIONS[0]],
        1: [FUNCTIONS[1]],
    }


def test_value_that_ranks_share_reaches_each_of_them(launcher: Launcher) -> None:
    shared = Shared(b"artifact" * 100_000)
    assert call(launcher, "take_in", dict.fromkeys(range(2), ("Model.decode", shared))) == {0: None, 1: None}
    assert isinstance(call(launcher, "take_in", {1: ("Model.decode", "no such thing")})[1], WorkerFailure)


def test_what_a_rank_raises_comes_back_as_a_value(launcher: Launcher) -> None:
    failure = call(launcher, "settle", {1: ((), "no offers")})[1]
    assert isinstance(failure, WorkerFailure)
    assert (failure.rank, failure.stage, failure.kind) == (1, "a stage", "AttributeError")
    assert "fake_rank.py" in failure.traceback


def test_rank_can_be_called_again_after_a_failure(launcher: Launcher) -> None:
    call(launcher, "settle", {1: ((), "no offers")})
    assert call(launcher, "build", {1: ()}) == {1: FUNCTIONS}


def test_stop_may_come_before_start_and_twice(make: MakeLauncher) -> None:
    launcher = make()
    launcher.stop()
    launcher.start(1, timeout_s=BOUND_S)
    launcher.stop()
    launcher.stop()


@pytest.mark.ray
def test_ranks_start_in_a_placement_group_that_is_there_and_stays(cluster: str, config: Config) -> None:
    from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

    del cluster
    theirs = placement_group([{"CPU": 2}], name="theirs")
    try:
        assert theirs.wait(60)
        ray = {"placement_group": "theirs"}
        found = config.model_copy(update={"ray": config.ray.model_copy(update=ray)})
        launcher = RayLauncher(found, make_alone)
        gang = launcher.start(2, timeout_s=BOUND_S)
        launcher.stop()
        assert len(gang.placements) == 2
        assert placement_group_table(theirs)["state"] == "CREATED"
        with pytest.raises(CannotStart, match="room for 2 of 4 ranks with 1 CPU each"):
            RayLauncher(found, make_alone).start(4, timeout_s=BOUND_S)
        other = config.ray.model_copy(update={"placement_group": "others"})
        with pytest.raises(CannotStart, match=r"no placement group .* called 'others' .* theirs"):
            RayLauncher(config.model_copy(update={"ray": other}), make_alone).start(1, timeout_s=BOUND_S)
    finally:
        remove_placement_group(theirs)
