"""torch's own functions behind those that somebody put into their places.

``make_fx`` works through modes, and a function hands itself to a mode under its public name: where a wrapper
stands under that name, the wrapper would run once more for each mode.

Relied on (``tests/unit/test_operators.py``): in Python a function does so by ``handle_torch_function``, which
calls the mode itself; in C++ a method is looked up in ``torch.Tensor``, a function in its module of
``torch._C``. ``torch._C.TensorBase`` has the methods of C++, and nobody can change it.
"""

from __future__ import annotations

import inspect
import sys
from functools import partial
from types import BuiltinFunctionType, FrameType, FunctionType, MethodDescriptorType, WrapperDescriptorType
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.overrides import handle_torch_function

from warmrank.worker.errors import NotPortable
from warmrank.worker.keys.code import is_pinned_module, is_users_function
from warmrank.worker.torch_private.patching import steps_in
from warmrank.worker.torch_private.warm import OPERATORS

if TYPE_CHECKING:
    from torch.fx import GraphModule

_PROXIES: Final = "torch.fx.experimental.proxy_tensor"
_IN_C: Final = (BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType, *OPERATORS)
_HOMES_IN_C: Final = (
    torch._C._nn,
    torch._C._linalg,  # type: ignore[attr-defined]
    torch._C._special,  # type: ignore[attr-defined]
    torch._C._fft,  # type: ignore[attr-defined]
)


class Originals:
    """Hands modes the functions themselves."""

    @steps_in(f"{_PROXIES}:TorchFunctionMetadataMode", "__torch_function__(func, types, args, kwargs)")
    @steps_in(f"{_PROXIES}:PreDispatchTorchFunctionMode", "__torch_function__(func, types, args, kwargs)")
    def _function(
        self, original: Any, mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return original(mode, _original(func, sys._getframe(2)), types, args, kwargs)


def refuse_replaced(graph_module: GraphModule) -> None:
    """Refuse methods of tensors that Dynamo looked into and then called by their names.

    Raises:
        NotPortable: a function of somebody else's stands under the name of one.
    """
    for node in graph_module.graph.nodes:
        if node.op == "call_method":
            method = inspect.getattr_static(torch.Tensor, node.target, None)
            if _is_users(method):
                raise _refusal(f"torch.Tensor.{node.target}")


def _is_users(function: Any) -> bool:
    """True if somebody else than torch made a function."""
    return is_users_function(function) or isinstance(function, partial)


def _original(function: Any, caller: FrameType) -> Any:
    """The function that hands itself over under a name which leads to ``function`` now.

    Raises:
        NotPortable: a wrapper stands somewhere in between, and nothing leads to what it wraps.
    """
    inner = caller.f_back
    if caller.f_code is handle_torch_function.__code__ and inner is not None:
        return _running(function, inner)
    if isinstance(function, _IN_C):
        return function
    patched = getattr(function, "__self__", None)
    patched = patched if isinstance(patched, property) else function
    for name, value in vars(torch.Tensor).items():
        if value is patched and (method := vars(torch._C.TensorBase).get(name)) is not None:
            return method if patched is function else method.__get__
    for module in _HOMES_IN_C:
        for name, value in vars(module).items():
            if value is function:
                raise _refusal(f"{module.__name__}.{name}")
    return function


def _running(function: Any, frame: FrameType) -> Any:
    """The wrapper that runs in a frame and hands itself over under the name of ``function``."""
    code, scope = frame.f_code, frame.f_globals
    if getattr(function, "__code__", None) is code or not is_pinned_module(scope.get("__name__")):
        return function
    named = vars(torch.Tensor) if code.co_qualname == f"Tensor.{code.co_name}" else scope
    own = named.get(code.co_name)
    if own is function and _is_users(own) and not code.co_freevars:
        return FunctionType(code, scope)
    if _is_users(function) or _is_users(own):
        raise _refusal(f"{scope['__name__']}.{code.co_qualname}")
    return function


def _refusal(name: str) -> NotPortable:
    msg = (
        f"{name} was replaced in this process by a function that calls it, and what it was could not be "
        "found again; put it back, or call yours by a name of its own"
    )
    return NotPortable(msg, what=name)
