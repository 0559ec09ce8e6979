"""Lower Dynamo's graph of torch functions to ATen operators on lifted inputs.

Higher-order operators with one body become it, branches and loops over data are kept, others are refused:
nothing says that they only run what Dynamo traced.

Relied on (``tests/unit/test_tracing.py``, ``test_operators.py``): dense implementations call their bodies;
placeholders of Dynamo's graph carry ``meta["example_value"]`` and ``_dynamo_source`` in the frame's order;
``make_fx`` over an interpreter keeps in-place operators, views and each node's ``stack_trace``. It works
through modes, and a function hands itself to a mode under its public name: in Python by
``handle_torch_function``; in C++ a method is looked up in ``torch.Tensor``, a function in its module of
``torch._C``. ``torch._C.TensorBase`` has the methods of C++, and nobody can change it.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import (
    BuiltinFunctionType,
    FrameType,
    FunctionType,
    MethodDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import TYPE_CHECKING, Any

import torch
import torch.fx.traceback as fx_traceback
from torch._higher_order_ops.scan import generic_scan
from torch._higher_order_ops.wrap import TagActivationCheckpoint
from torch._ops import HigherOrderOperator
from torch.fx import Interpreter
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import handle_torch_function
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from warmrank.worker.errors import NotPortable, WorkerError
from warmrank.worker.keys.code import globals_module, is_pinned_module, is_users_function, layers
from warmrank.worker.torch_private.eager_kernels import losses_as_eager
from warmrank.worker.torch_private.kernels import HOMES_IN_C
from warmrank.worker.torch_private.operators import (
    argument_of,
    as_list,
    may_do_more,
    mutated_arguments,
    nodes_at,
    storage_ids,
)
from warmrank.worker.torch_private.patching import intercepted, steps_in
from warmrank.worker.torch_private.warm import OPERATORS, settings
from warmrank.worker.values import Value

if TYPE_CHECKING:
    from types import CodeType

    from torch.fx import GraphModule, Node

_PROXIES = "torch.fx.experimental.proxy_tensor"
_IN_C = (BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType, *OPERATORS)
BRANCH, LOOP = "cond", "while_loop"  # which stay operators, with their bodies beside them
_BATCHED = frozenset({"flex_attention"})  # which run their bodies on batched tensors; the graph does not
# Modules whose patches are sources of their own.
_COMPARED = frozenset({"torch.functional", "torch.nn.functional", "torch._C._nn", "torch._VF"})
# Set a switch that counts while the graph is traced, and put it back: casts, and how attention is computed.
_SCOPES = ("_enter_autocast", "_exit_autocast", "_sdpa_kernel")
SETS_SWITCH = (
    "sets a switch of the whole process, which a compiled function does not. Set it before the call, and put "
    "it back after it."
)
_REMEDY = (
    "Move it out of the cached function, or make what it does a custom operator (torch.library.custom_op)."
)


def higher_order_name(target: Any) -> str:
    """The name of an operator that takes graphs; empty for anything else."""
    return str(target.name()) if isinstance(target, HigherOrderOperator) else ""  # type: ignore[no-untyped-call]


def _checkpoint(body: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return body(*args, **TagActivationCheckpoint.divide_kwargs(kwargs)[1])  # type: ignore[no-untyped-call]


def _unpacked(body: Callable[..., Any], args: Any, kwargs: Any = None, _hints: Any = None) -> Any:
    return body(*args, **(kwargs or {}))


def _scan(body: Callable[..., Any], init: Any, xs: Any, additional_inputs: Any = ()) -> Any:
    return generic_scan(body, init, xs, additional_inputs=additional_inputs)  # type: ignore[no-untyped-call]


def _branch(predicate: Any, true_body: Any, false_body: Any, operands: Any) -> Any:
    if isinstance(predicate, torch.Tensor):
        return torch.ops.higher_order.cond(predicate, true_body, false_body, operands)
    return (true_body if predicate else false_body)(*operands)


# What each operator is replaced by: a function; itself; or its dense implementation.
_ITSELF, _DENSE = "itself", "dense"
_LOWERED: dict[str, Callable[..., Any] | str] = {
    "wrap": lambda body, *args, **kwargs: body(*args, **kwargs),
    "tag_activation_checkpoint": _checkpoint,
    "wrap_activation_checkpoint": _checkpoint,
    "invoke_subgraph": lambda body, _name, *args: body(*args),
    "strict_mode": _unpacked,
    "hints_wrapper": _unpacked,
    "wrap_with_set_grad_enabled": _ITSELF,
    "wrap_with_autocast": _ITSELF,
    "autograd_function_apply": _ITSELF,
    "flex_attention": _DENSE,
    "associative_scan": _DENSE,
    "map_impl": _DENSE,
    "scan": _scan,
    BRANCH: _branch,
    LOOP: _ITSELF,
}


def graphs_of(graph_module: GraphModule) -> list[GraphModule]:
    """A graph and all graphs within it."""
    return [module for module in graph_module.modules() if isinstance(module, torch.fx.GraphModule)]


def nodes_within(graph_module: GraphModule) -> Iterator[Node]:
    """The nodes of a graph and of all graphs within it."""
    return (node for module in graphs_of(graph_module) for node in module.graph.nodes)


def functions_called(graph_module: GraphModule) -> dict[FunctionType, None]:
    """Python functions of torch that a graph of Dynamo's calls, and those of their modules that these name.

    Dynamo takes them for operators, and looks into none of them.

    Raises:
        NotPortable: somebody put one where nothing would notice another one.
    """
    found: dict[FunctionType, None] = {}
    waiting: list[Any] = [
        inspect.getattr_static(torch.Tensor, str(node.target), None)
        if node.op == "call_method"
        else node.target
        for node in nodes_within(graph_module)
        if node.op in ("call_method", "call_function")
    ]
    while waiting:
        for function in layers(waiting.pop()):
            is_new = isinstance(function, FunctionType) and function not in found
            if not is_new or not is_pinned_module(globals_module(function)):
                continue
            found[function] = None
            scope, names = function.__globals__, function.__code__.co_names
            named = [scope.get(name) for name in names]
            waiting += [item for item in named if getattr(item, "__globals__", None) is scope]
            for module in named:
                if isinstance(module, ModuleType):
                    waiting += [item for name in names if (item := _own(module, name)) is not None]
            waiting += [cell.cell_contents for cell in function.__closure__ or ()]
    return found


def _own(module: ModuleType, name: str) -> Any:
    """A function of a module's own; None for anything else; raises `NotPortable` for somebody else's."""
    item = vars(module).get(name)
    is_torchs = module.__name__.startswith("torch.") and module.__name__ not in _COMPARED
    if is_torchs and isinstance(item, FunctionType) and not is_pinned_module(globals_module(item)):
        msg = (
            f"{module.__name__}.{name} was replaced in this process, and a change of it could not be "
            "noticed; put it back, or replace the function of torch that calls it"
        )
        raise NotPortable(msg, what=name)
    return item if getattr(item, "__globals__", None) is vars(module) else None


def group_names(graph_module: GraphModule) -> set[str]:
    """Names of the process groups that the collectives of a graph run in."""
    collectives = (node for node in nodes_within(graph_module) if "c10d" in str(node.target))
    names = (argument_of(node.target, node.args, node.kwargs, "group_name") for node in collectives)
    return {str(name) for name in names if name is not None}


@contextlib.contextmanager
def _bodies_inlined(graph_module: GraphModule) -> Iterator[None]:
    """Make the operators of a graph of Dynamo's run their bodies, for as long as this lasts."""
    operators = {node: node.target for node in nodes_within(graph_module) if higher_order_name(node.target)}
    graphs = graphs_of(graph_module)
    modules = [module for module in graphs if not operators.keys().isdisjoint(module.graph.nodes)]
    for node, operator in operators.items():
        node.target = _replacement(node, operator)
    for module in modules:
        module.recompile()
    try:
        yield
    finally:
        for node, operator in operators.items():
            node.target = operator
        for module in modules:
            module.recompile()


def _replacement(node: Node, operator: Any) -> Callable[..., Any]:
    name = higher_order_name(operator)
    lowered = _LOWERED.get(name)
    if lowered is None:
        msg = f"higher-order operator {name} has no portable form:\n{line_of(node)}\n{_REMEDY}"
        raise NotPortable(msg, what=name)
    if lowered == _DENSE:
        lowered = operator.py_kernels[torch._C.DispatchKey.CompositeExplicitAutograd]
    return operator if isinstance(lowered, str) else lowered


def line_of(node: Any) -> str:
    """The user's lines that a node comes from, for a message."""
    return (node.stack_trace or "").strip() or "unknown line"


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
            for memory in storage_ids(node)
        }
        for node in module.graph.nodes:
            is_output = node.op == "output"
            touched = node.all_input_nodes if is_output else nodes_at(node, mutated_arguments(node.target))
            if any(given.intersection(storage_ids(item)) for item in touched):
                msg = (
                    "a branch or loop over data writes to, or returns, a tensor that it is given:\n"
                    f"{line_of(node)}\nReturn a new tensor (clone()), and write it outside."
                )
                raise NotPortable(msg, what=str(node.target))


class TracedInput(Value):
    """One input of the graph: where the frame finds it, and what it is."""

    source: str
    is_tensor: bool
    is_parameter: bool = False
    requires_grad: bool = False


class CapturedCall(Value):
    """A call as Dynamo captured it, for a compiler that takes Dynamo's own graph of torch functions."""

    graph_module: GraphModule  # Dynamo's graph
    example_inputs: tuple[Any, ...]  # the call's own tensors, and symbolic sizes
    frame: CodeType  # the code object that calls the graph
    context: Any  # of the trace; AOTAutograd leaves its findings in it


class LoweredGraph(Value):
    """ATen operators on lifted inputs, with mutations and views in place; no ``captured`` without a call."""

    graph: GraphModule
    inputs: tuple[TracedInput, ...]
    captured: CapturedCall | None = None
    stored: tuple[int, ...] = ()  # outputs that the frame puts into objects from before the call
    replaced: frozenset[str] = frozenset()  # sources that lead to other objects afterwards


def lower(graph_module: GraphModule, decompositions: Mapping[Any, Callable[..., Any]]) -> LoweredGraph:
    """Lower Dynamo's graph to ATen operators, without functionalising (decision 0003).

    Needs the tracing context that the graph was made in.

    Raises:
        NotPortable: something in it has no operators, or is a tensor made of others.
    """
    _refuse_wrappers(graph_module)
    _refuse_replaced(graph_module)
    # meta["grapharg"] has the source as well, but Dynamo drops it when a capture ends.
    given = [
        (source_name(node._dynamo_source), node.meta["example_value"])
        for node in graph_module.graph.nodes
        if node.op == "placeholder"
    ]
    # Detached, because a buffer that a graph with gradients wrote to has a history by now.
    fakes = [value.detach() if isinstance(value, torch.Tensor) else value for _, value in given]
    # Composite operators (``linear``) stay whole, for fewer calls, and eager's kernels; but not within
    # ``torch.func``, and not with autocast, whose casts happen below the level at which they are whole.
    called = [node.target for node in nodes_within(graph_module) if node.op == "call_function"]
    transformed = any(
        "_functorch" in str(getattr(target, "__module__", "")) or higher_order_name(target) in _BATCHED
        for target in called
    )
    casts = any(map(torch.is_autocast_enabled, ("cpu", "cuda"))) or any(
        getattr(target, "__name__", "") in (*_SCOPES, "wrap_with_autocast") for target in called
    )
    whole_composites = not (transformed or casts)
    _rewrite(graph_module, drop_grad_switches=not transformed)
    with torch.no_grad(), fx_traceback.preserve_node_meta(), _bodies_inlined(graph_module):
        graph = graph_of(
            partial(_run, graph_module), fakes, decompositions=decompositions, composites=whole_composites
        )
    inputs = [
        TracedInput(
            source=source,
            is_tensor=isinstance(value, torch.Tensor),
            is_parameter=isinstance(value, torch.nn.Parameter),
            requires_grad=isinstance(value, torch.Tensor) and value.requires_grad,
        )
        for source, value in given
    ]
    return LoweredGraph(graph=graph, inputs=tuple(inputs))


def _run(graph_module: GraphModule, *inputs: Any) -> Any:
    running: list[Node] = []

    class Noting(Interpreter):
        def run_node(self, n: Node) -> Any:
            running[:] = [n]
            before = settings()
            made = super().run_node(n)
            name = getattr(n.target, "__name__", str(n.target))
            if before != settings() and name not in _SCOPES:
                raise NotPortable(f"{name} {SETS_SWITCH}\n{line_of(n)}", what=name)
            return made

    try:
        return Noting(graph_module).run(*inputs)
    except WorkerError:
        raise
    except Exception as error:
        node = running[0]
        msg = (
            f"{node.target} cannot be lowered to operators: {type(error).__name__}: {error}\n"
            f"{line_of(node)}\n{_REMEDY}"
        )
        raise NotPortable(msg, what=str(node.target)) from error


def retrace(lowered: LoweredGraph, fakes: list[Any]) -> LoweredGraph:
    """Trace a changed graph anew, so that every operator has shapes and memory.

    Needs the tracing context that the graph was made in. Raises whatever the graph raises on its inputs.
    """
    num_inputs = sum(node.op == "placeholder" for node in lowered.graph.graph.nodes)
    if num_inputs != len(fakes):
        raise ValueError(f"it has {num_inputs} inputs now, and had {len(fakes)}")
    with operators_as_they_are(), fx_traceback.preserve_node_meta():
        graph = graph_of(Interpreter(lowered.graph).run, fakes, composites=True)
    return LoweredGraph(graph=graph, inputs=lowered.inputs)


@contextlib.contextmanager
def operators_as_they_are() -> Iterator[None]:
    """No autograd, and no autocast: the casts that autocast made are operators of a lowered graph already."""
    with torch.no_grad(), torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
        yield


def graph_of(
    function: Callable[..., Any],
    fakes: Sequence[Any],
    *,
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
    composites: bool = False,
) -> GraphModule:
    """The ATen operators that a function calls for fake inputs, without dead ones; shapes may be symbols.

    With ``composites``, composite operators (``linear``) are kept whole.
    """
    with intercepted(Originals()), losses_as_eager():
        graph: GraphModule = make_fx(
            function,
            decomposition_table=dict(decompositions or {}),
            tracing_mode="symbolic",
            _allow_non_fake_inputs=True,
            pre_dispatch=composites,
        )(*fakes)
    graph.graph.eliminate_dead_code(lambda node: has_effect(node) or may_do_more(node.target))
    return graph


def has_effect(node: Node) -> bool:
    """True if a node is needed though nothing uses it: an operator without results has only its effect."""
    schema = getattr(node.target, "_schema", None)
    return node.is_impure() or (schema is not None and not schema.returns)


def _refuse_wrappers(graph_module: GraphModule) -> None:
    """Refuse tensors that are made of other tensors: ``DTensor``, jagged ones, classes of the user's."""
    for node in nodes_within(graph_module):
        for value in as_list(node.meta.get("example_value")):
            if not is_traceable_wrapper_subclass(value):
                continue
            kind = type(value).__qualname__
            given = node.op == "placeholder" and source_name(node._dynamo_source)  # type: ignore[attr-defined]
            msg = (
                f"{given or node.name} is a {kind}, a tensor made of other tensors, which no artifact can "
                "hold. Take it apart before the call, and hand over the plain tensors (DTensor.to_local(), a "
                f"jagged one's values() and offsets()).\n{'' if given else line_of(node)}"
            )
            raise NotPortable(msg.strip(), what=kind)


def _rewrite(graph_module: GraphModule, *, drop_grad_switches: bool) -> None:
    """Make ``x.data``, a constant for torch, ``x.detach()``; drop ``no_grad()``, which always holds."""
    switches = [node for node in graph_module.graph.nodes if node.target is torch._C._set_grad_enabled]
    if switches and switches[-1].args == (True,):
        msg = f"set_grad_enabled(True) {SETS_SWITCH}\n{line_of(switches[-1])}"
        raise NotPortable(msg, what="set_grad_enabled")
    for module in graphs_of(graph_module):
        for node in list(module.graph.nodes):
            if node.target is torch._C._autograd._get_data_attr:  # type: ignore[attr-defined]
                node.op, node.target = "call_method", "detach"
            elif drop_grad_switches and node.target is torch._C._set_grad_enabled:
                module.graph.erase_node(node)
        module.recompile()


class Originals:
    """Hands modes the functions themselves."""

    @steps_in(f"{_PROXIES}:TorchFunctionMetadataMode", "__torch_function__(func, types, args, kwargs)")
    @steps_in(f"{_PROXIES}:PreDispatchTorchFunctionMode", "__torch_function__(func, types, args, kwargs)")
    def _function(
        self, original: Any, mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return original(mode, _original(func, sys._getframe(2)), types, args, kwargs)


def _refuse_replaced(graph_module: GraphModule) -> None:
    """Refuse methods of tensors that Dynamo looked into and then called by their names, if now somebody's."""
    for node in graph_module.graph.nodes:
        if node.op == "call_method":
            method = inspect.getattr_static(torch.Tensor, node.target, None)
            if _is_users(method):
                raise _refusal(f"torch.Tensor.{node.target}")


def _is_users(function: Any) -> bool:
    """True if somebody else than torch made a function."""
    return is_users_function(function) or isinstance(function, partial)


def _original(function: Any, caller: FrameType) -> Any:
    """The function that hands itself over under a name which leads to ``function`` now."""
    inner = caller.f_back
    if caller.f_code is handle_torch_function.__code__ and inner is not None:
        return _running(function, inner)
    if isinstance(function, _IN_C):
        return function
    patched = getattr(function, "__self__", None)
    patched = patched if isinstance(patched, property) else function
    for name, value in vars(torch.Tensor).items():
        if value is patched and (method := vars(torch._C.TensorBase).get(name)) is not None:
            return method if patched is function else method.__get__
    for module in HOMES_IN_C:
        for name, value in tuple(vars(module).items()):
            if value is function:
                raise _refusal(f"{module.__name__}.{name}")
    return function


def _running(function: Any, frame: FrameType) -> Any:
    """The wrapper that runs in a frame and hands itself over under the name of ``function``."""
    code, scope = frame.f_code, frame.f_globals
    if getattr(function, "__code__", None) is code or not is_pinned_module(scope.get("__name__")):
        return function
    named = vars(torch.Tensor) if code.co_qualname == f"Tensor.{code.co_name}" else scope
    own = named.get(code.co_name)
    if own is function and _is_users(own) and not code.co_freevars:
        return FunctionType(code, scope)
    if _is_users(function) or _is_users(own):
        raise _refusal(f"{scope['__name__']}.{code.co_qualname}")
    return function


def _refusal(name: str) -> NotPortable:
    msg = (
        f"{name} was replaced in this process by a function that calls it, and what it was could not be "
        "found again; put it back, or call yours by a name of its own"
    )
    return NotPortable(msg, what=name)


def source_name(source: Any) -> str:
    """A source's expression; torch up to 2.11 has a method where later releases have a property."""
    name = source.name
    return name() if callable(name) else name  # type: ignore[no-any-return]
