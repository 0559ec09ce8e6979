"""Gears: what they may be, and which tensor carries which: they stand on it, under TorchAir's name."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from warmrank.worker.errors import GearError

if TYPE_CHECKING:
    from types import CodeType, FunctionType

    import torch

MIN_GEARS = 2
MAX_GEARS = 100

Gears = dict[int, tuple[int, ...]]


def checked_gears(
    shape: Sequence[int],
    dim_gears: Mapping[int, Sequence[int]],
) -> Gears:
    """The gears as tuples by dimension, if they are allowed.

    A gear may stand there twice, for ``zip`` pairs it with two of another dimension; no gears at all are
    allowed too. Both as in TorchAir.

    Args:
        shape: shape of the tensor that gets the gears.
        dim_gears: sizes by index of the dimension; an index counts from 0, never from the end.

    Raises:
        GearError: an index that is no int or out of range; gears that are no list or tuple, fewer than 2 or
            more than 100; a gear that is no int, or not positive. Its words are TorchAir's.
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
    return {dim: tuple(gears) for dim, gears in dim_gears.items()}


def _check_dim(dim: object, num_dims: int) -> None:
    if type(dim) is not int:
        msg = f"Dim index in dim_gears must be an integer, but got {type(dim)}."
        raise GearError(msg, dim=repr(dim))
    if not 0 <= dim < num_dims:
        msg = f"Dim index in dim_gears must be in range [0, {num_dims - 1}], but got {dim}."
        raise GearError(msg, dim=repr(dim), allowed=f"0 to {num_dims - 1}")


def _check_gears(dim: int, gears: object) -> None:
    if not isinstance(gears, list | tuple):
        msg = f"Gears for dim index {dim} in dim_gears must be a list or tuple, but got {type(gears)}."
        raise GearError(msg, dim=repr(dim), found=type(gears).__qualname__)
    if not MIN_GEARS <= len(gears) <= MAX_GEARS:
        msg = (
            f"Length of gears for dim index {dim} in dim_gears must be in range [{MIN_GEARS}, {MAX_GEARS}], "
            f"but got {len(gears)}."
        )
        raise GearError(msg, dim=repr(dim), found=repr(len(gears)))
    for position, gear in enumerate(gears):
        if type(gear) is not int:
            msg = (
                f"Element at index {position} of value for dim index {dim} in dim_gears must be an integer, "
                f"but got {type(gear)}."
            )
            raise GearError(msg, dim=repr(dim), found=repr(gear))
        if gear < 1:
            fault = "must not be 0" if gear == 0 else "must be a size of 1 or more"
            msg = f"Gear value at index {position} for dim index {dim} {fault}, but got {gear}."
            raise GearError(msg, dim=repr(dim), found=repr(gear))


ATTRIBUTE = "dim_gears"
_MAX_DEPTH = 16


class _Process:
    """What this process did: gears cost nothing where nobody sets any."""

    used = False


def set_dim_gears(t: torch.Tensor, dim_gears: Mapping[int, Sequence[int]]) -> None:
    """Give dimensions of an input their gears, as in ``set_dim_gears(x, {0: [2, 4]})``.

    Source of name, checks and attribute: TorchAir's ``torchair.inference.set_dim_gears``.

    Raises:
        GearError: `t` is no tensor, the gears are not allowed, or `t` has other gears already.
    """
    import torch

    from warmrank.worker.torch_private.marks import mark_geared

    if not isinstance(t, torch.Tensor):
        msg = f"set_dim_gears: t is of type {type(t).__qualname__}; expected a torch.Tensor"
        raise GearError(msg, found=type(t).__qualname__)
    checked = checked_gears(t.shape, dim_gears)
    if getattr(t, ATTRIBUTE, checked) != checked:
        msg = f"Tensor {t} already has set dim gears, and it is not supported to set it again."
        raise GearError(msg, found=repr(checked), allowed=repr(getattr(t, ATTRIBUTE)))
    if checked:
        mark_geared(t, checked)
        setattr(t, ATTRIBUTE, checked)
        _Process.used = True


def any_set() -> bool:
    """Whether a tensor of this process was ever given gears."""
    return _Process.used


def carried(value: Any) -> Gears | None:
    """The gears that a value carries."""
    return getattr(value, ATTRIBUTE, None) or None


def encoded(gears: Gears | None) -> list[list[Any]]:
    """Gears as plain JSON values, in the order of the dimensions; empty for none."""
    return [[dim, list(gears[dim])] for dim in sorted(gears)] if gears else []


def geared_arguments(
    function: FunctionType, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[tuple[str, torch.Tensor]]:
    """Every tensor with gears among a call's arguments, each once, and where it stands.

    Args:
        function: what is called; it names the arguments.
        args: positional arguments of the call, without the module.
        kwargs: keyword arguments of the call.
    """
    found: dict[int, tuple[str, torch.Tensor]] = {}
    if any_set():
        named = [*zip(_positional(function.__code__, len(args)), args, strict=True), *kwargs.items()]
        seen: set[int] = set()
        for where, value in named:
            for place, tensor in _tensors(where, value, seen, _MAX_DEPTH):
                found.setdefault(id(tensor), (place, tensor))
    return list(found.values())


def _positional(code: CodeType, count: int) -> list[str]:
    """Names of the first positional arguments after the module; those beyond the parameters are ``*args``."""
    own = code.co_varnames[1 : code.co_argcount][:count]
    takes_more = bool(code.co_flags & inspect.CO_VARARGS)
    rest = code.co_varnames[code.co_argcount + code.co_kwonlyargcount] if takes_more else "argument"
    return [*own, *(f"{rest}[{index}]" for index in range(count - len(own)))]


def _tensors(where: str, value: Any, seen: set[int], depth: int) -> Iterator[tuple[str, torch.Tensor]]:
    import torch

    if isinstance(value, torch.Tensor):
        if carried(value):
            yield where, value
        return
    if depth == 0 or id(value) in seen or isinstance(value, type | torch.nn.Module):
        return
    members = _members(value)
    if members:
        seen.add(id(value))
    for name, member in members:
        yield from _tensors(f"{where}{name}", member, seen, depth - 1)


def _members(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", member) for key, member in value.items()]
    if isinstance(value, list | tuple | set | frozenset):
        return [(f"[{index}]", member) for index, member in enumerate(value)]
    if dataclasses.is_dataclass(value):
        return [(f".{field.name}", getattr(value, field.name, None)) for field in dataclasses.fields(value)]
    return [(f".{name}", member) for name, member in getattr(value, "__dict__", {}).items()]
