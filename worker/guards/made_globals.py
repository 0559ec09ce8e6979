"""Globals that the tracer made for objects and named for their addresses: how to find the objects again.

Such a global stands for the class of a guarded object, or for the globals of a guarded function that stands
in no module (made by ``exec``, or by ``fx``): both are reached through what is guarded.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from warmrank.worker.torch_private.dynamo_guards import TracedGuard


def expressions(guards: Iterable[TracedGuard], made: Mapping[str, Any]) -> dict[str, str]:
    """For each global of the tracer's, an expression that leads to its object; none where nothing does."""
    wanted = {id(value): name for name, value in made.items() if isinstance(value, type | dict)}
    found: dict[str, str] = {}
    for guard in guards if wanted else ():
        if not guard.source or any(f"G[{name!r}]" in guard.source for name in wanted.values()):
            continue
        for value, expression in _reached(guard.value, guard.source):
            if id(value) in wanted:
                found.setdefault(wanted[id(value)], expression)
    return found


def _reached(value: Any, source: str) -> Iterator[tuple[Any, str]]:
    """The class of a value, and the globals of functions that it is or that its class holds."""
    if isinstance(value, types.FunctionType):
        yield value.__globals__, f"{source}.__globals__"
        return
    cls, expression = (value, source) if isinstance(value, type) else (type(value), f"type({source})")
    yield cls, expression
    for base in cls.__mro__:
        for name, member in vars(base).items():
            if isinstance(member, types.FunctionType):
                yield member.__globals__, f"{expression}.{name}.__globals__"
