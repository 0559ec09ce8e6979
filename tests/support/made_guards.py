"""Guards and modules that a test writes by hand."""

from __future__ import annotations

import importlib
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch

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
        **constants.tensor_traits(tensor),
        "sizes": list(tensor.shape) if tensor.layout == torch.strided else [],
        "strides": list(tensor.stride()) if tensor.layout == torch.strided else [],
    }
    return {**expected, **changed}


class MadeModule:
    """One module file; the name begins with ``made_``, so that `forget_modules` takes it away."""

    def __init__(self, directory: Path, name: str = "made_module") -> None:
        self.path = directory / f"{name}.py"
        self.name = name

    def write(self, text: str) -> ModuleType:
        """Write the file and import it anew, as a later process would."""
        self.path.write_text(textwrap.dedent(text))
        sys.modules.pop(self.name, None)
        importlib.invalidate_caches()
        # A new file of equal size within the same second would be taken from the bytecode cache.
        sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
        try:
            return importlib.import_module(self.name)
        finally:
            sys.dont_write_bytecode = before


def code_of(function: Any) -> CodeType:
    assert isinstance(function, FunctionType)
    return function.__code__
