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
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from worker.data_dump import MARK
from worker.engines import Built, Site
from worker.engines.bindings import BINDINGS
from worker.errors import ArtifactCorrupt, NotPortable

if TYPE_CHECKING:
    from torch.fx import Node

    from worker.engines import Graph
    from worker.graph_facts import GraphFacts
    from worker.torch_private.lowering import LoweredGraph

_MARSHAL_VERSION = 2
_INDENT = "        "


class GraphEngine:
    """Replays the traced operators from generated Python."""

    name = "graph"
    version = "1"
    captured = True
    captures_itself = False

    def check(self, device_kind: str) -> None:
        """See `worker.engines.Engine.check`; torch alone is enough."""

    def compile(
        self, lowered: LoweredGraph, facts: GraphFacts, *, keep_compiled: bool, site: Site | None = None
    ) -> Built:
        """See `worker.engines.Engine.compile`; there are no compiled kernels to keep."""
        del facts, keep_compiled, site
        writer = _SourceWriter(lowered)
        source = writer.source()
        code = compile(source, "<warmrank graph>", "exec", dont_inherit=True)
        sections = {
            "graph.py": source.encode(),
            "graph.code": marshal.dumps(code, _MARSHAL_VERSION),
            "constants": pack_constants(writer.constants),
        }
        return Built(sections=sections)

    def outline(
        self, lowered: LoweredGraph, facts: GraphFacts, *, site: Site | None = None
    ) -> Mapping[str, bytes]:
        """See `worker.engines.Engine.outline`; there are no kernels."""
        return self.compile(lowered, facts, keep_compiled=False, site=site).sections

    def load(
        self,
        sections: Mapping[str, bytes],
        files: Mapping[str, Path],
        groups: Mapping[str, str],
        *,
        site: Site | None = None,
    ) -> Graph:
        """See `worker.engines.Engine.load`."""
        del files, site
        scope: dict[str, Any] = {"torch": torch, "operator": operator, "math": math}
        # The file is private to this user, or was fetched under a signature that the store's policy checked.
        exec(marshal.loads(sections["graph.code"]), scope)  # noqa: S102, S302
        graph: Graph = scope["bind"](groups, unpack_constants(sections["constants"]))
        return graph


class _SourceWriter:
    """Writes one graph as Python; collects its operators, groups and constants on the way."""

    def __init__(self, lowered: LoweredGraph) -> None:
        self._module = lowered.graph
        self._nodes = list(lowered.graph.graph.nodes)
        self._operators: dict[str, str] = {}
        self.constants: list[torch.Tensor] = []
        self._constant_names: dict[str, str] = {}

    def source(self) -> str:
        body = list(self._body())
        inputs = [node.name for node in self._nodes if node.op == "placeholder"]
        lines = ["def bind(groups, constants):"]
        lines += [f"    {name} = {path}" for path, name in self._operators.items()]
        lines += [
            f"    {name} = constants[{index}]" for index, name in enumerate(self._constant_names.values())
        ]
        dumped = any(node.meta.get(MARK) for node in self._nodes)
        if dumped:
            lines += ["    from worker.data_dump import Dump", "    _dump = Dump()"]
        lines += ["", f"    def graph({', '.join(inputs)}):"]
        if dumped:
            lines.append(f"{_INDENT}_dump.step()")
        lines += [*body, "", "    return graph", ""]
        return "\n".join(lines)

    def _body(self) -> Iterator[str]:
        last_use = _last_uses(self._nodes)
        for node in self._nodes:
            if node.op == "call_function":
                arguments = [self._argument(node, index, value) for index, value in enumerate(node.args)]
                arguments += [
                    f"{key}={self._keyword(node, key, value)}" for key, value in node.kwargs.items()
                ]
                dumped = node.meta.get(MARK, False)
                assigned = f"{node.name} = " if node.users or dumped else ""
                # The name is for readers, who find the operator's source line by it.
                named = "" if assigned else f"  # {node.name}"
                yield f"{_INDENT}{assigned}{self._target(node)}({', '.join(arguments)}){named}"
                if dumped:
                    yield f"{_INDENT}_dump({node.name!r}, {str(node.target)!r}, {node.name})"
            elif node.op == "get_attr":
                yield f"{_INDENT}{node.name} = {self._constant(str(node.target))}"
            elif node.op == "output":
                values = ", ".join(self._value(value) for value in node.args[0])
                yield f"{_INDENT}return ({values}{',' if len(node.args[0]) == 1 else ''})"
            if last_use.get(node):
                yield f"{_INDENT}del {', '.join(last_use[node])}"

    def _target(self, node: Node) -> str:
        from worker.torch_private.operators import operator_path

        target = node.target
        module = getattr(target, "__module__", "")
        name = getattr(target, "__name__", "")
        if module in ("_operator", "operator", "math"):
            return f"{'math' if module == 'math' else 'operator'}.{name}"
        if getattr(torch, name, None) is target and name.startswith("sym_"):
            return f"torch.{name}"
        path = operator_path(target)
        short = path.removeprefix("torch.ops.").replace(".", "_")
        return self._operators.setdefault(BINDINGS.get(path, path), short)

    def _argument(self, node: Node, index: int, value: Any) -> str:
        from worker.torch_private.operators import argument_name

        name = argument_name(node.target, index)
        text = self._keyword(node, name, value)
        # Python's bindings take this one, which is always the last, by keyword only.
        return f"memory_format={text}" if name == "memory_format" else text

    def _keyword(self, node: Node, name: str, value: Any) -> str:
        if name == "group_name" and isinstance(value, str) and "c10d" in str(node.target):
            from worker.groups import role_of

            return f"groups[{role_of(value)!r}]"
        return self._value(value)

    def _constant(self, target: str) -> str:
        if target not in self._constant_names:
            value: Any = self._module
            for part in target.split("."):
                value = getattr(value, part)
            if not isinstance(value, torch.Tensor) or hasattr(value, "fake_mode"):
                msg = f"the graph holds {target}, a {type(value).__qualname__}, which no artifact can keep"
                raise NotPortable(msg, what=target)
            self._constant_names[target] = f"constant_{len(self.constants)}"
            self.constants.append(value)
        return self._constant_names[target]

    def _value(self, value: Any) -> str:
        if isinstance(value, torch.fx.Node):
            return value.name
        if isinstance(value, list | tuple):
            items = ", ".join(self._value(item) for item in value)
            return f"[{items}]" if isinstance(value, list) else f"({items}{',' if len(value) == 1 else ''})"
        if isinstance(value, slice):
            return f"slice({self._value(value.start)}, {self._value(value.stop)}, {self._value(value.step)})"
        if value is None or value is Ellipsis or type(value) in (bool, int, str):
            return repr(value)
        if isinstance(value, float):
            return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
        if isinstance(value, complex):
            # Not its repr: "-0+1j" is a sum, and loses the sign of zero.
            return f"complex({self._value(value.real)}, {self._value(value.imag)})"
        if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
            return str(value)
        if isinstance(value, torch.device):
            return f"torch.device({value.type!r})"
        msg = f"the graph holds the argument {value!r} ({type(value).__qualname__}), which no source can name"
        raise NotPortable(msg, what=repr(value))


def _last_uses(nodes: list[Node]) -> dict[Node, list[str]]:
    """For each node, the intermediate values that nothing needs after it."""
    kept = {node for node in nodes if node.op == "placeholder"}
    last: dict[Node, Node] = {}
    for node in nodes:
        for used in node.all_input_nodes:
            last[used] = node
    freed: dict[Node, list[str]] = {}
    for value, user in last.items():
        if value not in kept and user.op != "output":
            freed.setdefault(user, []).append(value.name)
    return freed


def pack_constants(tensors: list[torch.Tensor]) -> bytes:
    """A section that holds tensors: dtypes and shapes as JSON on one line, then their bytes."""
    header = json.dumps([[str(item.dtype).removeprefix("torch."), list(item.shape)] for item in tensors])
    return header.encode() + b"\n" + b"".join(_raw(item) for item in tensors)


def _raw(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().view(-1)
    return bytes(flat.view(torch.uint8).tolist()) if flat.numel() else b""


def unpack_constants(data: bytes) -> list[torch.Tensor]:
    """The tensor constants in a section; raises `ArtifactCorrupt` where it has none to read."""
    header, newline, raw = data.partition(b"\n")
    if not newline:
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
