"""What TorchAir and GE leave in a function's private directory is kept for the artifact it was made for."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from warmrank.inference import cache_compile
from warmrank.worker.cached_function import CachedFunction
from warmrank.worker.configs.compiler_config import CompilerConfig
from warmrank.worker.engines.torchair_vendor import vendor_for

X = torch.arange(8.0).reshape(2, 4)
GRAPH, INDEX = "graph_1_20260131.om", "graph_1.idx"
PACKAGE = "aclnn_static_shape_kernel_outputs/ts1_outputs/static_kernel_1_1.run"

pytestmark = pytest.mark.usefixtures("no_grad")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4), requires_grad=False)

    def one(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight

    def other(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.weight


@pytest.fixture(autouse=True)
def no_grad() -> Any:
    with torch.no_grad():
        yield


def called(cache_dir: Path, name: str = "one", *, frozen: bool = False) -> CachedFunction:
    config = CompilerConfig()
    config.mode = "reduce-overhead"
    config.experimental_config.frozen_parameter = frozen
    model = Model()
    function = cache_compile(getattr(model, name), config=config, cache_dir=str(cache_dir))
    assert torch.equal(function(X), getattr(model, name)(X))
    return function


def private(function: CachedFunction) -> Path:
    """The directory that TorchAir was told."""
    (variant,) = function.variants
    directory: Path = variant.runner._handed.directory  # type: ignore[union-attr]
    return directory


def left_by_tools(function: CachedFunction) -> None:
    """As GE and op_compiler leave them, then handed over."""
    for name in (GRAPH, INDEX, PACKAGE):
        path = private(function) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
        path.chmod(0o640)
    function.variants[0].hand_over()


def files(function: CachedFunction) -> set[str]:
    root = private(function)
    found = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
    return found - {"compiled_module"}


def test_next_load_finds_what_was_made_where_it_was_left(tmp_path: Path) -> None:
    left_by_tools(called(tmp_path))
    again = called(tmp_path)
    assert again.last_result is not None
    assert again.last_result.outcome == "loaded"
    assert files(again) == {GRAPH, INDEX, PACKAGE}
    assert (private(again) / GRAPH).read_bytes() == GRAPH.encode()
    assert (private(again) / PACKAGE).stat().st_mode & 0o777 == 0o700  # TorchAir starts it


def test_another_function_of_the_same_model_is_not_offered_it(tmp_path: Path) -> None:
    left_by_tools(called(tmp_path))
    assert files(called(tmp_path, "other")) == set()


def test_changed_function_of_the_same_name_is_not_offered_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_by_tools(called(tmp_path))
    monkeypatch.setattr(Model, "one", Model.other)
    assert files(called(tmp_path)) == set()


def test_graph_that_may_hold_frozen_parameters_is_kept_for_nobody(tmp_path: Path) -> None:
    left_by_tools(called(tmp_path, frozen=True))
    assert files(called(tmp_path, frozen=True)) == {PACKAGE}


@pytest.fixture
def graph_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """As much of GE as TorchAir needs to write its code and to load it; nothing can be run."""
    vendor_for("max-autotune")
    native = sys.modules["torchair.core._torchair"]
    monkeypatch.setattr(native, "InitializeGraphEngine", lambda _: None, raising=False)
    monkeypatch.setattr(importlib.import_module("torchair.core._backend"), "TorchNpuGraph", mock.MagicMock)


def loaded(cache_dir: Path, *names: str) -> CachedFunction:
    """The last of some functions in mode max-autotune, after the others; not called."""
    config = CompilerConfig()
    config.mode = "max-autotune"
    model = Model()
    for name in names:
        function = cache_compile(getattr(model, name), config=config, cache_dir=str(cache_dir), ge_cache=True)
        function.ensure((X,), {})
    return function


@pytest.mark.usefixtures("graph_engine")
def test_graph_engine_is_pointed_to_the_directory_that_its_graphs_come_to(tmp_path: Path) -> None:
    left_by_tools(loaded(tmp_path, "one"))
    again = loaded(tmp_path, "one")
    assert {GRAPH, INDEX} < files(again)
    options = kernel_of(again).__globals__["local_compile_options"]
    assert options["ge.graph_compiler_cache_dir"] == str(private(again).resolve())


@pytest.mark.usefixtures("graph_engine")
def test_graphs_for_ge_are_equal_whatever_was_compiled_before(tmp_path: Path) -> None:
    first, second = loaded(tmp_path / "a", "one"), loaded(tmp_path / "b", "other", "one")
    assert first.variants[0].stored.sha256 == second.variants[0].stored.sha256


def kernel_of(function: CachedFunction) -> Any:
    """TorchAir's own callable around a graph for GE."""
    call = function.variants[0].runner._handed._call  # type: ignore[union-attr]
    return inspect.getclosurevars(call).nonlocals["ge_kernel"]


def test_function_whose_cache_was_given_up_keeps_nothing(tmp_path: Path) -> None:
    config = CompilerConfig()
    config.mode = "reduce-overhead"
    model = Model()
    function = cache_compile(
        model.one, config=config, cache_dir=str(tmp_path), on_recompile="abandon", dynamic=False
    )
    function(X)
    function(torch.ones(3, 4))
    last = function.variants[0]
    (last.runner._handed.directory / GRAPH).write_bytes(b"graph")  # type: ignore[union-attr]
    last.hand_over()
    assert not (tmp_path / "node_caches").exists()
