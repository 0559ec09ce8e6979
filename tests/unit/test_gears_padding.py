"""`on_gear_miss="pad"`: padded up, cut back, and refused where that would be wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.tracing import cached
from tests.unit.test_gears_cached import Model, geared, rows, same
from warmrank.inference import set_dim_gears
from warmrank.worker.configs.compiler_config import CompilerConfig
from warmrank.worker.errors import GearError


def padded(method: Any, cache: Path, **options: Any) -> Any:
    return cached(method, cache, on_gear_miss="pad", **options)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("name", "more"), [("mlp", (8,)), ("attention", (3, 8))])
@pytest.mark.parametrize("first", [1, 3, 8])
@torch.no_grad()
def test_every_size_up_to_the_largest_gear_gives_eagers_answer(tmp_path, name, more, first):
    model = Model()
    function = padded(getattr(model, name), tmp_path)
    function(geared(rows(first, *more), 2, 8))
    for count in (1, 2, 3, 5, 8, 3):
        x = rows(count, *more)
        assert same(function(x), getattr(model, name)(x))
    assert len(function.variants) == 1
    found = function.variants[0].runner.statistics
    assert (found.warm_up_runs, found.captures) == (2, 2)


@torch.no_grad()
def test_a_larger_size_than_the_largest_gear_is_an_error(tmp_path: Path) -> None:
    function = padded(Model().mlp, tmp_path)
    function(geared(rows(2), 2, 4))
    with pytest.raises(GearError, match=r"x dimension 0 is 5.*Padding only goes up"):
        function(rows(5))


@pytest.mark.parametrize("name", ["mean", "joined"])
@torch.no_grad()
def test_a_function_that_mixes_rows_is_refused(tmp_path: Path, name: str) -> None:
    function = padded(getattr(Model(), name), tmp_path)
    arguments = [rows(3) for _ in range(2 if name == "joined" else 1)]
    with pytest.raises(GearError, match="changes output 0: the function mixes rows"):
        function(*(geared(x, 2, 4) for x in arguments))


class Coupled(nn.Module):
    def highest(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.amax(0)

    def lowest(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.amin(0)

    def every(self, x: torch.Tensor) -> torch.Tensor:
        return (x > 0).all(0) | (x > 100)

    def looked_up(self, x: torch.Tensor) -> torch.Tensor:
        return torch.arange(4.0)[x.long()]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("values", [[3.5, -1.25, 2.5], [1.5, 2.5, 3.5], [-1.5, -2.5, -3.5]])
@pytest.mark.parametrize("name", ["highest", "lowest", "every"])
@torch.no_grad()
def test_coupled_rows_are_refused_whatever_the_first_call_brings(tmp_path, name, values):
    x = torch.tensor(values)[:, None].repeat(1, 4)
    with pytest.raises(GearError, match="the function mixes rows"):
        padded(getattr(Coupled(), name), tmp_path)(geared(x, 2, 4))


@torch.no_grad()
def test_a_function_that_writes_to_an_input_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GearError, match=r"writes to self.*rows"):
        padded(Model().written, tmp_path)(geared(rows(3), 2, 4), geared(torch.arange(3), 2, 4))


@torch.no_grad()
def test_an_output_that_is_a_view_of_a_geared_input_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GearError, match="x has gears, and is state of the module or shares memory"):
        padded(Model().viewed, tmp_path)(geared(rows(3), 2, 4))


@torch.no_grad()
def test_code_that_branches_on_the_size_sees_the_callers(tmp_path: Path) -> None:
    model = Model()
    function = padded(model.branching, tmp_path)
    x = geared(rows(3), 2, 4)
    assert same(function(x), model.branching(x))
    with pytest.raises(GearError, match="does not hold"):
        function(rows(1))


@torch.no_grad()
def test_padding_reads_no_rows_of_an_earlier_call(tmp_path: Path) -> None:
    model = Model()
    function = padded(model.add, tmp_path)
    function(geared(rows(4), 4, 6), geared(rows(4), 4, 6))
    function(torch.full((5, 8), float("nan")), rows(5))
    x, y = rows(3), rows(3)
    assert same(function(x, y), x + y)


@torch.no_grad()
def test_cut_outputs_are_overwritten_unless_they_are_cloned(tmp_path: Path) -> None:
    config = CompilerConfig()
    config.debug.aclgraph.enable_output_clone = True
    model = Model()
    function = padded(model.add, tmp_path, config=config)
    function(geared(rows(4), 4, 6), geared(rows(4), 4, 6))
    x, y = rows(3), rows(3)
    kept = function(x, y)
    function(rows(3), rows(3))
    assert same(kept, x + y)


@torch.no_grad()
def test_random_numbers_are_not_padded(tmp_path: Path) -> None:
    class Noisy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.rand_like(x)

    with pytest.raises(GearError, match="draws random numbers"):
        padded(Noisy().forward, tmp_path, rng="allow")(geared(rows(3), 2, 4))


@torch.no_grad()
def test_numbers_and_strides_of_a_padded_call_are_the_callers(tmp_path: Path) -> None:
    class Sizes(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, int, int]:
            return x @ y, x.size(0) * y.size(1), x.stride(0)

    model = Sizes()
    function = padded(model.forward, tmp_path)
    x, y = torch.randn(8, 3).t(), torch.randn(8, 5)
    set_dim_gears(x, {0: [2, 4]})
    set_dim_gears(y, {1: [3, 6]})
    assert same(function(x, y), model(x, y))
    x, y = torch.randn(8, 2).t(), torch.randn(8, 2)
    assert same(function(x, y), model(x, y))
    assert len(function.variants) == 1
