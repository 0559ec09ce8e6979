"""Graphs of GE are kept for the storage formats that the weights had, and offered for no others."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from warmrank.inference import cache_compile
from warmrank.worker.cached_function import CachedFunction
from warmrank.worker.configs.compiler_config import CompilerConfig

GRAPH, INDEX = "graph_1_20260131.om", "graph_1.idx"
ND, FRACTAL_NZ = 2, 29
X = torch.ones(2, 4)


class Model(nn.Module):
    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4), requires_grad=False)
        self.register_buffer("scale", torch.ones(4))

    def one(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight * self.scale


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture
def cast(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Give all tensors of parameters another storage format, as ``torch_npu.npu_format_cast_`` does."""
    package = importlib.import_module("torch_npu")

    def to(number: int) -> None:
        monkeypatch.setattr(package, "get_npu_format", lambda found: number if _is_weight(found) else ND)

    return to


def _is_weight(found: torch.Tensor) -> bool:
    return isinstance(found, nn.Parameter)


def loaded(cache_dir: Path) -> CachedFunction:
    config = CompilerConfig()
    config.mode = "reduce-overhead"
    function = cache_compile(Model().one, config=config, cache_dir=str(cache_dir))
    function.ensure((X,), {})
    return function


def private(function: CachedFunction) -> Path:
    """The directory that TorchAir was told."""
    directory: Path = function.variants[0].runner._handed.directory  # type: ignore[union-attr]
    return directory


def graphs(function: CachedFunction) -> set[str]:
    return {path.name for path in private(function).iterdir()} - {"compiled_module"}


def compiled_by_ge(function: CachedFunction, text: bytes = b"graph") -> None:
    """As GE leaves it at the first call, then handed over."""
    for name in (GRAPH, INDEX):
        (private(function) / name).write_bytes(text)
    function.variants[0].hand_over()


def test_graph_for_one_format_is_not_offered_to_weights_of_another(
    tmp_path: Path, cast: Callable[[int], None]
) -> None:
    compiled_by_ge(loaded(tmp_path))
    assert graphs(loaded(tmp_path)) == {GRAPH, INDEX}
    cast(FRACTAL_NZ)
    again = loaded(tmp_path)
    assert again.last_result is not None
    assert (again.last_result.outcome, graphs(again)) == ("loaded", set())


def test_each_format_keeps_its_own(tmp_path: Path, cast: Callable[[int], None]) -> None:
    compiled_by_ge(loaded(tmp_path), b"for ND")
    cast(FRACTAL_NZ)
    compiled_by_ge(loaded(tmp_path), b"for NZ")
    assert (private(loaded(tmp_path)) / GRAPH).read_bytes() == b"for NZ"
    cast(ND)
    assert (private(loaded(tmp_path)) / GRAPH).read_bytes() == b"for ND"


def test_weights_that_are_cast_between_load_and_first_call_get_what_fits(
    tmp_path: Path, cast: Callable[[int], None]
) -> None:
    compiled_by_ge(loaded(tmp_path), b"for ND")
    cast(FRACTAL_NZ)
    compiled_by_ge(loaded(tmp_path), b"for NZ")
    cast(ND)
    function = loaded(tmp_path)
    cast(FRACTAL_NZ)
    assert torch.equal(function(X), X)
    assert (private(function) / GRAPH).read_bytes() == b"for NZ"


def test_nothing_that_was_made_for_two_formats_is_kept(
    tmp_path: Path, cast: Callable[[int], None], caplog: pytest.LogCaptureFixture
) -> None:
    function = loaded(tmp_path)
    function(X)
    cast(FRACTAL_NZ)
    compiled_by_ge(function)
    assert "storage format" in caplog.text
    cast(ND)
    assert graphs(loaded(tmp_path)) == set()
