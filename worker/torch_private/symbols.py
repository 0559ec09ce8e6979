"""Symbolic sizes of a trace: which symbol stands for which size, and sizes as Python expressions of them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from warmrank.worker.errors import GearError
from warmrank.worker.torch_private.lowering import LoweredGraph, source_name
from warmrank.worker.torch_private.marks import marked_dims, refuse_unbacked, traced_as
from warmrank.worker.torch_private.patching import wrapped
from warmrank.worker.torch_private.source_names import readable

if TYPE_CHECKING:
    from torch.fx import GraphModule

FACTS = {
    "torch._dynamo.variables.builder": "_automatic_dynamic(e, tx, source)",
    "torch._guards": "TracingContext",
    "torch._subclasses.fake_tensor": "FakeTensorMode",
    "torch.fx.experimental.symbolic_shapes": "ConstraintViolationError DimDynamic",
    "torch.fx.experimental.symbolic_shapes:StatelessSymbolicContext": "dynamic_sizes",
    "torch.fx.experimental.symbolic_shapes:ShapeEnv()": "source_to_var specialization_stacks replace",
}

# What is patched here while a trace runs belongs to the whole process.
_LOCK = threading.RLock()

Hints = Iterable[tuple[torch.Tensor, Mapping[int, int]]]


@contextlib.contextmanager
def marks_obeyed(hints: Hints, *, oblivious: bool) -> Iterator[dict[str, torch.Tensor]]:
    """What a trace makes of marks and gears, while the context lasts.

    Args:
        hints: geared tensors, and the size that the trace goes by for each geared dimension. With any, all
            other dimensions that nobody marked as dynamic are static, as in TorchAir.
        oblivious: sizes of 1 are not to be told from others, because 1 is a gear.

    Yields:
        Dynamo's names of the geared tensors; filled while it traces.

    Raises:
        GearError: a tensor is marked as unbacked, or has gears and is no argument of the call; or a dimension
            that is marked as dynamic is a constant in the traced code.
    """
    import torch.fx.experimental._config as shapes_config
    from torch._dynamo.variables import builder
    from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

    hints = tuple(hints)
    refused: list[GearError] = []
    traced: dict[str, torch.Tensor] = {}

    def obeying(original: Callable[..., Any]) -> Callable[..., Any]:
        def _automatic_dynamic(e: Any, tx: Any, source: Any, *args: Any, **kwargs: Any) -> Any:
            name = source_name(source)
            is_base = name.endswith("._base")  # of a view, which has sizes of its own
            _note_gears(e, name, hints, traced, refused, is_base=is_base)
            context = original(e, tx, source, *args, **kwargs)
            if hints and not is_base:
                _make_static(context, marked_dims(e))
            return context

        return _automatic_dynamic

    settings: Any = shapes_config
    with (
        _LOCK,
        traced_as(hints),
        settings.patch(backed_size_oblivious=oblivious),
        wrapped(builder, "_automatic_dynamic", obeying),
    ):
        try:
            yield traced
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


def _note_gears(
    tensor: Any,
    name: str,
    hints: Hints,
    traced: dict[str, torch.Tensor],
    refused: list[GearError],
    *,
    is_base: bool,
) -> None:
    """Notes a geared tensor, or the error to raise later: in here Dynamo would make another one of it."""
    try:
        refuse_unbacked(tensor, name)
    except GearError as error:
        refused.append(error)
    if is_base:
        return
    if any(tensor is geared for geared, _ in hints):
        traced.setdefault(name, tensor)
    elif getattr(tensor, "dim_gears", None):
        msg = f"{readable(name)} has gears, but is no argument of the call; only arguments may have them"
        refused.append(GearError(msg, input=name))


def _make_static(context: Any, keep: frozenset[int]) -> None:
    from torch.fx.experimental.symbolic_shapes import DimDynamic

    sizes = getattr(context, "dynamic_sizes", None)
    if isinstance(sizes, list):
        for dim in range(len(sizes)):
            if dim not in keep:
                sizes[dim] = DimDynamic.STATIC


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
        self._env = next((env for value in self.values if (env := _shape_env(value)) is not None), None)

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
    from torch._guards import TracingContext

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


def _shape_env(value: Any) -> Any:
    if isinstance(value, torch.SymInt):
        return value.node.shape_env
    if isinstance(value, torch.Tensor):
        return next(filter(None, map(_shape_env, value.shape)), None)
    return None


def size_text(value: int | torch.SymInt) -> str:
    """A size as a Python expression of the symbols' names."""
    if isinstance(value, int):
        return str(value)
    from torch.utils._sympy.printers import PythonPrinter

    text: str = PythonPrinter().doprint(value.node.expr)
    return text


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
    from torch._subclasses.fake_tensor import FakeTensorMode

    values = Symbols(lowered).values
    env = next((env for value in values if (env := _shape_env(value)) is not None), None)
    known = (
        {}
        if env is None
        else {symbol: sizes.get(str(symbol), hint) for symbol, hint in env.backed_var_to_val.items()}
    )
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        check = _ShapeCheck(lowered.graph, known)
        try:
            check.run(*(_concrete(value, known) for value in values))
        except _OtherShape as found:
            return str(found)
        except RuntimeError as error:
            return f"an operation that works with it ({error})"
    return ""


class _OtherShape(Exception):
    """Carries a finding out of the interpreter."""


class _ShapeCheck(torch.fx.Interpreter):
    """Runs a graph and compares the shape of each result with the traced one."""

    def __init__(self, graph: GraphModule, known: Mapping[Any, int]) -> None:
        super().__init__(graph)
        self.extra_traceback = False
        self._known = known

    def run_node(self, n: Any) -> Any:
        result = super().run_node(n)
        traced = n.meta.get("val")
        if isinstance(traced, torch.Tensor) and isinstance(result, torch.Tensor):
            wanted = tuple(_size(size, self._known) for size in traced.shape)
            if wanted != tuple(result.shape):
                msg = f"{n.target} to give {list(wanted)}, and it gives {list(result.shape)}"
                raise _OtherShape(msg)
        return result


def _size(size: Any, known: Mapping[Any, int]) -> int:
    return int(size.node.expr.xreplace(dict(known))) if isinstance(size, torch.SymInt) else int(size)


def _concrete(value: Any, known: Mapping[Any, int]) -> Any:
    if isinstance(value, torch.SymInt):
        return _size(value, known)
    if not isinstance(value, torch.Tensor):
        return value
    sizes = [_size(size, known) for size in value.shape]
    strides = [_size(stride, known) for stride in value.stride()]
    return torch.empty_strided(sizes, strides, dtype=value.dtype, device=value.device)
