"""Conditions for which Dynamo has no guard, or none that another process can check as it stands.

Among them: which of the objects that a trace looked at are one and the same, and which are not. Traced code
may ask (``a is b``), may write to an object by one path and read it by another, and each tensor is an input
of its own. So every path to an object that could be told from its equals takes part.
"""

from __future__ import annotations

import ast
import builtins
import enum
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import torch

from warmrank.worker.errors import NotPortable
from warmrank.worker.groups import is_group
from warmrank.worker.guards.paths import NodeValues, PathTable
from warmrank.worker.keys.code import globals_module, is_found_by_name, is_pinned_module
from warmrank.worker.runtime import constants
from warmrank.worker.runtime.artifact import Check, Node
from warmrank.worker.runtime.check import MISSING
from warmrank.worker.runtime.constants import describe, encode_key
from warmrank.worker.runtime.decoding import keys_of
from warmrank.worker.torch_private.tracing import Trace

# How Dynamo writes the member of a set that stands at some place in it: in each process another one.
MEMBER_OF_SET = "___set_getitem("

# Values whose identity says nothing: equal ones serve as well.
_INTERCHANGEABLE = (
    type(None), bool, int, float, complex, str, bytes, tuple, frozenset, range, slice, enum.Enum,
    types.BuiltinFunctionType, types.MethodType, types.MethodDescriptorType, types.WrapperDescriptorType,
    types.ModuleType, types.CodeType, types.MappingProxyType,
    torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip
_FUNCTIONS = (
    types.FunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.BuiltinFunctionType,
)  # fmt: skip
# Types whose subclasses Dynamo follows as objects.
_BUILT_IN = (bool, int, float, complex, str, bytes, tuple, frozenset)
# Types of values that Dynamo takes for constants where they stand among the builtins.
_DATA = (*_BUILT_IN, list, dict, set, type(None))
# Steps that make a new object each time.
_COPIES = ("dict", "fields")


def builtins_named(table: PathTable, codes: Iterable[types.CodeType]) -> Iterator[Check]:
    """Conditions on builtins that traced code names; what Dynamo guards of them hangs on earlier traces.

    Somebody may have put values there; Dynamo takes them for constants.
    """
    for name in sorted({name for code in codes for name in code.co_names}):
        value = vars(builtins).get(name)
        if isinstance(value, type | types.BuiltinFunctionType):
            yield table.add(f"G['__builtins_dict__'][{name!r}]"), "identity", describe(value)
        elif name in vars(builtins) and isinstance(value, _DATA) and not name.startswith("__"):
            yield table.add(f"G['__builtins_dict__'][{name!r}]"), "equals", constants.encode(value)


def unguarded(
    table: PathTable, trace: Trace, values: NodeValues, is_pinned: Callable[[str], bool]
) -> Iterator[Check]:
    """Checks that inner nodes of Dynamo's tree make, and what the tree leaves out.

    ``values`` are those of the table's nodes, which grows; ``is_pinned`` tells expressions for objects whose
    content the versions fix.

    Raises:
        NotPortable: no other process finds one of the objects.
    """

    def nodes(sources: Iterable[str]) -> list[int]:
        return [table.add(source) for source in sources if not is_pinned(source)]

    ordered, looked_up = nodes(trace.tree.dicts), nodes(trace.tree.looked_up)
    nodes(source for source, value in trace.objects.items() if _takes_part(value))
    yield from ((node, "equals", constants.encode(values[node])) for node in nodes(_constants(trace)))
    yield from ((node, "identity", describe(values[node])) for node in nodes(_functions(trace)))
    yield from ((node, "equals", constants.encode(values[node])) for node in nodes(_sets_looked_into(trace)))
    # Bound methods that are kept somewhere; others are made by each look at their object.
    pairs = enumerate(values.all())
    held = [node for node, it in pairs if isinstance(it, types.MethodType) and it is values.again(node)]
    for node in held:  # methods are equal if these are the same
        owner = table.add_attribute(node, "__self__")
        if isinstance(values[node].__self__, type):
            yield owner, "identity", describe(values[node].__self__)
        yield table.add_attribute(node, "__func__"), "identity", describe(values[node].__func__)
    # Classes of one name are told apart by whose instances there are: ``isinstance`` asks for these alone.
    classes = (it for it in values.all() if issubclass(type(it), type) and not is_found_by_name(it))
    twins = {(cls.__module__, cls.__qualname__) for cls in classes}
    for node, value in enumerate(values.all()) if twins else ():
        is_class = issubclass(type(value), type)
        for place, base in enumerate((value if is_class else type(value)).__mro__):
            if (base.__module__, base.__qualname__) in twins:
                table.add_base(node, place, of_class=is_class)
    table.add_cells([(node, num_cells(value)) for node, value in enumerate(values.all())])
    yield from ((node, "present", None) for node in looked_up)
    for node in ordered:
        if table.is_keyed_by_classes(node):
            continue
        kind = type(values[node])
        own = issubclass(kind, type) or hasattr(kind, "keys") or hasattr(kind, "__iter__")
        names = node if own else table.add_attribute(node, "__dict__")  # which the tree names like its object
        yield names, *_names(values[names])
    yield from partition(table.nodes, values.all(), held)


def _names(value: Any) -> tuple[str, Any]:
    """The condition on all names of a dict; of a class, the tree names its dict like the class itself."""
    if isinstance(value, type):
        return "identity", describe(value)
    keys = keys_of(value)
    try:
        return "keys", [*map(encode_key, keys)]
    except NotPortable as error:
        msg = (
            f"the function depends on the keys of a dict, and {error.message}. Key the dict by texts, "
            "numbers or members of an enum."
        )
        raise NotPortable(msg, what="keys") from error


def _takes_part(value: Any) -> bool:
    """True if the partition of objects into same and distinct ones is about an object."""
    return has_identity(value) or num_cells(value) > 0 or isinstance(value, types.MethodType)


def _constants(trace: Trace) -> Iterator[str]:
    """Values that Dynamo had guarded where it found them first, and reads elsewhere without a guard."""
    guarded = {guard.source for guard in trace.guards}
    members = {id(value) for source, value in trace.objects.items() if MEMBER_OF_SET in source}
    for source, value in trace.objects.items():
        takes_part = id(value) not in members and _takes_part(value)
        if source not in guarded and is_object_of_value(value) and not takes_part:
            yield source


def _functions(trace: Trace) -> Iterator[str]:
    """Functions without a guard: ``checkpoint``, and those in C, "unlikely to be changed"."""
    guarded = {guard.source for guard in trace.guards}
    objects = trace.objects.items()
    return (source for source, value in objects if source not in guarded and isinstance(value, _FUNCTIONS))


def _sets_looked_into(trace: Trace) -> tuple[str, ...]:
    """Sets by whose members Dynamo guards, in an order that each process has its own of."""
    sources = (guard.source for guard in trace.guards if MEMBER_OF_SET in guard.source)
    nodes = (node for source in sources for node in ast.walk(ast.parse(source, mode="eval")))
    calls = (node for node in nodes if isinstance(node, ast.Call))
    found = (call.args[0] for call in calls if ast.unparse(call).startswith(MEMBER_OF_SET))
    sets = dict.fromkeys(map(ast.unparse, found))
    return tuple(source for source in sets if MEMBER_OF_SET not in source)


def has_identity(value: Any) -> bool:
    """True if an object differs from its equals, as functions and classes do that no name leads to."""
    kind = type(value)  # not isinstance: some objects raise when they are asked for their class
    if issubclass(kind, type | types.FunctionType):
        return not is_found_by_name(value)
    if issubclass(kind, tuple) and kind not in (tuple, torch.Size):
        return True  # a named tuple, which may hold anything
    if kind is float and value != value:  # noqa: PLR0124 - NaN, which containers look for by identity
        return True
    return not issubclass(kind, _INTERCHANGEABLE) and not is_group(kind)


def is_object_of_value(value: Any) -> bool:
    """True if Dynamo follows a constant as an object: it then guards the first path to it, and no other."""
    kind = type(value)
    return issubclass(kind, enum.Enum) or (issubclass(kind, _BUILT_IN) and kind not in _BUILT_IN)


def num_cells(value: Any) -> int:
    """Number of the variables of outer functions that a function has, and may share with other functions."""
    if not isinstance(value, types.FunctionType) or is_pinned_module(globals_module(value)):
        return 0
    return len(value.__closure__ or ())


def partition(nodes: Sequence[Node], values: Sequence[Any], held: Collection[int] = ()) -> list[Check]:
    """Conditions that say which nodes are the same object, and that all others are different ones.

    ``values`` are those of the nodes in the traced call; ``held`` are nodes of bound methods that count.
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
