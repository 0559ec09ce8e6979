"""Artifacts, guards and modules that tests make by hand."""

from __future__ import annotations

import importlib
import marshal
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch

from warmrank.worker.guards.paths import PathTable
from warmrank.worker.runtime import constants
from warmrank.worker.runtime.artifact import Artifact, Check, Frame, GraphFacts, PortableGuards, TracedSource
from warmrank.worker.runtime.asked import RANK, Call
from warmrank.worker.torch_private.warm import portable_ambient

COMPONENTS = {"engine": "graph 1", "torch": "2.13.0"}
GUARDS = PortableGuards(
    nodes=((-1, "local", "x"), (0, "attr", "size")),
    checks=((0, "not_none", None),),
    shapes=(("p1()[0] <= 8", (1,)),),
    ambient={"default dtype": "torch.float32"},
    sources=(TracedSource(kind="code", module="m", name="M.f", digest="0" * 32),),
    asked=((RANK, [], {}, 0),),
)
GRAPH = "def bind(groups, constants):\n    def graph(x):\n        return (x,)\n\n    return graph\n"


def make_artifact(**changed: Any) -> Artifact:
    """An artifact; ``changed`` replaces single attributes."""
    values: dict[str, Any] = {
        "name": "M.f(x)",
        "function": "0" * 32,
        "engine": "graph",
        "engine_version": "1",
        "components": dict(COMPONENTS),
        "guards": GUARDS,
        "frame": Frame(code=marshal.dumps(make_artifact.__code__, 2), names={"graph": "__compiled_fn"}),
        "facts": GraphFacts(input_classes=("user",), num_outputs=1, aliased_outputs=()),
        "roles": ("world",),
        "sections": {"graph.py": GRAPH.encode(), "constants": b"[]\n"},
    }
    return Artifact(**{**values, **changed})


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
        ambient=portable_ambient("cpu"),
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
