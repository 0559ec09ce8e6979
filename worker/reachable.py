"""Digest of a function that runs while a graph is lowered, so that no tracer notes what it calls and reads.

It covers the function, and, through the names that its code uses, the functions, constants and modules that
it can reach by its globals and closure. An object that it reaches counts with its attributes, and with the
file that defines its class.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import re
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch

from worker.code_digests import function_digest, globals_module, is_pinned_module, stable_text
from worker.sources import file_digest

_DIGEST_CHARS = 32
_ADDRESS = r"\bat 0x[0-9a-f]+"


def reachable_digest(value: Any) -> str:
    """Equal in every process in which ``value`` does the same."""
    texts = "\n".join(_texts(value, set()))
    return hashlib.sha256(texts.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_CHARS]


def _texts(value: Any, seen: set[int]) -> Iterator[str]:
    if isinstance(value, functools.partial):
        yield "partial"
        for part in (value.func, *value.args):
            yield from _texts(part, seen)
        for name, part in sorted(value.keywords.items()):
            yield name
            yield from _texts(part, seen)
    elif isinstance(value, types.MethodType):
        yield from _texts(value.__func__, seen)
        yield from _texts(value.__self__, seen)
    elif isinstance(value, types.FunctionType):
        yield from _function_texts(value, seen)
    elif isinstance(value, types.ModuleType):
        yield from _module_texts(value, seen)
    elif isinstance(value, type):
        yield f"class {value.__module__}.{value.__qualname__}"
        yield from _file_of(value.__module__, seen)
    elif isinstance(value, types.BuiltinFunctionType):
        yield f"builtin {value.__module__}.{value.__qualname__}"
    else:
        yield from _value_texts(value, seen)


def _value_texts(value: Any, seen: set[int]) -> Iterator[str]:
    """Of what is neither a function, nor a class, nor a module."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        yield stable_text(value)
    elif isinstance(value, list | tuple | set | frozenset | dict):
        yield from _container_texts(value, seen)
    else:
        yield stable_text(value)
        yield from _object_texts(value, seen)


def _container_texts(value: Any, seen: set[int]) -> Iterator[str]:
    yield f"{type(value).__name__} of {len(value)}"
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, set | frozenset):
        yield from sorted(text for item in value for text in _texts(item, seen))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(key, seen)
            yield from _texts(item, seen)
    else:
        for item in value:
            yield from _texts(item, seen)


def _object_texts(value: Any, seen: set[int]) -> Iterator[str]:
    """The class's file, and what the object holds, as far as that can be read."""
    kind = type(value)
    yield from _file_of(kind.__module__, seen)
    if id(value) in seen or kind.__module__ in ("torch", "torch._ops"):
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().tolist() if value.device.type != "meta" else list(value.shape)
        yield hashlib.sha256(repr(value).encode()).hexdigest()
        return
    if isinstance(value, logging.Logger):
        return  # its level and handlers change what is told, not what is made
    if hasattr(value, "tobytes"):
        yield hashlib.sha256(value.tobytes()).hexdigest()
    # A text with an address in it differs in every process; such an object tells by its attributes only.
    elif not re.search(_ADDRESS, text := repr(value)):
        yield text
    if not is_pinned_module(kind.__module__) or isinstance(value, torch.nn.Module):
        for name, part in sorted(getattr(value, "__dict__", {}).items()):
            yield name
            yield from _texts(part, seen)
    elif hasattr(value, "__wrapped__"):
        yield from _texts(value.__wrapped__, seen)


def _function_texts(function: types.FunctionType, seen: set[int]) -> Iterator[str]:
    yield f"function {function.__module__}.{function.__qualname__}"
    if is_pinned_module(globals_module(function)) or id(function) in seen:
        return
    seen.add(id(function))
    yield function_digest(function)
    for name in sorted(_names(function.__code__)):
        if name in function.__globals__:
            yield name
            yield from _texts(function.__globals__[name], seen)
    for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield from _texts(default, seen)
    for cell in function.__closure__ or ():
        yield from _texts(_content(cell), seen)


def _names(code: types.CodeType) -> set[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None  # not filled yet


def _module_texts(module: types.ModuleType, seen: set[int]) -> Iterator[str]:
    yield f"module {module.__name__}"
    if not is_pinned_module(module.__name__) and id(module) not in seen:
        seen.add(id(module))
        yield file_digest(module) or "no file"


def _file_of(name: str, seen: set[int]) -> Iterator[str]:
    module = sys.modules.get(name)
    if module is not None:
        yield from _module_texts(module, seen)
