"""Writes a lowered graph as Python source, for engine ``graph``.

``torch.ops`` boxes every argument, which costs about a microsecond a call; the `BINDINGS` reach the same
overload unboxed. A row is right only if the binding takes the schema's arguments in the schema's order and
picks the same overload for them; ``tests/unit/test_graph_engine.py`` checks every row. Bindings are named
where nobody can replace them, or, in ``torch._C._nn``, used only if nobody has.
"""

from __future__ import annotations

import builtins
import functools
import json
import math
import operator
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from warmrank.worker.errors import NotPortable
from warmrank.worker.groups import role_of
from warmrank.worker.runtime.decoding import device_name
from warmrank.worker.torch_private import operators
from warmrank.worker.torch_private.lowering import BRANCH, LOOP, LoweredGraph, higher_order_name
from warmrank.worker.torch_private.symbols import size_of_inputs, sizes_of_inputs
from warmrank.worker.torch_private.warm import is_called

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

_FUNCTIONS = (
    "add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "neg.default", "rsqrt.default",
    "sqrt.default", "exp.default", "cos.default", "sin.default", "tanh.default", "sigmoid.default",
    "relu.default", "pow.Tensor_Scalar", "mean.dim", "sum.dim_IntList", "sum.default", "softmax.int",
    "matmul.default", "mm.default", "bmm.default", "addmm.default", "reshape.default", "transpose.int",
    "permute.default", "unsqueeze.default", "squeeze.dim", "select.int", "index_select.default",
    "gather.default", "cat.default", "stack.default", "chunk.default", "unbind.int", "where.self",
    "masked_fill.Scalar", "embedding.default", "layer_norm.default", "rms_norm.default", "eq.Scalar",
    "eq.Tensor", "ne.Scalar", "ne.Tensor", "lt.Scalar", "lt.Tensor", "le.Scalar", "le.Tensor",
    "gt.Scalar", "gt.Tensor", "ge.Scalar", "ge.Tensor", "detach.default", "logical_not.default",
    "bitwise_and.Tensor",
)  # fmt: skip
_METHODS = (
    "view.default", "expand.default", "contiguous.default", "copy_.default", "add_.Tensor", "sub_.Tensor",
    "mul_.Tensor", "div_.Tensor", "index_copy_.default", "to.dtype",
)  # fmt: skip
_NN = ("linear.default", "gelu.default", "silu.default", "scaled_dot_product_attention.default")


BINDINGS: dict[str, str] = {
    f"torch.ops.aten.{name}": f"torch._C.{home}.{name.partition('.')[0]}"
    for home, names in (("_VariableFunctions", _FUNCTIONS), ("TensorBase", _METHODS), ("_nn", _NN))
    for name in names
}
_MODULES = {"torch.": torch, "operator.": operator, "math.": math, "": builtins}
_INDENT = "        "
_DUMPED = "warmrank_data_dump"  # `worker.data_dump.MARK`


def written(lowered: LoweredGraph) -> tuple[str, list[torch.Tensor]]:
    """A graph's source, and the tensor constants that it names."""
    writer = _SourceWriter(lowered)
    return writer.source(), writer.constants


class _SourceWriter:
    """Writes one graph as Python; collects its operators, groups and constants on the way."""

    def __init__(self, lowered: LoweredGraph) -> None:
        self._module = lowered.graph
        self._operators: dict[str, str] = {}
        self.constants: list[torch.Tensor] = []
        self._sizes = sizes_of_inputs(lowered.graph)
        self._bodies: dict[str, list[str]] = {}

    def source(self) -> str:
        nodes = self._module.graph.nodes
        dumped = any(node.meta.get(_DUMPED) for node in nodes)
        function = self._function("graph", self._module, first=[f"{_INDENT}_dump.step()"] if dumped else [])
        lines = ["def bind(groups, constants):"]
        lines += [f"    {name} = {path}" for path, name in self._operators.items()]
        lines += [f"    constant_{index} = constants[{index}]" for index in range(len(self.constants))]
        if dumped:
            lines += ["    from warmrank.worker.data_dump import Dump", "    _dump = Dump()"]
        for body in self._bodies.values():
            lines += ["", *body]
        lines += ["", *function, "", "    return graph", ""]
        return "\n".join(lines)

    def _function(self, name: str, module: GraphModule, first: list[str]) -> list[str]:
        inputs = [node.name for node in module.graph.nodes if node.op == "placeholder"]
        return [f"    def {name}({', '.join(inputs)}):", *first, *self._body(module)]

    def _comparison(self, node: Node) -> Iterator[str]:
        """The line that compares the sizes of an operator's results, if it has tensors among them."""
        results = node.meta["val"]
        results = results if isinstance(results, list | tuple) else (results,)
        tensors = (value for value in results if isinstance(value, torch.Tensor))
        if sizes := ", ".join(map(self._shape, tensors)):
            yield f"{_INDENT}compare_sizes({node.name}, {sizes}, operator='{node.target}')"

    def _body(self, module: GraphModule) -> Iterator[str]:
        last_use = _last_uses(list(module.graph.nodes))
        held: dict[str, str] = {}
        for node in module.graph.nodes:
            if node.op == "call_function" and higher_order_name(node.target) in (BRANCH, LOOP):
                yield from (f"{_INDENT}{line}" for line in self._branch_or_loop(node))
            elif node.op == "call_function":
                arguments = [self._argument(node, index, value) for index, value in enumerate(node.args)]
                arguments += [
                    f"{key}={self._keyword(node, key, value)}" for key, value in node.kwargs.items()
                ]
                dumped = node.meta.get(_DUMPED, False)
                assigned = f"{node.name} = " if node.users or dumped else ""
                # The name is for readers, who find the operator's source line by it.
                named = "" if assigned else f"  # {node.name}"
                yield f"{_INDENT}{assigned}{self._target(node)}({', '.join(arguments)}){named}"
                if assigned and module is self._module and operators.calls_python(node.target):
                    yield from self._comparison(node)
                if dumped:
                    yield f"{_INDENT}_dump({node.name!r}, {str(node.target)!r}, {node.name})"
            elif node.op == "get_attr":
                if node.target not in held:
                    held[node.target] = self._held(module, str(node.target))
                yield f"{_INDENT}{node.name} = {held[node.target]}"
            elif node.op == "output":
                (results,) = node.args
                returned = tuple(results) if isinstance(results, list) else results
                yield f"{_INDENT}return {self._value(returned)}"
            if last_use.get(node):
                yield f"{_INDENT}del {', '.join(last_use[node])}"

    def _branch_or_loop(self, node: Node) -> Iterator[str]:
        """Python source of a `torch.cond` or ``while_loop``."""
        operands = [self._value(value) for value in (*node.args, *node.kwargs.values())]
        if higher_order_name(node.target) == BRANCH:
            predicate, chosen, other, given = operands
            yield f"{node.name} = ({chosen} if {predicate} else {other})(*{given})"
        else:
            condition, body, carried, others = operands
            own = "item.clone() if hasattr(item, 'clone') else item"
            yield f"{node.name} = tuple({own} for item in {carried})"
            yield f"while {condition}(*{node.name}, *{others}):"
            yield f"    {node.name} = {body}(*{node.name}, *{others})"

    def _target(self, node: Node) -> str:
        name = getattr(node.target, "__name__", "")
        for prefix, module in _MODULES.items():  # of functions over sizes
            if getattr(module, name, None) is node.target:
                return f"{prefix}{name}"
        path = operators.operator_path(node.target)
        short = path.removeprefix("torch.ops.").replace(".", "_")
        binding = BINDINGS.get(path, path)
        return self._operators.setdefault(
            binding if is_called(operators.at_path(binding), short) else path, short
        )

    def _argument(self, node: Node, index: int, value: Any) -> str:
        name = operators.argument_name(node.target, index)
        text = self._keyword(node, name, value)
        # Python's bindings take this one, which is always the last, by keyword only.
        return f"memory_format={text}" if name == "memory_format" else text

    def _shape(self, value: torch.Tensor) -> str:
        """The sizes of a traced result, by those of the inputs."""
        sizes = [size_of_inputs(size, self._sizes) for size in value.shape]
        return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"

    def _keyword(self, node: Node, name: str, value: Any) -> str:
        if name == "group_name" and isinstance(value, str) and "c10d" in str(node.target):
            return f"groups[{role_of(value)!r}]"
        return self._value(value)

    def _held(self, module: GraphModule, target: str) -> str:
        """The name of a constant, or of a graph within the graph."""
        value = functools.reduce(getattr, target.split("."), module)
        if isinstance(value, torch.fx.GraphModule):
            name = f"_body_{len(self._bodies)}"
            self._bodies[name] = []  # its place: a graph within it comes after it
            self._bodies[name] = self._function(name, value, first=[])
            return name
        self.constants.append(operators.constant_of(module, target))
        return f"constant_{len(self.constants) - 1}"

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
            return f"torch.device({device_name(value)!r})"
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
    if tensor.is_meta:
        msg = (
            "the function makes a constant tensor on device meta (torch.device('meta'), set_default_device), "
            "which holds no data; call it on the device that it is for"
        )
        raise NotPortable(msg, what="meta")
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().view(-1)
    return bytes(flat.view(torch.uint8).tolist()) if flat.numel() else b""
