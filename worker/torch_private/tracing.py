"""Trace one method by Dynamo without running it: graph, frame, guards, writes and the objects looked at.

Relied on (``tests/unit/test_tracing.py``): ``fullgraph_capture`` traces a bound method to one graph with
all parameters lifted to inputs, and needs a metrics context around it; with ``automatic_dynamic_shapes``
off, earlier traces of the process change nothing. An object that two paths lead to is guarded by the first;
that the second leads to the same object is guarded too, except where one starts from an argument and the
other from a global. ``_get_modified_vars`` and ``store_attr_mutations`` say which objects the frame will
write to.
"""

from __future__ import annotations

import contextlib
import logging
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from time import perf_counter
from types import CodeType, ModuleType, NoneType
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch._dynamo.config as dynamo_config
import torch._functorch.config as functorch_config
import torch._inductor.config as inductor_config
import torch.fx.experimental._config as shapes_config
from torch._dynamo import convert_frame, output_graph
from torch._dynamo.eval_frame import set_enable_dynamic
from torch._dynamo.utils import count_calls, dynamo_timed, get_metrics_context
from torch._guards import TracingContext, tracing
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

from warmrank.worker.errors import NotPortable, WorkerError
from warmrank.worker.keys.code import globals_read
from warmrank.worker.torch_private.arithmetic import Numbers, Rounding, refuse_other_results
from warmrank.worker.torch_private.as_shipped import as_shipped
from warmrank.worker.torch_private.containers import Containers
from warmrank.worker.torch_private.dynamo_guards import GuardTree, TracedGuard, traced_guards
from warmrank.worker.torch_private.evaluated import Evaluations
from warmrank.worker.torch_private.exceptions import Exceptions
from warmrank.worker.torch_private.lifetimes import Lifetimes
from warmrank.worker.torch_private.lowering import (
    CapturedCall,
    LoweredGraph,
    lower,
)
from warmrank.worker.torch_private.patching import intercepted, replaced, steps_in
from warmrank.worker.torch_private.positions import Positions
from warmrank.worker.torch_private.raised import Raising, ShapeNotes, error_of, note_place
from warmrank.worker.torch_private.telling import Telling
from warmrank.worker.torch_private.trace_notes import TracedWrite, TraceNotes, switches_kept
from warmrank.worker.torch_private.tracer_changes import TracerChanges
from warmrank.worker.torch_private.views import ViewsByThemselves
from warmrank.worker.torch_private.warm import REGISTRIES, dict_keys
from warmrank.worker.values import Value

if TYPE_CHECKING:
    from torch.fx import GraphModule


class _Counts(Exception):
    """A trace reads and writes integers that would be constants of it."""

    def __init__(self, sources: frozenset[str]) -> None:
        super().__init__()
        self.sources = sources


Built = TypeVar("Built")
_KEPT_NAMES = re.compile(
    r"^(___|__(builtins_dict|compiled_fn|resume_at_|import_|object_|warmrank_))|_\d+_c\d+$"
)
# Beginnings of names of settings of torch's.
_KEPT_SETTINGS = (
    "capture_", "trace_", "enable_trace_", "allow_", "error_on_",
    "log_", "verbose", "report_", "debug_dir", "extended_debug_",
)  # fmt: skip
_OWN_SETTINGS = ("backed_size_oblivious", "fake_tensor_allow_unsafe_data_ptr_access")
# Dynamo's settings, and what is patched here while it traces, belong to the whole process.
_LOCK = threading.RLock()


class Trace(Value):
    """The product of one trace of one method."""

    lowered: LoweredGraph  # the graph
    frame: CodeType  # the code object that unpacks the arguments, calls the graph, and packs the outputs
    graph_name: str  # the global name by which ``frame`` calls the graph
    # global name of Dynamo's making, in ``frame`` or in guards -> module to bind it to
    import_aliases: dict[str, str]
    made_globals: dict[str, Any]  # global name of Dynamo's making that holds an address -> the object
    external_names: frozenset[str]  # every global name that ``frame`` refers to
    guards: tuple[TracedGuard, ...]  # all guards
    tree: GuardTree  # the tree that Dynamo makes of them
    # Python objects that were there before the call and that the frame writes to
    writes: tuple[TracedWrite, ...]
    evaluated: Evaluations  # facts that the graph relies on and no guard covers
    objects: Mapping[str, Any]  # the Python objects that Dynamo looked at, by the expressions that led there
    codes: tuple[CodeType, ...]  # every code object that was traced
    trace_s: float  # seconds in Dynamo


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

    An integer that the method counts with (``self.seen += n``) is a symbol, as sizes are.

    Args:
        method: a bound method.
        args: of the call to trace.
        kwargs: likewise.
        dynamic: trace with symbolic sizes.
        decompositions: operator overload -> function that replaces it.
        build: what is made of the graph, before the guards are written: its conditions are among them.

    Raises:
        GraphBreak: the method does not form one whole graph; the message has Dynamo's reason and line.
        FunctionRaised: it raises an exception itself, or calls an operator with what does not fit.
        NotPortable: it calls a function that Dynamo was told not to look into.
    """
    name = getattr(method, "__qualname__", None) or repr(method)
    function = getattr(method, "__func__", method)

    def attempt(free: frozenset[str] | None) -> tuple[Trace, Built]:
        """Trace with some integers as symbols; raises `_Counts` for none where the method counts."""
        evaluated = Evaluations()
        with (
            _LOCK,
            get_metrics_context(),
            dynamo_timed("warmrank"),
            _tracing_settings(dynamic),
            evaluated.noted(),
            intercepted(Rounding()),
            switches_kept() as switches,
            _tensors_forgotten(),
        ):
            started = perf_counter()
            notes = TraceNotes(name, evaluated.note, free or (), switches)
            with (
                TracerChanges().made(),
                Telling(name, evaluated.note_call).left_out(),
                ViewsByThemselves().made(),
                intercepted(
                    Containers(),
                    Lifetimes(),
                    Raising(evaluated.note_call),
                    Exceptions(),
                    Positions(),
                    Numbers(),
                    notes,
                ),
                replaced(output_graph, "count_calls", _count_calls),
            ):
                captured = _capture(method, args, dict(kwargs))
            if free is not None and not free and (counters := notes.counters()):
                raise _Counts(counters)
            if evaluated.refused:
                raise NotPortable(evaluated.refused[0], what=evaluated.refused[0].partition(" ")[0])
            given, output = captured.backend_input, captured.graph_capture_output
            _refuse_opaque(given.graph_module)
            refuse_other_results(given.graph_module)
            _refuse_names(output.traced_code)
            trace_s = perf_counter() - started
            environment = output.get_runtime_env()
            context = TracingContext(given.fake_mode)
            context.tensor_to_context = given.tensor_to_context
            with tracing(context), evaluated.lowering():
                call = CapturedCall(
                    graph_module=given.graph_module,
                    example_inputs=tuple(given.example_inputs),
                    frame=environment.bytecode,
                    context=context,
                )
                lowered = lower(given.graph_module, decompositions)
                stored = notes.stored(given.graph_module)
                lowered = replace(lowered, captured=call, stored=stored, replaced=frozenset(notes.replaced))
                # Who makes fake tensors of the inputs anew must not see bases either.
                with ViewsByThemselves().made():
                    built = build(lowered)
            guards, tree = _guards(output, function, name)
            # Globals that Dynamo made and named for the addresses of their objects; some are modules, such as
            # torch where ``type(x)`` leads to it.
            scope = function.__globals__
            made = {k: v for k, v in scope.items() if k.rpartition("_c")[0].endswith(f"_{id(v)}")}
            modules = {name: value.__name__ for name, value in made.items() if isinstance(value, ModuleType)}
            traced = Trace(
                lowered=lowered,
                frame=environment.bytecode,
                graph_name=given.backend_id,
                import_aliases={**modules, **environment.import_sources},
                made_globals=made,
                external_names=frozenset(environment.external_refs),
                guards=guards,
                tree=tree,
                writes=tuple(notes.writes),
                evaluated=evaluated,
                objects=notes.objects,
                # By identity: equal code objects may stand in different files.
                codes=tuple({id(code): code for code in output.traced_code}.values()),
                trace_s=trace_s,
            )
            return traced, built

    if not dynamic:
        return attempt(None)
    try:
        return attempt(frozenset())
    except _Counts as found:
        free = found.sources
    try:
        return attempt(free)
    except WorkerError:  # not all that Python makes of numbers can be made of symbols
        return attempt(None)


def _count_calls(graph: torch.fx.Graph) -> int:
    """Calls of a graph, never 0 of them: a path that only hands arguments on has a graph as well."""
    return max(1, count_calls(graph))


class _Descriptions:
    """Descriptions of tensors of this thread's traces; Dynamo drops them for its own backends only."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self.made: list[Any] = []

    @steps_in("torch._subclasses.meta_utils:MetaTensorDescriber", "__init__")
    def _make(self, original: Any, describer: Any, *args: Any, **kwargs: Any) -> None:
        original(describer, *args, **kwargs)
        if threading.get_ident() == self._thread:
            self.made.append(describer)


@contextlib.contextmanager
def _tensors_forgotten() -> Iterator[None]:
    """Leave no weak references to the caller's tensors: ``swap_tensors`` refuses those that have any.

    Caches of ``ShapeEnv``'s methods keep fake tensors, and all that leads to them, for long.
    """
    descriptions = _Descriptions()
    try:
        with intercepted(descriptions):
            yield
    finally:
        for describer in descriptions.made:
            describer.lookup_tensor.clear()
            describer.lookup_storage.clear()


def _guards(output: Any, function: Any, name: str) -> tuple[tuple[TracedGuard, ...], GuardTree]:
    """Dynamo's guards, and their tree; `NotPortable` where Dynamo cannot look again at an object.

    A `ConstraintViolationError`, for a dimension that is marked as dynamic and a constant, goes to `symbols`.
    """
    try:
        return traced_guards(output, function.__code__)
    except (WorkerError, ConstraintViolationError):
        raise
    except Exception as error:  # the tracer's own are of all kinds
        msg = (
            f"Dynamo cannot write the conditions of {name} ({type(error).__name__}: {error}): it does not "
            "find again what the function reads, as under a key that is NaN, or in `list` of what has no "
            "length; keep it as a plain attribute"
        )
        raise NotPortable(msg, what=name) from error


def _is_kept(name: str, shipped: object) -> bool:
    """True for what lets more be traced or less, for limits and logs, and for what is set around a trace."""
    return (
        name in _OWN_SETTINGS or name.startswith(_KEPT_SETTINGS) or type(shipped) not in (bool, str, NoneType)
    )


@contextlib.contextmanager
def _tracing_settings(dynamic: bool) -> Iterator[None]:
    """Dynamo's switches for one trace; the caller's own are restored whatever the function does to them."""
    was_enabled, default = torch.is_grad_enabled(), torch.get_default_dtype()
    was_cast, is_strict = torch.is_autocast_enabled("cpu"), torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    # specialize_float: with dynamic shapes a Python float would otherwise restart the analysis out of
    # the capture (TensorifyScalarRestartAnalysis); the float is guarded by value instead.
    # automatic_dynamic_shapes: what was traced before in this process must not change the artifact.
    # use_duck_shape: a batch that happens to be as large as the number of heads would be bound to it.
    # allow_rnn: LSTM, GRU and RNN are operators like others here.
    # enable_dynamo_decompositions: those of ``addcdiv_`` round otherwise, and need an operator of Inductor's.
    settings = as_shipped(
        dynamo_config,
        _is_kept,
        specialize_float=True,
        automatic_dynamic_shapes=False,
        allow_rnn=True,
        enable_dynamo_decompositions=False,
    )
    symbols = as_shipped(shapes_config, _is_kept, use_duck_shape=False)
    lowering = as_shipped(functorch_config, _is_kept)
    # Dynamo asks this one, whatever compiles the graph: constants in place of parameters.
    parameters = as_shipped(inductor_config, lambda name, _: name != "freezing")
    # What registries have because this process imported the tracer is hidden.
    hidden = [
        (registry, {kind: registry.pop(kind) for kind in {*registry} - {*dict_keys(registry)}})
        for registry, _ in REGISTRIES
    ]
    try:
        with settings, symbols, lowering, parameters, set_enable_dynamic(dynamic):
            yield
    finally:
        for registry, kinds in hidden:
            registry.update(kinds)
        torch.set_grad_enabled(was_enabled)
        torch.set_default_dtype(default)
        torch.set_autocast_enabled("cpu", was_cast)
        torch.use_deterministic_algorithms(is_strict, warn_only=warns)


def _refuse_opaque(graph_module: GraphModule) -> None:
    """Refuse graphs that ask an object for another one, as ``mesh["tp"]`` does."""
    for node in graph_module.graph.nodes:
        real = getattr(node.meta.get("example_value"), "real_obj", None)
        if node.op == "call_method" and real is not None:
            kind = type(real).__qualname__
            msg = (
                f"the function calls {node.target} for a {kind}, which is compared by its own rules; read "
                "what the function needs of it in __init__ and keep that as attributes"
            )
            raise NotPortable(msg, what=kind)


def _refuse_names(codes: Iterable[CodeType]) -> None:
    """Refuse code whose globals have names that Dynamo, or a frame, gives to globals of its own."""
    for code in codes:
        if not any(map(_KEPT_NAMES.search, code.co_names)):
            continue
        for name in globals_read(code):
            if _KEPT_NAMES.search(name):
                msg = f"{code.co_qualname} reads a global called {name}, a name that frames keep; rename it"
                raise NotPortable(msg, what=name)


def _capture(method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    shapes = ShapeNotes()
    handled = sys.exception()  # the caller's, or that of an earlier attempt
    try:
        with intercepted(shapes), _without_tracebacks():
            return convert_frame.fullgraph_capture(method, args, kwargs)
    except WorkerError as error:
        note_place(method, error)
        raise
    except Exception as error:  # the tracer's own are of all kinds
        raise error_of(method, error, shapes.environments, handled) from error


@contextlib.contextmanager
def _without_tracebacks() -> Iterator[None]:
    """Keep torch from printing a traceback of its own for shapes that do not fit: the error says it."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before = logger.filters[:]
    logger.addFilter(lambda record: record.levelno < logging.ERROR)
    try:
        yield
    finally:
        logger.filters[:] = before
