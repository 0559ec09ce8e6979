"""Dimension gears: what is allowed, which tensor carries them, how they become combinations."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from warmrank.worker.errors import GearError
from warmrank.worker.gears import checked_gears, set_dim_gears
from warmrank.worker.gears.carried import geared_arguments
from warmrank.worker.gears.model import MAX_COMBINATIONS, covering, merged
from warmrank.worker.torch_private.marks import mark_geared, refuse_unbacked


@dataclass
class _Batch:
    x: torch.Tensor
    rest: list[Any]


def _takes_more(self: Any, batch: Any, *more: Any, y: Any = None) -> None: ...


_takes: Any = _takes_more


def test_geared_arguments_are_found_wherever_they_stand() -> None:
    tensors = [torch.ones(2) for _ in range(5)]
    for tensor in tensors[:4]:
        set_dim_gears(tensor, {0: [2, 4]})
    batch = _Batch(x=tensors[0], rest=[{"k": tensors[1]}, (tensors[2],), tensors[4]])
    found = geared_arguments(_takes, (batch, tensors[0]), {"y": tensors[3]})
    assert [where for where, _ in found] == ["batch.x", "batch.rest[0]['k']", "batch.rest[1][0]", "y"]


@pytest.mark.parametrize(
    ("shape", "gears", "words"),
    [
        ((1,), {0: [1]}, r"for dim index 0 in dim_gears must be in range \[2, 100\], but got 1\."),
        ((1,), {0: list(range(1, 102))}, r"in range \[2, 100\], but got 101\."),
        ((2, 2), {2: [2, 4]}, r"Dim index in dim_gears must be in range \[0, 1\], but got 2\."),
        ((2, 2), {-1: [2, 4]}, r"in range \[0, 1\], but got -1\."),
        ((), {0: [2, 4]}, r"in range \[0, -1\], but got 0\."),
        ((2, 2), {True: [2, 4]}, "must be an integer, but got <class 'bool'>"),
        ((2, 2), {0: {2, 4}}, "must be a list or tuple, but got <class 'set'>"),
        (
            (2, 2),
            {0: [4, True]},
            "Element at index 1 of value for dim index 0 in dim_gears must be an integer",
        ),
        ((2, 2), {0: [4, 0]}, r"Gear value at index 1 for dim index 0 must not be 0, but got 0\."),
        (
            (2, 2),
            {0: [4, -1]},
            r"Gear value at index 1 for dim index 0 must be a size of 1 or more, but got -1\.",
        ),
        ((2, 2), [2, 4], "expected a dict from dimension to gears"),
    ],
)
def test_gears_that_are_not_allowed_are_refused(shape: Any, gears: Any, words: str) -> None:
    with pytest.raises(GearError, match=words):
        checked_gears(shape, gears)
    tensor = torch.ones(shape)
    with pytest.raises(GearError, match=words):
        set_dim_gears(tensor, gears)
    assert not hasattr(tensor, "dim_gears")


GEARS = st.lists(st.integers(1, 9), min_size=2, max_size=4)


@given(st.lists(GEARS, min_size=1, max_size=3))
def test_product_takes_all_with_all_each_once(gears: list[list[int]]) -> None:
    found = merged(gears, "product")
    assert len(found) == len(set(found))
    assert set(found) == set(itertools.product(*gears))


@pytest.mark.parametrize("last", [10, 11])
def test_a_hundred_combinations_are_allowed_and_no_more(last: int) -> None:
    gears = [range(1, 11), range(1, last + 1)]
    if last == 10:
        assert len(merged(gears, "product")) == MAX_COMBINATIONS
    else:
        with pytest.raises(GearError, match="more than 100 combinations"):
            merged(gears, "product")


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), unique=True, min_size=1),
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
)
def test_the_covering_combination_is_the_last_that_is_nowhere_smaller(combinations, sizes):
    ordered = sorted(combinations, key=lambda item: -item[0] * item[1])
    covers = [item for item in ordered if item[0] >= sizes[0] and item[1] >= sizes[1]]
    assert covering(ordered, sizes) == (covers[-1] if covers else None)


def marks_of(tensor: torch.Tensor) -> dict[str, object]:
    """What is written on a tensor; the ranges by their fields: Dynamo has a class of its own for them.

    That there are marks at all is an attribute since torch 2.13, and one that no earlier release reads.
    """
    found = dict(vars(tensor))
    found.pop("_has_dynamo_dim_marking", None)
    ranges = found.pop("_dynamo_dynamic_range", ())
    return {**found, "ranges": {(item.dim, item.min, item.max) for item in ranges}}


def test_mark_is_what_dynamos_own_function_writes() -> None:
    mine, dynamos = torch.ones(4, 4), torch.ones(4, 4)
    mark_geared(mine, {0: (2, 4)})
    torch._dynamo.mark_dynamic(dynamos, 0)
    assert marks_of(mine)
    assert marks_of(mine).items() <= marks_of(dynamos).items()


def test_unbacked_mark_is_refused_by_dimension() -> None:
    x = torch.ones(4, 4)
    refuse_unbacked(x, "L['x']")
    torch._dynamo.decorators.mark_unbacked(x, 1)
    with pytest.raises(GearError, match=r"dimension 1 of .* is marked by .*mark_unbacked"):
        refuse_unbacked(x, "L['x']")
