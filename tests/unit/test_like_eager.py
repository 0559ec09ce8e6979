"""What a caller can observe of a call beside its values, in both modes: as eager, or a miss, or a refusal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.cached import cached
from tests.support.releases import compiles_ahead
from warmrank.worker.cached_function import CachedFunction
from warmrank.worker.configs.compiler_config import CompilerConfig
from warmrank.worker.errors import WorkerError

pytestmark = pytest.mark.usefixtures("no_grad")
both_modes = pytest.mark.parametrize(
    "mode", ["reduce-overhead", pytest.param("max-autotune", marks=compiles_ahead)]
)


def in_mode(method: Any, cache: Path, mode: str) -> CachedFunction:
    config = CompilerConfig()
    config.mode = mode
    return cached(method, cache, config=config)


@pytest.fixture
def switches() -> Iterator[Any]:
    """Switches of torch, put back."""
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision, matmul.allow_fp16_reduced_precision_reduction
    yield matmul
    matmul.fp32_precision, matmul.allow_fp16_reduced_precision_reduction = before


class Reduced(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        allowed = torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
        return x * (2 if allowed else 3)


class Squared(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ x


class Mirrored(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.values = np.arange(3.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(self.values.copy()) * x


class Raising:
    def __init__(self, factor: int) -> None:
        self._factor = factor

    @property
    def factor(self) -> int:
        if self._factor < 0:
            msg = "no factor"
            raise RuntimeError(msg)
        return self._factor


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale: Any = Raising(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale.factor


@both_modes
def test_switch_of_cuda_that_a_function_reads_on_a_cpu_counts(cache: Path, mode: str, switches: Any) -> None:
    model = Reduced()
    function = in_mode(model.forward, cache, mode)
    x = torch.ones(2)
    for allowed in (True, False):
        switches.allow_fp16_reduced_precision_reduction = allowed
        assert torch.equal(function(x), model(x))


@both_modes
def test_precision_of_the_newer_switches_is_followed(cache: Path, mode: str, switches: Any) -> None:
    model = Squared()
    function = in_mode(model.forward, cache, mode)
    x = torch.ones(2, 2)
    for precision in ("ieee", "tf32", "ieee"):
        switches.fp32_precision = precision
        assert torch.equal(function(x), model(x))
    assert len(function.variants) == 2


def test_state_that_cannot_be_looked_at_is_a_miss(cache: Path) -> None:
    model = Mirrored()
    function = cached(model.forward, cache)
    x = torch.ones(3)
    assert torch.equal(function(x), model(x))
    model.values = np.arange(3.0)[::-1]
    with pytest.raises(WorkerError, match=r"negative|numpy"):
        function(x)
    scaled = Scaled()
    function = cached(scaled.forward, cache)
    assert torch.equal(function(x), scaled(x))
    scaled.scale = Raising(-1)
    with pytest.raises(WorkerError, match="no factor"):
        function(x)


class Windowed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.options: Any = [{"window": (1, 2)}]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        window = self.options[0]["window"][0]
        return x * (10 if isinstance(window, bool) else 20)


@both_modes
def test_truth_in_a_tuple_is_not_taken_for_one(cache: Path, mode: str) -> None:
    model = Windowed()
    function = in_mode(model.forward, cache, mode)
    x = torch.ones(3)
    assert function(x).tolist() == model(x).tolist() == [20.0] * 3
    model.options[0]["window"] = (True, 2)
    assert function(x).tolist() == model(x).tolist() == [10.0] * 3
