"""What gears may be: sizes by dimension, checked without a tensor. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from warmrank.worker.errors import GearError

MIN_GEARS = 2
MAX_GEARS = 100
_ORDINALS = dict(enumerate(("the first of them", "the second of them", "the third of them")))

Gears = dict[int, tuple[int, ...]]


def checked_gears(
    shape: Sequence[int],
    dim_gears: Mapping[int, Sequence[int]],
    *,
    earlier: Mapping[int, Sequence[int]] | None = None,
) -> Gears:
    """The gears as tuples by dimension, if they are allowed.

    A gear may stand there twice, for ``zip`` pairs it with two of another dimension; no gears at all are
    allowed too. Both as in TorchAir.

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
        which = _ORDINALS.get(position, f"number {position + 1}")
        if type(gear) is not int:
            msg = f"{place}: {which} is {gear!r} ({type(gear).__qualname__}); expected an int"
            raise GearError(msg, dim=repr(dim), found=repr(gear))
        if gear < 1:
            msg = f"{place}: {which} is {gear}; a gear is a size of 1 or more"
            raise GearError(msg, dim=repr(dim), found=repr(gear))
