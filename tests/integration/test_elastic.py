"""Worlds that grow, shrink and lose nodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from tests.support.launching import NodeLauncher, Recorder, counts
from tests.support.stored import store_config
from warmrank.cache_store.backends.directory import DirectoryBackend
from warmrank.orchestrator.config.reading import parse
from warmrank.orchestrator.errors import LaunchFailed
from warmrank.orchestrator.launch.driver import launch
from warmrank.orchestrator.launch.events import Event, LaunchState, Listener, Planned, StageFinished, silence
from warmrank.orchestrator.launch.report import Report

TINY = "tests.support.tiny_workload:workload"
NUM_FUNCTIONS = 2


class House:
    """A store, and any number of nodes; counts the blobs that each launch reads from the store."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.blobs: list[str] = []
        real = DirectoryBackend.open

        def opened(backend: DirectoryBackend, name: str) -> BinaryIO:
            if name.startswith("cas/"):
                self.blobs.append(name)
            return real(backend, name)

        monkeypatch.setattr(DirectoryBackend, "open", opened)

    def launch(
        self, nodes: Sequence[str], *, entrypoint: str = TINY, listener: Listener = silence, **changes: Any
    ) -> Report:
        self.blobs.clear()
        arguments = changes.pop("arguments", {})
        data = {
            "workload": {"entrypoint": entrypoint, "arguments": arguments},
            "ranks": len(nodes),
            "parallel": {"dp": len(nodes)},
            "store": store_config(self.root / "store"),
            **changes,
        }
        launcher = NodeLauncher(nodes, self.root / "disks")
        return launch(parse(data), listener=listener, launcher=launcher)


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    return House(tmp_path, monkeypatch)


def fetching(report: Report) -> list[str]:
    """Nodes that copied something from the store."""
    return [fetch.host for fetch in report.fetches if fetch.bytes_copied]


AB = ("a", "a", "b", "b")


def test_equal_ranks_on_two_nodes_compile_once_each_function_on_its_own_node(house: House) -> None:
    report = house.launch(AB)
    assert counts(report) == (NUM_FUNCTIONS, 0, NUM_FUNCTIONS * 3)
    leaders = [rank.host for rank in report.ranks for found in rank.functions if found.outcome == "compiled"]
    assert leaders == ["a", "b"]
    assert len(house.blobs) == NUM_FUNCTIONS  # each node takes from the store what the other compiled


@pytest.mark.slow
def test_more_nodes_compile_nothing_and_fetch_each_blob_once(house: House) -> None:
    house.launch(AB)
    report = house.launch((*AB, "c", "c", "d"))
    assert report.totals.num_compiled == 0
    assert fetching(report) == ["c", "d"]
    assert len(house.blobs) == NUM_FUNCTIONS * 2


@pytest.mark.slow
def test_fewer_nodes_neither_compile_nor_fetch(house: House) -> None:
    house.launch(AB)
    report = house.launch(("b",))
    assert (report.totals.num_compiled, fetching(report), house.blobs) == (0, [], [])


@pytest.mark.slow
def test_replaced_node_is_the_only_one_that_fetches(house: House) -> None:
    house.launch(AB)
    report = house.launch(("a", "a", "e", "e"))
    assert counts(report) == (0, NUM_FUNCTIONS * 4, 0)
    assert fetching(report) == ["e"]
    assert len(house.blobs) == NUM_FUNCTIONS


@pytest.mark.slow
def test_other_places_of_ranks_cost_nothing(house: House) -> None:
    house.launch(AB)
    report = house.launch(("b", "b", "a", "a"))
    assert report.totals.num_compiled == 0


@pytest.mark.slow
def test_launch_while_the_ranks_of_another_are_there_costs_only_what_is_new(house: House) -> None:
    beside: list[Report] = []

    def when_committed(_state: LaunchState, event: Event) -> None:
        if isinstance(event, StageFinished) and event.stage == "commit":
            beside.append(house.launch(("c", "c")))

    first = house.launch(AB, listener=when_committed)
    (second,) = beside
    assert (first.totals.num_compiled, second.totals.num_compiled) == (NUM_FUNCTIONS, 0)
    assert fetching(second) == ["c"]
    assert len(house.blobs) == NUM_FUNCTIONS


def test_without_a_store_nodes_get_from_each_other_what_one_of_them_compiled(house: House) -> None:
    nodes = ("a", "a", "b", "c")
    rounds = Recorder()
    report = house.launch(nodes, store=None, listener=rounds)
    assert report.totals.num_compiled == NUM_FUNCTIONS
    assert sum(isinstance(event, Planned) for event in rounds.events) == 1
    reasons = {found.reason for found in report.ranks[-1].functions if found.outcome == "adopted"}
    assert reasons == {"from another rank"}
    again = house.launch((*nodes, "d"), store=None, no_compile=True)
    assert again.totals.num_compiled == 0


@pytest.mark.slow
def test_classes_that_no_request_shows_compile_once_each_in_two_rounds(house: House) -> None:
    rounds = Recorder()
    report = house.launch(
        ("a", "a", "b", "b", "c"),
        entrypoint="tests.support.workloads:by_rank",
        arguments={"num_kinds": 4},
        listener=rounds,
    )
    assert counts(report) == (4, 0, 1)
    assert sum(isinstance(event, Planned) for event in rounds.events) == 2
    again = house.launch(("b", "d"), entrypoint="tests.support.workloads:by_rank", arguments={"num_kinds": 4})
    assert again.totals.num_compiled == 0


PICKY = "tests.support.workloads:picky"


@pytest.mark.slow
def test_rank_whose_own_class_does_not_compile_is_the_only_one_that_is_given_up(house: House) -> None:
    with pytest.raises(LaunchFailed) as caught:
        house.launch(AB, entrypoint=PICKY, arguments={"broken": [0]})
    # Rank 0 refuses what another rank compiled: its guards make it a class of its own.
    assert {(failure.rank, failure.function) for failure in caught.value.failures} == {(0, "Picky.fragile")}
    assert "for rank 0;" in str(caught.value)


def test_launch_after_a_failed_compile_compiles_only_what_failed(house: House) -> None:
    with pytest.raises(LaunchFailed) as caught:
        house.launch(AB, entrypoint=PICKY, arguments={"broken": [0, 1, 2, 3]})
    assert [failure.kind for failure in caught.value.failures] == ["GraphBreak", "GraphBreak"]
    # Node e is new: ranks of node a offer it what no manifest of the store names.
    report = house.launch(("a", "a", "e", "e"), entrypoint=PICKY, arguments={"broken": []})
    compiled = [
        found.function for rank in report.ranks for found in rank.functions if found.outcome == "compiled"
    ]
    assert compiled == ["Picky.fragile"]


SIZES = {"layers": 2, "dim": 32, "heads": 4, "kv_heads": 2, "hidden": 32}


def launched(root: Path, *, tp: int, pp: int, dp: int, node: str, **changes: Any) -> Report:
    data = {
        "workload": {"entrypoint": "warmrank.examples.llama_stage:workload", "arguments": SIZES},
        "ranks": tp * pp * dp,
        "parallel": {"tp": tp, "pp": pp, "dp": dp},
        "cache_dir": str(root / node),
        "store": store_config(root / "store"),
        "ray": {"num_cpus": tp * pp * dp},
        **changes,
    }
    return launch(parse(data))


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_each_stage_compiles_once_and_other_sizes_of_the_world_compile_nothing(tmp_path: Path) -> None:
    cold = launched(tmp_path, tp=2, pp=2, dp=2, node="first")
    assert (cold.totals.num_compiled, cold.totals.num_adopted) == (2, 6)
    leaders = [rank.rank for rank in cold.ranks for found in rank.functions if found.outcome == "compiled"]
    assert [rank // 2 % 2 for rank in leaders] == [0, 1]  # one in each stage

    smaller = launched(tmp_path, tp=2, pp=2, dp=1, node="second", no_compile=True)
    assert smaller.totals.num_compiled == 0

    again = launched(tmp_path, tp=2, pp=2, dp=2, node="third", no_compile=True)
    assert (again.totals.num_compiled, again.totals.num_loaded) == (0, 8)
    assert all(rank.verification is not None and rank.verification.ok for rank in again.ranks)
