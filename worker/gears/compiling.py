"""Gears in one compile: how a call is traced, what is refused, and the artifact's `GearFacts`."""

from __future__ import annotations

import contextlib
import logging
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MethodType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from warmrank.worker.configs.compiler_config import OnGearMiss
from warmrank.worker.errors import GearError
from warmrank.worker.gears.model import (
    Axis,
    Combination,
    GearedInput,
    GearFacts,
    Gears,
    carried,
    evaluate,
    hold,
    merged,
)
from warmrank.worker.gears.rules import (
    condition_text,
    geared_arguments,
    membership,
    refuse_arguments,
    refuse_miss,
    refuse_unpaddable,
)
from warmrank.worker.runtime.artifact import MUTATED, USER
from warmrank.worker.runtime.check import node_values
from warmrank.worker.runtime.find import arguments_of, function_of
from warmrank.worker.torch_private.operators import readable
from warmrank.worker.torch_private.symbols import (
    Symbols,
    free_symbols,
    marks_obeyed,
    other_shape,
    refuse_constant,
    size_text,
)
from warmrank.worker.values import Value

if TYPE_CHECKING:
    from warmrank.worker.runtime.artifact import GraphFacts, PortableGuards
    from warmrank.worker.torch_private.lowering import LoweredGraph

_log = logging.getLogger("torchair")
_SIZE = re.compile(r"\bp(\d+)\(\)\[(\d+)\]")


class GearsApart(GearError):
    """The gears of a call cannot be compiled together with the others; they can be alone."""


class TracedGears(NamedTuple):
    """A geared tensor of a trace: Dynamo's name of it, its node in the guards' table, and its gears."""

    source: str
    node: int
    gears: Gears


class GearCompile(Value):
    """The gears of the call that is compiled."""

    method: MethodType
    arguments: Mapping[str, Any]  # of the call, by parameter name
    policy: str
    on_miss: OnGearMiss
    # fills with Dynamo's name of each geared tensor that the function uses, while it is traced
    traced: dict[str, torch.Tensor]
    alone: bool  # compiled without the other gears

    def refuse_constants(self) -> None:
        """Refuse code that works only for one size of a geared dimension."""
        for source, tensor in self.traced.items():
            for dim in () if self.alone else carried(tensor) or ():
                refuse_constant(source, dim, self.method.__qualname__)

    def recorded(
        self, lowered: LoweredGraph, facts: GraphFacts, guards: PortableGuards
    ) -> tuple[GraphFacts, PortableGuards]:
        """Facts and guards with the gears in them; as they are where no gears were traced."""
        if not self.traced:
            return facts, guards
        values = node_values(guards.nodes, function_of(self.method), self.arguments)
        nodes = {id(value): node for node, value in reversed(tuple(enumerate(values)))}
        geared = [
            TracedGears(source, nodes[id(tensor)], carried(tensor) or {})
            for source, tensor in self.traced.items()
            if id(tensor) in nodes
        ]
        gears = record(lowered, facts, geared, self.policy, alone=self.alone) if geared else None
        if gears is None:
            return facts, guards
        sizes = tuple(values[axis.node].shape[axis.dim] for axis in gears.axes)
        if self.alone:
            others = tuple(item for item in gears.combinations if item != sizes)
            gears = replace(gears, combinations=(sizes,), dropped=others, unpaddable="its sizes stand alone")
            guards = replace(guards, shapes=(*guards.shapes, membership(gears)))
        else:
            gears, guards = _settled(gears, guards, sizes, lowered)
        refuse_miss(gears, sizes, self.on_miss)
        refuse_unpaddable(gears, self.on_miss)
        return replace(facts, gears=gears), guards


@contextlib.contextmanager
def compiling(
    method: MethodType,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    policy: str,
    on_miss: OnGearMiss,
    alone: bool,
) -> Iterator[GearCompile]:
    """The context of one trace: geared dimensions dynamic unless they are ``alone``, all others static."""
    geared = geared_arguments(function_of(method), args, kwargs)
    refuse_arguments(geared, on_miss, policy)
    hints = [(tensor, None if alone else _hints(tensor, carried(tensor) or {})) for _, tensor in geared]
    with_one = any(1 in sizes for _, tensor in geared for sizes in (carried(tensor) or {}).values())
    oblivious = not alone and (with_one or (on_miss == "pad" and bool(geared)))
    with marks_obeyed(hints, oblivious=oblivious) as traced:
        arguments = arguments_of(method, args, kwargs)
        yield GearCompile(
            method=method, arguments=arguments, policy=policy, on_miss=on_miss, traced=traced, alone=alone
        )


def _hints(tensor: torch.Tensor, gears: Mapping[int, Sequence[int]]) -> dict[int, int]:
    """The size that a trace goes by: the call's gear; a size of 1 would be taken for a constant."""
    hints = {}
    for dim, sizes in gears.items():
        gear = min(size for size in sizes if size >= tensor.shape[dim])
        hints[dim] = gear if gear > 1 else max(sizes)
    return hints


def record(
    lowered: LoweredGraph,
    facts: GraphFacts,
    geared: Sequence[TracedGears],
    policy: str,
    *,
    alone: bool = False,
) -> GearFacts | None:
    """The gears of a traced graph; None if no geared dimension is a size that the graph depends on.

    Dimensions that are ``alone`` are constants in the graph, and each gets a name that stands for it.
    """
    symbols = Symbols(lowered)
    axes = tuple(axis for item in geared for axis in _axes(lowered, symbols, item, alone=alone))
    if not axes:
        return None
    names = [f"{readable(axis.source)} dimension {axis.dim}" for axis in axes]
    combinations = merged([axis.gears for axis in axes], policy, names)
    own = frozenset(axis.symbol for axis in axes)
    numbers = [(index, value) for index, value in enumerate(symbols.values) if free_symbols(value)]
    tensors = {index: symbols.values[index] for index in sorted({axis.position for axis in axes} - {-1})}
    result = GearFacts(
        axes=axes,
        combinations=combinations,
        inputs=tuple(
            GearedInput(position=index, sizes=_texts(value.shape), strides=_texts(value.stride()))
            for index, value in tensors.items()
        ),
        numbers=tuple((index, size_text(value)) for index, value in numbers if free_symbols(value) & own),
        bound=tuple(
            (size_text(value), index)
            for index, value in numbers
            if free_symbols(value) == {size_text(value)} - own
        ),
        outputs=tuple(map(_output, symbols.outputs)),
        ahead=bool(tensors) and all(facts.input_classes[index] == USER for index in tensors),
    )
    unpaddable = _unpaddable(result, lowered, symbols, facts)
    ordered = tuple(sorted(combinations, key=lambda item: _order(result, item)))
    return replace(result, unpaddable=unpaddable, combinations=ordered)


def _axes(lowered: LoweredGraph, symbols: Symbols, geared: TracedGears, *, alone: bool) -> Iterator[Axis]:
    sources = {item.source: index for index, item in enumerate(lowered.inputs)}
    position = sources.get(geared.source, -1)
    for dim, sizes in sorted(geared.gears.items()):
        symbol = f"size_{position}_{dim}" if alone else symbols.of_size(geared.source, dim)
        number = sources.get(f"{geared.source}.size()[{dim}]", -1)
        if symbol and max(position, number) >= 0:
            yield Axis(
                source=geared.source,
                node=geared.node,
                dim=dim,
                gears=sizes,
                symbol=symbol,
                position=position,
                number=number,
            )


def _texts(sizes: Sequence[Any]) -> tuple[str, ...]:
    return tuple(map(size_text, sizes))


def _output(value: Any) -> tuple[str, ...] | str | None:
    if isinstance(value, torch.Tensor):
        return _texts(value.shape)
    return size_text(value) if isinstance(value, torch.SymInt) else None


def _order(gears: GearFacts, combination: Combination) -> tuple[int, Combination]:
    """Largest first: by the elements of the geared tensors, then by size."""
    known = gears.values(combination) | {symbol: 1 for symbol, _ in gears.bound}
    elements = sum(math.prod(evaluate(size, known) for size in item.sizes) for item in gears.inputs)
    return -elements, tuple(-size for size in combination)


def _unpaddable(gears: GearFacts, lowered: LoweredGraph, symbols: Symbols, facts: GraphFacts) -> str:
    """The reason why inputs of this graph cannot be padded; empty if they can."""
    if facts.uncapturable:
        return facts.uncapturable
    if facts.random:
        return f"{facts.random} draws random numbers, and a larger graph draws others"
    sources = [readable(item.source) for item in lowered.inputs]
    for source, kind in zip(sources, facts.input_classes, strict=True):
        if kind == MUTATED:
            return f"the function writes to {source}, and padded rows would be written as well"
    for geared in gears.inputs:
        if facts.input_classes[geared.position] != USER:
            shares = "has gears, and is state of the module or shares memory with an output"
            return f"{sources[geared.position]} {shares}"
        if "0" in geared.strides:
            return f"elements of {sources[geared.position]} share memory (expand)"
    return _unknown_size(gears, symbols, sources)


def _unknown_size(gears: GearFacts, symbols: Symbols, sources: Sequence[str]) -> str:
    """Name a size that does not follow from the sizes of the inputs; empty if all do."""
    known = {axis.symbol for axis in gears.axes} | {symbol for symbol, _ in gears.bound}
    for index, _ in gears.numbers:
        if free_symbols(symbols.values[index]) - known:
            return f"{sources[index]} depends on a geared size and on an unknown number"
    for index, value in enumerate(symbols.outputs):
        sizes = value.shape if isinstance(value, torch.Tensor) else (value,)
        if any(free_symbols(size) - known for size in sizes):
            return f"the size of output {index} cannot be told from the sizes of the inputs"
    return ""


def _settled(
    gears: GearFacts, guards: PortableGuards, sizes: Combination, lowered: LoweredGraph
) -> tuple[GearFacts, PortableGuards]:
    """Gears and guards that fit each other: the combinations stand in the place of conditions on axes.

    ``sizes`` are those of the traced call.
    """
    symbols = {(axis.node, axis.dim): axis.symbol for axis in gears.axes}

    def symbol(match: re.Match[str]) -> str:
        parent, step, argument = guards.nodes[int(match[1])]
        name = symbols.get((parent, int(match[2]))) if (step, argument) == ("attr", "size") else None
        return name or match[0]

    conditions, kept, mixed = [], [], ""
    for expression, used in guards.shapes:
        text = _SIZE.sub(symbol, expression)
        nodes = [guards.nodes[int(index)] for index in re.findall(r"\bp(\d+)\b", text)]
        if not nodes:
            conditions.append(text)
            continue
        kept.append((expression, used))
        if text != expression and not all((node[1], node[2]) == ("attr", "stride") for node in nodes):
            mixed = expression
    held = {
        item: hold(conditions, gears.values(item)) or _unlike_traced(lowered, gears, item)
        for item in gears.combinations
    }
    allowed = tuple(item for item in gears.combinations if not held[item])
    dropped = tuple(item for item in gears.combinations if held[item])
    for item in dropped:
        text = condition_text(gears, held[item])
        _log.info("gears %s are dropped: the traced code asks for %s", item, text)
    if sizes in dropped or not allowed:
        reason = condition_text(gears, held.get(sizes) or held[dropped[0]])
        msg = (
            f"gears {sizes} cannot be compiled together with the others: the traced code asks for {reason}. "
            "Write the code for all of them, or take these gears out."
        )
        raise GearsApart(msg, found=repr(sizes), reason=reason)
    final = replace(
        gears,
        combinations=allowed,
        dropped=dropped,
        conditions=tuple(conditions),
        unpaddable=gears.unpaddable
        or (f"a size has to agree with another number ({mixed})" if mixed else ""),
    )
    return final, replace(guards, shapes=(*kept, membership(final)))


def _unlike_traced(lowered: LoweredGraph, gears: GearFacts, sizes: Combination) -> str:
    """Difference between an operation's result and what was traced with a size of 1; empty for none.

    The trace did not tell 1 from other sizes, but ``squeeze`` and its like do.
    """
    return other_shape(lowered, gears.values(sizes)) if 1 in sizes else ""
