"""Registrations of TorchAir's users in this process, and wrappers of AOTAutograd that its cache drops.

Relied on (torch_npu 2.13): ``_global_pattern_pass_manager`` is None, or its ``pass_dict`` has lists of
entries by the operator that they begin with, tried in their order. An entry's ``pattern`` is a tree whose
attributes say all about it; its ``extra_check`` is a closure over all that Inductor's
``register_replacement`` was called with, in which TorchAir has put a function around the user's
``extra_check``, and Inductor one around methods. A converter for GE is the attribute ``_ge_converter`` of
its ``OpOverload``, or stands in ``_CONVERTERS``: a function around the user's, its ``__wrapped__``. After
AOTAutograd ran within a `TracingContext`, ``context.fw_metadata`` says what its wrappers do.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from operator import itemgetter
from types import FunctionType
from typing import Any

import torch

from warmrank.worker.errors import NotPortable
from warmrank.worker.keys.code import globals_module

_OF_THE_VENDOR = ("torch_npu", "torchair", "npugraph_ex")  # the version of torch_npu stands for theirs
_FUNCTIONS = ("search_fn", "replace_fn", "extra_check")
_SETTINGS = ("trace_fn", "scalar_workaround", "search_fn_pattern", "requires_grad")
_DERIVED = ("fns_set", "flatten", "flat_args_kwargs")  # attributes of patterns that repeat others
Digest = Callable[[Any], str]
_MATCHER = "torch._inductor.pattern_matcher"


def registered_patterns(package: str, digest: Digest) -> list[str]:
    """The patterns of a package's users, by operator, those of one operator in the order of their turns.

    Each as text that is equal in every process that registered the same: operator that it is found by, the
    traced pattern, how it and what replaces it is traced, digests of its functions. The vendor's own are
    among them where they have their turns before a user's. Those that follow, or are not registered yet, do
    not count: TorchAir appends its own at each compile.

    Raises:
        NotPortable: a pattern of another make, whose functions cannot be found.
    """
    manager = getattr(
        sys.modules.get(f"{package}.patterns.pattern_pass_manager"), "_global_pattern_pass_manager", None
    )
    found: list[str] = []
    turns = () if manager is None else manager.pass_dict.patterns.items()
    named = ((_text(key, {}, digest), entries) for key, entries in turns)
    for begins_with, entries in sorted(named, key=itemgetter(0)):
        made = [_made_with(entry, package) for entry in entries]
        users = [number for number, cells in enumerate(made) if not is_of_the_vendor(cells["replace_fn"])]
        until = users[-1] + 1 if users else 0
        for entry, cells in zip(entries[:until], made[:until], strict=True):
            condition = cells["extra_check"]
            condition = inspect.getclosurevars(condition).nonlocals.get("extra_check", condition)
            parts = [begins_with, _text(entry.pattern, {}, digest)]
            parts += [f"{name}={_text(cells.get(name), {}, digest)}" for name in _SETTINGS]
            for function in (cells["search_fn"], cells["replace_fn"], condition):
                if isinstance(function, FunctionType) and globals_module(function) == _MATCHER:  # of a method
                    function = inspect.getclosurevars(function).nonlocals.get("fn", function)  # noqa: PLW2901
                parts.append(digest(function))
            found.append(repr(parts))
    return found


def is_of_the_vendor(function: Any) -> bool:
    """True if a function is torch_npu's own; not by its ``__module__``, which ``functools.wraps`` copies."""
    plain = isinstance(function, FunctionType)
    module = globals_module(function) if plain else getattr(function, "__module__", None)
    return str(module).partition(".")[0] in _OF_THE_VENDOR


def _made_with(entry: Any, package: str) -> Mapping[str, Any]:
    """Arguments of Inductor's ``register_replacement``; raises `NotPortable` for another make."""
    cells = inspect.getclosurevars(entry.extra_check).nonlocals
    if all(name in cells for name in (*_FUNCTIONS, "trace_fn", "scalar_workaround")):
        return cells
    msg = (
        f"a fusion pattern is registered with {package} in a way that is not known, so a change "
        "of it could not be noticed; register it with register_replacement, or use engine graph"
    )
    raise NotPortable(msg, what=str(entry))


def _text(value: Any, numbers: dict[int, int], digest: Digest) -> str:
    """A part of a pattern; a part that occurs again is told by its number."""
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}({', '.join(_text(item, numbers, digest) for item in value)})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name!r}: {_text(item, numbers, digest)}' for name, item in value.items())}}}"
    if not hasattr(value, "pattern_eq"):
        is_operator = type(value).__module__ == "torch._ops"
        return f"{type(value).__name__} {value}" if is_operator else digest(value)
    if id(value) in numbers:
        return f"#{numbers[id(value)]}"
    numbers[id(value)] = len(numbers)
    parts = (
        f"{name}={_text(part, numbers, digest)}" for name, part in vars(value).items() if name not in _DERIVED
    )
    return f"{type(value).__name__}({', '.join(parts)})"


_REGISTRY = "torchair._ge_concrete_graph.fx2ge_converter"


def registered_converters(digest: Digest) -> list[str]:
    """Operator and digest of each converter that is not torch_npu's own; nothing where TorchAir is not."""
    registry = getattr(sys.modules.get(_REGISTRY), "_CONVERTERS", None)
    if registry is None:
        return []
    found = {operator: around for operator, around in registry.items() if around is not None}
    for namespace in _parts(torch.ops, torch._ops._OpNamespace):
        for packet in _parts(namespace, torch._ops.OpOverloadPacket):
            for operator in _parts(packet, torch._ops.OpOverload):
                if (around := vars(operator).get("_ge_converter")) is not None:
                    found[operator] = around
    users = {
        operator: getattr(around, "__wrapped__", around)  # one layer: a user may wrap the vendor's
        for operator, around in found.items()
    }
    return sorted(
        f"{operator}={digest(function)}"
        for operator, function in users.items()
        if not is_of_the_vendor(function)
    )


def _parts(holder: Any, kind: type) -> list[Any]:
    return [part for part in list(vars(holder).values()) if isinstance(part, kind)]


def left_to_wrappers(context: Any) -> str:
    """Describe what AOTAutograd's wrappers would do after each call; empty for nothing."""
    found = context.fw_metadata
    if found is None:
        return ""
    if found.mutated_inp_runtime_indices:
        return f"{len(found.mutated_inp_runtime_indices)} inputs are written to outside of the graph"
    if found.num_intermediate_bases:
        return f"{found.num_intermediate_bases} outputs are views that are rebuilt after each call"
    if found.tokens:
        return "the graph orders side effects by tokens"
    return ""
