"""Gears in one compile: how it is traced, what is refused, what the artifact says; compile time only."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MethodType
from typing import TYPE_CHECKING, Any

from warmrank.worker.gears.carried import carried, geared_arguments
from warmrank.worker.gears.compiling import TracedGears, record, settled, unlike_traced
from warmrank.worker.gears.rules import refuse_arguments, refuse_miss
from warmrank.worker.gears.runner import refuse_unpaddable
from warmrank.worker.runtime.check import node_values
from warmrank.worker.runtime.find import arguments_of, function_of
from warmrank.worker.runtime.options import OnGearMiss
from warmrank.worker.torch_private.symbols import marks_obeyed, refuse_constant
from warmrank.worker.values import Value

if TYPE_CHECKING:
    import torch

    from warmrank.worker.runtime.artifact import GraphFacts, PortableGuards
    from warmrank.worker.torch_private.lowering import LoweredGraph


class GearCompile(Value):
    """The gears of the call that is compiled.

    Attributes:
        method: what is compiled.
        arguments: of the call, by parameter name.
        policy: how gears are merged.
        on_miss: what a shape that is no gear means.
        traced: fills with Dynamo's name of each geared tensor that the function uses, while it is traced.
    """

    method: MethodType
    arguments: Mapping[str, Any]
    policy: str
    on_miss: OnGearMiss
    traced: dict[str, torch.Tensor]

    def refuse_constants(self) -> None:
        """Refuse code that works only for one size of a geared dimension.

        Raises:
            GearError: it names input, dimension and line.
        """
        for source, tensor in self.traced.items():
            for dim in carried(tensor) or ():
                refuse_constant(source, dim, self.method.__qualname__)

    def recorded(
        self, lowered: LoweredGraph, facts: GraphFacts, guards: PortableGuards
    ) -> tuple[GraphFacts, PortableGuards]:
        """Facts and guards with the gears in them; as they are where no gears were traced.

        Args:
            lowered: the traced graph.
            facts: of that graph.
            guards: of that trace.

        Raises:
            GearError: the gears do not fit each other, the call, or the traced code.
        """
        if not self.traced:
            return facts, guards
        values = node_values(guards.nodes, function_of(self.method), self.arguments)
        nodes = {id(value): node for node, value in reversed(tuple(enumerate(values)))}
        geared = [
            TracedGears(source=source, node=nodes[id(tensor)], gears=carried(tensor) or {})
            for source, tensor in self.traced.items()
            if id(tensor) in nodes
        ]
        gears = record(lowered, facts, geared, self.policy) if geared else None
        if gears is None:
            return facts, guards
        sizes = tuple(values[axis.node].shape[axis.dim] for axis in gears.axes)
        gears, guards = settled(gears, guards, sizes, unlike_traced(lowered, gears))
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
) -> Iterator[GearCompile]:
    """The context of one trace: geared dimensions dynamic, all others of all tensors static.

    Args:
        method: what is compiled.
        args: of the call.
        kwargs: likewise.
        policy: how gears are merged.
        on_miss: what a shape that is no gear means.

    Raises:
        GearError: a tensor's own size is none of its gears, or a tensor of the module has gears.
    """
    geared = geared_arguments(function_of(method), args, kwargs)
    refuse_arguments(geared, on_miss, policy)
    hints = [(tensor, _hints(tensor, carried(tensor) or {})) for _, tensor in geared]
    with_one = any(1 in sizes for _, tensor in geared for sizes in (carried(tensor) or {}).values())
    oblivious = with_one or (on_miss == "pad" and bool(geared))
    with marks_obeyed(hints, oblivious=oblivious) as traced:
        arguments = arguments_of(method, args, kwargs)
        yield GearCompile(method=method, arguments=arguments, policy=policy, on_miss=on_miss, traced=traced)


def _hints(tensor: torch.Tensor, gears: Mapping[int, Sequence[int]]) -> dict[int, int]:
    """The size that a trace goes by: the call's gear; a size of 1 would be taken for a constant."""
    hints = {}
    for dim, sizes in gears.items():
        gear = min(size for size in sizes if size >= tensor.shape[dim])
        hints[dim] = gear if gear > 1 else max(sizes)
    return hints
