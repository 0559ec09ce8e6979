"""Rules of gears: the artifact that a call may use, and the refusal of a shape that is no gear.

======================  ====================================================================
artifact                may be used for a call
======================  ====================================================================
made with gears, on     whose tensors carry the same gears
disk or in the store
made with gears, loaded whose tensors carry the same gears, or none: the function has learned them
made without gears      whose tensors carry none
======================  ====================================================================

In all cases with gears the sizes must be one of the combinations, or lie under one (``on_gear_miss="pad"``).
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any

from warmrank.worker.configs.compiler_config import OnGearMiss
from warmrank.worker.errors import GearError
from warmrank.worker.gears.model import Axis, Combination, GearFacts, any_set, carried
from warmrank.worker.runtime.artifact import PortableGuards
from warmrank.worker.torch_private.operators import readable
from warmrank.worker.values import replace

if TYPE_CHECKING:
    from types import CodeType

    import torch

    from warmrank.worker.runtime.artifact import Check

Shape = tuple[str, tuple[int, ...]]
_SHOWN = 12
_MAX_DEPTH = 16


def membership(gears: GearFacts) -> Shape:
    """The condition that the sizes are one of the combinations."""
    sizes = "".join(f"{_size(axis)}, " for axis in gears.axes)
    allowed = ", ".join(map(repr, gears.combinations))
    return f"({sizes}) in {{{allowed}}}", _nodes(gears)


def coverage(gears: GearFacts) -> Shape:
    """The condition that the sizes lie under one of the combinations, and that the traced code is theirs."""
    maximal: list[Combination] = []
    for combination in gears.combinations:
        if not any(all(a >= b for a, b in zip(other, combination, strict=True)) for other in maximal):
            maximal.append(combination)
    under = (
        " and ".join(f"{_size(axis)} <= {gear}" for axis, gear in zip(gears.axes, each, strict=True))
        for each in maximal
    )
    conditions = [" or ".join(f"({each})" for each in under), *gears.conditions]
    text = " and ".join(f"({condition})" for condition in conditions)
    for axis in gears.axes:
        text = re.sub(rf"\b{axis.symbol}\b", _size(axis), text)
    return text, _nodes(gears)


def _size(axis: Axis) -> str:
    return f"p{axis.node}.shape[{axis.dim}]"


def _nodes(gears: GearFacts) -> tuple[int, ...]:
    return tuple(dict.fromkeys(axis.node for axis in gears.axes))


def call_guards(
    guards: PortableGuards, gears: GearFacts | None, on_miss: OnGearMiss, *, learned: bool
) -> PortableGuards:
    """The guards of an artifact for a call; ``learned``: its tensors need not carry the gears any more."""
    if gears is None:
        return replace(guards, checks=(*guards.checks, *carry_none(guards))) if any_set() else guards
    if on_miss == "pad":
        exact, wide = membership(gears), coverage(gears)
        guards = replace(guards, shapes=tuple(wide if shape == exact else shape for shape in guards.shapes))
    if learned:
        return guards
    checks = tuple(
        (node, "geared" if kind == "gears" else kind, wanted) for node, kind, wanted in guards.checks
    )
    return replace(guards, checks=checks)


def carry_none(guards: PortableGuards) -> tuple[Check, ...]:
    """The conditions that none of the tensors that the guards name carries gears."""
    return tuple((node, "gears", []) for node, kind, _ in guards.checks if kind == "tensor")


def any_size(guards: PortableGuards, gears: GearFacts) -> PortableGuards:
    """The guards without their condition on geared sizes."""
    both = (membership(gears), coverage(gears))
    return replace(guards, shapes=tuple(shape for shape in guards.shapes if shape not in both))


def condition_text(gears: GearFacts, condition: str) -> str:
    """A condition on symbols as a reader would write it."""
    for axis in gears.axes:
        condition = re.sub(rf"\b{axis.symbol}\b", f"{axis.source}.size({axis.dim})", condition)
    return readable(condition)


def refuse_miss(gears: GearFacts, sizes: Combination, on_miss: OnGearMiss) -> None:
    """Raise `GearError` for sizes that no gear stands for: which, what is allowed, and what to do."""
    combinations = gears.combinations
    if sizes in combinations or (on_miss == "pad" and gears.gear_of(sizes)):
        return
    found = ", ".join(
        f"{readable(axis.source)} dimension {axis.dim} is {size}"
        for axis, size in zip(gears.axes, sizes, strict=True)
    )
    why = ""
    if unmet := gears.unmet(sizes):
        why = f" What was compiled asks for {condition_text(gears, unmet)}, which does not hold for them."
    shown = ", ".join(map(str, combinations[:_SHOWN])) + (", ..." if len(combinations) > _SHOWN else "")
    msg = f"no gear for these sizes: {found}; allowed combinations: {shown}.{why} {_remedy(on_miss)}"
    raise GearError(msg, sizes=sizes, allowed=combinations)


def _remedy(on_miss: OnGearMiss) -> str:
    if on_miss == "pad":
        return (
            "Padding only goes up to a larger gear, where the code is the same for both sizes: give "
            "set_dim_gears a gear that is as large as this."
        )
    return (
        "Pad the inputs to a gear, give set_dim_gears a gear of this size, or let cache_compile pad "
        '(on_gear_miss="pad", for functions whose rows do not depend on each other).'
    )


def refuse_arguments(geared: Sequence[tuple[str, Any]], on_miss: OnGearMiss, policy: str) -> None:
    """Refuse, before anything is traced, tensors whose own sizes are none of the gears that they carry."""
    for where, tensor in geared:
        for dim, gears in (carried(tensor) or {}).items():
            size = tensor.shape[dim]
            if size in gears or (on_miss == "pad" and size <= max(gears)):
                continue
            msg = (
                f"{where}: dimension {dim} is {size}, which is none of its gears {gears} (merged by "
                f"{policy!r}). {_remedy(on_miss)}"
            )
            raise GearError(msg, input=where, dim=str(dim), found=str(size), allowed=repr(gears))


def geared_arguments(
    function: FunctionType, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[tuple[str, torch.Tensor]]:
    """Every tensor with gears among a call's arguments (without the module), once, and where it stands."""
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
