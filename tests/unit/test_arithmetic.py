"""NumPy within a cached function: as eager, or refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.support.tracing import cached
from warmrank.worker.errors import NotPortable

pytestmark = pytest.mark.usefixtures("no_grad")


class Computing(nn.Module):
    def __init__(self, compute: Callable[[Any], Any]) -> None:
        super().__init__()
        self.compute = compute

    def forward(self, x: torch.Tensor) -> Any:
        return x + 1, self.compute(x.numpy())


def written(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Writes to what is made of an array, which may be a view of it."""

    def compute(a: Any) -> Any:
        made = make(a)
        made[0] = 55
        return a + made

    return compute


REFUSED: dict[str, Callable[[Any], Any]] = {
    "truediv gives float64, where torch gives float32": lambda a: a / 255,
    "cumsum gives uint64, where torch gives uint8": np.cumsum,
    "fft gives complex64, where torch gives complex128": lambda a: np.fft.fft(a.astype(np.float32)),
    "tri gives float64, where torch gives float32": lambda _: np.tri(3),
    "astype makes a copy": written(lambda a: a.astype(np.uint8)),
    "flatten makes a copy": written(lambda a: a.flatten()),
    "pos makes a copy": written(lambda a: +a),
    "getitem makes a view": written(lambda a: a[::-1]),
    "flip makes a view": np.flip,  # the caller may write to it
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_numpy_makes_otherwise_than_torch_is_refused_by_name(what: str, cache: Path) -> None:
    with pytest.raises(NotPortable, match=f"NumPy's {what}"):
        cached(Computing(REFUSED[what]).forward, cache)(torch.tensor([100, 200, 50], dtype=torch.uint8))


TAKEN: dict[str, Callable[[Any], Any]] = {
    "arithmetic": lambda a: a.astype(np.float32) * 2 + 1,
    "views that nobody writes to": lambda a: a[::-1] + np.flip(a),
    "a view that is written to": written(lambda a: a[:]),
    "a copy that is written to": written(lambda a: a * 2),
    "functions": lambda a: np.concatenate([np.maximum(a, 3), np.clip(a, 10, 99), np.argsort(a)]),
    "in place": lambda a: np.add(a, 1, out=a),
    "sizes": lambda a: np.arange(len(a)) * np.sqrt(a.shape[0]) + np.full((a.size,), a.shape[0]),
    "other dtypes": lambda a: a.astype(np.int32) + np.zeros(len(a), dtype=np.int32),
}


@pytest.mark.parametrize("what", TAKEN)
def test_what_both_make_alike_equals_eager(what: str, cache: Path) -> None:
    model = Computing(TAKEN[what])
    ours, eagers = (torch.tensor([100, 200, 50], dtype=torch.uint8) for _ in range(2))
    function = cached(model.forward, cache)
    for _ in range(2):
        (_, found), (_, expected) = function(ours), model(eagers)
        np.testing.assert_array_equal(found, expected, strict=True)
        assert torch.equal(ours, eagers)


class Numbers(nn.Module):
    def __init__(self, compute: Callable[[Any, int], Any]) -> None:
        super().__init__()
        self.compute = compute

    def forward(self, x: torch.Tensor, scalar: Any, number: int) -> Any:
        return x + 1, self.compute(scalar, number)


SCALARS: dict[str, Callable[[Any, int], Any]] = {
    "sum": lambda scalar, number: number + scalar,
    "quotient": lambda scalar, number: scalar / number,
    "comparison": lambda scalar, number: (scalar > number, scalar == number),
    "larger": lambda scalar, number: (max(scalar, number), min([number, scalar])),
    "methods": lambda scalar, number: (scalar.item() + number, scalar.astype(np.float16), scalar.round()),
}


@pytest.mark.parametrize("what", SCALARS)
@pytest.mark.parametrize("scalar", [np.int64(12), np.float32(12.25), np.float64(2.5)], ids=repr)
def test_scalars_of_numpy_compute_with_numbers_that_vary(what: str, scalar: Any, cache: Path) -> None:
    model = Numbers(SCALARS[what])
    function = cached(model.forward, cache)
    for number in (10, 7):
        (_, found), (_, expected) = (
            function(torch.ones(2), scalar, number),
            model(torch.ones(2), scalar, number),
        )
        assert repr(found) == repr(expected)


def test_a_bool_of_numpy_is_refused_where_torch_takes_it_for_a_float(cache: Path) -> None:
    function = cached(Numbers(lambda scalar, number: torch.full((number,), scalar)).forward, cache)
    with pytest.raises(NotPortable, match=r"1\.0.*give the operator bool\(value\)"):
        function(torch.ones(2), np.True_, 3)
