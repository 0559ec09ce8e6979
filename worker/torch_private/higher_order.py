"""Higher-order operators: those with one body are lowered to it, branches and loops over data are kept.

Relies on each operator's ``name()``, and on the dense implementations that eager runs and which call their
bodies. An operator that is not named here is refused: nothing says that it does no more than run what Dynamo
traced.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import HigherOrderOperator

from warmrank.worker.errors import NotPortable
from warmrank.worker.torch_private.operators import arguments_at, memory_of, mutated_arguments
from warmrank.worker.torch_private.patching import wrapped

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

FACTS = {
    "torch._guards": "InvokeSubgraphCache",
    "torch._higher_order_ops.wrap:TagActivationCheckpoint": "divide_kwargs(kwargs)",
    "torch._higher_order_ops.scan": "generic_scan(operator, init, xs, additional_inputs)",
    "torch._ops:HigherOrderOperator": "name",
    "torch._higher_order_ops.cond:cond_op": "py_kernels",
}

# What stays an operator in the lowered graph, with its bodies beside it.
BRANCH, LOOP = "cond", "while_loop"
_REUSE = "add_reuse_entry"  # from torch 2.12 on
# They run their bodies on batched tensors although the graph itself does not.
_BATCHED = frozenset({"flex_attention"})


def higher_order_name(target: Any) -> str:
    """The name of an operator that takes graphs; empty for whatever is none."""
    return str(target.name()) if isinstance(target, HigherOrderOperator) else ""  # type: ignore[no-untyped-call]


def _first(body: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return body(*args, **kwargs)


def _checkpoint(body: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    from torch._higher_order_ops.wrap import TagActivationCheckpoint

    return body(*args, **TagActivationCheckpoint.divide_kwargs(kwargs)[1])  # type: ignore[no-untyped-call]


def _named(body: Callable[..., Any], _name: str, *args: Any) -> Any:
    return body(*args)


def _unpacked(body: Callable[..., Any], args: Any, kwargs: Any = None, _hints: Any = None) -> Any:
    return body(*args, **(kwargs or {}))


def _scan(body: Callable[..., Any], init: Any, xs: Any, additional_inputs: Any = ()) -> Any:
    from torch._higher_order_ops.scan import generic_scan

    return generic_scan(body, init, xs, additional_inputs=additional_inputs)  # type: ignore[no-untyped-call]


def _branch(predicate: Any, true_body: Any, false_body: Any, operands: Any) -> Any:
    if isinstance(predicate, torch.Tensor):
        return torch.ops.higher_order.cond(predicate, true_body, false_body, operands)
    return (true_body if predicate else false_body)(*operands)


def _dense(operator: HigherOrderOperator) -> Callable[..., Any]:
    found: Callable[..., Any] = operator.py_kernels[torch._C.DispatchKey.CompositeExplicitAutograd]
    return found


def _itself(operator: HigherOrderOperator) -> Callable[..., Any]:
    return operator


_LOWERED: dict[str, Callable[[HigherOrderOperator], Callable[..., Any]]] = {
    "wrap": lambda _: _first,
    "tag_activation_checkpoint": lambda _: _checkpoint,
    "wrap_activation_checkpoint": lambda _: _checkpoint,
    "invoke_subgraph": lambda _: _named,
    "strict_mode": lambda _: _unpacked,
    "hints_wrapper": lambda _: _unpacked,
    "wrap_with_set_grad_enabled": _itself,
    "wrap_with_autocast": _itself,
    "autograd_function_apply": _itself,
    "flex_attention": _dense,
    "associative_scan": _dense,
    "map_impl": _dense,
    "scan": lambda _: _scan,
    BRANCH: lambda _: _branch,
    LOOP: _itself,
}


@contextlib.contextmanager
def regions_traced_anew() -> Iterator[None]:
    """Let Dynamo trace each call of a ``nested_compile_region``.

    Otherwise it takes the graph of an earlier call whose guards hold for the later one, which gets none.
    """
    from torch._guards import InvokeSubgraphCache

    if not hasattr(InvokeSubgraphCache, _REUSE):
        yield
        return
    with wrapped(InvokeSubgraphCache, _REUSE, lambda _: lambda *_args, **_kwargs: None):
        yield


def nodes_within(graph_module: GraphModule) -> Iterator[Node]:
    """The nodes of a graph and of all graphs within it."""
    for module in graphs_of(graph_module):
        yield from module.graph.nodes


def graphs_of(graph_module: GraphModule) -> list[GraphModule]:
    """A graph and all graphs within it."""
    return [module for module in graph_module.modules() if isinstance(module, torch.fx.GraphModule)]


def transforms(graph_module: GraphModule) -> bool:
    """Whether a graph of Dynamo's uses ``torch.func``; composite operators cannot stay whole there."""
    return any(
        "_functorch" in str(getattr(node.target, "__module__", ""))
        or higher_order_name(node.target) in _BATCHED
        for node in nodes_within(graph_module)
        if node.op == "call_function"
    )


@contextlib.contextmanager
def bodies_inlined(graph_module: GraphModule) -> Iterator[None]:
    """Make the operators of a graph of Dynamo's run their bodies, for as long as this lasts.

    Raises:
        NotPortable: it calls an operator that is not known to do only that.
    """
    replaced: list[tuple[GraphModule, Node, Any]] = [
        (module, node, node.target)
        for module in graphs_of(graph_module)
        for node in module.graph.nodes
        if higher_order_name(node.target)
    ]
    for _, node, operator in replaced:
        node.target = _replacement(node, operator)
    for module in {module for module, _, _ in replaced}:
        module.recompile()
    try:
        yield
    finally:
        for _, node, operator in replaced:
            node.target = operator
        for module in {module for module, _, _ in replaced}:
            module.recompile()


def _replacement(node: Node, operator: HigherOrderOperator) -> Callable[..., Any]:
    name = higher_order_name(operator)
    make = _LOWERED.get(name)
    if make is None:
        where = (node.stack_trace or "").strip() or "unknown line"
        msg = (
            f"higher-order operator {name} has no portable form:\n{where}\n"
            "Move the call out of the cached function, or make what it does a custom operator "
            "(torch.library.custom_op)."
        )
        raise NotPortable(msg, what=name)
    return make(operator)


def refuse_writes_within(graph_module: GraphModule) -> None:
    """Refuse branches and loops that write to what they are given, or return it: nothing outside shows it.

    Raises:
        NotPortable: a graph within the graph does so.
    """
    for module in graphs_of(graph_module)[1:]:
        given = {
            memory
            for node in module.graph.nodes
            if node.op in ("placeholder", "get_attr")
            for memory in memory_of(node.meta.get("val"))
        }
        for node in module.graph.nodes:
            if any(given.intersection(memory_of(item.meta.get("val"))) for item in _touched(node)):
                where = (node.stack_trace or "").strip() or "unknown line"
                msg = (
                    f"a branch or loop over data writes to, or returns, a tensor that it is given:\n{where}\n"
                    "Return a new tensor (clone()), and write it outside."
                )
                raise NotPortable(msg, what=str(node.target))


def _touched(node: Node) -> Iterator[Node]:
    """Tensors that a node returns or writes to."""
    if node.op == "output":
        yield from node.all_input_nodes
        return
    for value in arguments_at(node, mutated_arguments(node.target)):
        for item in value if isinstance(value, list | tuple) else (value,):
            if isinstance(item, torch.fx.Node):
                yield item
