"""Dynamo's marks of dimensions, with `cache_compile`: respected or refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.support.tracing import cached
from warmrank.worker.errors import GearError


class Model(nn.Module):
    """Two methods: one for any size, one for four rows."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) + 1

    def four(self, x: torch.Tensor) -> torch.Tensor:
        return x.expand(4, 4) * 1


def sizes(function: object) -> list[object]:
    variant = function.variants[0]  # type: ignore[attr-defined]
    guards = variant.stored.artifact.guards
    return next(check[2]["sizes"] for check in guards.checks if check[1] == "tensor")


@torch.no_grad()
def test_mark_static_makes_the_traced_sizes_constants(tmp_path: Path) -> None:
    function = cached(Model().forward, tmp_path)
    x = torch.rand(2, 4)
    torch._dynamo.mark_static(x)
    function(x)
    assert sizes(function) == [2, 4]
    y = torch.rand(3, 4)
    assert torch.equal(function(y), torch.relu(y) + 1)
    assert len(function.variants) == 2


@torch.no_grad()
def test_mark_dynamic_in_a_static_trace_serves_other_sizes(tmp_path: Path) -> None:
    function = cached(Model().forward, tmp_path, dynamic=False)
    x = torch.rand(2, 4)
    torch._dynamo.mark_dynamic(x, 0)
    function(x)
    assert sizes(function) == [None, 4]
    y = torch.rand(5, 4)
    assert torch.equal(function(y), torch.relu(y) + 1)
    assert len(function.variants) == 1


@torch.no_grad()
def test_mark_dynamic_of_a_size_that_the_code_fixes_is_refused(tmp_path: Path) -> None:
    x = torch.rand(4, 4)
    torch._dynamo.mark_dynamic(x, 0)
    with pytest.raises(GearError, match=r"marked as dynamic is none.*[ (]x\.size\(\)\[0\]"):
        cached(Model().four, tmp_path)(x)


@torch.no_grad()
def test_maybe_mark_dynamic_of_a_size_that_the_code_fixes_is_a_constant(tmp_path: Path) -> None:
    function = cached(Model().four, tmp_path)
    x = torch.rand(4, 4)
    torch._dynamo.maybe_mark_dynamic(x, 0)
    assert torch.equal(function(x), x)
    y = torch.rand(1, 4)
    assert torch.equal(function(y), y.expand(4, 4))


@pytest.mark.parametrize("strict", [False, True])
@torch.no_grad()
def test_mark_unbacked_is_refused_by_name(tmp_path: Path, strict: bool) -> None:
    x = torch.rand(4, 4)
    torch._dynamo.decorators.mark_unbacked(x, 0, strict=strict)
    with pytest.raises(
        GearError, match=r"dimension 0 of x is marked by torch._dynamo.decorators.mark_unbacked"
    ):
        cached(Model().forward, tmp_path)(x)
