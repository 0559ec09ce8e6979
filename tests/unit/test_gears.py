"""Dimension gears: what is allowed, and which tensor carries them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from warmrank.worker.errors import GearError
from warmrank.worker.gears import checked_gears, set_dim_gears
from warmrank.worker.gears.carried import geared_arguments


def test_gears_come_back_as_tuples() -> None:
    assert checked_gears((2, 2), {0: [2, 4], 1: (2, 8)}) == {0: (2, 4), 1: (2, 8)}


@pytest.mark.parametrize("num_gears", [2, 100])
def test_number_of_gears_at_the_bounds_is_allowed(num_gears: Any) -> None:
    gears = list(range(1, num_gears + 1))
    assert checked_gears((1,), {0: gears}) == {0: tuple(gears)}


@pytest.mark.parametrize("num_gears", [0, 1, 101])
def test_number_of_gears_beyond_the_bounds_is_refused(num_gears: Any) -> None:
    with pytest.raises(GearError, match=rf"gears of dimension 0: there are {num_gears}; allowed: 2 to 100"):
        checked_gears((1,), {0: list(range(1, num_gears + 1))})


@pytest.mark.parametrize("dim", [2, -1])
def test_dimension_out_of_range_is_refused(dim: Any) -> None:
    with pytest.raises(GearError, match=rf"dimension {dim} is out of range; allowed: 0 to 1"):
        checked_gears((2, 2), {dim: [2, 4]})


def test_tensor_without_dimensions_has_no_gears() -> None:
    with pytest.raises(GearError, match="the tensor has no dimensions"):
        checked_gears((), {0: [2, 4]})


@pytest.mark.parametrize("dim", ["0", 0.0, True, None])
def test_dimension_that_is_no_int_is_refused(dim: Any) -> None:
    with pytest.raises(GearError, match="expected an int"):
        checked_gears((2, 2), {dim: [2, 4]})


@pytest.mark.parametrize("gears", [4, "24", {2, 4}, None, range(2, 4)])
def test_gears_that_are_no_list_are_refused(gears: Any) -> None:
    with pytest.raises(GearError, match="expected a list or tuple of ints"):
        checked_gears((2, 2), {0: gears})


@pytest.mark.parametrize("gear", [True, 2.0, "2", None])
def test_gear_that_is_no_int_is_refused(gear: Any) -> None:
    with pytest.raises(GearError, match=r"gears of dimension 0: the second of them is .* expected an int"):
        checked_gears((2, 2), {0: [4, gear]})


@pytest.mark.parametrize("gear", [0, -2])
def test_gear_that_is_not_positive_is_refused(gear: Any) -> None:
    with pytest.raises(GearError, match=rf"the second of them is {gear}; a gear is a size of 1 or more"):
        checked_gears((2, 2), {0: [4, gear]})


def test_gears_may_repeat_as_in_torchair() -> None:
    assert checked_gears((2, 2), {0: [2, 2]}) == {0: (2, 2)}


def test_dim_gears_that_are_no_dict_are_refused() -> None:
    with pytest.raises(GearError, match="expected a dict from dimension to gears"):
        checked_gears((2, 2), [2, 4])  # type: ignore[arg-type]


def test_gears_cannot_be_changed() -> None:
    with pytest.raises(GearError, match="cannot be changed"):
        checked_gears((2, 2), {0: [2, 8]}, earlier={0: (2, 4)})


def test_same_gears_may_be_set_again() -> None:
    assert checked_gears((2, 2), {0: [2, 4]}, earlier={0: (2, 4)}) == {0: (2, 4)}


def test_set_dim_gears_refuses_what_is_no_tensor() -> None:
    with pytest.raises(GearError, match=r"expected a torch\.Tensor"):
        set_dim_gears([1, 2], {0: [2, 4]})  # type: ignore[arg-type]


def test_set_dim_gears_checks_before_anything_else() -> None:
    with pytest.raises(GearError, match="out of range"):
        set_dim_gears(torch.ones(2, 2), {2: [2, 4]})


def test_set_dim_gears_refuses_other_gears_than_the_tensor_has() -> None:
    tensor: Any = torch.ones(2, 2)
    tensor.dim_gears = {0: [2, 4]}
    with pytest.raises(GearError, match="cannot be changed"):
        set_dim_gears(tensor, {0: [2, 8]})


def test_set_dim_gears_puts_them_on_the_tensor() -> None:
    tensor: Any = torch.ones(2, 2)
    set_dim_gears(tensor, {0: [2, 4]})
    assert tensor.dim_gears == {0: (2, 4)}


def test_gears_set_twice_are_the_same_gears() -> None:
    tensor: Any = torch.ones(2, 2)
    set_dim_gears(tensor, {0: [2, 4]})
    set_dim_gears(tensor, {0: (2, 4)})
    with pytest.raises(GearError, match="cannot be changed"):
        set_dim_gears(tensor, {1: [2, 4]})


def test_no_gears_are_no_gears() -> None:
    tensor = torch.ones(2, 2)
    set_dim_gears(tensor, {})
    assert not hasattr(tensor, "dim_gears")


def test_marks_for_torch_compile_go_with_the_gears() -> None:
    tensor: Any = torch.ones(2, 2)
    set_dim_gears(tensor, {0: [2, 4], 1: [1, 2]})
    assert tensor._dynamo_dynamic_indices == {0}
    assert tensor._dynamo_weak_dynamic_indices == {1}  # a size of 1 is always a constant there


def test_a_geared_tensor_can_still_be_marked() -> None:
    tensor: Any = torch.ones(2, 2)
    set_dim_gears(tensor, {0: [2, 4]})
    torch._dynamo.mark_dynamic(tensor, 1)
    dynamos: Any = torch.ones(2, 2)
    torch._dynamo.mark_dynamic(dynamos, [0, 1])
    assert tensor._dynamo_dynamic_indices == {0, 1}
    assert _ranges(tensor) == _ranges(dynamos)


def _ranges(tensor: Any) -> set[int]:
    """Dimensions with a range; of torch 2.15 on, only those with bounds have one."""
    return {mark.dim for mark in getattr(tensor, "_dynamo_dynamic_range", ())}


@dataclass
class _Batch:
    x: torch.Tensor
    rest: list[Any]


def _takes_more(self: Any, batch: Any, *more: Any, y: Any = None) -> None: ...


def _takes_nothing(self: Any) -> None: ...


_takes: Any = _takes_more
_takes_none: Any = _takes_nothing


def test_geared_arguments_beyond_the_parameters_are_named_too() -> None:
    tensors = [torch.ones(2) for _ in range(3)]
    for tensor in tensors:
        set_dim_gears(tensor, {0: [2, 4]})
    assert [where for where, _ in geared_arguments(_takes, tensors, {})] == ["batch", "more[0]", "more[1]"]
    assert [where for where, _ in geared_arguments(_takes_none, tensors[:1], {})] == ["argument[0]"]


def test_geared_arguments_are_found_wherever_they_stand() -> None:
    tensors = [torch.ones(2) for _ in range(5)]
    for tensor in tensors[:4]:
        set_dim_gears(tensor, {0: [2, 4]})
    batch = _Batch(x=tensors[0], rest=[{"k": tensors[1]}, (tensors[2],), tensors[4]])
    found = geared_arguments(_takes, (batch, tensors[0]), {"y": tensors[3]})
    assert [where for where, _ in found] == [
        "batch.x",
        "batch.rest[0]['k']",
        "batch.rest[1][0]",
        "y",
    ]


def test_arguments_that_hold_themselves_are_searched_once() -> None:
    tensor = torch.ones(2)
    loop: list[Any] = []
    set_dim_gears(tensor, {0: [2, 4]})
    loop += [loop, tensor]
    assert [where for where, _ in geared_arguments(_takes, (loop,), {})] == ["batch[1]"]
