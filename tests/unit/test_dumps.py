"""``debug.graph_dump``, ``debug.fx_summary``, ``debug.data_dump``: what is written, when, and where."""

from __future__ import annotations

import ast
import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.small_models import Plain
from warmrank.inference import cache_compile
from warmrank.worker.configs.compiler_config import CompilerConfig


class Doubling(torch.nn.Module):
    def doubled(self, x: torch.Tensor) -> torch.Tensor:
        return x + x


def run(function: Any, *args: Any) -> Any:
    with torch.no_grad():
        return function(*args)


def config_with(section: str, **values: Any) -> CompilerConfig:
    config = CompilerConfig()
    for name, value in values.items():
        setattr(getattr(config.debug, section), name, value)
    return config


def plain(config: CompilerConfig, tmp_path: Path) -> Any:
    torch.manual_seed(0)
    return cache_compile(Plain().affine, config=config, cache_dir=tmp_path / "cache")


@pytest.mark.parametrize("kind", ["py", "txt"])
def test_graph_dump_is_written_when_compiled(tmp_path: Path, kind: str) -> None:
    dumps = tmp_path / "dumps"
    config = config_with("graph_dump", type=kind, path=str(dumps))
    run(plain(config, tmp_path), torch.ones(2, 4))
    (file,) = dumps.iterdir()
    assert file.name.startswith("dynamo_original_graph_rank_0_pid_")
    assert file.suffix == f".{kind}"
    text = file.read_text()
    assert "aten.linear.default" in text
    if kind == "py":
        ast.parse(text)


def test_summary_counts_operators_with_their_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    function = plain(config_with("fx_summary", type="csv"), tmp_path)
    run(function, torch.ones(2, 4))
    (file,) = tmp_path.glob("summary_rank_0_pid_*.csv")
    with file.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["operator"], row["kind"], row["calls"]) for row in rows] == [
        ("aten.linear.default", "aten", "1"),
        ("aten.mul.Tensor", "aten", "1"),
    ]
    assert "float32[4, 4]" in rows[0]["inputs"]
    assert rows[1]["outputs"].startswith("1 x float32[")


def dumped(directory: Path) -> dict[str, Any]:
    return {file.name: np.load(file) for file in sorted(directory.iterdir())}


def test_data_dump_writes_the_result_of_every_operator_on_every_call(tmp_path: Path) -> None:
    config = config_with("data_dump", type="npy", path=str(tmp_path / "data"))
    function = plain(config, tmp_path)
    for value in (1.0, 2.0):
        x = torch.full((2, 4), value)
        result = run(function, x)
        steps = tmp_path / "data" / "worldsize1_global_rank0" / "Plain.affine"
        found = dumped(steps / str(int(value) - 1))
        assert list(found) == [
            "00000-linear-aten.linear.default.OUTPUT.0.npy",
            "00001-mul-aten.mul.Tensor.OUTPUT.0.npy",
        ]
        linear, scaled = found.values()
        np.testing.assert_array_equal(linear, run(function.module.linear, x).numpy())
        np.testing.assert_array_equal(scaled, result.numpy())


def test_data_dump_goes_on_after_a_load_and_elsewhere(tmp_path: Path) -> None:
    for name in ("first", "second"):
        config = config_with("data_dump", type="npy", path=str(tmp_path / name))
        function = plain(config, tmp_path)
        run(function, torch.ones(2, 4))
        assert len(list((tmp_path / name).rglob("*.npy"))) == 2
    assert function.last_result.outcome == "loaded"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64, torch.complex64])
def test_data_dump_keeps_values_of_every_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    config = config_with("data_dump", type="npy", path=str(tmp_path / "data"))
    function = cache_compile(Doubling().doubled, config=config, cache_dir=tmp_path / "cache")
    run(function, torch.ones(3, dtype=dtype))
    (file,) = (tmp_path / "data").rglob("*.npy")
    assert np.load(file).tolist() == [2, 2, 2]
