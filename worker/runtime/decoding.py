"""Constants and names of objects, as far as a load reads them; `worker.runtime.constants` has the rest."""

from __future__ import annotations

import importlib
import json
import re
import sys
import types
from collections import OrderedDict
from functools import partial
from operator import attrgetter
from typing import Any

import torch

from warmrank.worker.errors import NotPortable
from warmrank.worker.keys.code import (
    function_digest,
    globals_module,
    is_of_replaced_module,
    is_pinned_module,
    type_name,
)
from warmrank.worker.torch_private.warm import dict_keys

# Classes of Python's own that `builtins` has no name for: NoneType, function, ...
_UNNAMED = {
    value.__qualname__: value
    for value in vars(types).values()
    if isinstance(value, type) and value.__module__ == "builtins"
}


def device_name(device: torch.device) -> str:
    """Device kind; of the CPU with the index, which no rank has another of and ``to`` copies for."""
    return str(device) if device.type == "cpu" else device.type


def equal(encoded: Any, other: Any) -> bool:
    """True if two JSON forms are the same text, of which Python's ``==`` says too much: ``True == 1``."""
    return bool(encoded == other) and json.dumps(encoded) == json.dumps(other)


def decode(encoded: Any) -> Any:
    """The constant that `encode` was given.

    Raises:
        NotPortable: the JSON has a tag that this version does not know.
    """
    if not isinstance(encoded, dict):
        return encoded
    ((tag, payload),) = encoded.items()
    decoder = _DECODERS.get(tag)
    if decoder is not None:
        return decoder(payload)
    raise NotPortable(f"unknown constant tag {tag!r}; another version of warmrank wrote the artifact")


def _items(payload: list[Any]) -> list[Any]:
    return [decode(item) for item in payload]


def class_named(payload: list[str]) -> Any:
    """Look up a qualified name in a module; further items are ignored."""
    module, qualname = payload[0], payload[1]
    if module == "builtins" and qualname in _UNNAMED:
        return _UNNAMED[qualname]
    return attrgetter(qualname)(importlib.import_module(module))


def _numpy(payload: list[Any]) -> Any:
    import numpy as np

    dtype, shape, data = payload
    array = np.frombuffer(bytes.fromhex(data), dtype=dtype)
    return array[0] if shape is None else array.reshape(shape).copy()


def _derived(payload: list[Any]) -> Any:
    plain = decode(payload[-1])
    return type(plain).__new__(class_named(payload), plain)


def _member(parts: list[Any]) -> Any:
    """A member of an enum by its name; combined flags by their value."""
    kind = class_named(parts[:2])
    return kind.__members__[parts[2]] if parts[2] in kind.__members__ else kind(decode(parts[3]))


_DECODERS: dict[str, Any] = {
    "float": float.fromhex,
    "complex": lambda parts: complex(float.fromhex(parts[0]), float.fromhex(parts[1])),
    "bytes": bytes.fromhex,
    "text": lambda data: bytes.fromhex(data).decode("utf-8", "surrogatepass"),
    "tuple": lambda items: tuple(_items(items)),
    "list": _items,
    "set": lambda items: set(_items(items)),
    "frozenset": lambda items: frozenset(_items(items)),
    "dict": lambda pairs: {decode(key): decode(item) for key, item in pairs},
    "slice": lambda items: slice(*_items(items)),
    "range": lambda items: range(*_items(items)),
    "ellipsis": lambda _: Ellipsis,
    "enum": _member,
    "class": class_named,
    "function": class_named,
    "classmethod": lambda parts: getattr(decode(parts[0]), parts[1]),
    "namedtuple": lambda parts: class_named(parts[:2])(*_items(parts[-1])),
    "device": torch.device,
    "indexed_device": torch.device,
    "Size": torch.Size,
    "dtype": partial(getattr, torch),
    "layout": partial(getattr, torch),
    "memory_format": partial(getattr, torch),
    "pattern": lambda parts: re.compile(decode(parts[0]), parts[1]),
    "numpy": _numpy,
    "derived": _derived,
}


_BUILTINS = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)


def describe_named(value: Any) -> list[Any] | None:
    """The portable name of a module, function, class or builtin; None for other objects."""
    if isinstance(value, types.ModuleType):
        replaced = [] if sys.modules.get(value.__name__, value) is value else ["replaced"]
        return ["module", value.__name__, *replaced]
    if isinstance(value, types.FunctionType):
        digest = "" if is_pinned_module(globals_module(value)) else function_digest(value)
        replaced = ["of a replaced module"] if is_of_replaced_module(value) else []
        return ["function", value.__module__, value.__qualname__, digest, *replaced]
    if isinstance(value, _BUILTINS):
        return ["builtin", _owner_of(value), value.__name__]
    if issubclass(type(value), type):  # `list[int]` only looks like one
        return ["class", *re.split("[:#]", type_name(value))]
    return None


def _owner_of(builtin: Any) -> str:
    owner = getattr(builtin, "__objclass__", None) or getattr(builtin, "__self__", None)
    if isinstance(owner, types.ModuleType):
        return owner.__name__
    if owner is None:
        return str(getattr(builtin, "__module__", ""))
    kind = owner if isinstance(owner, type) else type(owner)
    return f"{kind.__module__}.{kind.__qualname__}"


def keys_of(value: Any) -> list[Any]:
    """The keys of a mapping, or of a view of its keys, in the order that Dynamo sees.

    Raises:
        NotPortable: the keys were moved, so that iterating the dict gives another order.
    """
    if not isinstance(value, dict):
        return list(value.keys() if hasattr(value, "keys") else value)
    keys = dict_keys(value)
    if isinstance(value, OrderedDict) and list(OrderedDict.keys(value)) != keys:
        raise NotPortable(
            "keys of an OrderedDict that the function depends on were moved (hooks are by prepend=True), but "
            "the tracer sees them in their first order; make it anew, or register hooks in their order"
        )
    return keys
