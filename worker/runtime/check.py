"""Evaluating portable guards, once per load, without Dynamo.

A guarded object is found by Dynamo's source expression as steps from a root, shared between guards: a table
of nodes, each ``(parent, step, argument)`` and behind its parent, so that one pass evaluates all, each prefix
once. Roots have parent -1:

====================  ==========================================
``("local", name)``   an argument of the call (``self`` included), or a free variable of the function
``("global", name)``  a global of the module that the function stands in
``("import", name)``  a module, by the name under which it imports
``("builtins", "")``  the builtins, as a mapping
====================  ==========================================
"""

from __future__ import annotations

import builtins
import dataclasses
import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import CodeType, FunctionType
from typing import Any

import torch

from warmrank.worker.errors import NotPortable, WorkerError
from warmrank.worker.gears.carried import carried, encoded
from warmrank.worker.keys.code import forget_types, type_name
from warmrank.worker.runtime import ambient, constants
from warmrank.worker.runtime.artifact import Check, Node, PortableGuards
from warmrank.worker.runtime.constants import describe, keys_of
from warmrank.worker.runtime.sources import changed
from warmrank.worker.torch_private.operators import dict_keys

MAX_REASONS = 8
_PARAMETER = type_name(torch.nn.Parameter)


class Missing:
    """Stands for an object that is not there; a class of its own so that no real value equals it."""

    def __repr__(self) -> str:
        return "<missing>"


MISSING = Missing()


def root_names(nodes: Sequence[Node]) -> list[tuple[str, str]]:
    """For each node, step and argument of the root it starts from."""
    roots: list[tuple[str, str]] = []
    for parent, step, argument in nodes:
        roots.append((step, argument) if parent < 0 else roots[parent])
    return roots


def text(nodes: Sequence[Node], index: int) -> str:
    """A node's path as a reader would write it: ``self.layers['0'].weight``."""
    parent, step, argument = nodes[index]
    if parent < 0:
        return {"local": str(argument), "global": str(argument), "import": str(argument)}.get(
            step, "builtins"
        )
    base = text(nodes, parent)
    if step == "attr":
        return f"{base}.{argument}"
    if step == "item":
        return f"{base}[{constants.decode(argument)!r}]"
    named = {
        "type": f"type({base})",
        "nth": f"list({base})[{argument}]",
        "nth_value": f"list({base}.values())[{argument}]",
        "call": f"{base}()",
        "from_numpy": base,
    }
    return named.get(step, f"{step}({base})")


def resolve(
    nodes: Sequence[Node], values: list[Any], index: int, roots: Mapping[str, Mapping[str, Any]]
) -> Any:
    """Value of node ``index``, given the values of the nodes before it; `MISSING` where there is none.

    Args:
        nodes: the table.
        values: values of the nodes before ``index``.
        index: the node to evaluate.
        roots: mappings for the roots ``local`` and ``global``.
    """
    parent, step, argument = nodes[index]
    if parent < 0:
        return _root_value(step, argument, roots)
    base = values[parent]
    if base is MISSING:
        return MISSING
    try:
        return STEPS[step](base, argument)
    except Exception:  # noqa: BLE001 - a property or __getitem__ of the user's, or NumPy, may raise anything
        return MISSING


def _root_value(step: str, argument: str, roots: Mapping[str, Mapping[str, Any]]) -> Any:
    if step == "import":
        try:
            return importlib.import_module(argument)
        except ImportError:
            return MISSING
    if step == "builtins":
        return vars(builtins)
    return roots[step].get(argument, MISSING)


def _members(base: Any) -> list[Any]:
    """Keys or items in the order that Dynamo saw, whatever a subclass says."""
    if isinstance(base, dict):
        return dict_keys(base)
    return list(list.__iter__(base)) if isinstance(base, list) else list(base)


def _from_numpy(array: Any) -> torch.Tensor:
    if type(array).__module__ != "numpy":
        msg = f"{type(array).__qualname__} is no array"
        raise TypeError(msg)
    return torch.as_tensor(array)


STEPS: dict[str, Callable[[Any, Any], Any]] = {
    "attr": getattr,
    "item": lambda base, argument: base[
        argument if argument.__class__ is not dict else constants.decode(argument)
    ],
    "nth": lambda base, argument: _members(base)[argument],
    "nth_value": lambda base, argument: dict.__getitem__(base, _members(base)[argument]),
    "type": lambda base, _: type(base),
    "dict": lambda base, _: dict(base),
    "call": lambda base, _: base(),
    "from_numpy": lambda base, _: _from_numpy(base),
    "fields": lambda base, _: getattr(base, "_fields", None) or dataclasses.fields(base),
}


def plain_type(value: Any) -> type[Any]:
    """``type(value)``; of a fake tensor ``Parameter`` or ``Tensor``, as the real one's would be."""
    kind = type(value)
    if kind.__name__ != "FakeTensor":
        return kind
    return torch.nn.Parameter if isinstance(value, torch.nn.Parameter) else torch.Tensor


def is_plain_tensor(tensor: torch.Tensor) -> bool:
    """Whether operators take a tensor as they take any other: not so those of a class with rules of its own.

    Subclasses of Parameter with attributes and methods of their own (vLLM's weights) are plain.
    """
    kind = type(tensor)
    if kind in (torch.Tensor, torch.nn.Buffer) or hasattr(tensor, "fake_mode"):
        return True
    return (
        isinstance(tensor, torch.nn.Parameter)
        and kind.__torch_function__ is torch.nn.Parameter.__torch_function__
        and kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__
    )


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
        if guards.asked:
            from warmrank.worker.runtime import asked

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
    failed = [check for check in guards.checks if not holds(check, values)]
    unmet = [shape for shape in guards.shapes if not shape_holds(shape[0], {i: values[i] for i in shape[1]})]
    if not failed and not unmet:
        return []
    from warmrank.worker.runtime.describe import describe_failure, describe_shape

    return [
        *(describe_failure(guards, check, values) for check in failed[:MAX_REASONS]),
        *(describe_shape(guards, expression, used, values) for expression, used in unmet),
    ][:MAX_REASONS]


def node_values(nodes: Sequence[Node], function: FunctionType, arguments: Mapping[str, Any]) -> list[Any]:
    """What every node stands for in a call; `MISSING` where there is nothing."""
    roots = roots_of(function, arguments)
    values: list[Any] = []
    for parent, step, argument in nodes:
        if parent < 0:
            values.append(_root_value(step, argument, roots))
            continue
        base = values[parent]
        try:
            values.append(MISSING if base is MISSING else STEPS[step](base, argument))
        except Exception:  # noqa: BLE001 - as in `resolve`
            values.append(MISSING)
    return values


def roots_of(function: FunctionType, arguments: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """Values of the roots of a call, by step and name."""
    return {"local": {**free_variables(function), **arguments}, "global": function.__globals__}


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
    ids = {*map(id, values)}
    return len(ids) == len(values) and id(MISSING) not in ids


def _equal(value: Any, expected: Any) -> bool:
    if expected is None or expected.__class__ in (bool, int, str):
        return type(value) is type(expected) and value == expected
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
    return (
        isinstance(value, torch.Tensor)
        and type_name(plain_type(value)) == expected["type"]
        and value.dtype is constants.decode(expected["dtype"])
        and value.device.type == expected["device"]
        and value.layout is constants.decode(expected["layout"])
        and value.requires_grad == expected["requires_grad"]
        and [value.is_conj(), value.is_neg()] == expected["lazy_bits"]
        and (
            value.layout is not torch.strided
            or (_fits(value.shape, expected["sizes"]) and _fits(value.stride(), expected["strides"]))
        )
    )


def _fits(present: Sequence[int], expected: Sequence[int | None]) -> bool:
    """Whether sizes or strides are as traced; None stands for any."""
    return [*present] == expected or (
        len(present) == len(expected)
        and all(wanted is None or wanted == now for wanted, now in zip(expected, present, strict=True))
    )


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
