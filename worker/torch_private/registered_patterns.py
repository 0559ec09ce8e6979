"""Fusion patterns that a user registered with TorchAir's ``register_replacement``: state of the process.

What is relied on (torch_npu 2.13, torch 2.11 to 2.13):

* ``<package>.patterns.pattern_pass_manager._global_pattern_pass_manager`` is None, or its ``pass_dict`` is a
  ``PatternMatcherPass``, whose ``patterns`` are lists of entries by the operator that they begin with; the
  entries of an operator are tried in their order;
* an entry's ``pattern`` is what is searched, traced with the example inputs: a tree of ``PatternExpr``, whose
  attributes say all about it; it is searched by that, and by ``search_fn`` again where it might match;
* an entry's ``extra_check`` is the function ``check_fn`` of Inductor's ``register_replacement``, a closure
  over all that it was called with. TorchAir has put a function of its own around the user's ``extra_check``,
  and Inductor one around functions that are methods (``_wrap_bound_method``).
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from worker.code_digests import globals_module
from worker.errors import NotPortable
from worker.reachable import reachable_digest
from worker.values import Value

_OF_THE_VENDOR = ("torch_npu", "torchair", "npugraph_ex")  # the version of torch_npu stands for theirs
_FUNCTIONS = ("search_fn", "replace_fn", "extra_check")
_SETTINGS = ("trace_fn", "scalar_workaround", "search_fn_pattern", "requires_grad")
_DERIVED = ("fns_set", "flatten", "flat_args_kwargs")  # attributes of patterns that repeat others
_MATCHER = "torch._inductor.pattern_matcher"


class RegisteredPattern(Value):
    """One pattern, as text that is equal in every process that registered the same.

    Attributes:
        begins_with: the operator that it is found by; patterns of one operator are tried in their order.
        searched: the traced pattern.
        settings: how it, and what replaces it, is traced.
        functions: digests of what is searched, what replaces it, and the further condition.
    """

    begins_with: str
    searched: str
    settings: str
    functions: tuple[str, ...]


def registered_patterns(package: str) -> list[RegisteredPattern]:
    """The patterns of a package's users, by operator, those of one operator in the order of their turns.

    Args:
        package: ``torchair`` or ``npugraph_ex``.

    Raises:
        NotPortable: a pattern of another make, whose functions cannot be found.
    """
    manager = getattr(
        sys.modules.get(f"{package}.patterns.pattern_pass_manager"), "_global_pattern_pass_manager", None
    )
    if manager is None:
        return []
    turns = {_text(key, {}): entries for key, entries in manager.pass_dict.patterns.items()}
    return [
        pattern
        for begins_with in sorted(turns)
        for entry in turns[begins_with]
        for pattern in _pattern(entry, begins_with, package)
    ]


def is_of_the_vendor(function: Any) -> bool:
    """Whether a function is torch_npu's own; not by its ``__module__``, which ``functools.wraps`` copies."""
    plain = isinstance(function, FunctionType)
    module = globals_module(function) if plain else getattr(function, "__module__", None)
    return str(module).partition(".")[0] in _OF_THE_VENDOR


def _pattern(entry: Any, begins_with: str, package: str) -> Iterator[RegisteredPattern]:
    """None for the vendor's own.

    Raises:
        NotPortable: it is of another make.
    """
    cells = inspect.getclosurevars(entry.extra_check).nonlocals
    if any(name not in cells for name in (*_FUNCTIONS, "trace_fn", "scalar_workaround")):
        msg = (
            f"a fusion pattern is registered with {package} in a way that is not known, so a change "
            "of it could not be noticed; register it with register_replacement, or use engine graph"
        )
        raise NotPortable(msg, what=str(entry))
    if is_of_the_vendor(cells["replace_fn"]):
        return
    around = inspect.getclosurevars(cells["extra_check"]).nonlocals
    condition = around.get("extra_check", cells["extra_check"])
    yield RegisteredPattern(
        begins_with=begins_with,
        searched=_text(entry.pattern, {}),
        settings=" ".join(f"{name}={_text(cells.get(name), {})}" for name in _SETTINGS),
        functions=tuple(map(_digest, (cells["search_fn"], cells["replace_fn"], condition))),
    )


def _digest(function: Any) -> str:
    if isinstance(function, FunctionType) and globals_module(function) == _MATCHER:
        function = inspect.getclosurevars(function).nonlocals.get("fn", function)  # a method
    return reachable_digest(function)


def _text(value: Any, numbers: dict[int, int]) -> str:
    """A part of a pattern; a part that occurs again is told by its number."""
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}({', '.join(_text(item, numbers) for item in value)})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name!r}: {_text(item, numbers)}' for name, item in value.items())}}}"
    if not hasattr(value, "pattern_eq"):
        is_operator = type(value).__module__ == "torch._ops"
        return f"{type(value).__name__} {value}" if is_operator else reachable_digest(value)
    if id(value) in numbers:
        return f"#{numbers[id(value)]}"
    numbers[id(value)] = len(numbers)
    parts = (
        f"{name}={_text(part, numbers)}" for name, part in vars(value).items() if name not in _DERIVED
    )
    return f"{type(value).__name__}({', '.join(parts)})"
