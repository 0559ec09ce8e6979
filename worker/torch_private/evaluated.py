"""Facts that Dynamo evaluates to constants without leaving a guard, noted as they are evaluated.

One mechanism: `evaluated_reads`, `evaluated_calls` and `evaluated_values` each have a table of functions of
Dynamo's that such a fact passes (`Hook`), with a step that looks at question and answer and records a
condition (a fact about an object, or a call that is made again at a load), or a refusal.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from warmrank.worker.torch_private.evaluated_calls import Arguments, CallHooks
from warmrank.worker.torch_private.evaluated_reads import ReadHooks, with_subclasses
from warmrank.worker.torch_private.evaluated_values import ValueHooks
from warmrank.worker.torch_private.patching import intercepted
from warmrank.worker.values import Value

FACTS = {
    "torch._dynamo.variables.base": "VariableTracker",
    "torch._dynamo.variables.builtin:BuiltinVariable": "call_function_handler_cache",
    "torch._dynamo.variables.lazy": "LazyVariableTracker",
    "torch._subclasses.fake_tensor:FakeTensorMode": "cache_clear",
}


class Evaluated(Value):
    """One fact about an object that the graph relies on.

    Attributes:
        kind: kind of the condition that it becomes (``has_attr``, ``no_attr``, ``keys``, ...).
        source: Python expression over ``L`` and ``G`` for the object asked.
        detail: what was asked, or found.
    """

    kind: str
    source: str
    detail: Any


class AskedCall(Value):
    """A call whose result is part of the graph.

    Attributes:
        function: a function without effects.
        args: positional arguments; None where Dynamo does not know them.
        kwargs: keyword arguments.
        result: what it returned.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...] | None
    kwargs: Mapping[str, Any]
    result: Any


class Evaluations:
    """What one trace relies on beside its guards; filled while the trace runs.

    Attributes:
        facts: facts about objects, in their order.
        calls: calls of functions that read the state of the process, in their order.
        refused: constructs that no condition can cover.
        group_names: process groups whose names code outside torch holds, by their names.
    """

    def __init__(self) -> None:
        self.facts: dict[Evaluated, None] = {}
        self.calls: list[AskedCall] = []
        self.refused: list[str] = []
        self.group_names: dict[str, Any] = {}
        self._calls = CallHooks(self)

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Note what is traced, lowered and compiled within the context."""
        from torch._dynamo.variables.base import VariableTracker
        from torch._dynamo.variables.builtin import BuiltinVariable
        from torch._dynamo.variables.lazy import LazyVariableTracker
        from torch._subclasses.fake_tensor import FakeTensorMode

        handlers = BuiltinVariable.call_function_handler_cache  # keeps methods, which are others within
        FakeTensorMode.cache_clear()  # of results for which an earlier trace asked fake kernels
        profile = sys.getprofile()
        # A lazy variable only forwards to the one that it becomes.
        variables = [cls for cls in with_subclasses(VariableTracker) if cls is not LazyVariableTracker]
        reads, values = ReadHooks(self), ValueHooks(self)
        with intercepted((*reads.hooks(variables), *self._calls.hooks(variables), *values.hooks(variables))):
            handlers.clear()
            try:
                yield
            finally:
                handlers.clear()
                sys.setprofile(profile)

    @contextlib.contextmanager
    def lowering(self) -> Iterator[None]:
        """Note also what operators read of the environment, asked once more after Dynamo."""
        from torch._subclasses.fake_tensor import FakeTensorMode

        FakeTensorMode.cache_clear()
        with intercepted(self._calls.hooks_of_environment()):
            yield

    def note(self, kind: str, source: str, detail: Any) -> None:
        """Note a fact about an object."""
        self.facts[Evaluated(kind=kind, source=source, detail=detail)] = None

    def note_call(self, function: Callable[..., Any], given: Arguments | None, result: Any) -> None:
        """Note a call; its arguments are None where Dynamo does not know them."""
        args, kwargs = given or (None, {})
        self.calls.append(AskedCall(function=function, args=args, kwargs=kwargs, result=result))

    def refuse(self, why: str) -> None:
        """Note what no condition can cover."""
        self.refused.append(why)
