"""The capture plan: the shapes that a function was captured for, as text, and inputs to capture them again.

Layout of the text, canonical JSON (a manifest keeps it as the signature of a capture)::

    {"artifact": SHA-256 of the artifact, hex,
     "format": 1,
     "inputs": [[position, sizes], [position, sizes, strides], ...]   strides where not contiguous
     "numbers": [[position, value], ...]}

``inputs`` are the graph's inputs that a call may bring in another shape: user inputs, mutated inputs, and
inputs that are returned. Positions count the graph's inputs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from warmrank.cache_store.canonical import canonical_json
from warmrank.worker.devices import memory_of
from warmrank.worker.values import Value

if TYPE_CHECKING:
    from warmrank.worker.runtime.runner import InputLayout

FORMAT = 1
MAX_ELEMENTS = 1 << 40  # of one input; more is no tensor that a device holds


class PlannedInput(Value):
    """One tensor: its position among the graph's inputs, its sizes and its strides."""

    position: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    def to_json(self) -> list[Any]:
        """As it stands in the plan."""
        strides = [] if self.strides == _contiguous(self.sizes) else [list(self.strides)]
        return [self.position, list(self.sizes), *strides]


class Shapes(Value):
    """Inputs that one graph was captured for."""

    inputs: tuple[PlannedInput, ...]  # the tensors, by position
    numbers: tuple[tuple[int, int | float | bool], ...]  # position and value of each input that is a number

    @property
    def num_elements(self) -> int:
        """Elements of all tensors: by it the largest is captured first."""
        return sum(math.prod(item.sizes) for item in self.inputs)

    def to_text(self, artifact: str) -> str:
        """The text of the plan for this artifact."""
        plan = {
            "artifact": artifact,
            "format": FORMAT,
            "inputs": [item.to_json() for item in self.inputs],
            "numbers": [[position, value] for position, value in self.numbers],
        }
        return canonical_json(plan).decode()


def shapes_of(layout: InputLayout, inputs: Sequence[Any]) -> Shapes | None:
    """The shapes of a call's inputs; None where a number cannot be written."""
    numbers = tuple((index, inputs[index]) for index in layout.numbers)
    if not all(type(value) in (int, float, bool) and math.isfinite(value) for _, value in numbers):
        return None
    return Shapes(
        inputs=tuple(
            PlannedInput(
                position=index, sizes=tuple(inputs[index].shape), strides=tuple(inputs[index].stride())
            )
            for index in layout.shaped
        ),
        numbers=numbers,
    )


def parse(text: str) -> tuple[str, Shapes]:
    """The artifact's digest, and the shapes; raises `ValueError`: the text is no plan of this format."""
    try:
        plan = json.loads(text)
        if not (
            isinstance(plan, dict) and plan.get("format") == FORMAT and isinstance(plan["artifact"], str)
        ):
            raise ValueError(f"it is no capture plan of format {FORMAT}")
        shapes = Shapes(
            inputs=tuple(_parse_input(*item) for item in plan["inputs"]),
            numbers=tuple((_count(position), _number(value)) for position, value in plan["numbers"]),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"it lacks what a capture plan has: {error!r}") from error
    return plan["artifact"], shapes


def _parse_input(position: Any, sizes: Any, strides: Any = None) -> PlannedInput:
    counts = tuple(map(_count, sizes))
    # Also where there are none: strides are products of the other sizes.
    if (size := math.prod(max(count, 1) for count in counts)) <= MAX_ELEMENTS:
        steps = _contiguous(counts) if strides is None else tuple(map(_count, strides))
        size = sum((count - 1) * step for count, step in zip(counts, steps, strict=True))
    if size > MAX_ELEMENTS:
        raise ValueError(f"input {position} has {size} elements")
    return PlannedInput(position=_count(position), sizes=counts, strides=steps)


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value


def _number(value: Any) -> int | float | bool:
    if type(value) not in (int, float, bool):
        raise ValueError(f"{value!r} is no number")
    number: int | float | bool = value
    return number


def _contiguous(sizes: Sequence[int]) -> tuple[int, ...]:
    return torch.empty(tuple(sizes), device="meta").stride()


def inputs_for(shapes: Shapes, layout: InputLayout, example: Sequence[Any]) -> tuple[Any, ...] | str:
    """Inputs to capture planned shapes with, or why there are none.

    User inputs are zeros of the planned shapes; all others are those of the example call, which must have
    the planned shapes: what is used where it lies has to be the real one.
    """
    if {item.position for item in shapes.inputs} != set(layout.shaped) or {
        position for position, _ in shapes.numbers
    } != set(layout.numbers):
        return "the graph has other inputs"
    inputs = list(example)
    for position, value in shapes.numbers:
        inputs[position] = value
    for item in shapes.inputs:
        given = example[item.position]
        alike = (tuple(given.shape), tuple(given.stride())) == (item.sizes, item.strides)
        if item.position in layout.copied:
            inputs[item.position] = given if alike else _zeros(item, given)
        elif not alike:
            return (
                f"{layout.described(item.position)} is {tuple(given.shape)} here, "
                f"and was {item.sizes} where it was planned"
            )
    return tuple(inputs)


def _zeros(item: PlannedInput, like: torch.Tensor) -> torch.Tensor:
    tensor = torch.empty_strided(item.sizes, item.strides, dtype=like.dtype, device=like.device)
    memory_of(tensor).zero_()
    return tensor
