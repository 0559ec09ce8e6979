"""Compiles that fail in a launch: retried once elsewhere, no reason to stop who does not need them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_rank import FUNCTIONS, FakeWorld
from tests.support.launching import NodeLauncher, Recorder
from warmrank.orchestrator.causes import WorkerFailure
from warmrank.orchestrator.config.reading import parse
from warmrank.orchestrator.errors import LaunchFailed
from warmrank.orchestrator.launch import steps
from warmrank.orchestrator.launch.driver import launch
from warmrank.orchestrator.launch.failures import Compiling
from warmrank.orchestrator.launch.rounds import settle_all
from warmrank.orchestrator.launch.stages import Stages

NODES = ("a", "a", "b", "b")
PREFILL, DECODE = FUNCTIONS


class Rounds:
    """The rounds of launches of four ranks on two nodes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.world = FakeWorld()
        self.recorder = Recorder()

    def __call__(
        self, avoid: Iterable[Compiling] = (), *, nodes: tuple[str, ...] = NODES, host: str = ""
    ) -> Any:
        self.world.calls.clear()
        self.recorder = Recorder()
        launcher = NodeLauncher(nodes, self.root, self.world.make_worker, host=host)
        return self.on(launcher, nodes, avoid)

    def on(self, launcher: NodeLauncher, nodes: tuple[str, ...], avoid: Iterable[Compiling] = ()) -> Any:
        num_ranks = len(nodes)
        config = parse({"workload": {"entrypoint": "a:b"}, "ranks": num_ranks, "parallel": {"dp": num_ranks}})
        stages = Stages(config, launcher, self.recorder)
        steps.start(stages, None, no_compile=False)
        steps.build(stages)
        probes = steps.probe(stages)
        return settle_all(stages, probes, no_compile=False, avoid=avoid)

    def compiled(self) -> list[tuple[int, str]]:
        return [(rank, *functions) for rank, functions in self.world.called("compile")]


@pytest.fixture
def rounds(tmp_path: Path) -> Rounds:
    return Rounds(tmp_path)


def fail(rounds: Rounds, *ranks: int, error: Exception | None = None) -> None:
    rounds.world.raises = {("compile", rank): error or RuntimeError("no such luck") for rank in ranks}


def test_failed_compile_is_retried_on_another_node(rounds: Rounds) -> None:
    fail(rounds, 0)
    ledger = rounds()
    assert rounds.compiled() == [(0, PREFILL), (2, DECODE), (2, PREFILL)]
    assert {slot: result.outcome for slot, result in ledger.items() if slot[1] == PREFILL} == {
        (0, PREFILL): "adopted",
        (1, PREFILL): "adopted",
        (2, PREFILL): "compiled",
        (3, PREFILL): "adopted",
    }


def broken_prefill(rounds: Rounds) -> LaunchFailed:
    """Prefill compiles nowhere, decode everywhere."""
    rounds.world.broken = {PREFILL: "GraphBreak: line 3"}
    with pytest.raises(LaunchFailed) as caught:
        rounds()
    return caught.value


def test_second_failure_ends_the_launch_when_the_others_have_loaded(rounds: Rounds) -> None:
    error = broken_prefill(rounds)
    assert error.stage == "compile"
    assert [(failure.rank, failure.kind, failure.function) for failure in error.failures] == [
        (0, "GraphBreak", PREFILL),
        (2, "GraphBreak", PREFILL),
    ]
    assert {slot for slot in rounds.world.held if slot[1] == DECODE} == {(rank, DECODE) for rank in range(4)}


def test_error_of_the_function_itself_is_not_tried_on_another_leader(rounds: Rounds) -> None:
    rounds.world.broken = {PREFILL: "FunctionRaised: ValueError: bad shape (m.py:3 in M.prefill)"}
    with pytest.raises(LaunchFailed) as caught:
        rounds()
    assert rounds.compiled() == [(0, PREFILL), (2, DECODE)]
    assert [(failure.rank, failure.kind) for failure in caught.value.failures] == [(0, "FunctionRaised")]
    assert caught.value.failures[0].message == "ValueError: bad shape (m.py:3 in M.prefill)"
    assert caught.value.failures[0].remedy.startswith("correct that line")
    assert not rounds.recorder.problems
    assert {slot for slot in rounds.world.held if slot[1] == DECODE} == {(rank, DECODE) for rank in range(4)}


def test_error_names_function_leaders_nodes_cause_and_ranks_that_wait(rounds: Rounds) -> None:
    text = str(broken_prefill(rounds))
    assert "stage compile failed on 2 of 4 ranks" in text
    assert f"ranks 0, 2 on a, b: GraphBreak in {PREFILL}: line 3" in text
    assert "rank 0 on node 0 (a), rank 2 on node 1 (b)" in text
    assert "for ranks 0-3" in text
    assert text.count("line 3") == 1


def test_next_launch_compiles_only_what_failed(rounds: Rounds) -> None:
    broken_prefill(rounds)
    rounds.world.broken = {}
    rounds()
    assert rounds.compiled() == [(0, PREFILL)]


class DeadlyLauncher(NodeLauncher):
    """A rank dies, once, while ranks compile."""

    victim = 0
    is_dead = False

    def call(
        self, stage: str, method: str, arguments: Mapping[int, tuple[Any, ...]], *, timeout_s: float
    ) -> Iterator[tuple[int, Any]]:
        if method == "compile" and not self.is_dead:
            self.is_dead = True
            died = WorkerFailure(rank=self.victim, stage=stage, kind="died", message="its process ended")
            yield self.victim, died
            return
        yield from super().call(stage, method, arguments, timeout_s=timeout_s)


def cut(rounds: Rounds, *, host: str = "") -> LaunchFailed:
    launcher = DeadlyLauncher(NODES, rounds.root, rounds.world.make_worker, host=host)
    with pytest.raises(LaunchFailed) as caught:
        rounds.on(launcher, NODES)
    return caught.value


def test_leader_that_dies_says_what_it_compiled_where(rounds: Rounds) -> None:
    error = cut(rounds)
    found = [(lost.function, lost.rank, lost.node_id, lost.host) for lost in error.compiling]
    assert found == [(PREFILL, 0, "a", "a")]
    assert [failure.kind for failure in error.failures] == ["died"]
    assert error.silent == (1, 2, 3)  # a leader and the auditors


def test_launch_goes_on_in_another_attempt_with_another_leader(rounds: Rounds, tmp_path: Path) -> None:
    launcher = DeadlyLauncher(NODES, tmp_path, rounds.world.make_worker)
    config = parse({"workload": {"entrypoint": "a:b"}, "ranks": 4, "parallel": {"dp": 4}})
    report = launch(config, launcher=launcher)
    compiled = [
        (rank.host, found.function)
        for rank in report.ranks
        for found in rank.functions
        if found.outcome == "compiled"
    ]
    assert sorted(compiled) == [("a", DECODE), ("b", PREFILL)]


def test_next_attempt_compiles_it_on_another_node(rounds: Rounds) -> None:
    lost = cut(rounds).compiling
    rounds(lost)
    assert (2, PREFILL) in rounds.compiled()
