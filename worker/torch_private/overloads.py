"""Operators by their names, and those that somebody replaced; part of a warm load, so it imports nothing.

What is relied on (torch 2.11 to 2.15): ``_op`` of an overload, or of a packet of them, is what it calls: a
function in C without a name, or with the packet's.
"""

from __future__ import annotations

import functools
import re
import types
from typing import Any

import torch

from warmrank.worker.errors import NotPortable

# What `torch.ops` is made of, by which an object is known to be an operator.
OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
OperatorNamespace = torch._ops._OpNamespace
_BINDINGS = (types.BuiltinFunctionType, types.MethodDescriptorType)


def replaced_operator(path: str) -> NotPortable:
    """The refusal of an operator whose name means something else in this process."""
    msg = (
        f"{path} was replaced in this process by something else, and the graph calls the operator by that "
        "name; put it back, or call your replacement by a name of its own"
    )
    return NotPortable(msg, what=path)


def at_path(path: str) -> Any:
    """What a dotted name that begins with ``torch`` leads to; None where there is nothing."""
    try:
        return functools.reduce(getattr, path.split(".")[1:], torch)
    except (AttributeError, RuntimeError):
        return None


def replacing_call(operator: Any) -> Any:
    """What an operator calls in place of what torch put behind it; None where nobody replaced that."""
    called = operator._op
    own = isinstance(called, types.BuiltinFunctionType) and called.__name__ in ("", operator.__name__)
    return None if own else called


def is_called(function: Any, name: str) -> bool:
    """Whether a function is the overload, or a binding in C, for a name such as ``aten_add_Tensor``."""
    if isinstance(function, torch._ops.OpOverload):
        known = f"{function._schema.name}.{function._overloadname}"
        return re.sub("::|[.]", "_", known) == name and replacing_call(function) is None
    return isinstance(function, _BINDINGS) and f"_{function.__name__}_" in name
