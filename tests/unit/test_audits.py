"""Audits in the plan and the driver, over ranks without torch: who traces, and what a difference leads to."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.fake_rank import FUNCTIONS, FakeWorld
from warmrank.inference import cache_compile
from warmrank.orchestrator.config.models import AuditMode
from warmrank.orchestrator.config.reading import Config, parse
from warmrank.orchestrator.gang.in_process import InProcessLauncher
from warmrank.orchestrator.launch.driver import launch
from warmrank.orchestrator.launch.report import Report
from warmrank.worker.configs.compiler_config import CompilerConfig
from warmrank.worker.rank.audit import TracePrint, first_difference, print_of
from warmrank.worker.runtime.files import release
from warmrank.worker.runtime.find import StoredArtifact
from warmrank.worker.runtime.function import CachedFunction

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


def test_difference_that_guards_see_is_no_problem(world: FakeWorld, tmp_path: Path) -> None:
    world.kind_of = lambda rank: rank % 2
    report = launched(world, config_of(tmp_path, tp=2, dp=4))
    assert report.problems == ()
    outcomes = Counter(outcome for *_, outcome in audits(report))
    assert outcomes == {"guarded": 1, "equal": 2}
    assert report.totals.num_compiled == 2
    assert {found.round for found in report.course.classes} == {0, 1}


class Sliced(torch.nn.Module):
    def __init__(self, size: int, name: str = "") -> None:
        super().__init__()
        self.size, self.name = size, name

    def head(self, x: torch.Tensor) -> torch.Tensor:
        return x[: self.size] * 2 if not self.name else x + 1


def outlined(cache: Path, *, size: int = 2, name: str = "", rows: int = 4, **options: Any) -> TracePrint:
    function = cache_compile(Sliced(size, name).head, cache_dir=str(cache), **options)
    assert isinstance(function, CachedFunction)
    return print_of(function.outline((torch.ones(rows),), {}))


def test_outline_is_what_a_compile_traces(tmp_path: Path) -> None:
    function = cache_compile(Sliced(2).head, cache_dir=str(tmp_path))
    variant = function.compile((torch.ones(4),), {}, reason="")
    assert print_of(variant.stored.artifact) == outlined(tmp_path)
    assert print_of(StoredArtifact.read(variant.stored.path).artifact) == outlined(tmp_path)


@pytest.mark.slow  # it calls the C++ compiler
@pytest.mark.parametrize("dynamic", [True, False])
def test_outline_is_what_a_compile_with_kernels_traces(tmp_path: Path, dynamic: bool) -> None:
    config = CompilerConfig()
    config.mode = "max-autotune"
    function = cache_compile(Sliced(2).head, cache_dir=str(tmp_path), config=config, dynamic=dynamic)
    variant = function.compile((torch.ones(4),), {}, reason="")
    outline = outlined(tmp_path, config=config, dynamic=dynamic)
    assert first_difference(print_of(variant.stored.artifact), outline) == ""


@pytest.mark.parametrize("dynamic", [True, False])
def test_outline_makes_no_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dynamic: bool) -> None:
    config = CompilerConfig()
    config.mode = "max-autotune"
    monkeypatch.setenv("PATH", "")  # so that there is no compiler
    found = outlined(tmp_path, config=config, dynamic=dynamic)
    assert any("mul" in line for line in found.parts["graph"])


def test_sizes_of_the_very_call_are_no_part_of_a_dynamic_outline_with_kernels(tmp_path: Path) -> None:
    config = CompilerConfig()
    config.mode = "max-autotune"
    four, five = (outlined(tmp_path, config=config, dynamic=True, rows=rows) for rows in (4, 5))
    assert first_difference(four, five) == ""


def test_difference_of_graphs_names_line_and_source(tmp_path: Path) -> None:
    difference = first_difference(outlined(tmp_path), outlined(tmp_path, size=3))
    assert difference.startswith("graph ")
    assert "0, 2)" in difference
    assert "0, 3)" in difference
    assert "Sliced.head: return x[: self.size] * 2" in difference


def test_withheld_artifact_is_its_own_partitions_alone(tmp_path: Path) -> None:
    from warmrank.worker.runtime.options import LaunchDefaults, launch_scope

    def found(rank: int) -> str:
        with launch_scope.of(LaunchDefaults(place=(rank, 2))):
            function = cache_compile(Sliced(2).head, cache_dir=str(tmp_path))
            if rank == 0 and not list(tmp_path.rglob("compiled_module")):
                function.compile((torch.ones(4),), {}, reason="", withheld=True)
            found = function.find((torch.ones(4),), {})
        return found.reason if found.stored is None else "own" if found.own else "sibling's"

    assert found(0) == "own"
    assert "has not compared it" in found(1)
    (path,) = tmp_path.rglob(".withheld_*")
    release(path.parent, path.name.removeprefix(".withheld_"))
    assert found(1) == "sibling's"
