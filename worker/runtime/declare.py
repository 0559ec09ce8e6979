"""Declaring runtime state (`worker.runtime.runtime_state`): which names and values it may have."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import Module

from warmrank.worker.errors import BadRuntimeState
from warmrank.worker.runtime.runtime_state import DECLARED

Scalar = int | float | str | bool | None

MAX_VALUES = 64  # of one module
MAX_NAME_CHARS = 128
MAX_TEXT_CHARS = 512
_SCALARS = (int, float, str, bool, type(None))
_INT_BITS = 64


def declare_runtime_state(module: Module, values: Mapping[str, Scalar]) -> None:
    """Declare values that the graphs of a module's cached functions depend on beside their arguments.

    They count from the next call on: artifacts that were made with other values are not used. Names that
    were declared for the module before keep their value, or take the new one. Declare the same names before
    the first call in every process: a name more or less is a difference too.

    Args:
        module: whose cached functions are concerned, with those of modules within it and around it.
        values: by name, numbers, strings, booleans and None.

    Raises:
        BadRuntimeState: no module, too many values, or a name or value of another kind.
    """
    texts = checked(values)
    _check_module(module)
    with DECLARED.lock:
        alive = [entry for entry in DECLARED.all if entry[0]() is not None]
        before = next((known for owner, known in alive if owner() is module), {})
        after = {**before, **texts}
        if after == before:
            return
        _check_number(len(after))
        others = (entry for entry in alive if entry[0]() is not module)
        DECLARED.all = (*others, (weakref.ref(module), after))
        DECLARED.version += 1


def checked(values: Mapping[str, Scalar]) -> dict[str, str]:
    """The values as text, by name."""
    if not isinstance(values, Mapping):
        msg = f"runtime state is a {type(values).__qualname__}; expected a mapping of names to values"
        raise BadRuntimeState(msg, expected="a mapping", actual=type(values).__qualname__)
    _check_number(len(values))
    return {_checked_name(name): _text(name, value) for name, value in values.items()}


def _check_module(module: Any) -> None:
    if not isinstance(module, torch.nn.Module):
        kind = type(module).__qualname__
        msg = (
            f"runtime state was declared for a {kind}; expected the torch.nn.Module whose cached functions "
            "depend on it, as in warmrank.declare_runtime_state(model, {'kv_cache_blocks': 512})"
        )
        raise BadRuntimeState(msg, expected="torch.nn.Module", actual=kind)


def _check_number(count: int) -> None:
    if count > MAX_VALUES:
        msg = (
            f"{count} values of runtime state for one module, at most {MAX_VALUES}; declare what graphs "
            "depend on only, or one digest of it all as a string"
        )
        raise BadRuntimeState(msg, expected=f"at most {MAX_VALUES}", actual=str(count))


def _checked_name(name: Any) -> str:
    if type(name) is str and name.isidentifier() and name.isascii() and len(name) <= MAX_NAME_CHARS:
        return name
    shown = repr(name)[:MAX_NAME_CHARS]
    msg = f"runtime state has the name {shown}; expected an identifier in ASCII, such as 'kv_cache_blocks'"
    raise BadRuntimeState(msg, expected="an identifier", actual=shown)


def _text(name: str, value: Any) -> str:
    fault = _fault(value)
    if fault:
        msg = f"runtime state {name} {fault}"
        raise BadRuntimeState(msg, name=name, actual=type(value).__qualname__)
    return repr(value)


def _fault(value: Any) -> str:
    if type(value) not in _SCALARS:  # exactly: the repr of a subclass may say less, or other things
        kind = type(value).__qualname__
        return f"is a {kind}; expected int, float, str, bool or None: convert it, as in int(value)"
    if type(value) is int and value.bit_length() > _INT_BITS:
        return f"is an int of {value.bit_length()} bits; expected at most {_INT_BITS}"
    if type(value) is float and not math.isfinite(value):
        return f"is {value!r}; expected a finite number"
    if type(value) is str and len(repr(value)) > MAX_TEXT_CHARS:
        return f"is a string of {len(value)} characters; expected a short one, such as a digest"
    return ""


def conflict(module: Module, name: str, one: str, other: str) -> BadRuntimeState:
    """The error of two declarations that differ."""
    kind = type(module).__qualname__
    msg = (
        f"runtime state {name} is declared as {one} for one module and as {other} for another, and both "
        f"concern the cached functions of {kind}, since one contains the other or {kind} contains both; "
        "declare it for one of them, or give the values names of their own"
    )
    return BadRuntimeState(msg, name=name, expected="one value", actual=f"{one} and {other}")
