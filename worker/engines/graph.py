"""Engine ``graph``: the ATen graph as readable Python source, replayed operator by operator.

Sections::

    graph.py      def bind(groups, constants): binds operators, returns graph(a0, a1, ...)
    graph.code    the same, compiled (marshal, version 2, which writes equal bytes for equal code)
    constants     JSON list of [dtype, shape], one per tensor constant, a newline, then their bytes
"""

from __future__ import annotations

import json
import marshal
import math
import operator
from typing import TYPE_CHECKING, Any

import torch

from warmrank.worker.runtime.artifact import MARSHAL_VERSION
from warmrank.worker.torch_private.warm import is_called, replaced_operator

if TYPE_CHECKING:
    from warmrank.worker.engines import Built, Files, Graph, Groups, Sections, Site
    from warmrank.worker.runtime.artifact import GraphFacts
    from warmrank.worker.torch_private.lowering import LoweredGraph

SECTIONS = ("graph.py", "graph.code", "constants")


class GraphEngine:
    """Replays the traced operators from generated Python."""

    name = "graph"
    version = "1"
    captured = True
    captures_itself = False

    def check(self, device_kind: str) -> None:
        """See `Engine.check`; torch alone is enough."""

    def compile(
        self, lowered: LoweredGraph, facts: GraphFacts, *, site: Site | None = None, kernels: bool = True
    ) -> Built:
        """See `Engine.compile`; there are no kernels."""
        del facts, site, kernels
        from warmrank.worker.engines import Built
        from warmrank.worker.engines.graph_source import pack_constants, written

        source, constants = written(lowered)
        code = compile(source, "<warmrank graph>", "exec", dont_inherit=True)
        sections = {
            "graph.py": source.encode(),
            "graph.code": marshal.dumps(code, MARSHAL_VERSION),
            "constants": pack_constants(constants),
        }
        return Built(sections=sections)

    def load(self, sections: Sections, files: Files, groups: Groups, *, site: Site | None = None) -> Graph:
        """See `Engine.load`; raises `NotPortable` where an operator was replaced in this process."""
        del files, site
        scope: dict[str, Any] = {"torch": torch, "operator": operator, "math": math}
        scope["compare_sizes"] = _compare_sizes
        # The file is private to this user, or was fetched under a signature that the store's policy checked.
        exec(marshal.loads(sections["graph.code"]), scope)  # noqa: S102, S302
        graph: Graph = scope["bind"](groups, unpack_constants(sections["constants"]))
        _refuse_replaced(graph)
        return graph


def _compare_sizes(result: Any, *traced: tuple[int | None, ...], operator: str) -> None:
    """Compare the sizes of an operator's results with those of the trace, on which the graph relies.

    Raises `StateChanged`: something that decides them changed since.
    """
    results = result if isinstance(result, list | tuple) else (result,)
    found = [value for value in results if isinstance(value, torch.Tensor)]
    for value, sizes in zip(found, traced, strict=True):
        present = value.shape
        if present != sizes and (
            len(present) != len(sizes)
            or any(size not in (None, now) for size, now in zip(sizes, present, strict=True))
        ):
            from warmrank.worker.errors import StateChanged

            where = f"the result of {operator}, of sizes {list(sizes)} in the trace,"
            raise StateChanged(where, value, while_running=True)


def _refuse_replaced(function: Any) -> None:
    """Refuse operators of a generated function whose names lead to something else in this process."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        called = cell.cell_contents
        if name.startswith("_body_"):
            _refuse_replaced(called)
        elif callable(called) and name != "_dump" and not is_called(called, name):
            raise replaced_operator(name)


def unpack_constants(data: bytes) -> list[torch.Tensor]:
    """The tensor constants in a section; raises `ArtifactCorrupt` where it has none to read."""
    header, newline, raw = data.partition(b"\n")
    if not newline:
        from warmrank.worker.errors import ArtifactCorrupt

        msg = "section 'constants' of the artifact has no header line"
        raise ArtifactCorrupt(msg, what="constants")
    tensors = []
    offset = 0
    for dtype_name, shape in json.loads(header):
        dtype = getattr(torch, dtype_name)
        size = math.prod(shape) * dtype.itemsize
        chunk = bytearray(raw[offset : offset + size])
        tensors.append(
            torch.frombuffer(chunk, dtype=dtype).reshape(shape) if size else torch.empty(shape, dtype=dtype)
        )
        offset += size
    return tensors
