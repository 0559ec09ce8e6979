"""Symbolic sizes and numbers of a trace: their symbols and conditions.

Relied on: ``ShapeEnv.guards`` holds the conditions on symbols so far, whose ``expr`` is a sympy expression;
``PythonPrinter`` writes one as Python, which evaluates to the same over ``SymInt``.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo.exc import TensorifyScalarRestartAnalysis
from torch._dynamo.symbolic_convert import TensorifyState
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental import _config as shapes_config
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError, DimDynamic
from torch.utils._sympy.printers import PythonPrinter

from warmrank.worker.errors import GearError
from warmrank.worker.torch_private.lowering import LoweredGraph, source_name
from warmrank.worker.torch_private.marks import marked_dims, refuse_unbacked, traced_as
from warmrank.worker.torch_private.operators import readable
from warmrank.worker.torch_private.patching import intercepted, steps_in

if TYPE_CHECKING:
    from torch.fx import GraphModule

# What is patched here while a trace runs belongs to the whole process.
_LOCK = threading.RLock()
Hints = Iterable[tuple[torch.Tensor, Mapping[int, int] | None]]


@contextlib.contextmanager
def marks_obeyed(hints: Hints, *, oblivious: bool) -> Iterator[dict[str, torch.Tensor]]:
    """Context in which a trace obeys marks and gears.

    Args:
        hints: geared tensors, and the size that the trace goes by for each geared dimension; None if they are
            static. With any, all other dimensions that nobody marked as dynamic are static, as in TorchAir.
        oblivious: sizes of 1 are not to be told from others, because 1 is a gear.

    Yields:
        Dynamo's names of the geared tensors; filled while it traces.

    Raises:
        GearError: a tensor is marked as unbacked, or has gears and is no argument of the call; or a dimension
            that is marked as dynamic is a constant in the traced code.
    """
    sizes = _SizeHooks(tuple(hints))
    refused, settings = sizes.refused, shapes_config
    with (
        _LOCK,
        traced_as(sizes.hints),
        settings.patch(backed_size_oblivious=oblivious),  # type: ignore[attr-defined]
        intercepted(sizes),
    ):
        try:
            yield sizes.traced
        except Exception as error:
            if refused:
                raise refused[0] from error
            if isinstance(error, ConstraintViolationError):
                why = readable(str(error))
                msg = f"a dimension that is marked as dynamic is none in the traced code: {why}"
                raise GearError(msg, reason=str(error)) from error
            raise
    if refused:
        raise refused[0]


class _SizeHooks:
    """Steps in where Dynamo decides which sizes of a tensor are symbols."""

    def __init__(self, hints: tuple[tuple[torch.Tensor, Mapping[int, int] | None], ...]) -> None:
        self.hints = hints
        self.traced: dict[str, torch.Tensor] = {}
        self.refused: list[GearError] = []  # to raise later: in here Dynamo would make another error of it

    @steps_in("torch._dynamo.variables.builder", "_automatic_dynamic(e, tx, source)")
    def _decide(self, original: Any, e: Any, tx: Any, source: Any, *args: Any, **more: Any) -> Any:
        name = source_name(source)
        is_base = name.endswith("._base")  # of a view, which has sizes of its own
        try:
            refuse_unbacked(e, name)
        except GearError as error:
            self.refused.append(error)
        if not is_base:
            self._note(e, name)
        context = original(e, tx, source, *args, **more)
        sizes = getattr(context, "dynamic_sizes", None)
        if self.hints and not is_base and isinstance(sizes, list):
            for dim in set(range(len(sizes))) - marked_dims(e):
                sizes[dim] = DimDynamic.STATIC
        return context

    def _note(self, tensor: Any, name: str) -> None:
        if any(tensor is geared for geared, _ in self.hints):
            self.traced.setdefault(name, tensor)
        elif getattr(tensor, "dim_gears", None):
            msg = f"{readable(name)} has gears, but is no argument of the call; only arguments may have them"
            self.refused.append(GearError(msg, input=name))


def make_floats_constants(graph_module: GraphModule) -> None:
    """Let Dynamo trace again with floats, which it made inputs of a graph, as constants that are guarded.

    Raises:
        TensorifyScalarRestartAnalysis: there are such inputs; Dynamo begins again.
    """
    fakes = (node.meta.get("example_value") for node in graph_module.graph.nodes if node.op == "placeholder")
    memos = [memo for fake in fakes if (memo := getattr(fake, "item_memo", None)) is not None]
    for memo in memos:
        TensorifyState.specialize(memo.node._expr.name)
    if memos:
        raise TensorifyScalarRestartAnalysis


def make_static(graph_module: GraphModule, example_inputs: Sequence[Any]) -> None:
    """Make the sizes of a graph's inputs constants that are guarded, but those that are marked as dynamic.

    As TorchAir does for graphs with gears. Needs the tracing context that the graph was made in.
    """
    nodes = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
    for node, example in zip(nodes, example_inputs, strict=True):
        fake = node.meta["example_value"]
        if isinstance(fake, torch.Tensor):
            for dim in set(range(fake.dim())) - marked_dims(example):
                int(fake.shape[dim])


class Symbols:
    """The symbols of one lowered graph."""

    def __init__(self, lowered: LoweredGraph) -> None:
        self.values = [node.meta.get("val") for node in lowered.graph.graph.nodes if node.op == "placeholder"]
        output = next(node for node in lowered.graph.graph.nodes if node.op == "output")
        self.outputs = [getattr(value, "meta", {}).get("val", value) for value in output.args[0]]
        self._env = shape_env_of(self.values)

    def of_size(self, source: str, dim: int) -> str:
        """Name of the symbol that stands for a dimension of an input; empty if its size is a constant."""
        if self._env is None:
            return ""
        symbol = self._env.source_to_var.get(f"{source}.size()[{dim}]")
        return "" if symbol is None else str(symbol)


def refuse_constant(source: str, dim: int, name: str) -> None:
    """Refuse a geared dimension that the traced code made a constant; asked while the trace lasts.

    Raises:
        GearError: it names input and dimension, and where the code fixes the size.
    """
    fake_mode = TracingContext.get().fake_mode
    env = fake_mode.shape_env if fake_mode is not None else None
    symbol = env.source_to_var.get(f"{source}.size()[{dim}]") if env is not None else None
    if env is None or symbol is None or not env.replace(symbol).is_number:
        return
    value = env.replace(symbol)
    stacks = {source_name(item): stack for item, stack in env.specialization_stacks.items()}
    stack = stacks.get(f"{source}.size()[{dim}]")
    where = f"{stack[-1].filename}:{stack[-1].lineno}: {stack[-1].line}" if stack else ""
    msg = (
        f"dimension {dim} of {readable(source)} has gears, but {name} works only for size {value} of it"
        f"{f' ({where})' if where else ''}. Write the code for any size of it (x.size({dim}), -1), or take "
        "the gears away."
    )
    raise GearError(msg, input=source, dim=str(dim), size=str(value), where=where)


def size_text(value: int | torch.SymInt) -> str:
    """A size as a Python expression of the symbols' names."""
    return str(value) if isinstance(value, int) else _python(value.node.expr)


def sizes_of_inputs(graph: GraphModule) -> dict[str, str]:
    """Values of symbols in terms of a graph's inputs: symbol -> Python over the inputs' names."""
    found: dict[str, str] = {}
    for node in graph.graph.nodes:
        value = node.meta.get("val") if node.op == "placeholder" else None
        if isinstance(value, torch.SymInt):
            found.setdefault(str(value.node.expr), node.name)
        for dim, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            found.setdefault(str(size), f"{node.name}.shape[{dim}]")
    return found


def size_of_inputs(size: int | torch.SymInt, known: Mapping[str, str]) -> str:
    """A traced size as Python over the inputs' names; ``None`` where they do not say it."""
    if isinstance(size, int):
        return str(size)
    expression = size.node.expr
    if not {*map(str, expression.free_symbols)} <= known.keys():
        return "None"
    return re.sub(r"\b[a-z]+\d+\b", lambda match: known.get(match[0], match[0]), _python(expression))


def free_symbols(value: Any) -> frozenset[str]:
    """Names of the symbols in a size."""
    return (
        frozenset(map(str, value.node.expr.free_symbols)) if isinstance(value, torch.SymInt) else frozenset()
    )


def other_shape(lowered: LoweredGraph, sizes: Mapping[str, int]) -> str:
    """The first operation whose result has another shape than was traced; empty if there is none.

    Args:
        lowered: the graph; it is run on fake tensors.
        sizes: value of symbols, by name; the others have the sizes that the trace went by.
    """
    values = Symbols(lowered).values
    env = shape_env_of(values)
    hints = {} if env is None else env.backed_var_to_val
    known = {symbol: sizes.get(str(symbol), hint) for symbol, hint in hints.items()}
    found: list[str] = []

    def size(value: Any) -> int:
        return int(value.node.expr.xreplace(known)) if isinstance(value, torch.SymInt) else int(value)

    def concrete(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return size(value) if isinstance(value, torch.SymInt) else value
        layout = [*map(size, value.shape)], [*map(size, value.stride())]
        return torch.empty_strided(*layout, dtype=value.dtype, device=value.device)

    class Compared(torch.fx.Interpreter):
        def run_node(self, n: Any) -> Any:
            result, traced = super().run_node(n), n.meta.get("val")
            if isinstance(traced, torch.Tensor) and isinstance(result, torch.Tensor):
                wanted = [*map(size, traced.shape)]
                if wanted != [*result.shape]:
                    found.append(f"{n.target} to give {wanted}, and it gives {[*result.shape]}")
                    raise RuntimeError
            return result

    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        interpreter = Compared(lowered.graph)
        interpreter.extra_traceback = False
        try:
            interpreter.run(*map(concrete, values))
        except RuntimeError as error:
            return next(iter(found), f"an operation that works with it ({error})")
    return ""


def described(graph: GraphModule) -> list[str]:
    """Inputs of a traced graph, conditions on their symbols and bounds of these, as text for an audit."""
    values = [node.meta.get("val") for node in graph.graph.nodes if node.op == "placeholder"]
    found = [
        f"{value.dtype} {list(value.shape)} {list(value.stride())} {value.device.type}"
        if isinstance(value, torch.Tensor)
        else str(value)
        for value in values
    ]
    env = shape_env_of(values)
    if env is None:
        return found
    found += dict.fromkeys(_python(guard.expr) for guard in env.guards)
    named = set(re.findall(r"[A-Za-z_]\w*", " ".join(found)))
    bounds = {str(symbol): str(bounds) for symbol, bounds in env.var_to_range.items()}
    found += [f"{name} in {bounds[name]}" for name in sorted(named & bounds.keys())]
    return [*found, "oblivious"] if shapes_config.backed_size_oblivious else found


def shape_env_of(values: Iterable[Any]) -> Any:
    """The environment that a graph's symbols belong to; None for a graph without fake tensors and symbols."""
    for value in values:
        if isinstance(value, torch.SymInt):
            return value.node.shape_env
        if hasattr(value, "fake_mode") and value.fake_mode.shape_env is not None:
            return value.fake_mode.shape_env
    return None


def _python(expression: Any) -> str:
    return str(PythonPrinter().doprint(expression))
