"""Which engine compiles: mode, device and wish against one table."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from warmrank import CompilerConfig
from warmrank.worker.engines import check_choice, engine_for
from warmrank.worker.errors import BadConfig


def config(mode: str) -> CompilerConfig:
    made = CompilerConfig()
    made.mode = mode
    return made


@pytest.fixture
def torch_npu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    package: Any = ModuleType("torch_npu")
    package.__path__ = [str(tmp_path)]
    monkeypatch.setitem(sys.modules, "torch_npu", package)
    return tmp_path


@pytest.mark.parametrize(
    ("mode", "kind", "name"),
    [
        ("reduce-overhead", "cpu", "graph"),
        ("reduce-overhead", "cuda", "graph"),
        ("max-autotune", "cpu", "aoti"),
        ("max-autotune", "cuda", "aoti"),
    ],
)
def test_auto_goes_by_mode_off_the_npu(mode: str, kind: str, name: str) -> None:
    assert engine_for(config(mode), wanted="auto", device_kind=kind).name == name


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune", "npugraph_ex"])
def test_auto_is_torchair_on_an_npu_where_torch_npu_has_it(mode: str, torch_npu: Path) -> None:
    (torch_npu / "dynamo" / "torchair").mkdir(parents=True)
    assert engine_for(config(mode), wanted="auto", device_kind="npu").name == "torchair"


def test_auto_is_graph_on_an_npu_without_torchair(torch_npu: Path) -> None:
    assert engine_for(config("reduce-overhead"), wanted="auto", device_kind="npu").name == "graph"


def test_mode_of_torchair_elsewhere_names_the_device() -> None:
    with pytest.raises(BadConfig, match=r"npugraph_ex is TorchAir's own.*lies on cpu"):
        engine_for(config("npugraph_ex"), wanted="auto", device_kind="cpu")


@pytest.mark.parametrize(
    ("wanted", "mode"), [("graph", "max-autotune"), ("graph", "npugraph_ex"), ("aoti", "reduce-overhead")]
)
def test_engine_of_another_mode_is_refused(wanted: Any, mode: str) -> None:
    with pytest.raises(BadConfig, match=f"engine {wanted} compiles in mode .*config.mode is {mode}"):
        check_choice(wanted, config(mode))
