"""Audits in the plan and the driver, over ranks without torch: who traces, and what a difference leads to."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_rank import FUNCTIONS, FakeWorld
from warmrank.orchestrator.config.models import AuditMode, positions
from warmrank.orchestrator.config.reading import Config, parse
from warmrank.orchestrator.gang.in_process import InProcessLauncher
from warmrank.orchestrator.launch.driver import launch
from warmrank.orchestrator.launch.plan import auditing, begin, plan_round, rank_classes
from warmrank.orchestrator.launch.report import Report
from warmrank.worker.results import FunctionProbe

PREFILL, DECODE = FUNCTIONS


def config_of(directory: Path, *, audit: AuditMode = "one", **parallel: int) -> Config:
    sizes = {"tp": 1, "pp": 1, "dp": 1, **parallel}
    data: dict[str, Any] = {
        "workload": {"entrypoint": "models.tiny:workload"},
        "ranks": sizes["tp"] * sizes["pp"] * sizes["dp"],
        "parallel": sizes,
        "cache_dir": str(directory / "cache"),
        "audit": audit,
    }
    return parse(data)


@pytest.fixture
def world() -> FakeWorld:
    return FakeWorld(functions=(PREFILL,))


def launched(world: FakeWorld, config: Config) -> Report:
    return launch(config, launcher=InProcessLauncher(world.make_worker))


def audits(report: Report) -> list[tuple[str, int, tuple[int, ...], str]]:
    return [(item.function, item.leader, item.ranks, item.outcome) for item in report.course.audits]


def artifacts(report: Report) -> list[str]:
    return [function.digest for rank in report.ranks for function in rank.functions]


def auditors(config: Config, key_of: Any = lambda rank: "same", num_nodes: int = 1) -> dict[int, list[str]]:
    """Auditors of the first round of a cold launch."""
    probes = {
        rank: tuple(
            FunctionProbe(function=name, request_key=key_of(rank), components={}, state="miss", reason="")
            for name in FUNCTIONS
        )
        for rank in range(config.ranks)
    }
    state = begin(probes, audit=config.audit)
    nodes = {rank: rank * num_nodes // config.ranks for rank in probes}
    actions = plan_round(state, max_rounds=4, nodes=nodes, positions=positions(config))
    found = auditing(state, actions)
    for planned in rank_classes(state, actions):
        assert planned.leader not in planned.auditors
        assert all(planned.function in found[rank] for rank in planned.auditors)
    return found


def test_each_class_of_1024_ranks_has_one_auditor(tmp_path: Path) -> None:
    config = config_of(tmp_path, tp=8, pp=4, dp=32)
    found = auditors(config, lambda rank: f"stage {rank // 8 % 4}", num_nodes=128)
    assert Counter(name for names in found.values() for name in names) == {PREFILL: 4, DECODE: 4}


def test_auditor_differs_from_its_leader_on_every_axis_and_in_its_node(tmp_path: Path) -> None:
    config = config_of(tmp_path, tp=2, pp=2, dp=2)
    assert auditors(config, num_nodes=2).keys() == {7, 3}  # of the leaders 0 and 4


def test_equal_traces_are_adopted_in_the_same_round(world: FakeWorld, tmp_path: Path) -> None:
    report = launched(world, config_of(tmp_path, tp=4))
    assert audits(report) == [(PREFILL, 0, (3,), "equal")]
    assert report.totals.num_compiled == 1
    assert {found.round for found in report.course.classes} == {0}


@pytest.mark.parametrize("audit", ["one", "all"])
def test_hidden_difference_splits_the_class_and_is_a_problem(world, tmp_path, audit):
    world.trace_of = lambda rank, function: rank // 2
    report = launched(world, config_of(tmp_path, tp=4, audit=audit))
    digests = artifacts(report)
    assert digests[0] == digests[1] != digests[2] == digests[3]
    assert report.totals.num_compiled == 2
    assert all(f"{PREFILL} is traced otherwise on rank" in problem for problem in report.problems)
    assert "graph 1: trace 0 / trace 1" in report.problems[0]


def test_every_rank_audits_once_a_difference_was_hidden(world: FakeWorld, tmp_path: Path) -> None:
    world.trace_of = lambda rank, function: rank == 7
    report = launched(world, config_of(tmp_path, tp=2, dp=4))
    assert world.called("audit")[0][0] == 7
    assert {rank for rank, _ in world.called("audit")} == set(range(1, 8))
    assert Counter(artifacts(report)).most_common(1)[0][1] == 7
    assert report.totals.num_compiled == 2


def test_difference_that_guards_see_is_no_problem(world: FakeWorld, tmp_path: Path) -> None:
    world.kind_of = lambda rank: rank % 2
    report = launched(world, config_of(tmp_path, tp=2, dp=4))
    assert report.problems == ()
    outcomes = Counter(outcome for *_, outcome in audits(report))
    assert outcomes == {"guarded": 1, "equal": 2}
    assert report.totals.num_compiled == 2
    assert {found.round for found in report.course.classes} == {0, 1}


def test_ranks_that_all_trace_otherwise_compile_for_themselves(world: FakeWorld, tmp_path: Path) -> None:
    world.trace_of = lambda rank, function: rank
    report = launched(world, config_of(tmp_path, tp=6))
    assert len(set(artifacts(report))) == 6
    assert report.totals.num_compiled == 6


def test_audit_whose_leader_fails_is_kept_for_the_next_leader(world: FakeWorld, tmp_path: Path) -> None:
    world.bad_results.add(("compile", 0))
    report = launched(world, config_of(tmp_path, tp=3))
    assert [(item.leader, item.outcome) for item in report.course.audits] == [(1, "equal")]
