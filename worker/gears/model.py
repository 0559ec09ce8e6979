"""Gears as tensors carry them, and those of one artifact: axes, allowed combinations, sizes that follow.

Tensors carry gears as an attribute under TorchAir's name. Sizes are Python expressions over symbols
(``"2*s17"``); the symbols of geared dimensions are the axes', all others come from number inputs of the
graph. Layout (JSON) of `GearFacts`: its fields, axes and inputs as lists of theirs.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from warmrank.worker.errors import GearError
from warmrank.worker.values import Value

if TYPE_CHECKING:
    import torch

MIN_GEARS = 2
MAX_GEARS = 100
MAX_COMBINATIONS = 100

Combination = tuple[int, ...]
Gears = dict[int, tuple[int, ...]]
_SCOPE = {"math": math, "max": max, "min": min, "abs": abs, "int": int, "round": round}
ATTRIBUTE = "dim_gears"
in_use: set[bool] = set()  # true once a tensor of this process was given gears


def checked_gears(shape: Sequence[int], dim_gears: Mapping[int, Sequence[int]]) -> Gears:
    """The gears as tuples by dimension, if they are allowed.

    Dimensions count from 0, never from the end. As in TorchAir, a gear may stand there twice (``zip`` pairs
    it with two of another dimension), and there may be none at all.

    Raises:
        GearError: gears that are not allowed, in TorchAir's words.
    """
    if not isinstance(dim_gears, Mapping):
        msg = (
            f"set_dim_gears: dim_gears is of type {type(dim_gears).__qualname__}; "
            "expected a dict from dimension to gears, such as {0: [2, 4]}"
        )
        raise GearError(msg, found=type(dim_gears).__qualname__)
    for dim, gears in dim_gears.items():
        if msg := _fault(dim, gears, len(shape)):
            raise GearError(msg, dim=repr(dim), found=repr(gears))
    return {dim: tuple(gears) for dim, gears in dim_gears.items()}


def _fault(dim: object, gears: object, num_dims: int) -> str:
    """The reason why the gears of a dimension are not allowed; empty if they are."""
    if type(dim) is not int:
        return f"Dim index in dim_gears must be an integer, but got {type(dim)}."
    if not 0 <= dim < num_dims:
        return f"Dim index in dim_gears must be in range [0, {num_dims - 1}], but got {dim}."
    of_dim = f"for dim index {dim} in dim_gears"
    if not isinstance(gears, list | tuple):
        return f"Gears {of_dim} must be a list or tuple, but got {type(gears)}."
    if not MIN_GEARS <= len(gears) <= MAX_GEARS:
        allowed = f"[{MIN_GEARS}, {MAX_GEARS}]"
        return f"Length of gears {of_dim} must be in range {allowed}, but got {len(gears)}."
    for position, gear in enumerate(gears):
        if type(gear) is not int:
            return f"Element at index {position} of value {of_dim} must be an integer, but got {type(gear)}."
        if gear < 1:
            fault = "must not be 0" if gear == 0 else "must be a size of 1 or more"
            return f"Gear value at index {position} for dim index {dim} {fault}, but got {gear}."
    return ""


def merged(
    gears: Sequence[Sequence[int]], policy: str, names: Sequence[str] | None = None
) -> tuple[Combination, ...]:
    """The combinations, each once, in the order in which the policy gives them.

    ``zip`` takes the first of each list, then the second; ``product`` takes all with all. The ``names`` of
    the dimensions are for the error.
    """
    if policy == "zip" and len({len(sizes) for sizes in gears}) > 1:
        named = names or [f"dimension {index}" for index in range(len(gears))]
        lengths = ", ".join(f"{name} has {len(sizes)}" for name, sizes in zip(named, gears, strict=True))
        msg = (
            'inference_config.dynamic_gears_merge_policy is "zip", which pairs gears by position, but the '
            f'lists differ in length: {lengths}. Give all as many, or set the policy to "product".'
        )
        raise GearError(msg, policy=policy)
    # A product of many lists is counted before it is written out.
    found: dict[Combination, None] = {}
    for combination in zip(*gears, strict=True) if policy == "zip" else itertools.product(*gears):
        found[combination] = None
        if len(found) > MAX_COMBINATIONS:
            msg = (
                f"the gears make more than {MAX_COMBINATIONS} combinations under the policy {policy!r}; "
                'set fewer gears, or the policy "zip"'
            )
            raise GearError(msg, policy=policy)
    return tuple(found)


def covering(combinations: Sequence[Combination], sizes: Sequence[int]) -> Combination | None:
    """The last combination that is nowhere smaller than ``sizes``, where the largest come first."""
    for combination in reversed(combinations):
        if all(gear >= size for gear, size in zip(combination, sizes, strict=True)):
            return combination
    return None


class Axis(Value):
    """One geared dimension of one input."""

    source: str  # the input, as Dynamo names it
    node: int  # the input in the guards' table; -1 where there are no guards (``torch.compile``)
    dim: int
    gears: tuple[int, ...]
    symbol: str  # name of the symbol that stands for its size
    position: int  # of the tensor among the graph's inputs; -1 if the graph takes only its size
    number: int  # position of a number input that is its size; -1 if there is none


class GearedInput(Value):
    """A tensor that has to be as large as its gear: position among the inputs, sizes and strides."""

    position: int
    sizes: tuple[str, ...]
    strides: tuple[str, ...]


class GearFacts(Value):
    """Facts about a graph's gears for the runtime."""

    axes: tuple[Axis, ...]  # the geared dimensions
    combinations: tuple[Combination, ...]  # the allowed sizes of all axes, largest first
    inputs: tuple[GearedInput, ...]  # the geared tensors
    numbers: tuple[tuple[int, str], ...]  # number inputs that depend on axes: position and expression
    bound: tuple[tuple[str, int], ...]  # symbols that are no axes, and the number input that gives each
    # per output, sizes of a tensor, expression of a number, or nothing
    outputs: tuple[tuple[str, ...] | str | None, ...]
    # combinations that the policy gives but the traced code cannot run with
    dropped: tuple[Combination, ...] = ()
    conditions: tuple[str, ...] = ()  # what the traced code asks of the axes' symbols
    # whether all gears can be captured before they are called: the geared inputs are the caller's
    ahead: bool = False
    unpaddable: str = ""  # why inputs cannot be padded; empty if they can

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> GearFacts:
        """Read from an artifact's header."""
        plain = _tuples({name: value for name, value in data.items() if name not in ("axes", "inputs")})
        return cls(
            **plain,
            axes=tuple(Axis(**_tuples(axis)) for axis in data["axes"]),
            inputs=tuple(GearedInput(**_tuples(item)) for item in data["inputs"]),
        )

    def sizes_of(self, inputs: Sequence[Any]) -> Combination:
        """Sizes of the axes in a call's graph inputs."""
        return tuple(
            inputs[axis.position].shape[axis.dim] if axis.position >= 0 else inputs[axis.number]
            for axis in self.axes
        )

    def mentions(self, symbol: str) -> bool:
        """True if any size or number of inputs and outputs depends on a symbol."""
        texts = [text for item in self.inputs for text in (*item.sizes, *item.strides)]
        texts += [text for _, text in self.numbers]
        for item in self.outputs:
            texts += [item] if isinstance(item, str) else item or ()
        return any(re.search(rf"\b{symbol}\b", text) for text in texts)

    def gear_of(self, sizes: Sequence[int]) -> Combination | None:
        """The smallest combination that a call of these sizes can be padded to; None if there is none.

        Where the sizes do not meet the traced conditions, the code would have gone another way with them.
        """
        return None if self.unmet(sizes) else covering(self.combinations, sizes)

    def unmet(self, sizes: Sequence[int]) -> str:
        """The first traced condition that sizes of the axes do not meet; empty if they meet all."""
        return hold(self.conditions, self.values(sizes))

    def values(self, sizes: Sequence[int]) -> dict[str, int]:
        """Value of each axis' symbol."""
        return dict(zip((axis.symbol for axis in self.axes), sizes, strict=True))

    def symbols(self, sizes: Sequence[int], inputs: Sequence[Any]) -> dict[str, int]:
        """Value of every symbol, for the given sizes of the axes and a call's number inputs."""
        return {symbol: inputs[position] for symbol, position in self.bound} | self.values(sizes)


def _tuples(value: Any) -> Any:
    """JSON, with tuples for its lists."""
    if isinstance(value, dict):
        return {name: _tuples(item) for name, item in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


def evaluate(text: str, symbols: Mapping[str, int]) -> int:
    """Value of an expression; `ArithmeticError` or `NameError` where it has none for these symbols."""
    # It comes from an artifact, which is code and was trusted as such before it was read.
    return int(eval(text, {"__builtins__": {}, **_SCOPE}, dict(symbols)))  # noqa: S307


def hold(conditions: Sequence[str], symbols: Mapping[str, int]) -> str:
    """The first condition that does not hold; empty if all do."""
    for condition in conditions:
        try:
            if not evaluate(condition, symbols):
                return condition
        except (ArithmeticError, NameError):
            return condition
    return ""


def carry(t: torch.Tensor, dim_gears: Mapping[int, Sequence[int]]) -> None:
    """See `worker.inference.set_dim_gears`."""
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
        in_use.add(True)


def carried(value: Any) -> Gears | None:
    """The gears that a value carries."""
    return getattr(value, ATTRIBUTE, None) or None


def encoded(gears: Gears | None) -> list[list[Any]]:
    """Gears as plain JSON values, in the order of the dimensions; empty for none."""
    return [[dim, list(gears[dim])] for dim in sorted(gears)] if gears else []
