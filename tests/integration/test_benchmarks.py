"""Benchmarks in small: each way did what its name says, whatever the seconds; goals are judged by figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.checkout import ROOT

pytestmark = pytest.mark.slow


def run(script: str, root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    path = str(ROOT / "benchmarks" / f"{script}.py")
    command = [sys.executable, path, *options, "--json", str(root / "figures.json")]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, cwd=root, env=environ, capture_output=True, text=True, check=False)


def figures(script: str, root: Path, *options: str) -> dict[str, Any]:
    """What a benchmark measured; it leaves nothing else behind."""
    done = run(script, root, *options)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in root.iterdir()] == ["figures.json"]
    return {"printed": done.stdout, **json.loads((root / "figures.json").read_text())}


def test_store_reads_hashes_and_writes_each_distinct_byte_once(tmp_path):
    found = figures("store", tmp_path, "--small", "--work", str(tmp_path))
    documents = 500_000  # are hashed beside the files, before they are sealed and after
    assert (found["num_files"], found["num_unique"]) == (100, 40)
    assert 0 <= found["publish"]["bytes_hashed"] - found["unique_bytes"] < documents
    if "skipped" not in found["publish_again"]:
        assert found["publish_again"]["bytes_hashed"] < found["unique_bytes"] / 100
    assert found["fetch"]["bytes_read"] == found["unique_bytes"]
    assert 0 <= found["fetch"]["bytes_hashed"] - found["unique_bytes"] < documents
    assert 0 <= found["fetch"]["peak_bytes"] < 200 << 20
    for verb in ("publish", "fetch"):
        assert found[verb]["ratio"] == found[verb]["ours_s"] / found[verb]["theirs_s"] > 0
        assert f"\n{verb} " in found["printed"]
    # FORMAT, the record, three blobs of all ranks and one of each stage, of which there are up to eight.
    expected = {world: 5 + min(world, 8) + world for world in (4, 16)}
    assert {item["world_size"]: item["store_files"] for item in found["launches"]} == expected
    xfs = found["xfs"]
    assert xfs.get("skipped") or xfs["fetch"]["bytes_read"] == xfs["unique_bytes"]


def test_scale_compiles_once_a_class_and_hands_every_rank_as_much(tmp_path):
    options = ("--ranks", "16,64", "--runs", "1", "--work", str(tmp_path))
    runs = {run["ranks"]: run["stages"] for run in figures("scale", tmp_path, *options)["runs"]}
    found = {ranks: {name: stage["found"] for name, stage in of.items()} for ranks, of in runs.items()}
    # Tensor parallel 8: 16 ranks have two pipeline stages, 64 have four; each compiles two functions, twice.
    for ranks, stages in ((16, 2), (64, 4)):
        plan, num_compiled = found[ranks]["plan"], 4 * stages
        assert plan["cold"] == {"rounds": 2, "compiled": num_compiled, "classes": num_compiled}
        assert plan["warm"]["compiled"] == plan["resized"]["compiled"] == 0
        assert found[ranks]["commit"]["manifests"] == ranks
        assert found[ranks]["look-up"]["record"] == found[ranks]["commit"]["record"]
        own = {"found": True, "partitions": 8, "files": 16, "faults": []}
        assert found[ranks]["look-up"]["nodes"] == [own, own]
        other = {"found": True, "partitions": stages, "files": 2 * stages, "faults": []}
        assert found[ranks]["resized"]["nodes"] == [other]
    small, large = (found[ranks]["hand-out"]["bytes_a_rank"] for ranks in (16, 64))
    assert abs(large - small) < 100


@pytest.mark.ray
def test_launches_compile_on_one_rank_and_load_afterwards(tmp_path):
    found = figures("launch", tmp_path, "--quick")
    runs = {(run["ranks"], run["way"]): run for run in found["runs"]}
    assert runs[1, "cold"]["outcomes"] == {"compiled": 2}
    assert runs[2, "cold"]["outcomes"] == {"adopted": 2, "compiled": 2}
    for ranks in (1, 2):
        for way in ("warm", "node"):
            assert runs[ranks, way]["outcomes"] == {"loaded": 2 * ranks}
            assert "compile" not in runs[ranks, way]["stages"]
    for way in ("build", "groups"):
        assert runs[2, way]["after_build_s"] < runs[2, "fx warm"]["after_build_s"]
    assert "goals: compile at most 1.2 x" in found["printed"]


def test_loads_import_no_tracer_and_equal_eager(tmp_path):
    ways = "eager,npugraph_ex,warmrank_reduce_overhead"
    found = figures("load", tmp_path, *("--layers", "1", "--runs", "1", "--rounds", "3", "--ways", ways))
    runs = found["layers"]["1"]["runs"]
    [fill], [warm] = (runs[f"warmrank_reduce_overhead.{stage}"] for stage in ("fill", "warm"))
    assert (fill["outcome"], warm["outcome"], warm["imported"]) == ("compiled", "loaded", [])
    assert 0 < warm["load_s"] < warm["first_output_s"]
    assert warm["largest_difference"] < 1e-4
    assert found["layers"]["1"]["summary"]["npugraph_ex.warm"]["not_here"].startswith("not installed")
    assert {"cpu", "cpus", "threads", "python", "torch", "kernel"} <= found["place"].keys()


def test_memory_of_shared_pools_is_that_of_the_largest_gear(tmp_path):
    found = figures("memory", tmp_path, "--small", "--lines", "one function")
    lines = found["lines"]
    assert {(line["captures"], line["recaptures"]) for line in lines} == {(found["shape"]["gears"], 0)}
    assert max(line["largest_difference"] for line in lines) < 1e-5

    def of(**modes: bool) -> list[dict[str, Any]]:
        asked = {"rising": False, **modes}.items()
        return [line for line in lines if all(line["modes"][name] == value for name, value in asked)]

    assert all(line["num_pools"] == 1 and 1 <= line["ratio"] <= 1.1 for line in of(two=True))
    [cloned], [not_cloned] = of(two=False, three=True), of(two=True, three=False)
    assert cloned["pool_bytes"] == sum(found["alone"]["cloned"])
    assert not_cloned["pool_bytes"] < of(two=True, three=True)[0]["pool_bytes"]
    assert found["met"]


def test_build_compiles_each_stage_once(tmp_path):
    sizes = {"--ranks": "8", "--tp": "1", "--pp": "2", "--layers": "2", "--dim": "32", "--jobs": "2"}
    found = figures("build", tmp_path, *(text for pair in sizes.items() for text in pair))
    assert (found["num_classes"], found["num_compiled"], found["num_partitions"]) == (2, 2, 8)
    assert found["of_compiles"] == found["total_s"] / found["compiles_s"]
