"""Python constants as JSON: what a guard may compare with, and nothing else.

Layout: JSON scalars stand for themselves, except floats (``{"float": hex}``, so that NaN and infinities
survive); everything else is ``{tag: payload}``. A class of the user's carries its digest, and a member of an
enum its value, so that another class or value under the same name does not pass; decoding needs neither.
Values of classes derived from int, float, complex, str and bytes are told from plain ones.

A description is a JSON list whose first item is the kind; two objects are taken for the same if their
descriptions are equal. Functions and classes outside torch carry a digest, so that another one under the same
name does not pass.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import operator
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any

import torch

from warmrank.worker.errors import NotPortable
from warmrank.worker.groups import is_group, role_of
from warmrank.worker.keys.code import (
    UNNAMED,
    code_digest,
    function_digest,
    globals_module,
    is_cached_function,
    is_found_by_name,
    is_pinned_module,
    type_name,
)
from warmrank.worker.runtime.check import plain_type
from warmrank.worker.runtime.decoding import describe_named, device_name
from warmrank.worker.torch_private.warm import OPERATORS, OperatorNamespace, metadata_of, replacing_call

# How to get the plain value out of one whose class may answer otherwise.
_PLAIN: dict[type, Any] = {
    int: int.__int__, float: float.__float__, complex: complex.__complex__, str: str.__str__,
    bytes: bytes.__bytes__,
}  # fmt: skip


def encode(value: Any) -> Any:
    """The JSON form of a constant.

    Raises:
        NotPortable: the value is none of the kinds that keep their meaning in another process.
    """
    kind = type(value)
    if value is None or kind in (bool, int):
        return value
    if kind is str:
        # No file holds lone surrogates.
        if not value.isascii() and re.search("[\ud800-\udfff]", value):
            return {"text": value.encode("utf-8", "surrogatepass").hex()}
        return value
    encoder = _ENCODERS.get(kind)
    if encoder is None:
        return _encode_python(value)
    return {kind.__name__: encoder(value)}


def _encode_items(value: Iterable[Any]) -> list[Any]:
    return [encode(item) for item in value]


def _encode_set(value: Iterable[Any]) -> list[Any]:
    return sorted(_encode_items(value), key=repr)


def _name_in_torch(value: Any) -> str:
    return str(value).removeprefix("torch.")


_ENCODERS: dict[type, Callable[[Any], Any]] = {
    float: float.hex,
    complex: lambda value: [value.real.hex(), value.imag.hex()],
    bytes: bytes.hex,
    tuple: _encode_items,
    list: _encode_items,
    set: _encode_set,
    frozenset: _encode_set,
    dict: lambda value: [[encode(key), encode(item)] for key, item in value.items()],
    slice: lambda value: _encode_items((value.start, value.stop, value.step)),
    range: lambda value: [value.start, value.stop, value.step],
    type(Ellipsis): lambda _: True,
    torch.dtype: _name_in_torch,
    torch.layout: _name_in_torch,
    torch.memory_format: _name_in_torch,
    torch.device: device_name,
    torch.Size: lambda value: [int(item) for item in value],
}


def _encode_python(value: Any) -> Any:
    """Encode a value of a class that is not Python's own, or that has no literals."""
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


def _is_member_in_c(value: Any) -> bool:
    """True if a value is a member of what torch makes in C++ for an enum, such as ``dist.ReduceOp.SUM``."""
    kind = type(value)
    members = getattr(kind, "__members__", None) if is_pinned_module(kind.__module__) else None
    return isinstance(members, dict) and getattr(value, "name", None) in members


def classes_in(encoded: Any) -> Iterator[list[str]]:
    """Module, qualified name and digest of each class that decoding looks up and no version pins.

    Raises:
        NotPortable: its name does not lead to one of them.
    """
    if isinstance(encoded, dict):
        ((tag, encoded),) = encoded.items()
        if tag in ("class", "namedtuple", "derived") and len(encoded) > 2 + (tag != "class"):
            module, name, digest = encoded[:3]
            if digest.endswith(UNNAMED):
                msg = f"{module} has no class {name} by that name; assign it to the name that it was given"
                raise NotPortable(msg, what=name)
            yield [module, name, digest]
    if isinstance(encoded, list):
        for item in encoded:
            yield from classes_in(item)


def encode_index(value: Any) -> Any:
    """The JSON form of a key that is looked up: an accelerator's index counts here."""
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
        what = f"NumPy's {type(value).__name__} of {value.dtype}"
        raise NotPortable(f"{what} cannot be compared in another process")
    shape = None if is_scalar else list(value.shape)
    return {"numpy": [value.dtype.str, shape, value.tobytes().hex()]}


def _encode_member(value: Any) -> list[Any]:
    """Encode an enum's member: its place and name, and its value where no version pins that."""
    kind = type(value)
    name = [kind.__module__, kind.__qualname__, str(value.name)]
    is_named = kind.__members__.get(value.name) is value  # combined flags are not
    return name if is_named and is_pinned_module(kind.__module__) else [*name, encode(value.value)]


def _encode_torch(value: Any) -> Any:
    if isinstance(value, type):
        return {"class": _class_parts(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {"namedtuple": [*_class_parts(type(value)), [encode(item) for item in value]]}
    if isinstance(value, types.MethodType) and isinstance(value.__self__, type):
        return {"classmethod": [encode(value.__self__), value.__name__]}
    if isinstance(value, types.FunctionType) and is_found_by_name(value):
        digest = "" if is_pinned_module(globals_module(value)) else function_digest(value)
        return {"function": [value.__module__, value.__qualname__, digest]}
    kind = type(value)
    what = f"a value of type {kind.__module__}.{kind.__qualname__}"
    raise NotPortable(f"{what} cannot be compared in another process")


def describe(value: Any) -> list[Any]:
    """The portable name of an object.

    Raises:
        NotPortable: the object has no name that another process could find it by.
    """
    named = describe_named(value)
    if named is not None:
        return named
    if origin := typing.get_origin(value):  # of `int | None` and `list[int]`, which are made anew at each use
        return ["generic", *map(describe, [origin, *typing.get_args(value)])]
    if isinstance(value, types.CodeType):
        return ["code", value.co_qualname, code_digest(value)]
    if isinstance(value, types.MethodType):
        return ["method", *describe(value.__func__)]
    return _describe_object(value)


def _describe_object(value: Any) -> list[Any]:
    """The portable name of what is neither a module, nor a class, nor code."""
    kind = type(value)
    if is_cached_function(value):  # what it has loaded is not asked
        return ["cached", *describe(value.method)]
    params = getattr(kind, "__dataclass_params__", None)
    if params is not None and params.frozen:
        fields = (getattr(value, field.name) for field in dataclasses.fields(value))
        return ["dataclass", type_name(kind), *map(encode_key, fields)]
    if isinstance(value, functools.partial):
        # Keywords in their order, which is that of ``**kwargs``.
        return ["partial", describe(value.func), [*map(_held, value.args)], _held(value.keywords)]
    if isinstance(value, ContextVar):
        return ["context variable", value.name]
    if isinstance(value, operator.itemgetter | operator.attrgetter | operator.methodcaller):
        reduced: Any = value.__reduce__()
        return ["made", describe(reduced[0]), [encode(item) for item in reduced[1]]]
    if type(value).__module__ == "typing":
        return ["type expression", _without_addresses(value)]
    if type(value).__module__ == "numpy" and callable(value):  # its functions; scalars are constants
        return ["numpy", value.__name__, sys.modules["numpy"].__version__]
    if isinstance(value, enum.Enum):
        return ["constant", encode(value)]
    return _describe_torch(value)


def _held(value: Any) -> Any:
    """A value that a partial holds; a module by its type: what is read of it has conditions of its own.

    A dict by pairs: what is written sorts the keys of an object.
    """
    if isinstance(value, torch.nn.Module):
        return {"module": type_name(type(value))}
    if type(value) is not dict:
        return encode(value)
    return [[encode(key), _held(item)] for key, item in value.items()]


def encode_key(key: Any) -> Any:
    """A key of a dict: a constant, or an object by its description.

    Raises:
        NotPortable: it is neither.
    """
    try:
        return encode(key)
    except NotPortable:
        return {"object": describe(key)}


def _without_addresses(value: Any) -> str:
    """The text of an object that stands for types, which says all that counts of it."""
    shown = repr(value)
    if " at 0x" in shown:
        raise NotPortable(f"{shown} holds an object that is compared by address, which no other process has")
    return shown


def _describe_torch(value: Any) -> list[Any]:
    if isinstance(value, OPERATORS):
        replacing = replacing_call(value)
        return ["operator", str(value), *([] if replacing is None else describe(replacing))]
    if isinstance(value, OperatorNamespace):
        return ["operators", value.name]
    if is_group(type(value)):
        return ["group", role_of(value), value.size()]
    if isinstance(value, torch.nn.Module | torch.Tensor):
        kind = type(value).__qualname__
        raise NotPortable(f"an object of type {kind} is compared by address, which no other process has")
    return ["constant", encode(value)]


def tensor_traits(tensor: torch.Tensor) -> dict[str, Any]:
    """Traits of a tensor that a condition asks for, without sizes and strides."""
    _, dtype, device, layout, requires_grad, _, _, *lazy_bits = metadata_of(tensor)
    return {
        "type": type_name(plain_type(tensor)),
        "dtype": encode(dtype),
        "device": device.type,
        "layout": encode(layout),
        "requires_grad": requires_grad,
        "lazy_bits": lazy_bits,
    }
