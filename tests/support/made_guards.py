"""Guards written by hand, over Dynamo's own expressions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from warmrank.worker.keys.code import type_name

from warmrank.worker.guards.paths import PathTable
from warmrank.worker.runtime import ambient, constants
from warmrank.worker.runtime.artifact import Check, PortableGuards, TracedSource
from warmrank.worker.runtime.asked import Call


def made_guards(
    *checks: tuple[str, str, Any],
    shapes: Sequence[tuple[str, ...]] = (),
    asked: Sequence[Call] = (),
    sources: tuple[TracedSource, ...] = (),
    volatile: Sequence[str] = (),
) -> PortableGuards:
    """Guards from (expression, kind, expected); for ``same`` and ``distinct`` expressions are expected.

    ``shapes`` are conditions with ``{}`` for each of the expressions that follow. The ambient state is
    that of the moment.
    """
    table = PathTable({})
    made: list[Check] = []
    others: dict[str, Callable[[Any], Any]] = {
        "same": table.add,
        "distinct": lambda expressions: [table.add(expression) for expression in expressions],
    }
    for expression, kind, expected in checks:
        made.append((table.add(expression), kind, others.get(kind, lambda value: value)(expected)))
    conditions = []
    for condition, *expressions in shapes:
        used = tuple(table.add(expression) for expression in expressions)
        conditions.append((condition.format(*(f"p{index}" for index in used)), used))
    written = tuple(table.add(expression) for expression in volatile)
    return PortableGuards(
        nodes=tuple(table.nodes),
        checks=tuple(made),
        shapes=tuple(conditions),
        ambient=ambient.encode(ambient.snapshot("cpu")),
        sources=sources,
        asked=tuple(asked),
        volatile=written,
    )


def like(tensor: torch.Tensor, **changed: Any) -> dict[str, Any]:
    """What a guard expects of a tensor that is like this one."""
    expected = {
        "type": type_name(type(tensor)),
        "dtype": constants.encode(tensor.dtype),
        "device": tensor.device.type,
        "layout": constants.encode(tensor.layout),
        "requires_grad": tensor.requires_grad,
        "lazy_bits": [tensor.is_conj(), tensor.is_neg()],
        "sizes": list(tensor.shape) if tensor.layout == torch.strided else [],
        "strides": list(tensor.stride()) if tensor.layout == torch.strided else [],
    }
    return {**expected, **changed}
