"""The launch benchmark in small: each way did what its name says, whatever the seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from benchmarks.launch_parts.report import report, slope, summary
from tests.support.stored import REPOSITORY


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    file = tmp_path_factory.mktemp("benchmark") / "figures.json"
    command = [sys.executable, str(REPOSITORY / "benchmarks" / "launch.py"), "--quick", "--json", str(file)]
    result = subprocess.run(command, cwd=file.parent, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    return {"printed": result.stdout, **json.loads(file.read_text())}


def run(figures: dict[str, Any], ranks: int, way: str) -> dict[str, Any]:
    (found,) = (item for item in figures["runs"] if (item["ranks"], item["way"]) == (ranks, way))
    return dict(found)


@pytest.mark.slow
@pytest.mark.ray
def test_cold_launch_compiles_on_one_rank_and_the_others_adopt(figures):
    assert run(figures, 1, "cold")["outcomes"] == {"compiled": 2}
    assert run(figures, 2, "cold")["outcomes"] == {"adopted": 2, "compiled": 2}
    assert run(figures, 2, "cold")["distinct"] == 2


@pytest.mark.slow
@pytest.mark.ray
def test_warm_launches_load_and_compile_nothing(figures):
    for ranks in (1, 2):
        for way in ("warm", "node"):
            launched = run(figures, ranks, way)
            assert launched["outcomes"] == {"loaded": 2 * ranks}
            assert "compile" not in launched["stages"]


@pytest.mark.slow
@pytest.mark.ray
def test_ranks_without_warmrank_work_after_building_only_where_the_way_says_so(figures):
    for way in ("build", "groups"):
        assert run(figures, 2, way)["after_build_s"] < run(figures, 2, "fx warm")["after_build_s"]
    assert (
        run(figures, 2, "shared cold")["after_build_cpu_s"]
        > run(figures, 2, "shared warm")["after_build_cpu_s"]
    )


@pytest.mark.slow
@pytest.mark.ray
def test_tables_name_each_number_of_ranks_and_both_goals(figures):
    assert "goals: compile at most 1.2 x" in figures["printed"]
    assert set(figures["summary"]["sizes"]) == {"1", "2"}


def made(ranks: int, way: str, wall_s: float, **more: Any) -> dict[str, Any]:
    taken = {"wall_s": wall_s, "driver_cpu_s": 1.0 + 0.5 * ranks, "ranks_cpu_s": float(ranks)}
    return {"ranks": ranks, "way": way, **taken, **more}


def made_runs(*, compile_s: float) -> list[dict[str, Any]]:
    """One and two ranks; the second rank's launch takes ``compile_s`` in all to compile."""
    runs = []
    for ranks, cpu_s in ((1, 4.0), (2, compile_s)):
        stage = {"seconds": 4.0, "ranks_cpu_s": cpu_s, "driver_cpu_s": 0.1}
        audited = {**stage, "seconds": 5.0, "ranks_cpu_s": 2 * cpu_s}
        audits = {"number": 2, "seconds": 3.0, "cpu_s": 2.5}
        runs += [
            made(ranks, "unaudited", 19.0, stages={"compile": stage}, outcomes={"compiled": 2}),
            made(ranks, "cold", 20.0, stages={"compile": audited}, audits=audits, outcomes={"compiled": 2}),
            made(ranks, "warm", 10.5, stages={"load": stage}, outcomes={"loaded": 2}),
            made(ranks, "warm", 13.0, stages={"load": stage}, outcomes={"loaded": 2}),
            made(ranks, "node", 11.0, stages={"load": stage}, outcomes={"loaded": 2}),
            *(made(ranks, way, 10.0) for way in ("build", "groups", "fx cold", "fx warm")),
            *(made(ranks, way, 10.0) for way in ("shared cold", "shared warm")),
        ]
    return runs


def test_summary_takes_the_fastest_run_of_each_way():
    sizes = summary(made_runs(compile_s=4.0))["sizes"]
    assert sizes["2"]["wall_s"]["warm"] == 10.5
    assert sizes["2"]["warm_over_build"] == pytest.approx(1.05)
    assert sizes["2"]["warm_over_cold"] == pytest.approx(0.525)


@pytest.mark.parametrize(("compile_s", "is_met"), [(4.7, True), (8.0, False)])
def test_compile_goal_compares_all_ranks_with_one(compile_s, is_met):
    found = summary(made_runs(compile_s=compile_s))
    assert found["sizes"]["2"]["compile_ratio"] == pytest.approx(compile_s / 4.0)
    assert found["goals"] == {"compile": is_met, "warm": True}


def test_summary_has_the_cost_of_audits_beside_the_compiles(capsys):
    found = summary(made_runs(compile_s=4.0))
    audit = found["sizes"]["2"]["audit"]
    assert audit["wall_ratio"] == pytest.approx(1.25)
    assert audit["cpu_ratio"] == pytest.approx(2.0)
    assert (audit["number"], audit["seconds"], audit["cpu_s"]) == (2, 3.0, 2.5)
    report(found)
    assert "audits  took s   CPU s" in capsys.readouterr().out


def test_slope_is_what_each_further_rank_adds():
    assert slope({1: 1.5, 2: 2.0, 4: 3.0, 8: 5.0}) == pytest.approx(0.5)
    assert slope({4: 3.0}) == 0.0


def test_report_says_which_goal_was_missed(capsys):
    report(summary(made_runs(compile_s=8.0)))
    assert (
        "compile at most 1.2 x: missed; warm at most 1.1 x of the plain program: met"
        in capsys.readouterr().out
    )
