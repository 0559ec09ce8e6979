"""Dimension gears: the few sizes that a dimension of an input may take, one captured graph for each.

The checks stand here and are pure; compiling for gears is not built yet, and `set_dim_gears` says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from worker.errors import GearError, NotYet

if TYPE_CHECKING:
    import torch

MIN_GEARS = 2
MAX_GEARS = 100

Gears = dict[int, tuple[int, ...]]


def set_dim_gears(t: torch.Tensor, dim_gears: Mapping[int, Sequence[int]]) -> None:
    """Give dimensions of an input their gears, as in ``set_dim_gears(x, {0: [2, 4]})``.

    Raises:
        GearError: `t` is no tensor, or the gears are not allowed.
        NotYet: the gears are fine, but nothing can be compiled for them yet; `t` is unchanged.
    """
    import torch

    if not isinstance(t, torch.Tensor):
        msg = f"set_dim_gears: t is of type {type(t).__qualname__}; expected a torch.Tensor"
        raise GearError(msg, found=type(t).__qualname__)
    checked = checked_gears(t.shape, dim_gears, earlier=getattr(t, "dim_gears", None))
    raise NotYet(
        f"dim gears (set_dim_gears(t, {checked}))",
        instead="what works today: cache_compile(..., dynamic=True) without gears compiles once for all "
        "shapes, and a graph is captured for each shape that comes",
    )


def checked_gears(
    shape: Sequence[int],
    dim_gears: Mapping[int, Sequence[int]],
    *,
    earlier: Mapping[int, Sequence[int]] | None = None,
) -> Gears:
    """The gears as tuples by dimension, if they are allowed.

    Args:
        shape: shape of the tensor that gets the gears.
        dim_gears: sizes by index of the dimension; an index counts from 0, never from the end.
        earlier: gears that the tensor has already; only the same ones may be set again.

    Raises:
        GearError: an index that is no int or out of range; gears that are no list or tuple, fewer than 2 or
            more than 100; a gear that is no int, or not positive; other gears than the earlier ones.
    """
    if not isinstance(dim_gears, Mapping):
        msg = (
            f"set_dim_gears: dim_gears is of type {type(dim_gears).__qualname__}; "
            "expected a dict from dimension to gears, such as {0: [2, 4]}"
        )
        raise GearError(msg, found=type(dim_gears).__qualname__)
    for dim, gears in dim_gears.items():
        _check_dim(dim, len(shape))
        _check_gears(dim, gears)
    checked = {dim: tuple(gears) for dim, gears in dim_gears.items()}
    if earlier is not None:
        before = {dim: tuple(gears) for dim, gears in earlier.items()}
        if before != checked:
            msg = f"set_dim_gears: the tensor has gears {before} already; they cannot be changed to {checked}"
            raise GearError(msg, found=repr(checked), allowed=repr(before))
    return checked


def _check_dim(dim: object, num_dims: int) -> None:
    if type(dim) is not int:
        msg = f"set_dim_gears: dimension {dim!r} is of type {type(dim).__qualname__}; expected an int"
        raise GearError(msg, dim=repr(dim))
    if not 0 <= dim < num_dims:
        allowed = f"0 to {num_dims - 1}" if num_dims else "none, for the tensor has no dimensions"
        msg = f"set_dim_gears: dimension {dim} is out of range; allowed: {allowed}"
        raise GearError(msg, dim=repr(dim), allowed=allowed)


def _check_gears(dim: int, gears: object) -> None:
    place = f"set_dim_gears: gears of dimension {dim}"
    if not isinstance(gears, list | tuple):
        msg = f"{place} are of type {type(gears).__qualname__}; expected a list or tuple of ints"
        raise GearError(msg, dim=repr(dim), found=type(gears).__qualname__)
    if not MIN_GEARS <= len(gears) <= MAX_GEARS:
        msg = f"{place}: there are {len(gears)}; allowed: {MIN_GEARS} to {MAX_GEARS}"
        raise GearError(msg, dim=repr(dim), found=repr(len(gears)))
    for position, gear in enumerate(gears):
        if type(gear) is not int:
            msg = f"{place}: [{position}] is {gear!r} ({type(gear).__qualname__}); expected an int"
            raise GearError(msg, dim=repr(dim), found=repr(gear))
        if gear < 1:
            msg = f"{place}: [{position}] is {gear}; a gear is a size of 1 or more"
            raise GearError(msg, dim=repr(dim), found=repr(gear))
