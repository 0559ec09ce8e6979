"""Cached functions in parts of one model: a class at several places, subclasses, changed attributes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.support.tracing import ROWS, cached, files, outcome, reason
from warmrank.worker.runtime.function import CachedFunction

pytestmark = pytest.mark.usefixtures("no_grad")


class Block(nn.Module):
    """Caches its own body, as a layer of a model does."""

    def __init__(self, cache: Path, *, factor: int = 2, width: int = 4) -> None:
        super().__init__()
        self.layer = nn.Linear(4, width)
        self.factor = factor
        self.held = torch.ones(width)  # a tensor, but no buffer
        self.body_cached = cached(self.body, cache)

    def body(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layer(x) * self.factor + self.held
        return y


class Stack(nn.Module):
    def __init__(self, *blocks: Block) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [function(x) for function in functions(self)]


class Other(Block):
    def body(self, x: torch.Tensor) -> torch.Tensor:
        return super().body(x) - 1


def functions(stack: Stack) -> list[CachedFunction]:
    return [block.body_cached for block in stack.blocks if isinstance(block, Block)]


def check(stack: Stack) -> None:
    wanted = [block.body(ROWS) for block in stack.blocks if isinstance(block, Block)]
    for one, other in zip(stack(ROWS), wanted, strict=True):
        assert torch.equal(one, other)


def test_one_class_at_two_places_shares_an_artifact_and_no_weights(cache: Path) -> None:
    stack = Stack(Block(cache), Block(cache))
    check(stack)
    assert [outcome(function) for function in functions(stack)] == ["compiled", "loaded"]
    assert len(files(cache)) == 1


def test_one_class_at_two_places_with_other_attributes_shares_nothing(cache: Path) -> None:
    stack = Stack(Block(cache), Block(cache, factor=3))
    check(stack)
    assert [outcome(function) for function in functions(stack)] == ["compiled", "compiled"]
    assert reason(functions(stack)[1]) == "self.factor: 2 -> 3"


def test_subclass_that_overrides_is_not_taken_for_its_base(cache: Path) -> None:
    stack = Stack(Block(cache), Other(cache))
    check(stack)
    assert [outcome(function) for function in functions(stack)] == ["compiled", "compiled"]


def test_tensor_attribute_that_was_replaced_is_followed(cache: Path) -> None:
    stack = Stack(Block(cache))
    for value in (1.0, 5.0):
        block = stack.blocks[0]
        assert isinstance(block, Block)
        block.held = torch.full((4,), value)
        check(stack)
