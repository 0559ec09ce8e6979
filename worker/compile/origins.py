"""Origins of a graph for people: source lines of its operators, and a description of inputs and outputs.

Kept in an artifact as section ``about``, which a load does not read. Lines name a module, never a file, so
equal code gives equal bytes on every rank. Layout (JSON)::

    {"lines":     ["model:12 Block.forward: x = x + 1", ...],   each once
     "operators": {"add": 0, ...},       name of a node of the graph -> position in lines
     "inputs":    [["tensor", "float32", ["s0", 4], [4, 1], "cpu"], ...],
     "outputs":   [[...], ...]}          likewise; ["number", "s0", [], [], ""] for a number
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch

from warmrank.cache_store.canonical import canonical_json
from warmrank.worker.keys.code import is_pinned_module, modules_by_file
from warmrank.worker.runtime.artifact import ABOUT
from warmrank.worker.values import Value

if TYPE_CHECKING:
    from warmrank.worker.torch_private.lowering import LoweredGraph
    from warmrank.worker.torch_private.tracing import Trace

Frame = tuple[str, int, str, str]
_FRAME = re.compile(
    r'^ *File "(?P<file>.*)", line (?P<line>[0-9]+), in (?P<name>.*)\n(?P<text>.*)', re.MULTILINE
)


class Origins(Value):
    """The section's content; empty parts where an artifact does not know."""

    lines: tuple[str, ...] = ()
    operators: Mapping[str, int] = field(default_factory=dict)
    inputs: tuple[tuple[Any, ...], ...] = ()
    outputs: tuple[tuple[Any, ...], ...] = ()

    def line(self, operator: str) -> str:
        """Line of an operator; empty if it is not known."""
        return self.lines[self.operators[operator]] if operator in self.operators else ""


def read(sections: Mapping[str, bytes]) -> Origins:
    """The origins that an artifact's sections hold."""
    if ABOUT not in sections:
        return Origins()
    content = json.loads(sections[ABOUT])
    return Origins(**{name: content[name] for name in Origins.value_fields if name in content})


def section(trace: Trace, lowered: LoweredGraph) -> bytes:
    """Bytes of the section for a trace, and the graph that was made of it."""
    lines = _Lines(trace.codes)
    nodes = list(lowered.graph.graph.nodes)
    returned = next((node.args[0] for node in nodes if node.op == "output"), ())
    content = {
        "operators": {
            node.name: position
            for node in nodes
            if node.op == "call_function" and (position := lines.of(_frames(node.stack_trace))) is not None
        },
        "inputs": [_described(node.meta.get("val")) for node in nodes if node.op == "placeholder"],
        "outputs": [_described(getattr(value, "meta", {}).get("val", value)) for value in returned],
        "lines": lines.lines,
    }
    return canonical_json(content)


class _Lines:
    """Turns stacks into the text of their last line outside torch, each text once."""

    def __init__(self, codes: Iterable[CodeType]) -> None:
        self.lines: list[str] = []
        self._positions: dict[str, int] = {}
        self._codes: dict[tuple[str, str], list[CodeType]] = {}
        for code in codes:
            self._codes.setdefault((code.co_filename, code.co_name), []).append(code)
        self._modules = {file: module.__name__ for file, module in modules_by_file().items()}

    def of(self, frames: Sequence[Frame]) -> int | None:
        """Position of a stack's line; None for a stack without a line of a known module."""
        known = [frame for frame in frames if frame[0] in self._modules]
        own = [frame for frame in known if not is_pinned_module(self._modules[frame[0]])]
        if not known:
            return None
        file, number, name, text = (own or known)[-1]
        place = f"{self._modules[file]}:{number} {self._qualified(file, name, number)}"
        line = f"{place}: {' '.join(text.split())}"
        if line not in self._positions:
            self._positions[line] = len(self.lines)
            self.lines.append(line)
        return self._positions[line]

    def _qualified(self, file: str, name: str, number: int) -> str:
        before = [code for code in self._codes.get((file, name), ()) if code.co_firstlineno <= number]
        return max(before, key=lambda code: code.co_firstlineno).co_qualname if before else name


def _frames(stack_trace: str | None) -> list[Frame]:
    """The frames of a stack that FX keeps as text, outermost first."""
    found = _FRAME.finditer(stack_trace or "")
    return [(item["file"], int(item["line"]), item["name"], item["text"]) for item in found]


def _described(value: Any) -> list[Any]:
    """An input or output: kind, dtype, sizes, strides, device kind; symbols by their names."""
    if not isinstance(value, torch.Tensor):
        return ["number" if value is not None else "None", str(value), [], [], ""]
    return [
        "tensor",
        str(value.dtype).removeprefix("torch."),
        list(map(_size, value.shape)),
        list(map(_size, value.stride())) if value.layout is torch.strided else [],
        value.device.type,
    ]


def _size(size: Any) -> int | str:
    """A size or stride; a symbolic one as its expression."""
    return size if isinstance(size, int) else str(size)
