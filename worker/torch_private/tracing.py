"""One trace of one method by Dynamo: graph, frame, guards and writes, without running it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from worker.code_digests import globals_module, is_pinned_module
from worker.errors import GraphBreak, NotPortable
from worker.torch_private.lowering import LoweredGraph, lower, source_name
from worker.torch_private.shape_lines import ShapeLine, shape_lines
from worker.torch_private.views import views_by_themselves
from worker.values import Value

if TYPE_CHECKING:
    from torch.fx import GraphModule


Built = TypeVar("Built")

# Dynamo's settings, and what is patched here while it traces, belong to the whole process.
_LOCK = threading.RLock()


class TracedWrite(Value):
    """A Python object that the frame writes to, and which of its attributes; none for a container."""

    source: str
    attribute: str


class TracedGuard(Value):
    """One guard as Dynamo made it.

    Attributes:
        kind: Dynamo's name of the guard (``TENSOR_MATCH`` ...).
        source: Python expression over ``L`` and ``G`` for the guarded object; empty for global state.
        has_value: whether the expression has a value (an absent attribute has none).
        value: the guarded object.
        conditions: readable conditions that Dynamo derived.
        details: keyword arguments of the guard (``attr``, ``key``).
        same_as: for ``DUPLICATE_INPUT``, the other expression.
        sizes: traced sizes of a tensor, None for a dynamic dimension.
        strides: likewise.
        stack: the traced code that made Dynamo add the guard, outermost first: file, line, name, text.
    """

    kind: str
    source: str
    has_value: bool
    value: Any
    conditions: tuple[str, ...]
    details: Mapping[str, Any]
    same_as: str = ""
    sizes: tuple[int | None, ...] = ()
    strides: tuple[int | None, ...] = ()
    stack: tuple[tuple[str, int, str, str], ...] = ()


class Trace(Value):
    """All that one trace of one method produced.

    Attributes:
        lowered: the graph.
        frame: the code object that unpacks the arguments, calls the graph, and packs the outputs.
        graph_name: the global name by which ``frame`` calls the graph.
        import_aliases: global name of Dynamo's making, in ``frame`` or in guards -> module to bind it to.
        external_names: every global name that ``frame`` refers to.
        closure: cells for the frame's free variables, or None.
        guards: all guards.
        writes: Python objects that were there before the call and that the frame writes to.
        codes: every code object that was traced.
        trace_s: seconds in Dynamo.
        lower_s: seconds from Dynamo's graph to the ATen graph.
        shape_lines: the lines that conditions on symbolic sizes come from.
    """

    lowered: LoweredGraph
    frame: CodeType
    graph_name: str
    import_aliases: dict[str, str]
    external_names: frozenset[str]
    closure: tuple[Any, ...] | None
    guards: tuple[TracedGuard, ...]
    writes: tuple[TracedWrite, ...]
    codes: tuple[CodeType, ...]
    trace_s: float
    lower_s: float
    shape_lines: tuple[ShapeLine, ...] = ()


def trace(
    method: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    dynamic: bool,
    decompositions: Mapping[Any, Callable[..., Any]],
    build: Callable[[LoweredGraph], Built],
) -> tuple[Trace, Built]:
    """Trace ``method`` without running it: fake tensors, no collective, no accelerator memory.

    Args:
        method: a bound method.
        args: of the call to trace.
        kwargs: likewise.
        dynamic: trace with symbolic sizes.
        decompositions: operator overload -> function that replaces it.
        build: what is made of the graph; it runs before the guards are written, so that conditions which it
            puts on symbolic sizes are among them.

    Raises:
        GraphBreak: the method does not form one whole graph; the message has Dynamo's reason and line.
        NotPortable: it calls a function that Dynamo was told not to look into.
    """
    from time import perf_counter

    from torch._dynamo import convert_frame
    from torch._dynamo.utils import dynamo_timed, get_metrics_context
    from torch._guards import TracingContext, tracing

    with _LOCK, get_metrics_context(), dynamo_timed("warmrank"), _tracing_settings(dynamic):
        started = perf_counter()
        with _absence_guarded(), views_by_themselves(), _noted_writes() as writes:
            captured = _capture(convert_frame, method, args, dict(kwargs))
        backend_input = captured.backend_input
        if backend_input is None:
            name = getattr(method, "__qualname__", repr(method))
            msg = f"{name} holds no tensor operation, so there is no graph; do not hand it to cache_compile"
            raise GraphBreak(msg, function=name, reason="no tensor operation")
        _refuse_unseen(backend_input.graph_module)
        traced = perf_counter()
        context = TracingContext(backend_input.fake_mode)
        context.tensor_to_context = backend_input.tensor_to_context
        with tracing(context):
            lowered = lower(backend_input.graph_module, decompositions)
            lowered_at = perf_counter()
            built = build(lowered)
        output = captured.graph_capture_output
        environment = output.get_runtime_env()
        traced_method = Trace(
            lowered=lowered,
            frame=environment.bytecode,
            graph_name=backend_input.backend_id,
            import_aliases=_modules(method) | environment.import_sources,
            external_names=frozenset(environment.external_refs),
            closure=environment.closure,
            guards=_guards(output, method),
            writes=tuple(writes),
            # By identity: equal code objects may stand in different files.
            codes=tuple({id(code): code for code in output.traced_code}.values()),
            trace_s=traced - started,
            lower_s=lowered_at - traced,
            shape_lines=shape_lines(output.output_graph.shape_env),
        )
        return traced_method, built


def _modules(method: Callable[..., Any]) -> dict[str, str]:
    """Globals that Dynamo made for modules, such as torch where ``type(x)`` leads to it, by name."""
    return {
        name: value.__name__
        for name, value in _function_of(method).__globals__.items()
        if isinstance(value, ModuleType) and name.rpartition("_c")[0].endswith(f"_{id(value)}")
    }


@contextlib.contextmanager
def _tracing_settings(dynamic: bool) -> Iterator[None]:
    """Dynamo's switches for one trace; the caller's grad mode is restored whatever the graph does to it."""
    import torch._dynamo.config as dynamo_config
    import torch.fx.experimental._config as shapes_config
    from torch._dynamo.eval_frame import set_enable_dynamic

    was_enabled = torch.is_grad_enabled()
    # specialize_float: with dynamic shapes a Python float would otherwise restart the analysis out of
    # the capture (TensorifyScalarRestartAnalysis); the float is guarded by value instead.
    # automatic_dynamic_shapes: what was traced before in this process must not change the artifact.
    # use_duck_shape: a batch that happens to be as large as the number of heads would be bound to it.
    settings = dynamo_config.patch(specialize_float=True, automatic_dynamic_shapes=False)
    symbols = shapes_config.patch(use_duck_shape=False)  # type: ignore[attr-defined]
    with settings, symbols, set_enable_dynamic(dynamic):
        try:
            yield
        finally:
            torch.set_grad_enabled(was_enabled)


@contextlib.contextmanager
def _wrapped(
    owner: type, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """Replaces one method of Dynamo's while a trace runs."""
    original = vars(owner)[name]
    setattr(owner, name, wrap(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextlib.contextmanager
def _noted_writes() -> Iterator[dict[TracedWrite, None]]:
    """Fills the mapping it yields, while a trace runs, with the writes of the frame, in their order."""
    from torch._dynamo.side_effects import SideEffects
    from torch._dynamo.variables.base import AttributeMutationNew, ValueMutationNew

    noted: dict[TracedWrite, None] = {}

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def codegen_update_mutated(effects: Any, *args: Any, **kwargs: Any) -> None:
            for variable in effects._get_modified_vars():
                if isinstance(variable.mutation_type, AttributeMutationNew | ValueMutationNew):
                    continue
                local = getattr(variable, "local_name", None)
                source = f"L[{local!r}]" if variable.source is None else source_name(variable.source)
                names = effects.store_attr_mutations.get(variable, {}) if local is None else {}
                noted.update((TracedWrite(source=source, attribute=name), None) for name in names or ("",))
            original(effects, *args, **kwargs)

        return codegen_update_mutated

    with _wrapped(SideEffects, "codegen_update_mutated", wrap):
        yield noted


@contextlib.contextmanager
def _absence_guarded() -> Iterator[None]:
    """Adds the guards that Dynamo leaves out where a missing member ends in an exception that is caught.

    ``os.environ.get("X")`` is such a case, and so is ``try: d["k"] except KeyError``.
    """
    from functools import partial

    from torch._dynamo.exc import ObservedAttributeError, ObservedKeyError
    from torch._dynamo.guards import GuardBuilder, install_guard
    from torch._dynamo.variables import ConstDictVariable, UserDefinedObjectVariable

    def wrap_item(original: Callable[..., Any]) -> Callable[..., Any]:
        def getitem(variable: Any, tx: Any, key: Any) -> Any:
            try:
                return original(variable, tx, key)
            except ObservedKeyError:
                variable.install_dict_contains_guard(tx, [key])
                raise

        return getitem

    def wrap_attribute(original: Callable[..., Any]) -> Callable[..., Any]:
        def var_getattr(variable: Any, tx: Any, name: str) -> Any:
            try:
                return original(variable, tx, name)
            except ObservedAttributeError:
                if variable.source is not None:
                    install_guard(variable.source.make_guard(partial(GuardBuilder.HASATTR, attr=name)))
                raise

        return var_getattr

    with (
        _wrapped(ConstDictVariable, "getitem_const_raise_exception_if_absent", wrap_item),
        _wrapped(UserDefinedObjectVariable, "var_getattr", wrap_attribute),
    ):
        yield


def _refuse_unseen(graph_module: GraphModule) -> None:
    """Refuse ``allow_in_graph`` functions: lowering runs them, so nothing notes what they depend on.

    Raises:
        NotPortable: the graph calls a Python function that is not torch's.
    """
    for node in graph_module.graph.nodes:
        if isinstance(node.target, FunctionType) and not is_pinned_module(globals_module(node.target)):
            name = f"{node.target.__module__}.{node.target.__qualname__}"
            msg = (
                f"{name} is marked allow_in_graph, so a change of what it does could not be noticed; "
                "take the mark away, or make it a custom operator (torch.library.custom_op)"
            )
            raise NotPortable(msg, what=name)


def _capture(
    convert_frame: Any, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    from torch._dynamo.exc import TorchDynamoException, UncapturedHigherOrderOpError, Unsupported, UserError

    name = getattr(method, "__qualname__", repr(method))
    try:
        return convert_frame.fullgraph_capture(method, args, kwargs)
    except (Unsupported, UserError, UncapturedHigherOrderOpError, TorchDynamoException) as error:
        reason = str(error).strip()
        msg = (
            f"{name} does not form one whole graph, which a cached function must:\n{reason}\n"
            "Move what breaks the graph out of the function, or split the function there."
        )
        raise GraphBreak(msg, function=name, reason=reason) from error


def _guards(output: Any, method: Callable[..., Any]) -> tuple[TracedGuard, ...]:
    from torch._dynamo.hooks import Hooks

    seen: list[Any] = []

    def collect(entries: Any) -> list[bool]:
        seen.extend(entries)
        return [False] * len(entries)

    output.build_guards(_function_of(method).__code__, hooks=Hooks(guard_filter_fn=collect), save=False)
    shapes = {
        source_name(source): value
        for source, value in output.output_graph.input_source_to_sizes_strides.items()
    }
    return tuple(_guard(entry, shapes) for entry in seen)


def _function_of(method: Callable[..., Any]) -> Any:
    return getattr(method, "__func__", method)


def _guard(entry: Any, shapes: Mapping[str, Any]) -> TracedGuard:
    original = entry.orig_guard
    source = source_name(original.originating_source) if entry.name else ""
    details = dict(getattr(original.create_fn, "keywords", None) or {})
    other = details.pop("source_b", None)
    details.pop("value", None)
    metadata = shapes.get(source) if entry.guard_type == "TENSOR_MATCH" else None
    return TracedGuard(
        kind=entry.guard_type,
        source=source,
        has_value=entry.has_value,
        value=entry.value if entry.has_value else None,
        conditions=tuple(original.code_list or ()),
        details=details,
        same_as=source_name(other) if other is not None else "",
        sizes=_concrete(metadata["size"]) if metadata else (),
        strides=_concrete(metadata["stride"]) if metadata else (),
        stack=tuple(
            (frame.filename, frame.lineno or 0, frame.name, frame.line or "")
            for frame in original.user_stack or ()
        ),
    )


def _concrete(values: Any) -> tuple[int | None, ...]:
    """Sizes or strides; None only for those that stayed symbols to the end."""
    return tuple(value if isinstance(value, int) else value.node.maybe_as_int() for value in values)
