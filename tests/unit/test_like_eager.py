"""What a caller can observe of a call beside its values, in both modes: as eager, or a miss, or a refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.cached import cached
from tests.support.releases import compiles_ahead
from warmrank.worker.cached_function import CachedFunction
from warmrank.worker.configs.compiler_config import CompilerConfig

pytestmark = pytest.mark.usefixtures("no_grad")
both_modes = pytest.mark.parametrize(
    "mode", ["reduce-overhead", pytest.param("max-autotune", marks=compiles_ahead)]
)


def in_mode(method: Any, cache: Path, mode: str) -> CachedFunction:
    config = CompilerConfig()
    config.mode = mode
    return cached(method, cache, config=config)


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
