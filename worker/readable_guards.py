"""Guards as a reader wants them: by the source line that relies on them, equal ones of all layers as one."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator

from warmrank.worker.compile.origins import Origins

from warmrank.worker.runtime.artifact import PortableGuards
from warmrank.worker.runtime.asked import text as call_text
from warmrank.worker.runtime.describe import check_words, plain, readable_shape

_MEMBER = re.compile(r"\._(?:modules|parameters|buffers)\['(\w+)'\]")
# Text up to the first number in brackets, the number, and the rest.
_LAYER = re.compile(r"([^\[]*(?=\[\d+\])|.*)(?:\[(\d+)\])?(.*)", re.DOTALL)
_DISTINCT = "these are all different objects"


def conditions(guards: PortableGuards) -> list[str]:
    """Every condition, one readable line each."""
    return [condition for _, condition in conditions_by_line(guards, Origins())]


def conditions_by_line(guards: PortableGuards, known: Origins) -> Iterator[tuple[str, str]]:
    """Each condition with the source line that relies on it; those of one line stand together."""
    for item in guards.sources:
        yield "traced source", f"source {item.module}:{item.name or 'whole file'} is {item.digest}"
    for name, value in guards.ambient.items():
        yield "state of the process", f"{name} is {value}"
    for name, text in guards.runtime_state.items():
        yield "runtime state that was declared", f"{name} is {text}"
    for call in guards.asked:
        yield "asked of the process", f"{call_text(call)} is {plain(call[3])}"
    by_line: dict[str, list[str]] = {}
    for check in guards.checks:
        remark = _DISTINCT if check[1] == "distinct" else known.of_guard(check[0]) or "needed by the tracer"
        by_line.setdefault(remark, []).extend(_short(words) for words in check_words(guards, check))
    for remark, conditions_there in by_line.items():
        yield from ((remark, condition) for condition in conditions_there)
    for position, (expression, used) in enumerate(guards.shapes):
        yield known.of_shape(position) or "sizes", _short(readable_shape(guards, expression, used))


def merged(found: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Conditions of one line that differ in the number of a layer only, as one: ``layers[0, 1, 2]``."""
    for remark, group in itertools.groupby(found, key=lambda item: item[0]):
        numbers: dict[tuple[str, str, str], list[str]] = {}
        for _, condition in group:
            head, number, tail = _LAYER.match(condition).groups()  # type: ignore[union-attr] # matches any text
            numbers.setdefault((head, number and "[]", tail), []).append(number or "")
        for (head, bracket, tail), layers in numbers.items():
            for shown in [", ".join(layers)] if bracket else layers:
                yield remark, f"{head}[{shown}]{tail}" if bracket else head


def _short(path: str) -> str:
    """``self.layers[0].weight`` for ``self._modules['layers']._modules['0']._parameters['weight']``."""
    return _MEMBER.sub(lambda match: f"[{match[1]}]" if match[1].isdigit() else f".{match[1]}", path)
