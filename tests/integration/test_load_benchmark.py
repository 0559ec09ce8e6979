"""The load benchmark in small: each way did what its name says, whatever the seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.load_parts.report import report, summary, targets
from tests.support.stored import REPOSITORY

SCRIPT = REPOSITORY / "benchmarks" / "load.py"


def run(file: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--layers", "1", "--runs", "1", "--rounds", "3", *options]
    return subprocess.run(
        [*command, "--json", str(file)], cwd=file.parent, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    file = tmp_path_factory.mktemp("benchmark") / "figures.json"
    result = run(file, "--ways", "eager,npugraph_ex,warmrank_reduce_overhead")
    assert result.returncode == 0, result.stderr
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    return {"printed": result.stdout, **json.loads(file.read_text())}


@pytest.mark.slow
def test_warm_process_loads_and_imports_no_tracer(figures):
    [warm] = figures["layers"]["1"]["runs"]["warmrank_reduce_overhead.warm"]
    assert (warm["outcome"], warm["imported"]) == ("loaded", [])
    assert 0 < warm["load_s"] < warm["first_output_s"]


@pytest.mark.slow
def test_filling_process_compiles(figures):
    [fill] = figures["layers"]["1"]["runs"]["warmrank_reduce_overhead.fill"]
    assert fill["outcome"] == "compiled"


@pytest.mark.slow
def test_outputs_were_compared_with_eager(figures):
    runs = figures["layers"]["1"]["runs"]
    assert all(run["largest_difference"] < 1e-4 for run in runs["warmrank_reduce_overhead.warm"])


@pytest.mark.slow
def test_kernel_alone_is_timed_beside_the_call(figures):
    [warm] = figures["layers"]["1"]["runs"]["warmrank_reduce_overhead.warm"]
    assert warm["kernel_s"] > 0
    assert warm["second_call_s"] > 0
    assert "kernel_s" not in figures["layers"]["1"]["runs"]["eager.warm"][0]


@pytest.mark.slow
def test_way_that_is_not_installed_says_so_in_its_row(figures):
    row = figures["layers"]["1"]["summary"]["npugraph_ex.warm"]
    assert row["not_here"].startswith("not installed")
    assert "not installed" in figures["printed"]


@pytest.mark.slow
def test_place_names_hardware_versions_and_threads(figures):
    assert {"cpu", "cpus", "threads", "python", "torch", "kernel"} <= figures["place"].keys()


def test_unknown_way_is_refused_with_the_known_ones(tmp_path):
    result = run(tmp_path / "figures.json", "--ways", "eagre")
    assert result.returncode == 2
    assert "unknown ways eagre; known: eager, inductor" in result.stderr


def figures_of(first_output_s: float, call_s: float, **more: float) -> dict[str, float]:
    return {
        "first_output_s": first_output_s,
        "second_call_s": call_s,
        "call_s": call_s,
        "eager_call_s": 1.0,
        "num_parameters": 10,
        **more,
    }


def test_target_takes_the_fastest_of_torchs_warm_caches():
    rows = summary(
        {
            "inductor.warm": [figures_of(3.0, 0.5)],
            "aot_compile.warm": [figures_of(2.0, 0.5)],
            "warmrank_max_autotune.warm": [figures_of(0.01, 0.25, load_s=0.004, dispatch_s=15e-6)],
        }
    )
    found = {name: (figure, limit, side) for name, figure, limit, side in targets(8, rows)}
    assert found == {
        "first output: fastest of torch's warm caches / max-autotune": (200.0, 100, "above"),
        "later call: torch.compile / max-autotune": (2.0, 1, "above"),
        "max-autotune: load (ms a layer)": (0.5, 1, "below"),
        "max-autotune: dispatch over the bare kernel (us)": (pytest.approx(15.0), 21.0, "below"),
    }


def test_row_is_the_median_of_its_processes():
    runs = [figures_of(seconds, 0.5) for seconds in (1.0, 9.0, 2.0)]
    assert summary({"eager.warm": runs})["eager.warm"]["first_output_s"] == 2.0


def test_missed_target_is_called_missed():
    rows = {"warmrank_max_autotune.warm": {**figures_of(1, 1), "call_ratio": 1, "load_s": 0.5}}
    printed: list[str] = []
    report(2, rows, printed.append)
    assert any("load (ms a layer)" in line and "MISSED: below 1" in line for line in printed)
