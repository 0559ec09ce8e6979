"""Names for objects that Dynamo compares by address: what stays the same in another process.

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
from collections import OrderedDict
from contextvars import ContextVar
from typing import Any

from warmrank.worker.errors import NotPortable
from warmrank.worker.guards import constants
from warmrank.worker.keys.code import (
    code_digest,
    function_digest,
    globals_module,
    is_pinned_module,
    type_name,
)

_ADDRESS = " at 0x"


def describe(value: Any) -> list[Any]:
    """The portable name of an object.

    Raises:
        NotPortable: the object has no name that another process could find it by.
    """
    if isinstance(value, types.ModuleType):
        return ["module", value.__name__]
    if origin := typing.get_origin(value):  # of `int | None` and `list[int]`, which are made anew at each use
        return ["generic", *map(describe, [origin, *typing.get_args(value)])]
    if isinstance(value, type):
        return ["class", *re.split("[:#]", type_name(value))]
    if isinstance(value, types.FunctionType):
        return _describe_function(value)
    if isinstance(value, types.CodeType):
        return ["code", value.co_qualname, code_digest(value)]
    if isinstance(value, types.MethodType):
        return ["method", *describe(value.__func__)]
    return _describe_object(value)


def _describe_object(value: Any) -> list[Any]:
    """The portable name of what is neither a module, nor a class, nor code."""
    kind = type(value)
    params = getattr(kind, "__dataclass_params__", None)
    if params is not None and params.frozen:
        fields = (getattr(value, field.name) for field in dataclasses.fields(value))
        return ["dataclass", type_name(kind), *map(encode_key, fields)]
    if isinstance(value, functools.partial):
        return [
            "partial",
            describe(value.func),
            [constants.encode(item) for item in value.args],
            constants.encode(value.keywords),  # in their order, which is that of ``**kwargs``
        ]
    if isinstance(value, ContextVar):
        return ["context variable", value.name]
    if isinstance(value, operator.itemgetter | operator.attrgetter | operator.methodcaller):
        reduced: Any = value.__reduce__()
        return ["made", describe(reduced[0]), [constants.encode(item) for item in reduced[1]]]
    if type(value).__module__ == "typing":
        return ["type expression", _without_addresses(value)]
    if type(value).__module__ == "numpy" and callable(value):  # its functions; scalars are constants
        return ["numpy", value.__name__, sys.modules["numpy"].__version__]
    if isinstance(value, enum.Enum):
        return ["constant", constants.encode(value)]
    builtin = types.BuiltinFunctionType | types.MethodDescriptorType | types.WrapperDescriptorType
    return _describe_builtin(value) if isinstance(value, builtin) else _describe_torch(value)


def keys_of(value: Any) -> list[Any]:
    """The keys of a mapping, or of a view of its keys, in the order that Dynamo sees.

    Raises:
        NotPortable: the keys were moved, so that iterating the dict gives another order.
    """
    if not isinstance(value, dict):
        return list(value.keys() if hasattr(value, "keys") else value)
    keys = list(dict.keys(value))
    if isinstance(value, OrderedDict) and list(OrderedDict.keys(value)) != keys:
        msg = "keys of an OrderedDict were moved, but the tracer sees them in their first order; make it anew"
        raise NotPortable(msg, what="move_to_end")
    return keys


def encode_key(key: Any) -> Any:
    """A key of a dict: a constant, or an object by its description.

    Raises:
        NotPortable: it is neither.
    """
    try:
        return constants.encode(key)
    except NotPortable:
        return {"object": describe(key)}


def _without_addresses(value: Any) -> str:
    """The text of an object that stands for types, which says all that counts of it."""
    shown = repr(value)
    if _ADDRESS in shown:
        msg = f"{shown} holds an object that is compared by address, which no other process has"
        raise NotPortable(msg, what=shown)
    return shown


def _describe_function(function: types.FunctionType) -> list[Any]:
    digest = "" if is_pinned_module(globals_module(function)) else function_digest(function)
    return ["function", function.__module__, function.__qualname__, digest]


def _describe_builtin(value: Any) -> list[Any]:
    owner = getattr(value, "__objclass__", None) or getattr(value, "__self__", None)
    if isinstance(owner, types.ModuleType):
        owner_name = owner.__name__
    elif owner is None:
        owner_name = str(getattr(value, "__module__", ""))
    else:
        kind = owner if isinstance(owner, type) else type(owner)
        owner_name = f"{kind.__module__}.{kind.__qualname__}"
    return ["builtin", owner_name, value.__name__]


def _describe_torch(value: Any) -> list[Any]:
    import torch

    from warmrank.worker.torch_private.operators import OPERATORS, OperatorNamespace

    if isinstance(value, OPERATORS):
        return ["operator", str(value)]
    if isinstance(value, OperatorNamespace):
        return ["operators", value.name]
    role = _group_role(value)
    if role is not None:
        return role
    if isinstance(value, torch.nn.Module | torch.Tensor):
        msg = (
            f"an object of type {type(value).__qualname__} is compared by address, which no other process has"
        )
        raise NotPortable(msg, what=type(value).__qualname__)
    return ["constant", constants.encode(value)]


def _group_role(value: Any) -> list[Any] | None:
    import torch.distributed as dist

    if not dist.is_available() or not isinstance(value, dist.ProcessGroup):
        return None
    from warmrank.worker.groups import role_of

    return ["group", role_of(value), value.size()]
