"""Inputs of a library, which are all tensors, and the symbols that Inductor reads from their sizes.

It takes no symbolic integer as an input: a tensor with a symbolic size and stride 0 carries a number into the
library, where ``sym_size`` reads it. Symbols are read from one input after the other: from a size that is
computed (``max(1, n)``) Inductor would solve for ``n``, where no input before has that as its size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from warmrank.worker.errors import NotPortable
from warmrank.worker.torch_private.operators import constant_of
from warmrank.worker.torch_private.patching import steps_in

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node


class PlainSizesFirst:
    """Steps in where Inductor writes how symbols are read."""

    @steps_in("torch._inductor.codegen.wrapper:PythonWrapperCodegen", "codegen_inputs")
    def _read_symbols(self, original: Any, wrapper: Any) -> None:
        """Read symbols first of inputs whose sizes are plain."""

        def plain_first() -> dict[str, Any]:
            inputs = type(wrapper).get_graph_inputs(wrapper)
            return dict(sorted(inputs.items(), key=lambda item: _has_computed_size(item[1])))

        wrapper.get_graph_inputs = plain_first
        try:
            original(wrapper)
        finally:
            del wrapper.get_graph_inputs


def _has_computed_size(value: Any) -> bool:
    sizes = value.get_size() if hasattr(value, "get_size") else ()
    return any(getattr(size, "free_symbols", ()) and not size.is_Symbol for size in sizes)


def bind_inputs(library: GraphModule) -> tuple[tuple[int, ...], tuple[int, ...], tuple[str, ...]]:
    """Make all inputs of a graph tensors; return tensors, numbers and constants of a `Library`."""
    placeholders = [node for node in library.graph.nodes if node.op == "placeholder"]
    tensors = tuple(index for index, node in enumerate(placeholders) if _is_tensor(node))
    for index in tensors:  # in memory of their own: a library is for inputs that lie apart
        value = placeholders[index].meta["val"]
        with value.fake_mode:
            placeholders[index].meta["val"] = torch.empty_strided(
                value.shape, value.stride(), dtype=value.dtype, device=value.device
            )
    numbers = _bind_numbers(library, placeholders)
    constants = _lift_constants(library)
    library.graph.lint()
    library.recompile()
    return tensors, numbers, constants


def _is_tensor(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _bind_numbers(library: GraphModule, placeholders: list[Node]) -> tuple[int, ...]:
    """Read numbers from sizes of tensors; return the positions of those that need a tensor of their own."""
    graph = library.graph
    sizes = {
        size.node.expr: (node, dim)
        for node in reversed(placeholders)
        if _is_tensor(node)
        for dim, size in enumerate(node.meta["val"].shape)
        if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol
    }
    first = next(node for node in graph.nodes if node.op != "placeholder")
    carried: list[int] = []
    literals: dict[Node, Any] = {}

    def literal(given: Node) -> Any:
        return literals.get(given, given)

    for index, node in enumerate(placeholders):
        if _is_tensor(node):
            continue
        value = node.meta.get("val")
        known = value.node.maybe_as_int() if isinstance(value, torch.SymInt) else value
        if known is None and isinstance(value, torch.SymInt) and node.users and not value >= 0:
            known = int(value)  # no size can carry it: a condition of the artifact says that it is this one
        if not node.users:
            pass
        elif known is None and isinstance(value, torch.SymInt):
            if value.node.expr not in sizes:
                carried.append(index)
                sizes[value.node.expr] = (_carrier(library, node), 0)
            with graph.inserting_before(first):
                read = graph.call_function(torch.ops.aten.sym_size.int, sizes[value.node.expr])
            read.meta["val"] = value
            node.replace_all_uses_with(read)
        elif type(known) in (bool, int, float):
            literals[node] = known
            for user in tuple(node.users):
                user.args = torch.fx.node.map_arg(user.args, literal)
                user.kwargs = torch.fx.node.map_arg(user.kwargs, literal)
        else:
            msg = f"the graph has an input {value!r} ({type(value).__qualname__}), which no library can take"
            raise NotPortable(msg, what=repr(value))
        graph.erase_node(node)
    return tuple(carried)


def _carrier(library: GraphModule, node: Node) -> Node:
    """A new input whose size is the number that ``node`` stands for.

    As a size it counts as 2 or more, which is a condition of the artifact from then on; Dynamo gives other
    numbers an artifact of their own.
    """
    value = node.meta["val"]
    env = value.node.shape_env
    with env.ignore_fresh_unbacked_symbols(), _fake_mode(library, env):
        fake = torch.empty_strided((value,), (0,), dtype=torch.uint8)
    return _new_input(library, f"{node.name}_carrier", fake)


def _lift_constants(library: GraphModule) -> tuple[str, ...]:
    """Make constants inputs; return their names."""
    lifted: dict[str, Node] = {}
    for node in [node for node in library.graph.nodes if node.op == "get_attr"]:
        target = str(node.target)
        if target not in lifted:
            value = constant_of(library, target)
            fake = _fake_mode(library).from_tensor(value, static_shapes=True)
            lifted[target] = _new_input(library, f"constant_{len(lifted)}", fake)
        node.replace_all_uses_with(lifted[target])
        library.graph.erase_node(node)
    return tuple(lifted)


def _new_input(library: GraphModule, name: str, fake: torch.Tensor) -> Node:
    """A placeholder after all others."""
    graph = library.graph
    first, *_ = graph.nodes
    last = [node for node in graph.nodes if node.op == "placeholder"][-1:]
    with graph.inserting_after(last[0]) if last else graph.inserting_before(first):
        node = graph.placeholder(name)
    node.meta["val"] = fake
    return node


def _fake_mode(library: GraphModule, env: Any = None) -> Any:
    """The mode of a graph's fake tensors; a new one where it has none."""
    values = (node.meta.get("val") for node in library.graph.nodes)
    found = (value.fake_mode for value in values if hasattr(value, "fake_mode"))
    return next(found, None) or FakeTensorMode(shape_env=env)
