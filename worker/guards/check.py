"""Evaluating portable guards, once per load, without Dynamo; and saying in words what does not hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import CodeType, FunctionType
from typing import Any

import torch

from warmrank.worker.errors import NotPortable, WorkerError
from warmrank.worker.gears.carried import carried, encoded
from warmrank.worker.guards import ambient, asked, constants
from warmrank.worker.guards.identity import describe, keys_of
from warmrank.worker.guards.model import Check, PortableGuards
from warmrank.worker.guards.paths import MISSING, Node, resolve, root_names, text
from warmrank.worker.guards.plain_types import plain_type
from warmrank.worker.guards.words import describe_failure, describe_shape, tensor_differences
from warmrank.worker.keys.code import forget_types, type_name
from warmrank.worker.keys.reachable import changed

MAX_REASONS = 8
_PARAMETER = type_name(torch.nn.Parameter)


def mismatches(
    guards: PortableGuards,
    function: FunctionType,
    arguments: Mapping[str, Any],
    *,
    device_kind: str,
) -> tuple[str, ...]:
    """All conditions that do not hold, in words, at most `MAX_REASONS`; empty if the artifact may be used.

    Args:
        guards: the artifact's conditions.
        function: the function under the bound method.
        arguments: the call's arguments by parameter name, ``self`` included.
        device_kind: whose autocast state counts beside the CPU's.
    """
    forget_types()
    found = list(changed(guards.sources))
    if not found:
        found.extend(ambient.differences(guards.ambient, ambient.snapshot(device_kind)))
        found.extend(asked.mismatches(guards.asked))
        found.extend(_object_mismatches(guards, function, arguments))
        found.extend(_gradient_mismatches(guards, function))
    return tuple(found[:MAX_REASONS])


def asks_for_gradients(nodes: Sequence[Node], check: Check, code: CodeType) -> bool:
    """Whether a check is of an argument that requires gradients, which are not recorded here.

    Weights do not count, wherever they are: parameters below the module, a free variable, another argument.
    """
    node, kind, expected = check
    if kind != "tensor" or not expected["requires_grad"]:
        return False
    step, name = root_names(nodes)[node]
    return (
        step == "local"
        and name in argument_names(code)
        and (nodes[node][0] < 0 or expected["type"] != _PARAMETER)
    )


def argument_names(code: CodeType) -> tuple[str, ...]:
    """Names of a method's parameters, without that of the module."""
    starred = bool(code.co_flags & CO_VARARGS) + bool(code.co_flags & CO_VARKEYWORDS)
    return code.co_varnames[min(code.co_argcount, 1) : code.co_argcount + code.co_kwonlyargcount + starred]


def tensor_mismatches(
    guards: PortableGuards, function: FunctionType, arguments: Mapping[str, Any]
) -> tuple[str, ...]:
    """Those conditions that do not hold without which compiled code reads memory that is not there."""
    return tuple(_object_mismatches(guards.of_tensors(), function, arguments))


def _gradient_mismatches(guards: PortableGuards, function: FunctionType) -> list[str]:
    if not torch.is_grad_enabled():
        return []
    return [
        f"{text(guards.nodes, check[0])} requires gradients, and they are recorded"
        for check in guards.checks
        if asks_for_gradients(guards.nodes, check, function.__code__)
    ]


def free_variables(function: FunctionType) -> dict[str, Any]:
    """Values of the function's free variables, by name; empty cells are left out."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            continue
    return found


def _object_mismatches(
    guards: PortableGuards, function: FunctionType, arguments: Mapping[str, Any]
) -> list[str]:
    values = node_values(guards.nodes, function, arguments)
    found = []
    for check in guards.checks:
        if not holds(check, values):
            found.append(describe_failure(guards, check, values))
            if len(found) >= MAX_REASONS:
                return found
    for expression, used in guards.shapes:
        if not shape_holds(expression, {index: values[index] for index in used}):
            found.append(describe_shape(guards, expression, used, values))
    return found


def node_values(nodes: Sequence[Node], function: FunctionType, arguments: Mapping[str, Any]) -> list[Any]:
    """What every node stands for in a call; `MISSING` where there is nothing."""
    return NodeValues(nodes, function, arguments).all()


class NodeValues:
    """What the nodes of a table stand for in a call, each looked up once, those that are added later too."""

    def __init__(self, nodes: Sequence[Node], function: FunctionType, arguments: Mapping[str, Any]) -> None:
        self._nodes = nodes
        self._roots = {"local": {**free_variables(function), **arguments}, "global": function.__globals__}
        self._values: list[Any] = []

    def all(self) -> list[Any]:
        """A value for every node; `MISSING` where there is nothing."""
        for index in range(len(self._values), len(self._nodes)):
            self._values.append(self.again(index))
        return self._values

    def __getitem__(self, node: int) -> Any:
        """The value of one node."""
        return self.all()[node]

    def again(self, node: int) -> Any:
        """What another look at a node gives, which may be an object made by this look."""
        return resolve(self._nodes, self._values, node, self._roots)


def shape_holds(expression: str, values: Mapping[int, Any]) -> bool:
    """Whether a condition on sizes holds; false where a value is missing."""
    if any(value is MISSING for value in values.values()):
        return False
    scope = {f"p{index}": value for index, value in values.items()}
    try:
        # The expression comes from an artifact, which is code and was trusted as such before it was read.
        return bool(eval(expression, {"math": math, "torch": torch}, scope))  # noqa: S307
    except Exception:  # noqa: BLE001
        return False  # of a tensor of another size, say, for whose value it asks


def holds(check: Check, values: Sequence[Any]) -> bool:
    """Whether one condition holds."""
    node, kind, expected = check
    value = values[node]
    if value is MISSING:
        return False
    if kind == "same":
        return value is values[expected]
    if kind == "distinct":
        return _distinct([value, *(values[other] for other in expected)])
    try:
        return HOLDS[kind](value, expected)
    except Exception:  # noqa: BLE001
        return False  # a value of quite another kind, which has no length, no keys, no __dict__


def _distinct(values: Sequence[Any]) -> bool:
    return not any(value is MISSING for value in values) and len(set(map(id, values))) == len(values)


def _equal(value: Any, expected: Any) -> bool:
    if expected is None or expected.__class__ in (bool, int, str):
        return type(value) is type(expected) and value == expected
    if isinstance(expected, dict) and "device" in expected:
        return isinstance(value, torch.device) and value.type == expected["device"]
    try:
        return constants.equal(constants.encode(value), expected)
    except WorkerError:
        return False


def _identical(value: Any, expected: Any) -> bool:
    try:
        return constants.equal(describe(value), expected)
    except WorkerError:
        return False


def _keys_equal(value: Any, expected: list[Any]) -> bool:
    try:
        keys = keys_of(value)
    except NotPortable:
        return False
    return len(keys) == len(expected) and all(map(_key_equal, keys, expected))


def _key_equal(key: Any, expected: Any) -> bool:
    if isinstance(expected, dict) and "object" in expected:
        return _identical(key, expected["object"])
    return _equal(key, expected)


def tensor_holds(value: Any, expected: Mapping[str, Any]) -> bool:
    """Whether a tensor is as traced: type, dtype, device kind, layout, static sizes and strides."""
    return not tensor_differences(value, expected)


def _group_holds(value: Any, expected: list[Any]) -> bool:
    from warmrank.worker.groups import role_of

    try:
        return role_of(value) == expected[0] and bool(value.size() == expected[1])
    except (WorkerError, AttributeError):
        return False


def _group_name_holds(value: Any, expected: str) -> bool:
    from warmrank.worker.groups import role_of

    try:
        return isinstance(value, str) and role_of(value) == expected
    except WorkerError:
        return False


HOLDS: dict[str, Callable[[Any, Any], bool]] = {
    "type": lambda value, expected: type_name(plain_type(value)) == expected,
    "equals": _equal,
    "identity": _identical,
    "maxlen": lambda value, expected: value.maxlen == expected,
    "length": lambda value, expected: len(value) == expected,
    "keys": _keys_equal,
    "order": lambda value, expected: len(value) == len(expected) and all(map(_key_equal, value, expected)),
    "has_key": lambda value, expected: constants.decode(expected) in value,
    "no_key": lambda value, expected: constants.decode(expected) not in value,
    "has_attr": hasattr,
    "no_attr": lambda value, expected: not hasattr(value, expected),
    "not_in_dict": lambda value, expected: expected not in value.__dict__,
    "instance": lambda value, expected: isinstance(value, constants.decode(expected[0])) is expected[1],
    "subclass": lambda value, expected: issubclass(value, constants.decode(expected[0])) is expected[1],
    "empty": lambda value, _: len(value) == 0,
    "present": lambda _value, _: True,  # what is missing has failed before
    "none": lambda value, _: value is None,
    "not_none": lambda value, _: value is not None,
    "tensor": tensor_holds,
    "gears": lambda value, expected: not carried(value) or encoded(carried(value)) == expected,
    "geared": lambda value, expected: encoded(carried(value)) == expected,
    "group": _group_holds,
    "group_name": _group_name_holds,
}
