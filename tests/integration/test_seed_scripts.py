"""Scripts as the seeds teach them, changed only in import and device, run twice.

The first run is in a fork of a process that has imported the tracer, the second one in a fresh process.
"""

from __future__ import annotations

import ast
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

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


def started(arguments: list[str], work_dir: Path, given: str = "") -> str:
    """What a fresh Python process wrote."""
    result = subprocess.run(
        [sys.executable, *arguments],
        cwd=work_dir,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        input=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr


def events(output: str) -> list[CacheEvent]:
    """What a script logged about its cache as (verb, name, date, path)."""
    found = map(CACHE_LINE.search, output.splitlines())
    return [(m["verb"], m["name"], m["date"], m["path"]) for m in found if m]


class Runs:
    """Runs each script twice in a directory of its own; first runs are all made at the start."""

    def __init__(self, root: Path) -> None:
        self.root = root
        pairs = [(script, self.work_dir(script)) for script in (*FUNCTIONS, *UNKEPT)]
        for _, work_dir in pairs:
            work_dir.mkdir()
        given = json.dumps([[str(path) for path in pair] for pair in pairs])
        found = json.loads(started(["-m", "tests.support.script_child"], ROOT, given))
        self._first = {script: result for (script, _), result in zip(pairs, found, strict=True)}
        self._second: dict[Path, list[CacheEvent]] = {}

    def work_dir(self, script: Path) -> Path:
        return self.root / script.stem

    def first(self, script: Path) -> list[CacheEvent]:
        status, output = self._first[script]
        assert status == 0, output
        return events(output)

    def of(self, script: Path) -> tuple[list[CacheEvent], list[CacheEvent]]:
        first = self.first(script)
        if script not in self._second:
            self._second[script] = events(started([str(script)], self.work_dir(script)))
        return first, self._second[script]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("seeds"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.parametrize("script", FUNCTIONS, ids=lambda script: script.stem)
def test_second_run_loads_what_the_first_one_saved(script: Path, runs: Runs) -> None:
    first, second = runs.of(script)
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
    assert (runs.work_dir(script) / "output.txt").read_text() == PRINTED_BY_GEARS


def test_script_on_every_rank_has_its_own_place_in_the_cache(tmp_path: Path) -> None:
    script = ROOT / "examples" / "plain_script.py"
    common = {**os.environ, "PYTHONPATH": str(ROOT), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script)],
            cwd=tmp_path,
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=200)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    found = sorted(path.parts[-3:-1] for path in tmp_path.rglob("compiled_module"))
    assert found == [
        ("world2global_rank0", "decode"),
        ("world2global_rank0", "prompt"),
        ("world2global_rank1", "decode"),
        ("world2global_rank1", "prompt"),
    ]
