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
import contextlib
import dataclasses
import importlib
import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import CodeType, FunctionType
from typing import Any

import torch

from warmrank.worker.errors import WorkerError
from warmrank.worker.keys.code import type_name, types_anew
from warmrank.worker.runtime.artifact import Check, Node, PortableGuards
from warmrank.worker.runtime.decoding import decode, describe_named, device_name, equal, keys_of
from warmrank.worker.runtime.sources import changed
from warmrank.worker.torch_private.warm import ambient, ambient_differences, dict_keys

MAX_REASONS = 8
_PARAMETER = type_name(torch.nn.Parameter)


class _Missing:
    def __repr__(self) -> str:
        return "<missing>"


MISSING = _Missing()
"""Stands for an object that is not there; of a class of its own so that no real value equals it."""


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
        return "builtins" if step == "builtins" else str(argument)
    base = text(nodes, parent)
    if step == "item":
        return f"{base}[{decode(argument)!r}]"
    named = {
        "attr": f"{base}.{argument}",
        "nth": f"list({base})[{argument}]",
        "nth_value": f"list({base}.values())[{argument}]",
        "call": f"{base}()",
        "from_numpy": base,
    }
    return named.get(step, f"{step}({base})")


def resolve(
    nodes: Sequence[Node], values: list[Any], index: int, roots: Mapping[str, Mapping[str, Any]]
) -> Any:
    """Value of node ``index``, given those of the nodes before it; `MISSING` where there is none."""
    parent, step, argument = nodes[index]
    if parent < 0:
        if step == "import":
            try:
                return importlib.import_module(argument)
            except Exception:  # noqa: BLE001 - whatever the module raises, the function shall raise
                return MISSING
        return vars(builtins) if step == "builtins" else roots[step].get(argument, MISSING)
    base = values[parent]
    if base is MISSING:
        return MISSING
    try:
        return getattr(base, argument) if step == "attr" else take_step(step, base, argument)
    except Exception:  # noqa: BLE001 - a property or __getitem__ of the user's, or NumPy, may raise anything
        return MISSING


def _members(base: Any) -> list[Any]:
    """Keys or items in the order that Dynamo saw, whatever a subclass says."""
    if isinstance(base, dict):
        return dict_keys(base)
    return list(list.__iter__(base)) if isinstance(base, list) else list(base)


def _from_numpy(array: Any) -> torch.Tensor:
    if type(array).__module__ != "numpy":
        raise TypeError(f"{type(array).__qualname__} is no array")
    return torch.as_tensor(array)


def member(base: Any, key: Any) -> Any:
    """A member; a key that is not there is made by no ``__missing__``, such as that of a defaultdict."""
    made = getattr(type(base), "__missing__", Counter.__missing__)  # Counter's gives 0, and makes no key
    if made is not Counter.__missing__ and isinstance(base, dict) and not dict.__contains__(base, key):
        raise KeyError(key)
    return base[key]


_STEPS: dict[str, Callable[[Any, Any], Any]] = {
    "attr": getattr,
    "item": lambda base, key: member(base, decode(key) if key.__class__ is dict else key),
    "nth": lambda base, index: _members(base)[index],
    "nth_value": lambda base, index: dict.__getitem__(base, _members(base)[index]),
    "type": lambda base, _: type(base),
    "dict": lambda base, _: dict(base),
    "call": lambda base, _: base(),
    "from_numpy": lambda array, _: _from_numpy(array),
    "fields": lambda base, _: getattr(base, "_fields", None) or dataclasses.fields(base),
}


def take_step(step: str, base: Any, argument: Any) -> Any:
    """Take one step from an object; raises whatever that object does."""
    return _STEPS[step](base, argument)


def plain_type(value: Any) -> type[Any]:
    """``type(value)``; of a fake tensor ``Parameter`` or ``Tensor``, as the real one's would be."""
    kind = type(value)
    if kind.__name__ != "FakeTensor":
        return kind
    return torch.nn.Parameter if isinstance(value, torch.nn.Parameter) else torch.Tensor


def mismatches(
    guards: PortableGuards, function: FunctionType, arguments: Mapping[str, Any], *, device_kind: str
) -> tuple[str, ...]:
    """All conditions that do not hold, in words, at most `MAX_REASONS`; empty if the artifact may be used.

    ``arguments`` are by parameter name, ``self`` included; the autocast state of ``device_kind`` counts
    beside the CPU's.
    """
    with types_anew():
        found = list(changed(guards.sources))
        if not found:
            found.extend(ambient_differences(guards.ambient, ambient(device_kind)))
            if guards.asked:
                from warmrank.worker.runtime import asked

                found.extend(asked.mismatches(guards.asked))
            found.extend(object_mismatches(guards, function, arguments))
            if torch.is_grad_enabled():
                found.extend(
                    f"{text(guards.nodes, check[0])} requires gradients, and they are recorded"
                    for check in guards.checks
                    if asks_for_gradients(guards.nodes, check, function.__code__)
                )
    return tuple(found[:MAX_REASONS])


def asks_for_gradients(nodes: Sequence[Node], check: Check, code: CodeType) -> bool:
    """True if a check is of an argument that requires gradients, which are not recorded here.

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
    return parameters(code)[min(code.co_argcount, 1) :]


def parameters(code: CodeType) -> tuple[str, ...]:
    """Names of a function's parameters, those that take the rest included."""
    starred = bool(code.co_flags & CO_VARARGS) + bool(code.co_flags & CO_VARKEYWORDS)
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + starred]


def object_mismatches(
    guards: PortableGuards, function: FunctionType, arguments: Mapping[str, Any]
) -> list[str]:
    """Conditions on objects that do not hold, in words."""
    values = node_values(guards.nodes, function, arguments)
    failed = [check for check in guards.checks if not _holds(check, values)]
    unmet = [shape for shape in guards.shapes if not _shape_holds(*shape, values)]
    if not failed and not unmet:
        return []
    from warmrank.worker.runtime.describe import describe_failure, describe_shape

    return [
        *(describe_failure(guards, check, values) for check in failed[:MAX_REASONS]),
        *(describe_shape(guards, expression, used, values) for expression, used in unmet),
    ][:MAX_REASONS]


def node_values(nodes: Sequence[Node], function: FunctionType, arguments: Mapping[str, Any]) -> list[Any]:
    """Objects that the nodes stand for in a call; `MISSING` where there is none."""
    roots = roots_of(function, arguments)
    values: list[Any] = []
    for index in range(len(nodes)):
        values.append(resolve(nodes, values, index, roots))
    return values


def roots_of(function: FunctionType, arguments: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """Values of the roots of a call, by step and name; an empty cell's variable is missing."""
    free = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):
            free[name] = cell.cell_contents
    return {"local": {**free, **arguments}, "global": function.__globals__}


def _shape_holds(expression: str, used: Sequence[int], values: Sequence[Any]) -> bool:
    """True if a condition on sizes holds; false where a value is missing."""
    scope = {f"p{index}": values[index] for index in used}
    if any(value is MISSING for value in scope.values()):
        return False
    try:
        # The expression comes from an artifact, which is code and was trusted as such before it was read.
        return bool(eval(expression, {"math": math, "torch": torch}, scope))  # noqa: S307
    except Exception:  # noqa: BLE001
        return False  # of a tensor of another size, say, for whose value it asks


def _holds(check: Check, values: Sequence[Any]) -> bool:
    """True if one condition holds."""
    node, kind, expected = check
    value = values[node]
    if value is MISSING:
        return False
    if kind == "same":
        return value is values[expected]
    if kind == "distinct":
        ids = {id(value), *[id(values[other]) for other in expected]}
        return len(ids) == len(expected) + 1 and id(MISSING) not in ids
    return holds(kind, value, expected)


def _equal(value: Any, expected: Any) -> bool:
    if expected is None or expected.__class__ in (bool, int, str):
        return type(value) is type(expected) and value == expected
    if isinstance(expected, dict):
        if "device" in expected:
            return isinstance(value, torch.device) and device_name(value) == expected["device"]
        if "float" in expected:
            return type(value) is float and value.hex() == expected["float"]
        if "dtype" in expected:
            return value is decode(expected)
        if "tuple" in expected:
            parts = expected["tuple"]
            return type(value) is tuple and len(value) == len(parts) and all(map(_equal, value, parts))
    from warmrank.worker.runtime.constants import encode

    try:
        return equal(encode(value), expected)
    except WorkerError:
        return False


def _identical(value: Any, expected: Any) -> bool:
    present = describe_named(value)
    if present is None:
        from warmrank.worker.runtime.constants import describe

        present = describe(value)
    return equal(present, expected)


def _keys_equal(keys: Sequence[Any], expected: list[Any]) -> bool:
    if len(keys) != len(expected):
        return False
    for key, wanted in zip(keys, expected, strict=True):
        is_object = isinstance(wanted, dict) and "object" in wanted
        if not (_identical(key, wanted["object"]) if is_object else _equal(key, wanted)):
            return False
    return True


def _tensor_holds(value: Any, expected: Mapping[str, Any]) -> bool:
    """True if a tensor is as traced: type, dtype, device kind, layout, static sizes and strides."""
    return (
        isinstance(value, torch.Tensor)
        and type_name(plain_type(value)) == expected["type"]
        and value.dtype is decode(expected["dtype"])
        and value.device.type == expected["device"]
        and value.layout is decode(expected["layout"])
        and value.requires_grad == expected["requires_grad"]
        and [value.is_conj(), value.is_neg()] == expected["lazy_bits"]
        and (
            value.layout is not torch.strided
            or (_fits(value.shape, expected["sizes"]) and _fits(value.stride(), expected["strides"]))
        )
    )


def _fits(present: Sequence[int], expected: Sequence[int | None]) -> bool:
    """True if sizes or strides are as traced; None stands for any."""
    return [*present] == expected or (
        len(present) == len(expected)
        and all(wanted is None or wanted == now for wanted, now in zip(expected, present, strict=True))
    )


def _has(value: Any, key: Any) -> bool:
    """True for a member, as Dynamo looks for it: whatever a subclass of dict or set says of itself."""
    base = next((each for each in (dict, set, frozenset) if isinstance(value, each)), None)
    return key in value if base is None else base.__contains__(value, key)


_KINDS: dict[str, Callable[[Any, Any], Any]] = {
    "present": lambda _value, _: True,
    "none": lambda value, _: value is None,
    "not_none": lambda value, _: value is not None,
    "type": lambda value, expected: type_name(plain_type(value)) == expected,
    "tensor": _tensor_holds,
    "equals": _equal,
    "identity": _identical,
    "empty": lambda value, _: len(value) == 0,
    "length": lambda value, expected: len(value) == expected,
    "maxlen": lambda value, expected: value.maxlen == expected,
    "has_key": lambda value, expected: _has(value, decode(expected)),
    "no_key": lambda value, expected: not _has(value, decode(expected)),
    "keys": lambda value, expected: _keys_equal(keys_of(value), expected),
    "order": _keys_equal,
    "has_attr": hasattr,
    "no_attr": lambda value, expected: not hasattr(value, expected),
    "not_in_dict": lambda value, expected: expected not in value.__dict__,
    "instance": lambda value, expected: isinstance(value, decode(expected[0])) is expected[1],
    "subclass": lambda value, expected: issubclass(value, decode(expected[0])) is expected[1],
}


def holds(kind: str, value: Any, expected: Any) -> bool:
    """True if a condition holds for an object; what raises, of a value of quite another kind, does not."""
    try:
        return bool(_KINDS[kind](value, expected) if kind in _KINDS else _of_process(kind, value, expected))
    except Exception:  # noqa: BLE001
        return False


def any_gears() -> bool:
    """True if a tensor of this process was ever given gears; imports nothing of them."""
    return bool(getattr(sys.modules.get("warmrank.worker.gears.model"), "in_use", ()))


def _of_process(kind: str, value: Any, expected: Any) -> bool:
    """A condition on gears or on process groups, which most functions have none of."""
    if kind in ("gears", "geared"):
        from warmrank.worker.gears.model import carried, encoded

        return bool((kind == "gears" and not carried(value)) or encoded(carried(value)) == expected)
    from warmrank.worker.groups import role_of

    if kind == "group":
        return bool(role_of(value) == expected[0] and value.size() == expected[1])
    return kind == "group_name" and isinstance(value, str) and bool(role_of(value) == expected)
