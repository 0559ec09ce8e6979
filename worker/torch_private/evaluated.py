"""Facts that Dynamo evaluates to constants without leaving a guard, noted as they are evaluated."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from warmrank.worker.torch_private.evaluated_attributes import NotedAttributes
from warmrank.worker.torch_private.evaluated_calls import NotedCalls
from warmrank.worker.torch_private.evaluated_classes import NotedClasses
from warmrank.worker.torch_private.evaluated_constants import NotedConstants
from warmrank.worker.torch_private.evaluated_dicts import noted_dict_reads
from warmrank.worker.torch_private.evaluated_folds import NotedFolds
from warmrank.worker.torch_private.evaluated_names import HeldNames
from warmrank.worker.torch_private.evaluated_sets import NotedSets
from warmrank.worker.torch_private.evaluated_values import values_guarded
from warmrank.worker.values import Value

FACTS = {
    "torch._dynamo.variables.builtin:BuiltinVariable": "call_function_handler_cache",
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


class Evaluations:
    """What one trace relies on beside its guards; filled while the trace runs.

    Attributes:
        facts: facts about objects, in their order.
        calls: calls of functions that read the state of the process.
        refused: constructs that no condition can cover.
        group_names: process groups whose names code outside torch holds, by their names.
    """

    def __init__(self) -> None:
        self.facts: dict[Evaluated, None] = {}
        self.refused: list[str] = []
        self._names, self._calls = HeldNames(), NotedCalls()
        self._classes = NotedClasses(self._note, self.refused.append)
        self._folds = NotedFolds(self._calls.note, self.refused.append)
        self._constants = NotedConstants(self.refused.append)
        self._sets = NotedSets(self._note, self._calls.note, self.refused.append)
        self.calls, self.group_names = self._calls.calls, self._names.held

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Note what is traced, lowered and compiled within the context."""
        from torch._dynamo.variables.builtin import BuiltinVariable
        from torch._subclasses.fake_tensor import FakeTensorMode

        handlers = BuiltinVariable.call_function_handler_cache  # keeps methods, which are others within
        FakeTensorMode.cache_clear()  # of results for which an earlier trace asked fake kernels
        attributes = NotedAttributes(self._note, self._read)
        with (
            attributes.noted(),
            self._calls.noted(),
            self._classes.noted(),
            self._folds.noted(),
            self._constants.noted(),
            self._names.noted(),
            self._sets.noted(),
            noted_dict_reads(self._note),
            values_guarded(),
        ):
            handlers.clear()
            try:
                yield
            finally:
                handlers.clear()

    @contextlib.contextmanager
    def lowering(self) -> Iterator[None]:
        """Note also what operators read of the environment, asked once more after Dynamo."""
        from torch._subclasses.fake_tensor import FakeTensorMode

        FakeTensorMode.cache_clear()
        with self._calls.variables_noted():
            yield

    def _read(self, variable: Any, name: str, answer: Any) -> None:
        self._names.read(variable, name, answer)
        self._constants.read(variable, name)

    def _note(self, kind: str, source: str, detail: Any) -> None:
        self.facts[Evaluated(kind=kind, source=source, detail=detail)] = None
