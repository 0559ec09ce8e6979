"""A graph's inputs as plain JSON, symbolic sizes included, and fake tensors made of it again.

An artifact without compiled kernels keeps this, so that another process can compile its graph without Dynamo.

Facts relied upon (tested in ``tests/unit/test_aoti_engine.py`` and ``tests/unit/test_inductor.py``):

* ``ShapeEnv.guards`` holds the conditions on symbols so far, as sympy expressions, and ``var_to_range`` their
  bounds.
* ``PythonPrinter`` writes such an expression as Python, which evaluates to the same over ``SymInt``.
* ``create_symbol`` with a ``ConstantSource`` makes a symbol that no argument of a call stands behind; its
  name is ``s`` and what ``_generate_unique_id`` gives. Which of two equal symbols stands for both, and the
  order of terms, depend on names, so conditions compare only between environments with equal names.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.fx.experimental import _config as shapes_config

from warmrank.worker.errors import NotPortable

if TYPE_CHECKING:
    from torch.fx import GraphModule

FACTS = {
    "torch.fx.experimental.symbolic_shapes:ShapeEnv()": (
        "guards var_to_range backed_var_to_val create_symintnode unique_ids _generate_unique_id(source_name)"
    ),
    "torch.fx.experimental.symbolic_shapes:ShapeEnv": (
        "create_symbol(source, dynamic_dim, do_not_specialize_zero_one, positive)"
    ),
    "torch.fx.experimental.symbolic_shapes": "DimDynamic",
    "torch._dynamo.source": "ConstantSource",
    "torch._subclasses.fake_tensor": "FakeTensorMode(shape_env)",
    "torch.fx.experimental._config": "backed_size_oblivious",
    "torch.utils._sympy.printers": "PythonPrinter",
}

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
    from torch.utils._sympy.printers import PythonPrinter

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
    import re

    if env is None:
        return {}
    names = set(re.findall(r"[A-Za-z_]\w*", str(texts)))
    found = {}
    for symbol, bounds in env.var_to_range.items():
        if str(symbol) in names:
            # Renamed after 2.11.
            hints = env.backed_var_to_val if hasattr(env, "backed_var_to_val") else env.var_to_val
            found[str(symbol)] = [int(hints[symbol]), _bound(bounds.lower), _bound(bounds.upper)]
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
    from torch._dynamo.source import ConstantSource
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import DimDynamic

    env = _environment()
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


def _environment() -> Any:
    """An environment whose symbols are named after their sources, where those are named as symbols are."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    class Named(ShapeEnv):
        def _generate_unique_id(self, source_name: str) -> int:
            number = source_name[1:]
            if not (source_name[:1] == "s" and number.isdecimal() and int(number) not in self.unique_ids):
                return int(super()._generate_unique_id(source_name))
            self.unique_ids.add(int(number))
            return int(number)

    return Named()


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
