"""The sources of an artifact as this process has them: traced code, and what operators do in Python."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from worker.errors import NotPortable
from worker.sources import TracedSource, present_digest
from worker.torch_private import python_operators as operators


def changed(sources: Iterable[TracedSource]) -> Iterator[str]:
    """Readable names of the sources that are no longer what was traced."""
    for source in sources:
        if source.kind == "operator":
            yield from _changed_operator(source)
            continue
        present = present_digest(source)
        if present is None:
            yield f"source of {source.module}:{source.name} is gone"
        elif present != source.digest:
            yield f"source of {source.module}{':' if source.name else ''}{source.name} changed"


def missing_operators(sources: Iterable[TracedSource]) -> Iterator[str]:
    """Why this process has not all the operators of an artifact; imports what registers them."""
    for source in sources:
        if source.kind == "operator" and (absent := operators.missing(source.name, source.module)):
            yield absent


def operator_digest(name: str, overload: Any) -> str:
    """Digest of what an operator does in Python while a graph is lowered; empty if that is nothing.

    Raises:
        NotPortable: part of it stands where no later process can find it.
    """
    from worker.reachable import functions_of_file, reachable_digest

    lowering: list[Any] = []
    for item in operators.lowering_code(name, overload):
        lowering += [item[0], functions_of_file(*item)] if isinstance(item, tuple) else [item]
    body = operators.body_of(name)
    if not lowering and body is None:
        return ""
    # The body runs on the device, where it may keep what it likes from call to call.
    return reachable_digest(*lowering) + reachable_digest(*([] if body is None else [body]), of_state=False)


def _changed_operator(source: TracedSource) -> Iterator[str]:
    absent = operators.missing(source.name, source.module)
    if absent:
        yield absent
        return
    try:
        present = operator_digest(source.name, operators.find(source.name))
    except NotPortable:
        present = "nowhere"
    if present != source.digest:
        yield f"operator {source.name} changed: its code, or a constant that it reads"
