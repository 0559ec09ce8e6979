"""Facts that Dynamo evaluates to constants without leaving a guard, as they are evaluated."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from worker.torch_private.evaluated_attributes import noted_attributes
from worker.torch_private.evaluated_dicts import noted_dict_reads
from worker.values import Value


class Evaluated(Value):
    """One fact that the graph relies on.

    Attributes:
        kind: kind of the condition that it becomes (``has_attr``, ``no_attr``, ``keys``, ...).
        source: Python expression over ``L`` and ``G`` for the object asked.
        detail: what was asked, or found.
    """

    kind: str
    source: str
    detail: Any


@contextlib.contextmanager
def noted_evaluations() -> Iterator[dict[Evaluated, None]]:
    """Fill the mapping it yields, while a trace runs, with the facts it relies on, in their order."""
    noted: dict[Evaluated, None] = {}

    def note(kind: str, source: str, detail: Any) -> None:
        noted[Evaluated(kind=kind, source=source, detail=detail)] = None

    with noted_attributes(note), noted_dict_reads(note):
        yield noted
