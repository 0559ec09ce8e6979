"""Mode max-autotune: what compiled kernels write, cast, raise and hand to operators, beside eager."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.tracing import compiles_ahead, in_mode
from warmrank.inference import cache_compile
from warmrank.worker.errors import NotPortable
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


@torch.library.custom_op("warmrank_tests::scaled", mutates_args=())
def scaled(x: torch.Tensor, by: float, *, times: int = 2, plus: int = 1, name: str = "a") -> torch.Tensor:
    return x * by * times + plus + len(name)


@scaled.register_fake
def _(x: torch.Tensor, by: float, *, times: int = 2, plus: int = 1, name: str = "a") -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("warmrank_tests::noted", mutates_args=())
def noted(x: torch.Tensor) -> None:
    """Has no result."""


@noted.register_fake
def _(x: torch.Tensor) -> None:
    """Has none either."""


class Operators(torch.nn.Module):
    """Calls operators by name that have defaults, some on complex numbers, some that return bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(5, 2)

    def forward(self, x: torch.Tensor, index: torch.Tensor, number: int) -> Any:
        z = torch.view_as_complex(self.table(index))
        scales = scaled(x, 2.0), scaled(x, 3.0, plus=4), scaled(x, 3.0, times=4, name="bb")
        computed = z - 1, 2.5 - z, z * number, z[0] / 2, z - z * 2, 1j - z, z + True, z == 1, z.isclose(z * 1)
        large = index.to(torch.uint8) * 100
        of_nothing = torch.var_mean(x[:0]), x[:0].mean(), x[:0].sum(), x[:0].prod()
        return scales, computed, large.any() * 3, large.all(0), large.any(0, keepdim=True) + large, of_nothing

    def noting(self, x: torch.Tensor) -> torch.Tensor:
        noted(x)
        return x + 1


@pytest.fixture(scope="module")
def operators(tmp_path_factory: pytest.TempPathFactory) -> CachedFunction:
    return cache_compile(
        Operators().forward, config=in_mode("max-autotune"), cache_dir=tmp_path_factory.mktemp("operators")
    )


@pytest.mark.filterwarnings("ignore:var_mean")
@pytest.mark.parametrize("number", [3, 5])
def test_types_and_values_of_operators_are_eagers(operators: CachedFunction, number: int) -> None:
    given = torch.arange(3.0), torch.tensor([1, 4, 0]), number
    torch.testing.assert_close(operators(*given), operators.module.forward(*given), equal_nan=True)


def test_error_of_an_operator_is_eagers(operators: CachedFunction) -> None:
    given = torch.arange(3.0), torch.tensor([1, 9, 0]), 3
    with pytest.raises(IndexError) as wanted:
        operators.module.forward(*given)
    with pytest.raises(IndexError) as found:
        operators(*given)
    assert str(found.value) == str(wanted.value)


def test_operator_that_returns_nothing_is_refused_by_name(tmp_path: Path) -> None:
    function = cache_compile(Operators().noting, config=in_mode("max-autotune"), cache_dir=tmp_path)
    with pytest.raises(NotPortable, match=r"warmrank_tests\.noted\.default returns nothing(?s:.*)noted\(x\)"):
        function(torch.ones(3))
