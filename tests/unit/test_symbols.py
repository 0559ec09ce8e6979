"""Symbolic sizes of a trace by name, as text, and with other values than were traced."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.support.tracing import traced
from warmrank.worker.torch_private.lowering import LoweredGraph
from warmrank.worker.torch_private.symbols import Symbols, free_symbols, other_shape, size_text


class Stacks(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat((x, x))


class Pairs(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(-1, 2, 4) * 2


@pytest.fixture(scope="module")
def stacked() -> LoweredGraph:
    return traced(Stacks().forward, torch.ones(6, 4)).lowered


def test_size_of_a_result_is_an_expression_of_the_inputs(stacked: LoweredGraph) -> None:
    symbols = Symbols(stacked)
    name = symbols.of_size("L['x']", 0)
    size = symbols.outputs[0].shape[0]
    assert free_symbols(size) == {name}
    assert eval(size_text(size), {name: 5}) == 10  # noqa: S307 - an expression of sizes


def test_operation_that_does_not_take_another_size_is_said() -> None:
    lowered = traced(Pairs().forward, torch.ones(6, 4)).lowered
    name = Symbols(lowered).of_size("L['x']", 0)
    assert other_shape(lowered, {name: 8}) == ""
    assert "an operation that works with it" in other_shape(lowered, {name: 7})
