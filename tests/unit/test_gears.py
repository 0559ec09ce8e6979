"""Dimension gears: what is allowed, and that nothing is accepted and ignored."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from worker.errors import GearError, NotYet
from worker.gears import checked_gears, set_dim_gears


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
    with pytest.raises(GearError, match=r"gears of dimension 0: \[1\] is .* expected an int"):
        checked_gears((2, 2), {0: [4, gear]})


@pytest.mark.parametrize("gear", [0, -2])
def test_gear_that_is_not_positive_is_refused(gear: Any) -> None:
    with pytest.raises(GearError, match=rf"\[1\] is {gear}; a gear is a size of 1 or more"):
        checked_gears((2, 2), {0: [4, gear]})


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


def test_set_dim_gears_says_that_it_is_not_built_and_changes_nothing() -> None:
    tensor = torch.ones(2, 2)
    with pytest.raises(NotYet) as caught:
        set_dim_gears(tensor, {0: [2, 4]})
    assert caught.value.feature.startswith("dim gears")
    assert not hasattr(tensor, "dim_gears")
