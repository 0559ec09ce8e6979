"""Operators and their names in generated source: whether a name still leads to the operator of the trace."""

from __future__ import annotations

import functools
import types
from typing import Any

import torch

from warmrank.worker.errors import NotPortable

# What `torch.ops` is made of, by which an object is known to be an operator.
OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
OperatorNamespace = torch._ops._OpNamespace
_BINDINGS = (types.BuiltinFunctionType, types.MethodDescriptorType)
_DISPATCHING = "torch._C", "_PyObjectDispatchFunc"  # what custom operators call, from torch 2.14 on


def operator_path(target: Any) -> str:
    """``torch.ops`` path of an operator overload, for generated source.

    Raises:
        NotPortable: the target is a higher-order operator or something else without a stable name, or
            something else has its name.
    """
    if isinstance(target, torch._ops.OpOverload):
        namespace, _, name = target._schema.name.partition("::")
        path = f"torch.ops.{namespace}.{name}.{target._overloadname}"
        if at_path(path) is not target or replacing_call(target) is not None:
            raise replaced_operator(path)
        return path
    msg = f"the graph calls {target!r} ({type(target).__qualname__}), which has no portable name"
    raise NotPortable(msg, what=repr(target))


def replaced_operator(path: str) -> NotPortable:
    """The refusal of an operator whose name means something else in this process."""
    msg = (
        f"{path} was replaced in this process by something else, and the graph calls the operator by that "
        "name; put it back, or call your replacement by a name of its own"
    )
    return NotPortable(msg, what=path)


def at_path(path: str) -> Any:
    """Object at a dotted name that begins with ``torch``; None where there is none."""
    try:
        return functools.reduce(getattr, path.split(".")[1:], torch)
    except (AttributeError, RuntimeError):
        return None


def replacing_call(operator: Any) -> Any:
    """Replacement of the function that torch put behind an operator; None where nobody replaced it."""
    called = operator._op
    own = isinstance(called, types.BuiltinFunctionType) and called.__name__ in ("", operator.__name__)
    kind = type(called)
    return None if own or (kind.__module__, kind.__qualname__) == _DISPATCHING else called


def is_called(function: Any, name: str) -> bool:
    """True if a function is the overload, or a binding in C, for a name such as ``aten_add_Tensor``."""
    if isinstance(function, torch._ops.OpOverload):
        known = f"{function._schema.name}.{function._overloadname}"
        return known.replace("::", "_").replace(".", "_") == name and replacing_call(function) is None
    return isinstance(function, _BINDINGS) and f"_{function.__name__}_" in name
