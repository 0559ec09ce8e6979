"""Which of the objects that a trace looked at are one and the same, and which are not.

Traced code may ask (``a is b``), may write to an object by one path and read it by another, and each tensor
is an input of its own. So every path to an object that could be told from its equals takes part.
"""

from __future__ import annotations

import enum
import inspect
import sys
import types
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from warmrank.worker.keys.code import globals_module, is_pinned_module
from warmrank.worker.runtime.artifact import Check, Node
from warmrank.worker.runtime.check import MISSING

# Values whose identity says nothing: equal ones serve as well.
_INTERCHANGEABLE = (
    type(None), bool, int, float, complex, str, bytes, tuple, frozenset, range, slice, enum.Enum,
    types.BuiltinFunctionType, types.MethodType, types.MethodDescriptorType, types.WrapperDescriptorType,
    types.ModuleType, types.CodeType, types.MappingProxyType,
    torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip
# Types whose subclasses Dynamo follows as objects.
_BUILT_IN = (bool, int, float, complex, str, bytes, tuple, frozenset)
# Steps that make a new object each time.
_COPIES = ("dict", "fields")


def has_identity(value: Any) -> bool:
    """Whether an object differs from its equals, as functions and classes do that no name leads to."""
    kind = type(value)  # not isinstance: some objects raise when they are asked for their class
    if issubclass(kind, type | types.FunctionType):
        return not _is_found_by_name(value)
    if issubclass(kind, tuple) and kind not in (tuple, torch.Size):
        return True  # a named tuple, which may hold anything
    return not issubclass(kind, _INTERCHANGEABLE) and not _is_group(kind)


def _is_found_by_name(value: Any) -> bool:
    """Whether a function or class is the only one of its name: what its module has under that."""
    if "<" in value.__qualname__:  # made by a call, or without a name
        return False
    found: Any = sys.modules.get(value.__module__)
    for part in value.__qualname__.split("."):
        found = inspect.getattr_static(found, part, None)
    return found is value or getattr(found, "__func__", None) is value


def is_object_of_value(value: Any) -> bool:
    """Whether Dynamo follows a constant as an object: it then guards the first path to it, and no other."""
    kind = type(value)
    return issubclass(kind, enum.Enum) or (issubclass(kind, _BUILT_IN) and kind not in _BUILT_IN)


def num_cells(value: Any) -> int:
    """Number of the variables of outer functions that a function has, and may share with other functions."""
    if not isinstance(value, types.FunctionType) or is_pinned_module(globals_module(value)):
        return 0
    return len(value.__closure__ or ())


def held_methods(values: Sequence[Any], again: Callable[[int], Any]) -> list[int]:
    """Nodes of bound methods that are kept somewhere; others are made by each look at their object."""
    return [
        node
        for node, value in enumerate(values)
        if isinstance(value, types.MethodType) and value is again(node)
    ]


def partition(nodes: Sequence[Node], values: Sequence[Any], held: Collection[int] = ()) -> list[Check]:
    """Conditions that say which nodes are the same object, and that all others are different ones.

    Args:
        nodes: the table.
        values: the value of each node in the traced call.
        held: nodes of bound methods that count, see `held_methods`.
    """
    first: dict[int, int] = {}  # object -> its first node
    stands_for: dict[int, int] = {}  # node -> the first node of the same object
    steps: dict[tuple[int, str, str], int] = {}
    checks: list[Check] = []
    for index, ((parent, step, argument), value) in enumerate(zip(nodes, values, strict=True)):
        if value is MISSING or step in _COPIES or not (has_identity(value) or index in held):
            continue
        stands_for[index] = first.setdefault(id(value), index)
        taken = (stands_for.get(parent, parent), step, repr(argument))
        # The same step from the same object leads to the same one.
        implied = steps.get(taken) == stands_for[index]
        if stands_for[index] != index and not implied:
            checks.append((index, "same", stands_for[index]))
        steps[taken] = stands_for[index]
    distinct = list(first.values())
    return [*checks, (distinct[0], "distinct", distinct[1:])] if len(distinct) > 1 else checks


def _is_group(kind: type[Any]) -> bool:
    """A process group goes by its role."""
    import torch.distributed as dist

    return dist.is_available() and issubclass(kind, dist.ProcessGroup)
