"""Rules of gears: the artifact that a call may use, and the refusal of a shape that is no gear.

An artifact made with gears serves calls whose tensors carry the same gears; once loaded also those that carry
none, because the function has learned them. One made without gears serves calls without. With gears the sizes
must be one of the combinations, or lie under one (``on_gear_miss="pad"``).

The runner of a geared graph refuses or pads what is no gear, cuts outputs, says what every gear is. A call
whose sizes are a gear goes straight to the runner underneath. Padded inputs lie in buffers of this runner,
zeros beyond the caller's data; cut outputs are views of the outputs underneath, and are overwritten as those
are.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

from warmrank.worker.configs.compiler_config import OnGearMiss
from warmrank.worker.errors import GearError
from warmrank.worker.gears.model import Axis, Combination, GearedInput, GearFacts, carried, evaluate
from warmrank.worker.runtime.artifact import PortableGuards
from warmrank.worker.runtime.check import any_gears
from warmrank.worker.torch_private.operators import readable
from warmrank.worker.values import Value, replace

if TYPE_CHECKING:
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
        return replace(guards, checks=(*guards.checks, *carry_none(guards))) if any_gears() else guards
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
    msg = f"no gear for these sizes: {found}; allowed combinations: {shown}.{why} {_REMEDIES[on_miss]}"
    raise GearError(msg, sizes=sizes, allowed=combinations)


_REMEDIES = {
    "pad": "Padding only goes up to a larger gear, where the code is the same for both sizes: give "
    "set_dim_gears a gear that is as large as this.",
    "error": "Pad the inputs to a gear, give set_dim_gears a gear of this size, or let cache_compile pad "
    '(on_gear_miss="pad", for functions whose rows do not depend on each other).',
}


def refuse_arguments(geared: Sequence[tuple[str, Any]], on_miss: OnGearMiss, policy: str) -> None:
    """Refuse, before anything is traced, tensors whose own sizes are none of the gears that they carry."""
    for where, tensor in geared:
        for dim, gears in (carried(tensor) or {}).items():
            size = tensor.shape[dim]
            if size not in gears and (on_miss != "pad" or size > max(gears)):
                msg = (
                    f"{where}: dimension {dim} is {size}, which is none of its gears {gears} (merged by "
                    f"{policy!r}). {_REMEDIES[on_miss]}"
                )
                raise GearError(msg, input=where, dim=str(dim), found=str(size), allowed=repr(gears))


def geared_arguments(
    function: FunctionType, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[tuple[str, torch.Tensor]]:
    """Every tensor with gears among a call's arguments (without the module), once, and where it stands."""
    if not any_gears():
        return []
    code = function.__code__
    own = code.co_varnames[1 : code.co_argcount][: len(args)]
    takes_more = bool(code.co_flags & inspect.CO_VARARGS)
    rest = code.co_varnames[code.co_argcount + code.co_kwonlyargcount] if takes_more else "argument"
    more = (f"{rest}[{index}]" for index in range(len(args) - len(own)))
    found: dict[int, tuple[str, torch.Tensor]] = {}
    seen: set[int] = set()
    for where, value in [*zip([*own, *more], args, strict=True), *kwargs.items()]:
        for place, tensor in _tensors(where, value, seen, _MAX_DEPTH):
            found.setdefault(id(tensor), (place, tensor))
    return list(found.values())


def _tensors(where: str, value: Any, seen: set[int], depth: int) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        if carried(value):
            yield where, value
        return
    if depth == 0 or id(value) in seen or isinstance(value, type | torch.nn.Module):
        return
    if isinstance(value, Mapping):
        members = [(f"[{key!r}]", member) for key, member in value.items()]
    elif isinstance(value, list | tuple | set | frozenset):
        members = [(f"[{index}]", member) for index, member in enumerate(value)]
    else:
        fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
        names = {field.name: getattr(value, field.name, None) for field in fields}
        names |= getattr(value, "__dict__", {})
        members = [(f".{name}", member) for name, member in names.items()]
    if members:
        seen.add(id(value))
    for name, member in members:
        yield from _tensors(f"{where}{name}", member, seen, depth - 1)


_MAX_PLANS = 256


class _Plan(Value):
    """Plan of calls of one shape."""

    inputs: tuple[tuple[int, torch.Tensor | int], ...]  # positions to fill, with buffers and numbers
    outputs: tuple[tuple[int, tuple[int, ...] | int], ...]  # positions to cut to sizes; or a number to give


class GearedRunner:
    """Stands before the runner of a graph with gears."""

    def __init__(self, runner: Any, gears: GearFacts, *, on_miss: OnGearMiss) -> None:
        """``runner``, a `GraphRunner`, runs calls whose sizes are a gear; its graph alone checks padding.

        Without padding any callable over the graph's inputs will do.
        """
        refuse_unpaddable(gears, on_miss)
        self._runner = runner
        self._gears = gears
        self._on_miss = on_miss
        self._allowed = frozenset(gears.combinations)
        self._plans: dict[tuple[Any, ...], _Plan] = {}
        self._tried: set[Combination] = set()
        self._asked = tuple(position for symbol, position in gears.bound if gears.mentions(symbol))

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Outputs for ``inputs``, of the caller's sizes.

        Raises `GearError`: no gear stands for the inputs, or padding changes the results.
        """
        sizes = self._gears.sizes_of(inputs)
        if sizes in self._allowed:
            return self._runner(*inputs)  # type: ignore[no-any-return] # the runner's
        if self._on_miss == "error":
            refuse_miss(self._gears, sizes, self._on_miss)
        with self._runner.lock:  # the padded buffers are shared by all calls
            plan = self._plan_of(sizes, inputs)
            return self._cut(plan, self._runner(*self._filled(plan, inputs, copy=True)))

    def gear_inputs(self, inputs: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Inputs of every gear, largest first, made of those of one call; geared tensors are zeros.

        Only the call's own if the graph writes to a geared input, or returns one: such a graph is captured
        for the very tensors of a call.
        """
        if not self._gears.ahead:
            return [inputs]
        plans = (self._plan(gear, gear, inputs) for gear in self._gears.combinations)
        return [tuple(self._filled(plan, inputs, copy=False)) for plan in plans]

    def _plan_of(self, sizes: Combination, inputs: Sequence[Any]) -> _Plan:
        key = (*sizes, *(inputs[position] for position in self._asked))
        plan = self._plans.get(key)
        if plan is None:
            refuse_miss(self._gears, sizes, self._on_miss)
            combination = self._gears.gear_of(sizes)
            assert combination is not None  # noqa: S101 - refused above
            plan = self._plan(sizes, combination, inputs)
            if sizes not in self._tried:
                self._try(plan, sizes, inputs)
                self._tried.add(sizes)
            if len(self._plans) >= _MAX_PLANS:
                del self._plans[next(iter(self._plans))]
            self._plans[key] = plan
        return plan

    def _plan(self, sizes: Combination, combination: Combination, inputs: Sequence[Any]) -> _Plan:
        gears = self._gears
        callers, padded = gears.symbols(sizes, inputs), gears.symbols(combination, inputs)
        outputs: list[tuple[int, tuple[int, ...] | int]] = []
        for position, item in enumerate(gears.outputs if sizes != combination else ()):
            if isinstance(item, tuple):
                wanted, made = (tuple(evaluate(size, known) for size in item) for known in (callers, padded))
                outputs += [(position, wanted)] if wanted != made else []
            elif item is not None:
                outputs.append((position, evaluate(item, callers)))
        buffers = [(item.position, _zeros(item, padded, inputs[item.position])) for item in gears.inputs]
        numbers = [(position, evaluate(text, padded)) for position, text in gears.numbers]
        return _Plan(inputs=(*buffers, *numbers), outputs=tuple(outputs))

    @staticmethod
    def _filled(plan: _Plan, inputs: Sequence[Any], *, copy: bool) -> list[Any]:
        """A call's inputs with the plan's tensors and numbers in their place."""
        filled = list(inputs)
        for position, value in plan.inputs:
            if copy and isinstance(value, torch.Tensor):
                with torch.no_grad():
                    # Beyond the caller's data the buffer still holds the zeros that it was made with.
                    _corner(value, inputs[position].shape).copy_(inputs[position])
            filled[position] = value
        return filled

    @staticmethod
    def _cut(plan: _Plan, outputs: Sequence[Any]) -> tuple[Any, ...]:
        results = list(outputs)
        for position, item in plan.outputs:
            results[position] = _corner(results[position], item) if isinstance(item, tuple) else item
        return tuple(results)

    def _try(self, plan: _Plan, sizes: Combination, inputs: Sequence[Any]) -> None:
        """Run once with and without padding; a function that mixes rows is refused instead of believed."""
        positions = [position for position, value in plan.inputs if isinstance(value, torch.Tensor)]
        for trial in _trials(inputs, positions):
            try:
                with torch.no_grad():
                    got = self._cut(plan, self._runner.run_alone(*self._filled(plan, trial, copy=True)))
                    wanted = self._runner.run_alone(*trial)
            except (RuntimeError, IndexError, ValueError):
                if trial is inputs:
                    raise
                continue  # values that the function is not for say nothing about it
            for position, (one, other) in enumerate(zip(got, wanted, strict=True)):
                if not _close(one, other):
                    msg = (
                        f"padding {sizes} up to a gear changes output {position}: the function mixes rows (a "
                        "sum, mean, maximum, cat or softmax over a padded dimension). Use "
                        'on_gear_miss="error" for it, or mask the padding in its code.'
                    )
                    raise GearError(msg, output=position, sizes=sizes)


def refuse_unpaddable(gears: GearFacts, on_miss: OnGearMiss) -> None:
    """Refuse to pad inputs of a graph for which that cannot be right."""
    if on_miss == "pad" and gears.unpaddable:
        msg = (
            f'on_gear_miss="pad" cannot be used here: {gears.unpaddable}. Pad in your own code, or leave '
            'on_gear_miss at "error".'
        )
        raise GearError(msg, reason=gears.unpaddable)


def _corner(tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    return tensor.as_strided(tuple(sizes), tensor.stride(), tensor.storage_offset())


def _zeros(item: GearedInput, symbols: dict[str, int], like: torch.Tensor) -> torch.Tensor:
    """A tensor as large as its gear; no inference tensor, because calls in and out of that mode fill it."""
    sizes = [evaluate(size, symbols) for size in item.sizes]
    strides = [evaluate(stride, symbols) for stride in item.strides]
    with torch.inference_mode(mode=False), torch.no_grad():
        return torch.empty_strided(sizes, strides, dtype=like.dtype, device=like.device).zero_()


# How far a padded call may be from the same call without padding, by the type of the numbers.
_TOLERANCES = {torch.float64: 1e-8, torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 1e-2}


def _trials(inputs: Sequence[Any], padded: Collection[int]) -> Iterator[Sequence[Any]]:
    """The caller's inputs; then the same with other data in those that are padded, where any is possible.

    Not in integers, nor in numbers that are all whole: they may be indexes, and others may lie out of range.
    """
    yield inputs
    free = {
        position: value
        for position in padded
        if (value := inputs[position]).dtype is torch.bool
        or (value.is_floating_point() and not bool(torch.equal(value, value.round())))
    }
    for sign in (-1, 1) if free else ():
        other = list(inputs)
        for position, value in free.items():
            with torch.inference_mode(mode=False), torch.no_grad():
                # Strides as they are: what was compiled may rely on them.
                made = torch.empty_strided(
                    value.shape, value.stride(), dtype=value.dtype, device=value.device
                )
                is_bool = value.dtype is torch.bool
                other[position] = made.fill_(sign > 0) if is_bool else made.copy_((value.abs() + 1) * sign)
        yield other


def _close(one: Any, other: Any) -> bool:
    """True if two results are equal up to rounding."""
    if not isinstance(one, torch.Tensor):
        return bool(one == other)
    tolerance = _TOLERANCES.get(one.dtype)
    if tolerance is None:
        return bool(torch.equal(one, other))
    scale = tolerance * max(1.0, float(other.abs().nan_to_num(0.0, 0.0, 0.0).max()) if other.numel() else 1.0)
    return one.shape == other.shape and bool(
        torch.allclose(one, other, rtol=tolerance, atol=scale, equal_nan=True)
    )
