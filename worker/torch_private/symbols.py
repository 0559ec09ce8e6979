"""Symbolic sizes of a trace: their symbols and conditions, and inputs as plain JSON and back.

An artifact without compiled kernels keeps the JSON, so that another process can compile its graph without
Dynamo. Relied on (``tests/unit/test_aoti_engine.py``):

* ``ShapeEnv.guards`` holds the conditions on symbols so far, whose ``expr`` is a sympy expression;
  ``var_to_range`` their bounds;
* ``PythonPrinter`` writes an expression as Python, which evaluates to the same over ``SymInt``;
* ``create_symbol`` with a ``ConstantSource`` makes a symbol that no argument of a call stands behind; its
  name is ``s`` and what ``_generate_unique_id`` gives. Which of two equal symbols stands for both, and the
  order of terms, depend on names, so conditions compare only between environments with equal names.
"""

from __future__ import annotations

import contextlib
import math
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo.source import ConstantSource
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental import _config as shapes_config
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError, DimDynamic, ShapeEnv
from torch.utils._sympy.printers import PythonPrinter

from warmrank.worker.errors import GearError, NotPortable
from warmrank.worker.torch_private.lowering import LoweredGraph, source_name
from warmrank.worker.torch_private.marks import marked_dims, refuse_unbacked, traced_as
from warmrank.worker.torch_private.operators import readable
from warmrank.worker.torch_private.patching import hooks_of, intercepted, steps_in

if TYPE_CHECKING:
    from torch.fx import GraphModule

FACTS = {
    "torch._subclasses.fake_tensor": "FakeTensorMode FakeTensorMode(shape_env)",
    "torch.fx.experimental._config": "backed_size_oblivious",
    "torch.fx.experimental.symbolic_shapes:ShapeEnv": (
        "create_symbol(source, dynamic_dim, do_not_specialize_zero_one, positive)"
    ),
    "torch.fx.experimental.symbolic_shapes:ShapeEnv()": (
        "source_to_var specialization_stacks replace guards var_to_range backed_var_to_val "
        "create_symintnode unique_ids _generate_unique_id(source_name)"
    ),
    "torch.fx.experimental.symbolic_shapes:StatelessSymbolicContext": "dynamic_sizes",
}

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
        intercepted(hooks_of(sizes)),
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


_UNBOUNDED = 1 << 60


def describe(graph: GraphModule) -> dict[str, Any]:
    """The inputs of a traced graph: symbols with hint and bounds, conditions on them, and each input.

    Raises:
        NotPortable: an input is no plain tensor and no number.
    """
    values = [node.meta.get("val") for node in graph.graph.nodes if node.op == "placeholder"]
    env = shape_env_of(values)
    inputs = [_described(value) for value in values]
    found = conditions(env)
    described = {"symbols": _symbols(env, [inputs, found]), "conditions": found, "inputs": inputs}
    return described | ({"oblivious": True} if shapes_config.backed_size_oblivious else {})


@contextlib.contextmanager
def as_described(description: Mapping[str, Any]) -> Iterator[None]:
    """Within it, sizes of 0 and 1 are treated as they were where the inputs were described."""
    settings: Any = shapes_config
    with settings.patch(backed_size_oblivious=description.get("oblivious", False)):
        yield


def same_input(description: Mapping[str, Any], position: int) -> int:
    """The first input that has the same value whenever the conditions hold: numbers may come twice."""
    inputs = description["inputs"]
    return int(inputs.index(inputs[position])) if "number" in inputs[position] else position


def shape_env_of(values: Iterable[Any]) -> Any:
    """The environment that a graph's symbols belong to; None for a graph without fake tensors and symbols."""
    for value in values:
        if isinstance(value, torch.SymInt):
            return value.node.shape_env
        if hasattr(value, "fake_mode") and value.fake_mode.shape_env is not None:
            return value.fake_mode.shape_env
    return None


def conditions(env: Any) -> list[str]:
    """Conditions on symbols that were found so far, as Python, each once."""
    if env is None:
        return []
    return list(dict.fromkeys(_python(guard.expr) for guard in env.guards))


def _python(expression: Any) -> str:
    return str(PythonPrinter().doprint(expression))


def _described(value: Any) -> dict[str, Any]:
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.is_quantized:
            msg = f"an input of the graph has layout {value.layout}, which no library can take"
            raise NotPortable(msg, what=str(value.layout))
        return {
            "dtype": str(value.dtype).removeprefix("torch."),
            "device": value.device.type,
            "sizes": [_number(size) for size in value.shape],
            "strides": [_number(stride) for stride in value.stride()],
        }
    return {"number": _number(value)}


def _number(value: Any) -> int | float | bool | str | None:
    if isinstance(value, torch.SymInt):
        known = value.node.maybe_as_int()
        return _python(value.node.expr) if known is None else int(known)
    if value is None or type(value) in (bool, int, float):
        return value  # type: ignore[no-any-return]
    msg = f"an input of the graph is {value!r} ({type(value).__qualname__}), which no artifact can describe"
    raise NotPortable(msg, what=repr(value))


def _symbols(env: Any, texts: Any) -> dict[str, list[int]]:
    """Hint and bounds of the symbols that the texts name."""
    if env is None:
        return {}
    names = set(re.findall(r"[A-Za-z_]\w*", str(texts)))
    found = {}
    for symbol, bounds in env.var_to_range.items():
        if str(symbol) in names:
            found[str(symbol)] = [
                int(env.backed_var_to_val[symbol]),
                _bound(bounds.lower),
                _bound(bounds.upper),
            ]
    return dict(sorted(found.items()))


def _bound(value: Any) -> int:
    """A bound, cut to what a plain integer says."""
    try:
        return max(-_UNBOUNDED, min(_UNBOUNDED, int(value)))
    except (TypeError, ValueError, OverflowError, AttributeError):
        return _UNBOUNDED if value > 0 else -_UNBOUNDED


def rebuild(description: Mapping[str, Any]) -> list[Any]:
    """Inputs as described: fake tensors and symbolic numbers of a new environment.

    Raises:
        NotPortable: the description cannot be read back.
    """
    env = _NamedShapeEnv()
    scope: dict[str, Any] = {"math": math, "torch": torch}
    for name, (hint, lower, upper) in description["symbols"].items():
        source = ConstantSource(name)
        symbol = env.create_symbol(
            hint,
            source=source,
            dynamic_dim=DimDynamic.DYNAMIC,
            do_not_specialize_zero_one=True,
            positive=lower > 0 or None,  # as Dynamo has it, for it decides what is simplified
        )
        number = env.create_symintnode(symbol, hint=hint, source=source)
        scope[name] = number
        if lower > -_UNBOUNDED:
            _hold(number >= lower)
        if upper < _UNBOUNDED:
            _hold(number <= upper)
    try:
        for condition in description["conditions"]:
            _hold(_evaluated(condition, scope))
        mode = FakeTensorMode(shape_env=env)
        return [_rebuilt(item, scope, mode) for item in description["inputs"]]
    except (NameError, SyntaxError, TypeError, RuntimeError, AttributeError) as error:
        msg = f"the inputs of the graph cannot be described for another process: {error}"
        raise NotPortable(msg, what="inputs", reason=str(error)) from error


class _NamedShapeEnv(ShapeEnv):
    """An environment whose symbols are named after their sources, where those are named as symbols are."""

    def _generate_unique_id(self, source_name: str) -> int:
        number = source_name[1:]
        if not (source_name[:1] == "s" and number.isdecimal() and int(number) not in self.unique_ids):
            return int(super()._generate_unique_id(source_name))
        self.unique_ids.add(int(number))
        return int(number)


def _hold(condition: Any) -> None:
    """Make a condition on symbols known: to ask for its truth is to guard on it."""
    if not condition:
        msg = f"the condition {condition} does not hold for the sizes that it was found with"
        raise RuntimeError(msg)


def _rebuilt(item: Mapping[str, Any], scope: Mapping[str, Any], mode: Any) -> Any:
    if "number" in item:
        return _evaluated(item["number"], scope)
    sizes = [_evaluated(size, scope) for size in item["sizes"]]
    strides = [_evaluated(stride, scope) for stride in item["strides"]]
    with mode:
        return torch.empty_strided(sizes, strides, dtype=getattr(torch, item["dtype"]), device=item["device"])


def _evaluated(text: Any, scope: Mapping[str, Any]) -> Any:
    if not isinstance(text, str):
        return text
    # The text stands in an artifact, which is code: its file is private, or was fetched under a signature.
    return eval(text, {"__builtins__": {"max": max, "min": min}}, dict(scope))  # noqa: S307
