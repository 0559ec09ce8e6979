"""Scripts as the seeds teach them, changed only in import and device, run twice.

The first run is in a fork of a process that has imported the tracer, the second one in a fork of a process
that has not.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from tests.support.processes import PYTHONPATH
from tests.support.ray_cluster import free_ports
from tests.support.script_child import ScriptJob

ROOT = Path(__file__).parents[2]
SEEDS = ROOT / "tests" / "support" / "seeds"
CACHE_LINE = re.compile(
    r"\[INFO\] TORCHAIR.*\d{4}-\d\d-\d\d \d\d:\d\d:\d\d.* Cache "
    r"ModelCacheMeta\(name=(?P<quote>['\"])(?P<name>.+)(?P=quote), "
    r"date='(?P<date>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6})', version='\d+\.\d+\.\d+', fx=None\) "
    r"(?P<verb>saved to|loaded from) (?P<path>\S+)"
)


FUNCTIONS = {
    SEEDS / "input_meta.py": ["prompt", "decode"],
    SEEDS / "add.py": ["_forward"],
    SEEDS / "decomposition.py": ["inner_forward", "products"],
    SEEDS / "memory_reuse.py": ["inner_forward"],
    SEEDS / "prefill_decode.py": ["prefill", "decode"],
    SEEDS / "backend.py": ["add", "subtract"],
    SEEDS / "statics.py": ["decode", "decode"],  # with all arguments, and without the optional ones
}
ACLGRAPH = SEEDS / "aclgraph.py"
GEARS = (SEEDS / "gears_zip.py", SEEDS / "gears_product.py")
UNKEPT = (ACLGRAPH, SEEDS / "input_meta_compiled.py", *GEARS)
PRINTED_BY_GEARS = f"{torch.full((2, 2), 2.0)}\n{torch.full((4, 2), 2.0)}\n"

CacheEvent = tuple[str, str, str, str]


def ran(groups: list[list[ScriptJob]], *options: str) -> list[tuple[int, str]]:
    """Exit status and output of each job; those of a group run at the same time."""
    result = subprocess.run(
        [sys.executable, "-m", "tests.support.script_child", *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "1"},
        input=json.dumps([[asdict(job) for job in group] for group in groups]),
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return [(status, output) for status, output in json.loads(result.stdout)]


def events(output: str) -> list[CacheEvent]:
    """What a script logged about its cache as (verb, name, date, path)."""
    found = map(CACHE_LINE.search, output.splitlines())
    return [(m["verb"], m["name"], m["date"], m["path"]) for m in found if m]


class Runs:
    """Runs each script twice in a directory of its own: all first runs, then all second ones."""

    def __init__(self, root: Path) -> None:
        self.root = root
        scripts = (*FUNCTIONS, *UNKEPT)
        for script in scripts:
            self.work_dir(script).mkdir()
        first = ran([[self._job(script)] for script in scripts])
        self._first = dict(zip(scripts, first, strict=True))
        second = ran([[self._job(script)] for script in FUNCTIONS], "--untraced")
        self._second = dict(zip(FUNCTIONS, second, strict=True))

    def work_dir(self, script: Path) -> Path:
        return self.root / script.stem

    def first(self, script: Path) -> list[CacheEvent]:
        return _events_of(self._first[script])

    def second(self, script: Path) -> list[CacheEvent]:
        return _events_of(self._second[script])

    def printed(self, script: Path) -> str:
        """What the first run wrote."""
        return self._first[script][1]

    def _job(self, script: Path) -> ScriptJob:
        return ScriptJob(script=str(script), work_dir=str(self.work_dir(script)))


def _events_of(result: tuple[int, str]) -> list[CacheEvent]:
    status, output = result
    assert status == 0, output
    return events(output)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("seeds"))


@pytest.mark.parametrize("script", FUNCTIONS, ids=lambda script: script.stem)
def test_second_run_loads_what_the_first_one_saved(script: Path, runs: Runs) -> None:
    first, second = runs.first(script), runs.second(script)
    functions = FUNCTIONS[script]
    assert [verb for verb, *_ in first] == ["saved to"] * len(functions)
    assert [verb for verb, *_ in second] == ["loaded from"] * len(functions)
    assert [entry[1:] for entry in first] == [entry[1:] for entry in second]
    for (_, name, _, path), function in zip(first, functions, strict=True):
        assert f".{function}(" in name
        assert Path(path).stem == "compiled_module"
        assert Path(path).parent.name == function
        assert Path(path).is_relative_to(runs.work_dir(script) / ".torchair_cache")
        assert "_dynamic_aclgraphcache_" in path


def test_readable_cache_writes_a_file_that_python_parses(runs: Runs) -> None:
    runs.first(SEEDS / "add.py")
    text = (runs.work_dir(SEEDS / "add.py") / "readable.py").read_text()
    ast.parse(text)
    assert "aten_add" in text


def test_custom_decomposition_takes_effect(runs: Runs) -> None:
    runs.first(SEEDS / "decomposition.py")
    text = (runs.work_dir(SEEDS / "decomposition.py") / "readable.py").read_text()
    assert "aten_bmm" in text
    code = ast.unparse(ast.parse(text))  # without the comments, which quote the user's lines
    assert "addbmm" not in code.partition("graph(")[2]


@pytest.mark.parametrize("script", UNKEPT, ids=lambda script: script.stem)
def test_script_with_torch_compile_runs_end_to_end_and_keeps_nothing(script: Path, runs: Runs) -> None:
    """The scripts compare their outputs themselves."""
    assert runs.first(script) == []
    assert list(runs.work_dir(script).glob(".torchair_cache")) == []


@pytest.mark.parametrize("script", GEARS, ids=lambda script: script.stem)
def test_gears_script_prints_the_sums(script: Path, runs: Runs) -> None:
    runs.first(script)
    assert runs.printed(script) == PRINTED_BY_GEARS


def test_script_on_every_rank_has_its_own_place_in_the_cache(tmp_path: Path) -> None:
    script = ROOT / "examples" / "plain_script.py"
    (port,) = free_ports(1)
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        ScriptJob(
            script=str(script),
            work_dir=str(tmp_path),
            environment={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]
    results = ran([ranks])
    assert [status for status, _ in results] == [0, 0], results
    found = sorted(path.parts[-3:-1] for path in tmp_path.rglob("compiled_module"))
    assert found == [
        ("world2global_rank0", "decode"),
        ("world2global_rank0", "prompt"),
        ("world2global_rank1", "decode"),
        ("world2global_rank1", "prompt"),
    ]
