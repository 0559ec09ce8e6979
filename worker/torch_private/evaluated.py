"""Facts that Dynamo evaluates to constants without leaving a guard, noted as they are evaluated.

One mechanism, in `evaluated_reads`, `evaluated_calls`, `evaluated_values` and `evaluated_paths`: methods step
in for functions of Dynamo's that such a fact passes, look at question and answer, and record a condition (a
fact about an object, or a call that is made again at a load), or a refusal.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from warmrank.worker.torch_private.evaluated_calls import Arguments, CallHooks, EnvironmentHooks
from warmrank.worker.torch_private.evaluated_paths import PathHooks
from warmrank.worker.torch_private.evaluated_reads import ReadHooks
from warmrank.worker.torch_private.evaluated_values import ValueHooks
from warmrank.worker.torch_private.patching import hooks_of, intercepted
from warmrank.worker.values import Value

FACTS = {
    "torch._dynamo.variables.builtin:BuiltinVariable": "call_function_handler_cache",
    "torch._subclasses.fake_tensor:FakeTensorMode": "cache_clear",
}


class Evaluated(Value):
    """One fact about an object that the graph relies on."""

    kind: str  # of the condition that it becomes (``has_attr``, ``no_attr``, ``keys``, ...)
    source: str  # Python expression over ``L`` and ``G`` for the object
    detail: Any  # the question or its answer


class AskedCall(Value):
    """A call without effects whose result is part of the graph; ``args``: None where Dynamo knows none."""

    function: Callable[..., Any]
    args: tuple[Any, ...] | None
    kwargs: Mapping[str, Any]
    result: Any


class Evaluations:
    """Facts that one trace relies on beside its guards; filled while the trace runs."""

    def __init__(self) -> None:
        self.facts: dict[Evaluated, None] = {}  # about objects, in their order
        self.calls: list[AskedCall] = []  # of functions that read the state of the process, in their order
        self.refused: list[str] = []  # constructs that no condition can cover
        self.group_names: dict[str, Any] = {}  # groups whose names code outside torch holds

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Note what is traced, lowered and compiled within the context."""
        from torch._dynamo.variables.builtin import BuiltinVariable
        from torch._subclasses.fake_tensor import FakeTensorMode

        handlers = BuiltinVariable.call_function_handler_cache  # keeps methods, which are others within
        FakeTensorMode.cache_clear()  # of results for which an earlier trace asked fake kernels
        profile = sys.getprofile()
        with intercepted(hooks_of(ReadHooks(self), CallHooks(self), ValueHooks(self), PathHooks(self))):
            handlers.clear()
            try:
                yield
            finally:
                handlers.clear()
                sys.setprofile(profile)

    @contextlib.contextmanager
    def lowering(self) -> Iterator[None]:
        """Note also what operators read of the environment; fake kernels are asked once more."""
        from torch._subclasses.fake_tensor import FakeTensorMode

        FakeTensorMode.cache_clear()
        with intercepted(hooks_of(EnvironmentHooks(self))):
            yield

    def note(self, kind: str, source: str, detail: Any) -> None:
        """Note a fact about an object."""
        self.facts[Evaluated(kind=kind, source=source, detail=detail)] = None

    def note_call(self, function: Callable[..., Any], given: Arguments | None, result: Any) -> None:
        """Note a call; its arguments are None where Dynamo does not know them."""
        args, kwargs = given or (None, {})
        self.calls.append(AskedCall(function=function, args=args, kwargs=kwargs, result=result))
