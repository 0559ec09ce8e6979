"""Lower Dynamo's graph of torch functions to ATen operators on lifted inputs.

Higher-order operators with one body are lowered to it, branches and loops over data are kept, others are
refused: nothing says that they do no more than run what Dynamo traced. Relied on: each operator's
``name()``; dense implementations call their bodies; ``graph_module`` placeholders carry
``meta["example_value"]`` and ``_dynamo_source`` in the order in which the frame passes them; ``make_fx``
over an interpreter keeps in-place operators, views and each node's ``stack_trace``
(``tests/unit/test_lowering.py``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import HigherOrderOperator

from warmrank.worker.errors import NotPortable, WorkerError
from warmrank.worker.torch_private.operators import arguments_at, memory_of, mutated_arguments
from warmrank.worker.values import Value

if TYPE_CHECKING:
    from types import CodeType

    from torch.fx import GraphModule, Node

FACTS = {
    "torch._C": "_set_grad_enabled",
    "torch._C._autograd": "_get_data_attr",
    "torch._higher_order_ops.cond:cond_op": "py_kernels",
    "torch._higher_order_ops.scan": "generic_scan(operator, init, xs, additional_inputs)",
    "torch._higher_order_ops.wrap:TagActivationCheckpoint": "divide_kwargs(kwargs)",
    "torch._ops:HigherOrderOperator": "name",
    "torch.fx.experimental.proxy_tensor": (
        "make_fx(decomposition_table, tracing_mode, _allow_non_fake_inputs, pre_dispatch)"
    ),
    "torch.fx.traceback": "preserve_node_meta",
    "torch.utils._python_dispatch": "is_traceable_wrapper_subclass",
}

# What stays an operator in the lowered graph, with its bodies beside it.
BRANCH, LOOP = "cond", "while_loop"
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


class TracedInput(Value):
    """One input of the graph: where the frame finds it, and what it is."""

    source: str
    is_tensor: bool
    is_parameter: bool = False
    requires_grad: bool = False


class CapturedCall(Value):
    """What Dynamo made of a call, for a compiler that takes Dynamo's own graph.

    Attributes:
        graph_module: Dynamo's graph of torch functions.
        example_inputs: its inputs: the call's own tensors, and symbolic sizes.
        frame: the code object that calls the graph.
        context: of the trace; what AOTAutograd finds out about the graph is left in it.
    """

    graph_module: GraphModule
    example_inputs: tuple[Any, ...]
    frame: CodeType
    context: Any


class LoweredGraph(Value):
    """ATen operators on lifted inputs.

    Attributes:
        graph: the graph, with mutations and views kept in place.
        inputs: its inputs, in order.
        captured: the call that it was traced from; None where there was a graph only.
    """

    graph: GraphModule
    inputs: tuple[TracedInput, ...]
    captured: CapturedCall | None = None


def lower(graph_module: GraphModule, decompositions: Mapping[Any, Callable[..., Any]]) -> LoweredGraph:
    """From Dynamo's graph of torch functions to ATen operators, without functionalising (decision 0003).

    Needs the tracing context that the graph was made in.

    Raises:
        NotPortable: something in it has no operators, or is a tensor made of others.
    """
    import torch.fx.traceback as fx_traceback

    _refuse_wrappers(graph_module)
    values = [node.meta["example_value"] for node in graph_module.graph.nodes if node.op == "placeholder"]
    # Detached, because a buffer that a graph with gradients wrote to has a history by now.
    fakes = [value.detach() if isinstance(value, torch.Tensor) else value for value in values]
    _detach_data(graph_module)
    transformed = transforms(graph_module)
    whole_composites = not (transformed or _casts_by_itself(graph_module))
    if not transformed:
        _drop_grad_switches(graph_module)
    with torch.no_grad(), fx_traceback.preserve_node_meta(), bodies_inlined(graph_module):
        graph = graph_of(
            partial(_run, graph_module), fakes, decompositions=decompositions, composites=whole_composites
        )
    return LoweredGraph(graph=graph, inputs=_inputs(graph_module))


def _run(graph_module: GraphModule, *inputs: Any) -> Any:
    from torch.fx import Interpreter

    running: list[Node] = []

    class Noting(Interpreter):
        def run_node(self, n: Node) -> Any:
            running[:] = [n]
            return super().run_node(n)

    try:
        return Noting(graph_module).run(*inputs)
    except WorkerError:
        raise
    except Exception as error:
        where = (running[0].stack_trace or "").strip() or "unknown line"
        msg = (
            f"{running[0].target} cannot be lowered to operators: {type(error).__name__}: {error}\n{where}\n"
            "Move it out of the cached function, or make what it does a custom operator "
            "(torch.library.custom_op)."
        )
        raise NotPortable(msg, what=str(running[0].target)) from error


def retrace(lowered: LoweredGraph, fakes: list[Any]) -> LoweredGraph:
    """The graph anew after somebody changed it, with shapes and memory noted on every operator.

    Needs the tracing context that the graph was made in. Raises whatever the graph raises on its inputs.
    """
    import torch.fx.traceback as fx_traceback
    from torch.fx import Interpreter

    placeholders = [node for node in lowered.graph.graph.nodes if node.op == "placeholder"]
    if len(placeholders) != len(fakes):
        msg = f"it has {len(placeholders)} inputs now, and had {len(fakes)}"
        raise ValueError(msg)
    with contextlib.ExitStack() as stack:
        for kind in ("cpu", "cuda"):  # its casts are operators of the graph already
            stack.enter_context(torch.autocast(kind, enabled=False))
        stack.enter_context(torch.no_grad())
        stack.enter_context(fx_traceback.preserve_node_meta())
        graph = graph_of(Interpreter(lowered.graph).run, fakes, composites=True)
    return LoweredGraph(graph=graph, inputs=lowered.inputs)


def graph_of(
    function: Callable[..., Any],
    fakes: Sequence[Any],
    *,
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
    composites: bool = False,
) -> GraphModule:
    """The ATen operators that a function calls for fake inputs, without those that nobody needs.

    Args:
        function: what is recorded; shapes may be symbols.
        fakes: its inputs.
        decompositions: operator overload -> function that replaces it.
        composites: keep composite operators (``linear``) whole.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    graph: GraphModule = make_fx(
        function,
        decomposition_table=dict(decompositions or {}),
        tracing_mode="symbolic",
        _allow_non_fake_inputs=True,
        pre_dispatch=composites,
    )(*fakes)
    graph.graph.eliminate_dead_code()
    return graph


def _casts_by_itself(graph_module: GraphModule) -> bool:
    """Whether autocast is on, or is switched in the graph.

    Its casts happen below the level at which composite operators (``linear``) are still whole, so such a
    graph is recorded further down. All others keep their composites: fewer calls, and eager's kernels.
    """
    switched = any(
        getattr(node.target, "__name__", "") in ("_enter_autocast", "_exit_autocast", "wrap_with_autocast")
        for node in nodes_within(graph_module)
    )
    return switched or any(map(torch.is_autocast_enabled, ("cpu", "cuda")))


def _refuse_wrappers(graph_module: GraphModule) -> None:
    """Refuse tensors that are made of other tensors: ``DTensor``, jagged ones, classes of the user's."""
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    for node in nodes_within(graph_module):
        values = node.meta.get("example_value")
        for value in values if isinstance(values, list | tuple) else (values,):
            if not is_traceable_wrapper_subclass(value):
                continue
            kind = type(value).__qualname__
            given = node.op == "placeholder" and source_name(node._dynamo_source)  # type: ignore[attr-defined]
            msg = (
                f"{given or node.name} is a {kind}, a tensor made of other tensors, which no artifact can "
                "hold. Take it apart before the call, and hand over the plain tensors (DTensor.to_local(), a "
                f"jagged one's values() and offsets()).\n{'' if given else (node.stack_trace or '').strip()}"
            )
            raise NotPortable(msg.strip(), what=kind)


def _detach_data(graph_module: GraphModule) -> None:
    """Follow ``x.data`` as ``x.detach()``: of a fake tensor, torch makes a constant of the former."""
    for module in graphs_of(graph_module):
        for node in module.graph.nodes:
            if node.target is torch._C._autograd._get_data_attr:  # type: ignore[attr-defined]
                node.op, node.target = "call_method", "detach"
        module.recompile()


def _drop_grad_switches(graph_module: GraphModule) -> None:
    """Take the switches of ``torch.no_grad()`` blocks out: the whole graph runs without gradients."""
    for module in graphs_of(graph_module):
        switches = [node for node in module.graph.nodes if node.target is torch._C._set_grad_enabled]
        for node in switches:
            module.graph.erase_node(node)
        if switches:
            module.recompile()


def _inputs(graph_module: GraphModule) -> tuple[TracedInput, ...]:
    inputs = []
    for node in graph_module.graph.nodes:
        if node.op != "placeholder":
            continue
        example = node.meta["example_value"]
        is_tensor = isinstance(example, torch.Tensor)
        # meta["grapharg"] has the source as well, but Dynamo drops it when a capture ends.
        inputs.append(
            TracedInput(
                source=source_name(node._dynamo_source),
                is_tensor=is_tensor,
                is_parameter=isinstance(example, torch.nn.Parameter),
                requires_grad=is_tensor and example.requires_grad,
            )
        )
    return tuple(inputs)


def source_name(source: Any) -> str:
    """A source's expression; torch up to 2.11 has a method where later releases have a property."""
    name = source.name
    return name() if callable(name) else name  # type: ignore[no-any-return]
