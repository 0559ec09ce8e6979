"""Conditions for which Dynamo has no guard, or none that another process can check as it stands."""

from __future__ import annotations

import ast
import builtins
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from warmrank.worker.guards.partition import (
    has_identity,
    held_methods,
    is_object_of_value,
    num_cells,
    partition,
)
from warmrank.worker.guards.paths import NodeValues, PathTable
from warmrank.worker.runtime import constants
from warmrank.worker.runtime.artifact import Check
from warmrank.worker.runtime.constants import describe, encode_key, keys_of
from warmrank.worker.torch_private.tracing import Trace

# How Dynamo writes the member of a set that stands at some place in it: in each process another one.
MEMBER_OF_SET = "___set_getitem("


def builtins_named(table: PathTable, codes: Iterable[types.CodeType]) -> Iterator[Check]:
    """Conditions on builtins that traced code names; what Dynamo guards of them hangs on earlier traces."""
    for name in sorted({name for code in codes for name in code.co_names}):
        value = vars(builtins).get(name)
        if isinstance(value, type | types.BuiltinFunctionType):
            yield table.add(f"G['__builtins_dict__'][{name!r}]"), "identity", describe(value)


def unguarded(
    table: PathTable, trace: Trace, values: NodeValues, is_pinned: Callable[[str], bool]
) -> Iterator[Check]:
    """Checks that inner nodes of Dynamo's tree make, and what the tree leaves out.

    Args:
        table: the table of nodes, which grows.
        trace: the trace.
        values: of the table's nodes.
        is_pinned: tells expressions for objects whose content the versions fix.

    Raises:
        NotPortable: no other process finds one of the objects.
    """

    def nodes(sources: Iterable[str]) -> list[int]:
        return [table.add(source) for source in sources if not is_pinned(source)]

    ordered, looked_up = nodes(trace.tree.dicts), nodes(trace.tree.looked_up)
    nodes(source for source, value in trace.objects.items() if _takes_part(value))
    for node in nodes(_constants(trace)):
        yield node, "equals", constants.encode(values[node])
    for node in nodes(_functions_in_c(trace)):
        yield node, "identity", describe(values[node])
    for node in nodes(_sets_looked_into(trace)):
        yield node, "equals", constants.encode(values[node])
    held = held_methods(values.all(), values.again)
    for node in held:  # methods are equal if these are the same
        owner = table.add_attribute(node, "__self__")
        if isinstance(values[node].__self__, type):
            yield owner, "identity", describe(values[node].__self__)
        yield table.add_attribute(node, "__func__"), "identity", describe(values[node].__func__)
    table.add_cells([(node, num_cells(value)) for node, value in enumerate(values.all())])
    yield from ((node, "present", None) for node in looked_up)
    for node in ordered:
        kind = type(values[node])
        own = issubclass(kind, type) or hasattr(kind, "keys") or hasattr(kind, "__iter__")
        names = node if own else table.add_attribute(node, "__dict__")  # which the tree names like its object
        yield names, *_names(values[names])
    yield from partition(table.nodes, values.all(), held)


def _names(value: Any) -> tuple[str, Any]:
    """The condition on all names of a dict; of a class, the tree names its dict like the class itself."""
    if isinstance(value, type):
        return "identity", describe(value)
    return "keys", [*map(encode_key, keys_of(value))]


def _takes_part(value: Any) -> bool:
    """Whether the partition of objects into same and distinct ones is about an object."""
    return has_identity(value) or num_cells(value) > 0 or isinstance(value, types.MethodType)


def _constants(trace: Trace) -> Iterator[str]:
    """Values that Dynamo had guarded where it found them first, and reads elsewhere without a guard."""
    guarded = {guard.source for guard in trace.guards}
    members = {id(value) for source, value in trace.objects.items() if MEMBER_OF_SET in source}
    for source, value in trace.objects.items():
        if (
            source not in guarded
            and is_object_of_value(value)
            and (id(value) in members or not _takes_part(value))
        ):
            yield source


def _functions_in_c(trace: Trace) -> Iterator[str]:
    """Functions that Dynamo takes without a guard, because "they are unlikely to be changed"."""
    guarded = {guard.source for guard in trace.guards}
    in_c = types.MethodDescriptorType | types.WrapperDescriptorType | types.BuiltinFunctionType
    return (
        source for source, value in trace.objects.items() if source not in guarded and isinstance(value, in_c)
    )


def _sets_looked_into(trace: Trace) -> tuple[str, ...]:
    """Sets by whose members Dynamo guards, in an order that each process has its own of."""
    calls = (
        node
        for guard in trace.guards
        if MEMBER_OF_SET in guard.source
        for node in ast.walk(ast.parse(guard.source, mode="eval"))
        if isinstance(node, ast.Call) and ast.unparse(node).startswith(MEMBER_OF_SET)
    )
    sets = dict.fromkeys(ast.unparse(call.args[0]) for call in calls)
    return tuple(source for source in sets if MEMBER_OF_SET not in source)
