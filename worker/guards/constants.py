"""Python constants as JSON and back: what a guard may compare with, and nothing else.

Layout: JSON scalars stand for themselves, except floats (``{"float": hex}``, so that NaN and infinities
survive); everything else is ``{tag: payload}``. A class of the user's carries its digest, and a member of an
enum its value, so that another class or value under the same name does not pass; `decode` needs neither.
Values of classes derived from int, float, complex, str and bytes are told from plain ones.
"""

from __future__ import annotations

import enum
import importlib
import json
import re
import types
from typing import Any

from warmrank.worker.errors import NotPortable
from warmrank.worker.keys.code import function_digest, globals_module, is_pinned_module, type_name

_SEQUENCES: dict[type, str] = {tuple: "tuple", list: "list"}
_SETS: dict[type, str] = {set: "set", frozenset: "frozenset"}
# Classes of Python's own that `builtins` has no name for: NoneType, function, ...
_UNNAMED = {
    value.__qualname__: value
    for value in vars(types).values()
    if isinstance(value, type) and value.__module__ == "builtins"
}
# How to get the plain value out of one whose class may answer otherwise.
_PLAIN: dict[type, Any] = {
    int: int.__int__, float: float.__float__, complex: complex.__complex__, str: str.__str__,
    bytes: bytes.__bytes__,
}  # fmt: skip
_TORCH_NAMED = ("dtype", "layout", "memory_format")


def encode(value: Any) -> Any:
    """The JSON form of a constant.

    Raises:
        NotPortable: the value is none of the kinds that keep their meaning in another process.
    """
    kind = type(value)
    if value is None or kind in (bool, int):
        return value
    if kind is str:
        return value if value.isascii() else _encode_text(value)
    if kind in (float, complex, bytes):
        return _encode_number(value)
    if kind in _SEQUENCES:
        return {_SEQUENCES[kind]: [encode(item) for item in value]}
    if kind in _SETS:
        return {_SETS[kind]: sorted((encode(item) for item in value), key=repr)}
    if kind is dict:
        return {"dict": [[encode(key), encode(item)] for key, item in value.items()]}
    if kind in (slice, range):
        return {kind.__name__: [encode(value.start), encode(value.stop), encode(value.step)]}
    if value is Ellipsis:
        return {"ellipsis": True}
    return _encode_python(value)


def _encode_text(value: str) -> Any:
    """A text; one with lone surrogates, which no file holds, as bytes."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return {"text": value.encode("utf-8", "surrogatepass").hex()}
    return value


def _encode_python(value: Any) -> Any:
    """Of a class that is not Python's own, or that has no literals."""
    kind = type(value)
    if isinstance(value, enum.Enum) or _is_member_in_c(value):
        return {"enum": _encode_member(value)}
    if isinstance(value, re.Pattern):
        return {"pattern": [encode(value.pattern), value.flags]}
    if kind.__module__ == "numpy" and hasattr(value, "tobytes"):
        return _encode_numpy(value)
    for base, plain in _PLAIN.items():
        if isinstance(value, base):
            return {"derived": [*_class_parts(kind), encode(plain(value))]}
    return _encode_torch(value)


def equal(encoded: Any, other: Any) -> bool:
    """Whether two JSON forms are the same text, of which Python's ``==`` says too much: ``True == 1``."""
    return bool(encoded == other) and json.dumps(encoded) == json.dumps(other)


def _is_member_in_c(value: Any) -> bool:
    """Whether a value is a member of what torch makes in C++ for an enum, such as ``dist.ReduceOp.SUM``."""
    kind = type(value)
    members = getattr(kind, "__members__", None) if is_pinned_module(kind.__module__) else None
    return isinstance(members, dict) and getattr(value, "name", None) in members


def encode_index(value: Any) -> Any:
    """The JSON form of a key that is looked up: an accelerator's index counts here."""
    import torch

    if isinstance(value, torch.device) and value.index is not None:
        return {"indexed_device": str(value)}
    return encode(value)


def _class_parts(kind: type) -> list[str]:
    """Module, qualified name, and the digest of a class that no version pins."""
    return re.split("[:#]", type_name(kind))


def _encode_numpy(value: Any) -> Any:
    """Scalars and arrays of numbers, with all that they hold."""
    is_scalar = not hasattr(value, "__len__")  # not an array without dimensions
    if value.dtype.kind not in "biufc" or not (is_scalar or type(value).__name__ == "ndarray"):
        msg = f"NumPy's {type(value).__name__} of {value.dtype} cannot be compared in another process"
        raise NotPortable(msg, what=str(value.dtype))
    shape = None if is_scalar else list(value.shape)
    return {"numpy": [value.dtype.str, shape, value.tobytes().hex()]}


def _encode_member(value: Any) -> list[Any]:
    """Where a member stands and what it is called, and its value where no version pins that."""
    kind = type(value)
    name = [kind.__module__, kind.__qualname__, value.name]
    return name if is_pinned_module(kind.__module__) else [*name, encode(value.value)]


def _encode_number(value: complex | bytes) -> Any:
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, complex):
        return {"complex": [value.real.hex(), value.imag.hex()]}
    return {"bytes": value.hex()}


def _encode_torch(value: Any) -> Any:
    import torch

    if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        return {type(value).__name__: str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": value.type}
    if isinstance(value, torch.Size):
        return {"Size": [int(item) for item in value]}
    if isinstance(value, type):
        return {"class": _class_parts(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {"namedtuple": [*_class_parts(type(value)), [encode(item) for item in value]]}
    if isinstance(value, types.MethodType) and isinstance(value.__self__, type):
        return {"classmethod": [encode(value.__self__), value.__name__]}
    if isinstance(value, types.FunctionType) and _is_found_again(value):
        digest = "" if is_pinned_module(globals_module(value)) else function_digest(value)
        return {"function": [value.__module__, value.__qualname__, digest]}
    kind = type(value)
    msg = f"a value of type {kind.__module__}.{kind.__qualname__} cannot be compared in another process"
    raise NotPortable(msg, what=kind.__qualname__)


def _is_found_again(function: types.FunctionType) -> bool:
    """Whether a function's names lead to it, and not to another one."""
    try:
        return _class([function.__module__, function.__qualname__]) is function
    except (ImportError, AttributeError):
        return False


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
    if tag in _TORCH_NAMED:
        import torch

        return getattr(torch, payload)
    msg = f"unknown constant tag {tag!r}; the artifact was written by another version of warmrank"
    raise NotPortable(msg, what=tag)


def _items(payload: list[Any]) -> list[Any]:
    return [decode(item) for item in payload]


def _class(payload: list[str]) -> Any:
    module, qualname = payload[0], payload[1]
    if module == "builtins" and qualname in _UNNAMED:
        return _UNNAMED[qualname]
    value: Any = importlib.import_module(module)
    for part in qualname.split("."):
        value = getattr(value, part)
    return value


def _device(payload: str) -> Any:
    import torch

    return torch.device(payload)


def _numpy(payload: list[Any]) -> Any:
    import numpy as np

    dtype, shape, data = payload
    array = np.frombuffer(bytes.fromhex(data), dtype=dtype)
    return array[0] if shape is None else array.reshape(shape).copy()


def _derived(payload: list[Any]) -> Any:
    plain = decode(payload[-1])
    return type(plain).__new__(_class(payload), plain)


def _size(payload: list[int]) -> Any:
    import torch

    return torch.Size(payload)


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
    "enum": lambda parts: _class(parts[:2]).__members__[parts[2]],
    "class": _class,
    "function": _class,
    "classmethod": lambda parts: getattr(decode(parts[0]), parts[1]),
    "namedtuple": lambda parts: _class(parts[:2])(*_items(parts[-1])),
    "device": _device,
    "indexed_device": _device,
    "Size": _size,
    "pattern": lambda parts: re.compile(decode(parts[0]), parts[1]),
    "numpy": _numpy,
    "derived": _derived,
}
