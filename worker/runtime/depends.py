"""Words to watch for a step of a path or a condition; None where they cannot be told. Pure.

A watch is a kind of `worker.torch_private.unchanged` and an object, or `MEMBERS` and a container.

Invariant: while none of the watches of a step changes, the step leads from the same object to the same one,
and while none of those of a condition does, its answer stays. An empty list says that nothing can change it.
"""

from __future__ import annotations

import collections
import enum
import functools
import gc
from collections.abc import Iterable
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    MappingProxyType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

import torch

from warmrank.worker.keys.code import (
    digested_bases,
    digested_functions,
    globals_module,
    is_pinned_module,
)
from warmrank.worker.runtime.check import MISSING
from warmrank.worker.torch_private.warm import OPERATORS, OperatorNamespace

Watches = list[tuple[str, Any]] | None
MEMBERS = "members"
OF_METADATA = frozenset({"size", "stride", "shape", "ndim", "dtype", "device", "layout", "requires_grad"})
"""Attributes of a tensor that hang on nothing but its metadata."""

_LISTED = (list, set, collections.deque)
_FROZEN = (tuple, torch.Size, frozenset, str, bytes, range)
_PLAIN = (
    type(None), bool, int, float, complex, str, bytes, type(Ellipsis), range,
    torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip
_NEVER_CHANGE = (
    ModuleType, CodeType, BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType,
    OperatorNamespace,
)  # fmt: skip
_OF_FUNCTION = {"__code__": "code", "__defaults__": "defaults", "__kwdefaults__": "kwdefaults"}
_FIXED_ATTRIBUTES = {
    FunctionType: ("__closure__", "__globals__"),
    MethodType: ("__func__", "__self__"),
    property: ("fget", "fset", "fdel"),
}


def of_root(step: str, name: str, function: FunctionType) -> Watches:
    """Watches of a root of paths."""
    if step == "global":
        return [("dict", function.__globals__)]
    if step == "local" and name in function.__code__.co_freevars:
        return [("cell", (function.__closure__ or ())[function.__code__.co_freevars.index(name)])]
    if step == "import":
        return [] if is_pinned_module(name) else [("module", name)]
    return [] if step in ("local", "builtins") else None


def of_step(step: str, base: Any, argument: Any, value: Any) -> Watches:
    """Watches of a step from one object to another; `value` may be `MISSING`."""
    if step == "attr":
        return of_attribute(base, argument, value)
    if step == "type":
        return [("type", base)]
    if step == "item":
        return _of_item(base)
    if step in ("nth", "nth_value"):
        return [("dict", base)] if isinstance(base, dict) else _of_members(base)
    return _of_item(base) if step == "dict" and type(base) in (dict, MappingProxyType) else None


def _of_item(base: Any) -> Watches:
    if isinstance(base, dict) and type(base).__getitem__ is dict.__getitem__:
        return [("type", base), ("dict", base)]
    if type(base) is MappingProxyType:
        under = gc.get_referents(base)
        return [("dict", under[0])] if len(under) == 1 and type(under[0]) is dict else None
    return _of_members(base)


def _of_members(base: Any) -> Watches:
    """Watches of a container's members and their order."""
    if isinstance(base, tuple) and type(base).__getitem__ is tuple.__getitem__:
        return [] if type(base).__iter__ is tuple.__iter__ else None
    if type(base) in _FROZEN:
        return []
    return [(MEMBERS, base)] if type(base) in _LISTED else None


def of_attribute(base: Any, name: str, value: Any) -> Watches:
    """Watches of a look-up of an attribute; `value` is `MISSING` if it is not there."""
    kind = type(base)
    if name in _FIXED_ATTRIBUTES.get(kind, ()):
        return []
    if kind is FunctionType and name in _OF_FUNCTION:
        return [(_OF_FUNCTION[name], base)]
    if kind is CellType and name == "cell_contents":
        return [("cell", base)]
    if isinstance(base, type):
        return _of_class_attribute(base, name, value)
    getter: Any = kind.__getattribute__
    if getter is ModuleType.__getattribute__:
        own = base.__dict__
        known = [("type", base), ("class", kind), ("dict", own)]
        if name == "__dict__" or (name in own and own[name] is value):
            return known
        return known if value is MISSING and "__getattr__" not in own else None
    return _of_plain_attribute(base, name, value) if getter is object.__getattribute__ else None


def _of_plain_attribute(base: Any, name: str, value: Any) -> Watches:
    """Watches by Python's own rule: data descriptor, the object's dict, class, ``__getattr__``."""
    kind = type(base)
    known: list[tuple[str, Any]] = [("type", base), ("class", kind)]
    own = _namespace(base)
    if own is not None:
        known.append(("namespace", base))
        if name == "__dict__":
            return known if own is value else None
        known.append(("dict", own))
    found = _static(kind, name)
    if name == "__class__":
        return known if value is kind else None
    if hasattr(type(found), "__set__") or hasattr(type(found), "__delete__"):
        return None  # a slot, a property
    if own is not None and name in own:
        return known if own[name] is value else None
    if found is not MISSING:
        return known if found is value or _is_bound(value, found, base) else None
    getter = _static(kind, "__getattr__")
    if getter is torch.nn.Module.__getattr__ and own is not None:
        tables = [own.get(table) for table in ("_parameters", "_buffers", "_modules")]
        return [*known, *(("dict", table) for table in tables if type(table) is dict)]
    return known if getter is MISSING and value is MISSING else None


def _of_class_attribute(base: type, name: str, value: Any) -> Watches:
    meta = type(base)
    known = [("type", base), ("class", base), ("class", meta)]
    if meta.__getattribute__ is not type.__getattribute__:
        return None
    if name in ("__dict__", "__mro__"):
        return known
    if hasattr(type(_static(meta, name)), "__set__"):
        return None
    found = _static(base, name)
    if found is MISSING:
        elsewhere = (value, _static(meta, name), _static(meta, "__getattr__"))
        return known if all(item is MISSING for item in elsewhere) else None
    if isinstance(found, staticmethod | classmethod):
        found = found.__func__
    return known if found is value or _is_bound(value, found, base) else None


def _is_bound(value: Any, function: Any, base: Any) -> bool:
    return type(value) is MethodType and value.__func__ is function and value.__self__ is base


def _static(cls: type, name: str) -> Any:
    return next((base.__dict__[name] for base in cls.__mro__ if name in base.__dict__), MISSING)


def _namespace(value: Any) -> dict[str, Any] | None:
    own = getattr(value, "__dict__", None)
    return own if type(own) is dict else None


def of_check(kind: str, value: Any, expected: Any) -> Watches:
    """Watches of a condition on an object."""
    if kind in ("none", "not_none", "present", "maxlen"):
        return []
    if kind == "equals":
        return _of_constant(value)
    if kind == "identity":
        return _of_identity(value)
    if kind in ("length", "empty", "has_key", "no_key"):
        return _of_container(value, "__len__" if kind in ("length", "empty") else "__contains__")
    if kind == "keys":
        if not isinstance(value, dict) or any(isinstance(key, dict) and "object" in key for key in expected):
            return None
        return [("type", value), ("dict", value), *_of_order(value)]
    if kind in ("has_attr", "no_attr"):
        return of_attribute(value, expected, getattr(value, expected, MISSING))
    if kind == "not_in_dict" and (own := _namespace(value)) is not None and not isinstance(value, type):
        return [("type", value), ("namespace", value), ("dict", own)]
    return None


def _of_order(value: Any) -> list[tuple[str, Any]]:
    """Watches of an order that may change while no member does."""
    return [(MEMBERS, value)] if isinstance(value, collections.OrderedDict) else []


def _of_container(value: Any, method: str) -> Watches:
    if not isinstance(value, dict):
        return _of_members(value)
    plain = getattr(type(value), method) is getattr(dict, method)
    return [("type", value), ("dict", value)] if plain else None


def of_class(cls: type, known: dict[type, Watches]) -> Watches:
    """Watches of a class's digest (`worker.keys.code`); `known` keeps those of its bases."""
    watches: list[tuple[str, Any]] = [("class", cls)]
    if not is_pinned_module(type(cls).__module__):
        watches.append(("class", type(cls)))
    bases = tuple(digested_bases(cls))
    for base in bases:
        if base not in known:
            known[base] = together(map(of_function, digested_functions(base)))
    return together([watches, *map(known.__getitem__, bases)])


def together(parts: Iterable[Watches]) -> Watches:
    """All of several watches; None if one of them cannot be made."""
    watches: list[tuple[str, Any]] = []
    for part in parts:
        if part is None:
            return None
        watches += part
    return watches


def _of_constant(value: Any) -> Watches:
    if isinstance(value, type):
        return of_class(value, {})
    if isinstance(value, enum.Enum):
        return [("class", type(value)), ("dict", value.__dict__)] if is_constant(value.value) else None
    return [] if is_constant(value) else None


def is_constant(value: Any) -> bool:
    """True if a value is one that nobody can change."""
    if type(value) in (tuple, frozenset, torch.Size):
        return all(map(is_constant, value))
    if type(value) is slice:
        return all(map(is_constant, (value.start, value.stop, value.step)))
    return type(value) in _PLAIN


def of_function(function: FunctionType) -> Watches:
    """Watches of a function's digest."""
    watches: list[tuple[str, Any]] = [("code", function), ("defaults", function), ("kwdefaults", function)]
    if function.__kwdefaults__ is not None:
        watches.append(("dict", function.__kwdefaults__))
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    return together([watches, *map(_of_default, defaults)])


def of_reached(values: Iterable[Any]) -> Watches:
    """Watches of what a digest tells of objects that `worker.keys.reachable` reached."""
    return together(map(_of_content, values))


def _of_content(value: Any) -> Watches:
    from warmrank.worker.keys.reachable import is_fixed

    if isinstance(value, FunctionType):
        watches: list[tuple[str, Any]] = [("cell", cell) for cell in value.__closure__ or ()]
        if not is_fixed(globals_module(value)):
            watches += [("dict", value.__globals__), *((kind, value) for kind in _OF_FUNCTION.values())]
            watches += [("dict", value.__kwdefaults__)] if value.__kwdefaults__ is not None else []
        return watches  # defaults are reached, too
    if isinstance(value, ModuleType):
        return [] if is_fixed(value.__name__) else [("dict", vars(value))]
    if isinstance(value, type):
        return [] if is_fixed(value.__module__) else [("class", value)]
    if type(value) is functools.partial:
        return [("dict", value.keywords)]
    if isinstance(value, (dict, MappingProxyType, *_LISTED, *_FROZEN)):
        return together([_of_item(value), _of_order(value)])
    own, kind = _namespace(value), type(value)
    if own is None or isinstance(value, torch.Tensor) or hasattr(kind, "tobytes"):
        return None
    # Of one of a fixed class its text counts, which may be that of anything that it holds.
    held = (item for name, item in own.items() if name != "__annotations__")
    is_plain = all(is_constant(item) or isinstance(item, FunctionType | type) for item in held)
    has_slots = any(vars(base).get("__slots__") for base in kind.__mro__)
    if has_slots or (is_fixed(kind.__module__) and not is_plain):
        return None
    return [("type", value), ("namespace", value), ("dict", own)]


def _of_default(value: Any) -> Watches:
    """Watches of a default value's text in a digest (`worker.keys.code.stable_text`)."""
    if is_constant(value):
        return []
    if type(value) is FunctionType:
        return of_function(value)
    is_told_in_full = isinstance(value, (tuple, list, set, frozenset, dict, slice, type))
    return None if is_told_in_full or type(value).__module__.startswith("torch") else [("type", value)]


def _of_identity(value: Any) -> Watches:
    """Watches of an object's description (`worker.runtime.constants`)."""
    if isinstance(value, _NEVER_CHANGE):
        return []
    if isinstance(value, OPERATORS):
        return [("namespace", value), ("dict", value.__dict__)]
    if type(value) is FunctionType:
        return of_function(value)
    if type(value) is MethodType:
        return _of_identity(value.__func__)
    if type(value) is functools.partial:
        under = _of_identity(value.func)
        plain = all(map(is_constant, (*value.args, *value.keywords.values())))
        return [*under, ("dict", value.keywords)] if under is not None and plain else None
    return _of_constant(value)
