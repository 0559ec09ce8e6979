"""The Python objects that Dynamo looked at, by every path that led it there.

Dynamo makes one variable of an object that two paths lead to, and guards the first path. That the second one
leads to the same object is guarded too, except where one starts from an argument and the other from a global.

Relied on (torch 2.11 to 2.15): a deque's variable has a ``maxlen``, and is refused where the code writes to
one with a limit; ``VariableBuilder.__call__(value)`` makes a variable of each object of the
caller's, and ``source`` of the builder is the path.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from warmrank.worker.torch_private.lowering import source_name
from warmrank.worker.torch_private.patching import wrapped

FACTS = {
    "torch._dynamo.variables": "ConstantVariable",
    "torch._dynamo.variables.builder:VariableBuilder": "__call__(value) source",
}


@contextlib.contextmanager
def noted_objects() -> Iterator[dict[str, Any]]:
    """Fills the mapping it yields, while a trace runs, with the objects by their source expressions."""
    from torch._dynamo.variables import ConstantVariable
    from torch._dynamo.variables.builder import VariableBuilder

    noted: dict[str, Any] = {}

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(builder: Any, value: Any) -> Any:
            noted[source_name(builder.source)] = value
            variable = original(builder, value)
            if type(value) is deque:  # Dynamo takes each for one without a limit
                variable.maxlen = ConstantVariable.create(value.maxlen)
            return variable

        return call

    with wrapped(VariableBuilder, "__call__", wrap):
        yield noted
