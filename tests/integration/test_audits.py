"""Audits with real workers: a value that hides from every condition is found before a rank adopts it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.config.reading import Config, parse
from orchestrator.launch.driver import launch
from orchestrator.show.report import Report
from tests.support.hidden_ranks import HidingLauncher

HIDDEN = {"entrypoint": "tests.support.hidden_ranks:workload"}
SCALED, PLAIN = "Scaled.scaled", "Scaled.plain"


@pytest.fixture(autouse=True)
def recursion_limit() -> Iterator[None]:
    before = sys.getrecursionlimit()
    yield
    sys.setrecursionlimit(before)


def config_of(root: Path, num_ranks: int = 4, **changes: Any) -> Config:
    data = {
        "workload": HIDDEN,
        "ranks": num_ranks,
        "parallel": {"tp": 2, "dp": num_ranks // 2},
        "cache_dir": str(root / "cache"),
        **changes,
    }
    return parse(data)


def artifacts(report: Report, name: str) -> list[str]:
    return [found.digest for rank in report.ranks for found in rank.functions if found.function == name]


@pytest.mark.parametrize("audit", ["one", "all"])
def test_rank_dependence_behind_all_guards_is_found(tmp_path: Path, audit: str) -> None:
    report = launch(config_of(tmp_path, audit=audit), launcher=HidingLauncher())
    assert all(rank.verification is not None and rank.verification.ok for rank in report.ranks)
    first, second, *others = artifacts(report, SCALED)
    assert first != second
    assert others == [first, second]
    assert len(set(artifacts(report, PLAIN))) == 1
    assert "Scaled.scaled is traced otherwise on rank" in report.problems[0]
    assert "graph " in report.problems[0]
    assert "tests.support.hidden_ranks" in report.problems[0]


def test_without_an_audit_it_is_not(tmp_path: Path) -> None:
    from orchestrator.errors import LaunchFailed

    with pytest.raises(LaunchFailed, match="arithmetic"):
        launch(config_of(tmp_path, 2, audit="off"), launcher=HidingLauncher())


def test_audit_of_equal_ranks_finds_nothing(tmp_path: Path) -> None:
    config = config_of(tmp_path, 2, workload={"entrypoint": "tests.support.tiny_workload:workload"})
    from orchestrator.gang.in_process import InProcessLauncher

    report = launch(config, launcher=InProcessLauncher())
    assert [item.outcome for item in report.course.audits] == ["equal", "equal"]
    assert report.problems == ()
    assert all(item.seconds > 0 and item.cpu_s > 0 for item in report.course.audits)
