"""The scale benchmark in small: it found what a launch of that size must find, whatever the seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from benchmarks.scale import STAGES
from benchmarks.scale_parts.report import exponent, summary, verdict
from tests.support.processes import PYTHONPATH
from tests.support.stored import REPOSITORY

SIZES = (16, 64)

# All stages of a size in one process, where the benchmark takes one for each to measure their memory.
ONE_PROCESS = """
import json, pathlib, sys
from benchmarks.scale_parts.process import STAGES, measure
ranks, work = int(sys.argv[1]), pathlib.Path(sys.argv[2])
print(json.dumps({stage: measure(stage, ranks, work) for stage in STAGES}))
"""


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    work = tmp_path_factory.mktemp("benchmark")
    file = work / "figures.json"
    script = REPOSITORY / "benchmarks" / "scale.py"
    command = [sys.executable, str(script), "--ranks", "16", "--runs", "1", "--work", str(work)]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    result = subprocess.run(
        [*command, "--json", str(file)],
        cwd=work,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert [path.name for path in work.iterdir()] == [file.name]
    figures = json.loads(file.read_text())
    larger = subprocess.run(
        [sys.executable, "-c", ONE_PROCESS, "64", str(work)],
        env={**environment, "PYTHONPATH": PYTHONPATH},
        capture_output=True,
        text=True,
        check=False,
    )
    assert larger.returncode == 0, larger.stderr
    figures["runs"].append({"ranks": 64, "stages": json.loads(larger.stdout)})
    return {"printed": result.stdout, **figures}


def found(figures: dict[str, Any], ranks: int, stage: str) -> dict[str, Any]:
    (run,) = (run for run in figures["runs"] if run["ranks"] == ranks)
    return dict(run["stages"][stage]["found"])


@pytest.mark.slow
def test_cold_plan_compiles_once_for_each_class_and_again_for_those_that_refuse(figures):
    # Tensor parallel 8: 16 ranks have two pipeline stages, 64 have four; each compiles two functions, twice.
    for ranks, compiled in ((16, 8), (64, 16)):
        expected = {"rounds": 2, "compiled": compiled, "classes": compiled}
        assert found(figures, ranks, "plan")["cold"] == expected


@pytest.mark.slow
def test_warm_and_resized_plans_compile_nothing(figures):
    for ranks in SIZES:
        plan = found(figures, ranks, "plan")
        assert plan["warm"]["compiled"] == plan["resized"]["compiled"] == 0
        assert plan["warm"]["rounds"] == plan["resized"]["rounds"] == 1


def test_what_a_rank_is_sent_does_not_grow_with_the_launch(figures):
    small, large = (found(figures, ranks, "hand-out")["bytes_a_rank"] for ranks in SIZES)
    assert abs(large - small) < 100


def test_every_manifest_is_stored_and_a_warm_launch_finds_the_record_unchanged(figures):
    for ranks in SIZES:
        committed = found(figures, ranks, "commit")
        assert committed["manifests"] == ranks
        assert found(figures, ranks, "look-up")["record"] == committed["record"]


def test_node_gets_the_artifacts_of_its_ranks_and_of_another_size_each_distinct_set(figures):
    for ranks, stages in ((16, 2), (64, 4)):
        own = {"found": True, "partitions": 8, "files": 16, "faults": []}
        assert found(figures, ranks, "look-up")["nodes"] == [own, own]
        other = {"found": True, "partitions": stages, "files": 2 * stages, "faults": []}
        assert found(figures, ranks, "resized")["nodes"] == [other]


def test_table_names_each_stage(figures):
    lines = [line.split()[:2] for line in figures["printed"].splitlines()]
    assert all(["16", stage] in lines for stage in STAGES)


def run_of(ranks: int, seconds: float) -> dict[str, Any]:
    stage = {"seconds": seconds, "cpu_s": seconds, "peak_bytes": 1, "steps": {}}
    return {"ranks": ranks, "stages": dict.fromkeys(STAGES, stage)}


def test_exponent_tells_linear_from_quadratic():
    assert exponent(None, 16, 1.0) is None
    assert exponent({"ranks": 1024, "cpu_s": 1.0}, 4096, 4.0) == pytest.approx(1.0)
    assert exponent({"ranks": 1024, "cpu_s": 1.0}, 4096, 16.0) == pytest.approx(2.0)


def test_fastest_run_counts_and_goals_are_judged_at_the_largest_size():
    lines = summary([run_of(4096, 1.0), run_of(4096, 9.0), run_of(16384, 4.0)], STAGES)
    assert [line["seconds"] for line in lines if line["ranks"] == 4096] == [1.0] * len(STAGES)
    judged = verdict(lines)
    assert (judged["total"]["seconds"], judged["total"]["met"]) == (12.0, False)
    assert judged["growth"]["met"]
