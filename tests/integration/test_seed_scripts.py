"""Scripts as the seeds teach them, changed only in import and device, run twice.

The first run is in a fork of a process that has imported the tracer, the second one in a fork of a process
that has not.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.processes import python
from tests.support.ray_cluster import free_ports
from tests.support.script_child import ScriptJob
from tests.support.selected import selected

ROOT = Path(__file__).parents[2]
SEEDS = ROOT / "tests" / "support" / "seeds"
CACHE_LINE = re.compile(
    r"\[INFO\] TORCHAIR.*\d{4}-\d\d-\d\d \d\d:\d\d:\d\d.* Cache "
    r"ModelCacheMeta\(name=(?P<quote>['\"])(?P<name>.+)(?P=quote), "
    r"date='(?P<date>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6})', version='\d+\.\d+\.\d+', fx=None\) "
    r"(?P<verb>saved to|loaded from) (?P<path>\S+)"
)


FUNCTIONS = {
    "add": ["_forward"],
    "decomposition": ["inner_forward", "products"],
    "prefill_decode": ["prefill", "decode"],
    "input_meta": ["prompt", "decode"],
    "memory_reuse": ["inner_forward"],
    "backend": ["add", "subtract"],
    "statics": ["decode", "decode"],  # with all arguments, and without the optional ones
}
UNKEPT = ("gears", "aclgraph")
QUICK = ("add", "gears")
PRINTED_BY_GEARS = f"{torch.full((2, 2), 2.0)}\n{torch.full((4, 2), 2.0)}\n" * 2


def scripts(names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in names]


CacheEvent = tuple[str, str, str, str]


def ran(groups: list[list[ScriptJob]], *options: str) -> list[tuple[int, str]]:
    """Exit status and output of each job; those of a group run at the same time."""
    jobs = json.dumps([[asdict(job) for job in group] for group in groups])
    printed = python("-m", "tests.support.script_child", *options, given=jobs)
    return [(status, output) for status, output in json.loads(printed)]


def events(output: str) -> list[CacheEvent]:
    """What a script logged about its cache as (verb, name, date, path)."""
    found = map(CACHE_LINE.search, output.splitlines())
    return [(m["verb"], m["name"], m["date"], m["path"]) for m in found if m]


class Runs:
    """Runs scripts twice in a directory of their own: all first runs, then all second ones."""

    def __init__(self, root: Path, names: Sequence[str]) -> None:
        self.root = root
        for name in names:
            self.work_dir(name).mkdir()
        kept = [name for name in names if name in FUNCTIONS]
        self._first = dict(zip(names, ran([[self._job(name)] for name in names]), strict=True))
        second = ran([[self._job(name)] for name in kept], "--untraced")
        self._second = dict(zip(kept, second, strict=True))

    def work_dir(self, name: str) -> Path:
        return self.root / name

    def first(self, name: str) -> list[CacheEvent]:
        return _events_of(self._first[name])

    def second(self, name: str) -> list[CacheEvent]:
        return _events_of(self._second[name])

    def printed(self, name: str) -> str:
        """What the first run wrote."""
        return self._first[name][1]

    def _job(self, name: str) -> ScriptJob:
        return ScriptJob(script=str(SEEDS / f"{name}.py"), work_dir=str(self.work_dir(name)))


def _events_of(result: tuple[int, str]) -> list[CacheEvent]:
    status, output = result
    assert status == 0, output
    return events(output)


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Runs of the scripts that this session asks for."""
    asked = selected(request, "script")
    names = [name for name in (*FUNCTIONS, *UNKEPT) if name in asked]
    return Runs(tmp_path_factory.mktemp("seeds"), names)


@pytest.mark.parametrize("script", scripts(FUNCTIONS))
def test_second_run_loads_what_the_first_one_saved(script: str, runs: Runs) -> None:
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


@pytest.mark.parametrize("script", ["add"])
def test_readable_cache_writes_a_file_that_python_parses(script: str, runs: Runs) -> None:
    runs.first(script)
    text = (runs.work_dir(script) / "readable.py").read_text()
    ast.parse(text)
    assert "aten_add" in text


@pytest.mark.slow
@pytest.mark.parametrize("script", ["decomposition"])
def test_custom_decomposition_takes_effect(script: str, runs: Runs) -> None:
    runs.first(script)
    text = (runs.work_dir(script) / "readable.py").read_text()
    assert "aten_bmm" in text
    code = ast.unparse(ast.parse(text))  # without the comments, which quote the user's lines
    assert "addbmm" not in code.partition("graph(")[2]


@pytest.mark.parametrize("script", scripts(UNKEPT))
def test_script_with_torch_compile_runs_end_to_end_and_keeps_nothing(script: str, runs: Runs) -> None:
    """The scripts compare their outputs themselves."""
    assert runs.first(script) == []
    assert list(runs.work_dir(script).glob(".torchair_cache")) == []
    if script == "gears":
        said = runs.printed(script).splitlines(keepends=True)  # on a CPU first that there is no torch_npu
        assert "".join(line for line in said if not line.startswith("torch_npu is not")) == PRINTED_BY_GEARS


@pytest.mark.slow
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
