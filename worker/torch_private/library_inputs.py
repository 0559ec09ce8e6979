"""Inputs of a shared library: the graph that Inductor is to compile, rewritten so that all are tensors.

Relied on (``tests/unit/test_aoti_engine.py``): a tensor with a symbolic size and stride 0 carries a number
into the library, where ``sym_size`` reads it. The value of a ``SymInt`` placeholder has its symbol as
``node.expr``, after what was substituted since, and ``node.maybe_as_int()`` where it was specialised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from warmrank.worker.errors import NotPortable
from warmrank.worker.torch_private.operators import constant_of
from warmrank.worker.values import Value

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

FACTS = {"torch._subclasses.fake_tensor": "FakeTensorMode(shape_env)"}


class LibraryInputs(Value):
    """Arguments of a library, in their order."""

    fakes: tuple[torch.Tensor, ...]  # fake tensors, in the order of the call
    tensors: tuple[int, ...]  # positions of the graph's inputs that are handed on
    # positions of the graph's inputs that are numbers, each handed on as a tensor of that size
    numbers: tuple[int, ...]
    constants: tuple[str, ...]  # names of the graph's constants


def bind_inputs(library: GraphModule) -> LibraryInputs:
    """Rewrite ``library`` so that all of its inputs are tensors: first tensors, then numbers, then constants.

    Raises:
        NotPortable: an input is neither a tensor nor a number, or a constant cannot be kept.
    """
    graph = library.graph
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    tensors = tuple(index for index, node in enumerate(placeholders) if _is_tensor(node))
    fakes = [_alone(placeholders[index]) for index in tensors]
    numbers = _bind_numbers(library, placeholders, fakes)
    constants = _lift_constants(library, fakes)
    graph.lint()
    library.recompile()
    return LibraryInputs(fakes=tuple(fakes), tensors=tensors, numbers=numbers, constants=constants)


def _alone(node: Node) -> Any:
    """A fake tensor like a placeholder's in memory of its own: a library is for inputs that lie apart."""
    value = node.meta["val"]
    with value.fake_mode:
        alone = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    node.meta["val"] = alone
    return alone


def _is_tensor(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _bind_numbers(library: GraphModule, placeholders: list[Node], fakes: list[Any]) -> tuple[int, ...]:
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
            with graph.inserting_before(first):
                if value.node.expr not in sizes:
                    carried.append(index)
                    sizes[value.node.expr] = (_carrier(library, node, fakes), 0)
                read = graph.call_function(torch.ops.aten.sym_size.int, sizes[value.node.expr])
            read.meta["val"] = value
            node.replace_all_uses_with(read)
        elif type(known) in (bool, int, float):
            for user in tuple(node.users):
                _replace(user, node, known)
        else:
            msg = f"the graph has an input {value!r} ({type(value).__qualname__}), which no library can take"
            raise NotPortable(msg, what=repr(value))
        graph.erase_node(node)
    return tuple(carried)


def _carrier(library: GraphModule, node: Node, fakes: list[Any]) -> Node:
    """A new input, after the others, whose size is the number that ``node`` stands for.

    As a size it counts as 2 or more, which is a condition of the artifact from then on; Dynamo gives other
    numbers an artifact of their own.
    """
    value = node.meta["val"]
    env = value.node.shape_env
    with env.ignore_fresh_unbacked_symbols(), _fake_mode(library, fakes, env):
        fake = torch.empty_strided((value,), (0,), dtype=torch.uint8)
    last = [other for other in library.graph.nodes if other.op == "placeholder"][-1]
    with library.graph.inserting_after(last):
        carrier = library.graph.placeholder(f"{node.name}_carrier")
    carrier.meta["val"] = fake
    fakes.append(fake)
    return carrier


def _fake_mode(library: GraphModule, fakes: list[Any], env: Any = None) -> Any:
    """The mode of a graph's fake tensors; a new one where it has none."""
    values = (*fakes, *(node.meta.get("val") for node in library.graph.nodes))
    found = (value.fake_mode for value in values if hasattr(value, "fake_mode"))
    return next(found, None) or FakeTensorMode(shape_env=env)


def _lift_constants(library: GraphModule, fakes: list[Any]) -> tuple[str, ...]:
    names: dict[str, Node] = {}
    mode = None
    for node in [node for node in library.graph.nodes if node.op == "get_attr"]:
        target = str(node.target)
        if target not in names:
            value = constant_of(library, target)
            mode = mode or _fake_mode(library, fakes)
            inputs = [other for other in library.graph.nodes if other.op == "placeholder"]
            point = (
                library.graph.inserting_after(inputs[-1])
                if inputs
                else library.graph.inserting_before(next(iter(library.graph.nodes)))
            )
            with point:
                names[target] = library.graph.placeholder(f"constant_{len(names)}")
            names[target].meta["val"] = mode.from_tensor(value, static_shapes=True)
            fakes.append(names[target].meta["val"])
        node.replace_all_uses_with(names[target])
        library.graph.erase_node(node)
    return tuple(names)


def _replace(user: Node, node: Node, literal: Any) -> None:
    def swap(argument: Node) -> Any:
        return literal if argument is node else argument

    user.args = torch.fx.node.map_arg(user.args, swap)
    user.kwargs = torch.fx.node.map_arg(user.kwargs, swap)
