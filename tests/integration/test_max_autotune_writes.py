"""Mode max-autotune: what compiled kernels write, and which casts they make, beside eager."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.tracing import compiles_ahead, in_mode
from warmrank.inference import cache_compile
from warmrank.worker.runtime.function import CachedFunction

pytestmark = [compiles_ahead, pytest.mark.usefixtures("no_grad")]


class State(torch.nn.Module):
    """Hands state on from buffer to buffer, and computes with and without autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.before = torch.nn.Buffer(torch.ones(3, 3)), torch.nn.Buffer(torch.zeros(3, 3))
        self.left, self.right = torch.nn.Buffer(torch.ones(3)), torch.nn.Buffer(torch.zeros(3))

    def forward(self, x: torch.Tensor) -> Any:
        seen = self.last + x
        self.before.copy_(self.last)
        self.last.copy_(x)
        kept = self.left.clone()
        self.left.copy_(self.right)
        self.right.copy_(kept)
        with torch.autocast("cpu", enabled=False):
            exact = x @ x
        return seen, x @ x, exact


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> CachedFunction:
    """A function that was compiled under autocast."""
    function = cache_compile(
        State().forward, config=in_mode("max-autotune"), cache_dir=tmp_path_factory.mktemp("state")
    )
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        function.ensure((torch.ones(3, 3),), {})
    return function


def test_buffer_that_was_overwritten_is_read_before_that(compiled: CachedFunction) -> None:
    model = compiled.module
    eager = copy.deepcopy(model)
    x = torch.arange(9.0).reshape(3, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for step in range(3):
            torch.testing.assert_close(compiled(x + step), eager(x + step))
            torch.testing.assert_close(dict(model.named_buffers()), dict(eager.named_buffers()))


def test_autocast_of_the_caller_does_not_reach_what_is_computed_without(compiled: CachedFunction) -> None:
    x = torch.full((3, 3), 1 + 2**-12)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, cast, exact = compiled(x)
    assert (cast.dtype, exact.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(exact, x @ x)


class Cache(torch.nn.Module):
    """Writes to a part of a cache, and then to others what it reads of the whole."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = torch.nn.Buffer(torch.zeros(8, 4))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        self.cache.index_copy_(0, at, x)
        first = self.cache[:4]
        first.mul_(2)
        self.cache[4:].add_(first)
        return self.cache.sum(0)


def test_what_is_read_between_two_writes_is_not_computed_after_them(tmp_path: Path) -> None:
    model, eager = Cache(), Cache()
    function = cache_compile(model.forward, config=in_mode("max-autotune"), cache_dir=tmp_path)
    for step in range(3):
        x, at = torch.full((2, 4), step + 0.5), torch.tensor([step, step + 1])
        torch.testing.assert_close(function(x, at), eager(x, at))
        torch.testing.assert_close(model.cache, eager.cache)
