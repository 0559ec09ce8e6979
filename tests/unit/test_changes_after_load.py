"""A function that was called, then a change of its module: later calls equal eager, or are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.tracing import cached
from warmrank.worker.configs.compiler_config import CompilerConfig
from warmrank.worker.errors import StateChanged

X = torch.arange(12.0).reshape(3, 4) - 5
SCALE = torch.tensor([2.0, 3.0, 4.0, 5.0])


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.layer = nn.Linear(4, 4)
        self.register_buffer("offset", torch.arange(4.0))
        self.offset: torch.Tensor

    def forward(self, x: torch.Tensor) -> Any:
        return torch.relu(self.layer(x) @ self.weight + self.offset) * SCALE


def config(mode: str) -> CompilerConfig:
    made = CompilerConfig()
    made.mode = mode
    return made


MODES = ["reduce-overhead", pytest.param("max-autotune", marks=pytest.mark.slow)]
TENSORS: dict[str, Callable[[Model], Any]] = {
    "transposed data": lambda m: setattr(m.weight, "data", m.weight.data.t()),
    "transposed in place": lambda m: m.weight.t_(),
    "smaller buffer": lambda m: setattr(m, "offset", torch.ones(1)),
    "smaller data": lambda m: setattr(m.offset, "data", torch.ones(1)),
    "another storage": lambda m: m.offset.set_(torch.ones(4).untyped_storage()),
    "strided data": lambda m: setattr(m.layer.bias, "data", torch.arange(8.0)[::2]),
    "replaced layer": lambda m: setattr(m, "layer", nn.Linear(4, 4)),
    "data of a global": lambda _: setattr(SCALE, "data", torch.tensor([7.0])),
    "added hook": lambda m: m.layer.register_forward_hook(lambda _m, _i, output: output + 1),
}


@pytest.fixture(autouse=True)
def _scale() -> Any:
    before = SCALE.data
    yield
    SCALE.data = before


@pytest.mark.one_in(4)
@torch.no_grad()
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("change", TENSORS)
def test_call_after_a_change_equals_eagers(change: str, mode: str, cache: Path) -> None:
    model = Model()
    function = cached(model.forward, cache, config=config(mode), ge_cache=True)
    for _ in range(3):
        function(X)
    TENSORS[change](model)
    for _ in range(3):
        torch.testing.assert_close(function(X), model(X))


@torch.no_grad()
@pytest.mark.parametrize("mode", MODES)
def test_tensor_whose_storage_is_too_small_is_refused_by_name(mode: str, cache: Path) -> None:
    model = Model()
    function = cached(model.forward, cache, config=config(mode), ge_cache=True)
    for _ in range(3):
        function(X)
    model.weight.untyped_storage().resize_(8)
    with pytest.raises(StateChanged, match=r"weight.*8 bytes of storage"):
        function(X)


@torch.no_grad()
def test_values_and_places_of_tensors_may_change_without_a_compile(cache: Path) -> None:
    model = Model()
    function = cached(model.forward, cache)
    for number in range(4):
        model.weight.data = torch.full((4, 4), float(number))
        model.layer = nn.Linear(4, 4)
        torch.testing.assert_close(function(X), model(X))
    assert len(function.variants) == 1


def test_modes_of_autograd_take_turns_without_a_full_check(cache, monkeypatch):
    model = Model().requires_grad_(False)
    function = cached(model.forward, cache)
    for _ in range(3):
        function(X)
    monkeypatch.setattr(function, "ensure", None)
    for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad) * 2:
        with mode():
            function(X)


@torch.no_grad()
def test_argument_that_the_artifact_was_not_made_for_is_a_miss_without_guards_too(cache: Path) -> None:
    model = Model()
    function = cached(model.forward, cache, guards="skip", dynamic=False)
    for x in (X, X[:1].clone(), X.t().contiguous().t()):
        torch.testing.assert_close(function(x), model(x))
