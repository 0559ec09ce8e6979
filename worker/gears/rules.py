"""Which artifact a call may use, by gears: the conditions that they add to the guards. Pure.

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

import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from warmrank.worker.gears.carried import any_set
from warmrank.worker.gears.model import GearFacts
from warmrank.worker.runtime.options import OnGearMiss
from warmrank.worker.values import Value

if TYPE_CHECKING:
    from types import FunctionType

    from warmrank.worker.runtime.artifact import Check, PortableGuards

Shape = tuple[str, tuple[int, ...]]


class GearRule(Value):
    """How calls are measured.

    Attributes:
        on_miss: what a shape that is no gear means.
        learned: tensors need not carry the gears any more.
    """

    on_miss: OnGearMiss = "error"
    learned: bool = False


def membership(gears: GearFacts) -> Shape:
    """The condition that the sizes are one of the combinations."""
    allowed = ", ".join(repr(combination) for combination in gears.combinations)
    return f"({_sizes(gears)}) in {{{allowed}}}", _nodes(gears)


def coverage(gears: GearFacts) -> Shape:
    """The condition that the sizes lie under one of the combinations, and that the traced code is theirs."""
    sizes = [f"p{axis.node}.shape[{axis.dim}]" for axis in gears.axes]
    under = (
        " and ".join(f"{size} <= {gear}" for size, gear in zip(sizes, combination, strict=True))
        for combination in _maximal(gears)
    )
    conditions = [" or ".join(f"({each})" for each in under), *gears.conditions]
    text = " and ".join(f"({condition})" for condition in conditions)
    for axis, size in zip(gears.axes, sizes, strict=True):
        text = re.sub(rf"\b{axis.symbol}\b", size, text)
    return text, _nodes(gears)


def _maximal(gears: GearFacts) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    for combination in gears.combinations:
        if not any(all(a >= b for a, b in zip(other, combination, strict=True)) for other in found):
            found.append(combination)
    return found


def _sizes(gears: GearFacts) -> str:
    return "".join(f"p{axis.node}.shape[{axis.dim}], " for axis in gears.axes)


def _nodes(gears: GearFacts) -> tuple[int, ...]:
    return tuple(dict.fromkeys(axis.node for axis in gears.axes))


def call_guards(guards: PortableGuards, gears: GearFacts | None, rule: GearRule) -> PortableGuards:
    """The guards of an artifact under a rule."""
    if gears is None:
        return _without_gears(guards) if any_set() else guards
    if rule.on_miss == "pad":
        exact, wide = membership(gears), coverage(gears)
        guards = replace(guards, shapes=tuple(wide if shape == exact else shape for shape in guards.shapes))
    if rule.learned:
        return guards
    checks = tuple(
        (node, "geared" if kind == "gears" else kind, wanted) for node, kind, wanted in guards.checks
    )
    return replace(guards, checks=checks)


def _without_gears(guards: PortableGuards) -> PortableGuards:
    tensors: tuple[Check, ...] = tuple(
        (node, "gears", []) for node, kind, _ in guards.checks if kind == "tensor"
    )
    return replace(guards, checks=(*guards.checks, *tensors))


def any_size(guards: PortableGuards, gears: GearFacts) -> PortableGuards:
    """The guards without their condition on geared sizes."""
    both = (membership(gears), coverage(gears))
    return replace(guards, shapes=tuple(shape for shape in guards.shapes if shape not in both))


def compile_carries_none(guards: PortableGuards, function: FunctionType) -> Callable[..., bool]:
    """A function of a call's arguments: whether none of the tensors that the guards name carries gears."""
    from warmrank.worker.runtime.per_call import compile_input_check

    tensors: tuple[Check, ...] = tuple(
        (node, "gears", []) for node, kind, _ in guards.checks if kind == "tensor"
    )
    return compile_input_check(replace(guards, checks=tensors, shapes=()), function)
