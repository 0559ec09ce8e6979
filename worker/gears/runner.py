"""The runner of a geared graph: refuses or pads what is no gear, cuts outputs, says what every gear is.

A call whose sizes are a gear goes straight to the runner underneath. Padded inputs lie in buffers of this
runner, zeros beyond the caller's data; cut outputs are views of the outputs underneath, and are overwritten
as those are.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from warmrank.worker.configs.compiler_config import OnGearMiss
from warmrank.worker.errors import GearError
from warmrank.worker.gears.model import Combination, GearedInput, GearFacts, evaluate
from warmrank.worker.gears.rules import refuse_miss
from warmrank.worker.values import Value

if TYPE_CHECKING:
    from warmrank.worker.runtime.runner import GraphRunner

_MAX_PLANS = 256


class _Plan(Value):
    """Plan of calls of one shape: the positions to fill for their gear, and the values there."""

    padded: tuple[tuple[int, torch.Tensor], ...]  # inputs
    numbers: tuple[tuple[int, int], ...]  # number inputs
    cut: tuple[tuple[int, tuple[int, ...]], ...]  # sizes of outputs
    returned: tuple[tuple[int, int], ...]  # number outputs


class GearedRunner:
    """Stands before the runner of a graph with gears."""

    def __init__(self, runner: GraphRunner, gears: GearFacts, *, on_miss: OnGearMiss) -> None:
        """``runner`` runs calls whose sizes are a gear; its plain graph shows if padding changes results."""
        refuse_unpaddable(gears, on_miss)
        self._runner = runner
        self._gears = gears
        self._on_miss = on_miss
        self._allowed = frozenset(gears.combinations)
        self._plans: dict[tuple[Any, ...], _Plan] = {}
        self._tried: set[Combination] = set()
        self._asked = tuple(position for symbol, position in gears.bound if gears.mentions(symbol))
        self._lock = threading.RLock()  # the padded buffers are shared by all calls

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Outputs for ``inputs``, of the caller's sizes.

        Raises `GearError`: no gear stands for the inputs, or padding changes the results.
        """
        sizes = self._gears.sizes_of(inputs)
        if sizes in self._allowed:
            return self._runner(*inputs)
        with self._lock:
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
        cut, returned = [], []
        for position, item in enumerate(gears.outputs):
            if sizes == combination:
                break
            if isinstance(item, tuple):
                wanted = tuple(evaluate(size, callers) for size in item)
                if wanted != tuple(evaluate(size, padded) for size in item):
                    cut.append((position, wanted))
            elif item is not None:
                returned.append((position, evaluate(item, callers)))
        return _Plan(
            padded=tuple(
                (item.position, _zeros(item, padded, inputs[item.position])) for item in gears.inputs
            ),
            numbers=tuple((position, evaluate(text, padded)) for position, text in gears.numbers),
            cut=tuple(cut),
            returned=tuple(returned),
        )

    @staticmethod
    def _filled(plan: _Plan, inputs: Sequence[Any], *, copy: bool) -> list[Any]:
        """A call's inputs with the plan's tensors and numbers in their place."""
        filled = list(inputs)
        for position, buffer in plan.padded:
            if copy:
                with torch.no_grad():
                    # Beyond the caller's data the buffer still holds the zeros that it was made with.
                    _corner(buffer, inputs[position].shape).copy_(inputs[position])
            filled[position] = buffer
        for position, value in plan.numbers:
            filled[position] = value
        return filled

    @staticmethod
    def _cut(plan: _Plan, outputs: Sequence[Any]) -> tuple[Any, ...]:
        if not plan.cut and not plan.returned:
            return tuple(outputs)
        results = list(outputs)
        for position, sizes in plan.cut:
            results[position] = _corner(results[position], sizes)
        for position, value in plan.returned:
            results[position] = value
        return tuple(results)

    def _try(self, plan: _Plan, sizes: Combination, inputs: Sequence[Any]) -> None:
        """Run once with and without padding; a function that mixes rows is refused instead of believed."""
        positions = tuple(position for position, _ in plan.padded)
        for trial in trials(inputs, positions):
            try:
                with torch.no_grad():
                    got = self._cut(plan, self._runner.run_plain(*self._filled(plan, trial, copy=True)))
                    wanted = self._runner.run_plain(*trial)
            except (RuntimeError, IndexError, ValueError):
                if trial is inputs:
                    raise
                continue  # values that the function is not for say nothing about it
            for position, (one, other) in enumerate(zip(got, wanted, strict=True)):
                if not close(one, other):
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


def trials(inputs: Sequence[Any], padded: Collection[int]) -> Iterator[Sequence[Any]]:
    """The caller's inputs; then the same with other data in those that are padded, where any is possible."""
    yield inputs
    free = [position for position in padded if _may_change(inputs[position])]
    if free:
        for sign in (-1, 1):
            other = list(inputs)
            for position in free:
                other[position] = _one_sided(inputs[position], sign)
            yield other


def _may_change(value: torch.Tensor) -> bool:
    """Not integers, nor numbers that are all whole: they may be indexes, and others may lie out of range."""
    if value.dtype is torch.bool:
        return True
    return value.is_floating_point() and not bool(torch.equal(value, value.round()))


def _one_sided(value: torch.Tensor, sign: int) -> torch.Tensor:
    with torch.inference_mode(mode=False), torch.no_grad():
        # Strides as they are: what was compiled may rely on them.
        other = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
        return other.fill_(sign > 0) if value.dtype is torch.bool else other.copy_((value.abs() + 1) * sign)


def close(one: Any, other: Any) -> bool:
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
