"""Calls that Dynamo makes while it traces, and whose results it takes for constants: ranks, sizes, switches.

Intercepted where values come from, so that no name and no way to call matters: every function of torch that a
trace calls passes one method, and every rank and size is read from a `ProcessGroup`. The latter are noted
also where somebody's code runs for real: an operator's fake kernel, a metaclass, a pass over the graph. So
are environment variables that it reads.

Facts relied upon (``tests/unit/test_evaluated_calls.py``), of torch 2.11 to 2.15:

* calls of functions of torch that Dynamo does not trace into pass
  ``TorchInGraphFunctionVariable.call_function``, which returns a constant where it evaluated the function;
* ``constant_fold_functions`` holds those that read the state of the process, and have no effects;
* methods of `ProcessGroup` may be replaced on the class.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

import torch

from warmrank.worker.keys.code import is_pinned_module, package_of
from warmrank.worker.torch_private.patching import wrapped
from warmrank.worker.values import Value

FACTS = {
    "os:environ": "__getitem__",
    "torch._dynamo.variables.torch": "constant_fold_functions",
    "torch._dynamo.variables.torch:TorchInGraphFunctionVariable": "call_function(tx, args, kwargs)",
    "torch.distributed:ProcessGroup": "rank size",
}

_TORCH: Final = Path(torch.__file__).parent
# Parts of torch, and packages, that read ranks for their own ends: logs, caches, the building of guards.
_INTERNAL: Final = tuple(str(_TORCH / part) for part in ("_logging", "_dynamo", "_inductor"))
_EVALUATING: Final = tuple(str(_TORCH / "_dynamo" / part) for part in ("variables", "symbolic_convert.py"))
_OWN: Final = frozenset({"warmrank.worker", "torch_npu", "torchair", "npugraph_ex"})
_DISTRIBUTED: Final = str(_TORCH / "distributed")
Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]


class AskedCall(Value):
    """A call whose result is part of the graph.

    Attributes:
        function: a function of torch without effects.
        args: positional arguments; None where Dynamo does not know them.
        kwargs: keyword arguments.
        result: what it returned.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...] | None
    kwargs: Mapping[str, Any]
    result: Any


class NotedCalls:
    """The calls whose results a trace relies on.

    Attributes:
        calls: in their order.
    """

    def __init__(self) -> None:
        self.calls: list[AskedCall] = []
        self._evaluating: list[list[Any]] = []  # calls under evaluation, each with the groups it reads

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Note what is traced, lowered and compiled within the context."""
        import torch.distributed as dist
        from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

        with contextlib.ExitStack() as stack:
            stack.enter_context(wrapped(TorchInGraphFunctionVariable, "call_function", self._evaluation))
            if dist.is_available():
                for name, function in (("rank", dist.get_rank), ("size", dist.get_world_size)):
                    stack.enter_context(wrapped(dist.ProcessGroup, name, partial(self._read, function)))
            yield

    @contextlib.contextmanager
    def variables_noted(self) -> Iterator[None]:
        """Note the environment variables that are read within the context, in which Dynamo traces nothing."""
        with wrapped(type(os.environ), "__getitem__", self._variable):
            yield

    def _evaluation(self, original: Callable[..., Any]) -> Callable[..., Any]:
        from torch._dynamo.variables.torch import constant_fold_functions

        def call_function(variable: Any, tx: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
            function, read = variable.value, list[Any]()
            self._evaluating.append(read)
            try:
                answer = original(variable, tx, args, kwargs)
            finally:
                self._evaluating.pop()
            asked = read or _is_distributed(function) or function in constant_fold_functions
            if asked and answer.is_python_constant():
                self.note(function, _constants(args, kwargs), answer.as_python_constant())
            return answer

        return call_function

    def _read(self, function: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
        def read(group: Any) -> Any:
            result = original(group)
            if self._evaluating:
                self._evaluating[-1].append(group)
            elif _is_asked(sys._getframe(1)):
                self.note(function, ((group,), {}), result)
            return result

        return read

    def _variable(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def read(environ: Any, name: str) -> Any:
            value = None
            try:
                value = original(environ, name)
            finally:
                if environ is os.environ and _is_users(sys._getframe(1)):
                    self.note(os.getenv, ((name,), {}), value)
            return value

        return read

    def note(self, function: Callable[..., Any], given: Arguments | None, result: Any) -> None:
        """Note a call; its arguments are None where Dynamo does not know them."""
        args, kwargs = given or (None, {})
        self.calls.append(AskedCall(function=function, args=args, kwargs=kwargs, result=result))


def _is_users(frame: FrameType | None) -> bool:
    """Whether code of the user's that runs, not the import of a module, reads the environment."""
    while frame is not None and frame.f_globals.get("__name__") in ("os", "collections.abc"):
        frame = frame.f_back
    name = "" if frame is None else str(frame.f_globals.get("__name__"))
    if is_pinned_module(name) or package_of(name) in _OWN:
        return False
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return frame is None or frame.f_back is None or "importlib" not in frame.f_back.f_code.co_filename


def _is_distributed(function: Callable[..., Any]) -> bool:
    return str(getattr(function, "__module__", "")).startswith("torch.distributed")


def _constants(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments | None:
    """The values that variables stand for; None if one of them is no constant."""
    try:
        positional = tuple(variable.as_python_constant() for variable in args)
        return positional, {name: variable.as_python_constant() for name, variable in kwargs.items()}
    except NotImplementedError:
        return None


def _is_asked(frame: FrameType | None) -> bool:
    """Whether traced code, or code of somebody's own, calls: the first that is not `torch.distributed`."""
    while frame is not None and frame.f_code.co_filename.startswith(_DISTRIBUTED):
        frame = frame.f_back
    if frame is None or package_of(str(frame.f_globals.get("__name__"))) in _OWN:
        return False
    file = frame.f_code.co_filename
    return file.startswith(_EVALUATING) or not file.startswith(_INTERNAL)
