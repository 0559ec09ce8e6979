"""Scripts as the seeds teach them, and what public programs call, unchanged: cold, then warm."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.checkout import ROOT, selected
from tests.support.ray_cluster import free_ports
from tests.support.scripts import FUNCTIONS, UNKEPT, Runs, ScriptJob, ran

QUICK = ("add", "gears", "programs", "imports", "drop_in")
PRINTED_BY_GEARS = f"{torch.full((2, 2), 2.0)}\n{torch.full((4, 2), 2.0)}\n" * 2


def scripts(names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in names]


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Runs of the scripts that this session asks for."""
    return Runs(tmp_path_factory.mktemp("seeds"), selected(request, "script"))


@pytest.mark.parametrize("script", scripts(FUNCTIONS))
def test_second_run_loads_what_the_first_one_saved(script: str, runs: Runs) -> None:
    runs.check(script)
    if script not in ("programs", "flat_options", "drop_in"):  # which name directories and sizes of their own
        for *_, path in runs.first(script):
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
