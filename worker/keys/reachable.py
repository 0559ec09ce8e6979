"""Digest of a function that runs while a graph is lowered, so that no tracer notes what it calls and reads.

It covers the function, and, through the names that its code uses, the functions, classes, constants and
modules that it can reach by its globals, closure, defaults and imports: of a module, the values that its code
names. An object that it reaches counts with its attributes, and with its class.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import hashlib
import importlib
import importlib.util
import logging
import re
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from warmrank.worker.errors import NotPortable
from warmrank.worker.keys.code import (
    content,
    digest_of_texts,
    file_digest,
    file_of,
    function_digest,
    globals_module,
    is_cached_function,
    is_pinned_module,
    layers,
    package_of,
    stable_text,
    with_inner,
)
from warmrank.worker.torch_private import operators

_ADDRESS = r"\bat 0x[0-9a-f]+"
_CONSTANTS = (bool, int, float, complex, str, bytes)
_CONTAINERS = (list, tuple, set, frozenset, dict, deque, types.MappingProxyType)
_MEMBERS_OF_ALL = frozenset({"__dict__", "__weakref__", "__doc__", "__annotations__", "__module__"})


def reachable_digest(*values: Any, of_state: bool = True) -> str:
    """Equal in every process in which the values do the same.

    Args:
        values: functions, mostly.
        of_state: containers and other objects that may change count with what they hold.
    """
    walk = _Walk(of_state=of_state)
    return digest_of_texts(text for value in values for text in walk.texts(value))


def reached(*values: Any, of_state: bool = True) -> list[Any]:
    """The objects of whose content `reachable_digest` tells."""
    walk = _Walk(of_state=of_state)
    deque((text for value in values for text in walk.texts(value)), maxlen=0)
    return walk.reached


def functions_of_file(module: types.ModuleType, file: str) -> list[Any]:
    """Names in the code of a module's file, for functions that no name leads to."""
    try:
        code = compile(Path(file).read_bytes(), file, "exec", dont_inherit=True)
    except OSError:
        return []
    # A function may read any of these; the module's own code only hands them on.
    inner = _names(constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    named = ((name, vars(module)[name]) for name in sorted(_names([code])) if name in vars(module))
    return [
        value
        for name, value in named
        if name in inner or not isinstance(value, torch.nn.Module | torch.Tensor)
    ]


class _Walk:
    """Visits values, each object once."""

    def __init__(self, *, of_state: bool) -> None:
        self._of_state = of_state
        self.reached: list[Any] = []  # whose content is told
        self._seen: dict[int, Any] = {}  # held, or another object might get the identity of one
        self._read: set[tuple[int, frozenset[str]]] = set()

    def _first_time(self, value: Any) -> bool:
        is_new = id(value) not in self._seen
        self._seen[id(value)] = value
        return is_new

    def texts(self, value: Any) -> Iterator[str]:
        if isinstance(value, functools.partial):
            self.reached.append(value)
            yield "partial"
            yield from self._all((value.func, *value.args))
            for name, part in sorted(value.keywords.items()):
                yield name
                yield from self.texts(part)
        elif isinstance(value, types.MethodType):
            yield from self._all((value.__func__, value.__self__))
        elif isinstance(value, types.FunctionType):
            yield from self._function(value)
        elif isinstance(value, types.ModuleType):
            yield from self._module(value)
        elif isinstance(value, type):
            yield from self._class(value)
        elif isinstance(value, types.BuiltinFunctionType):
            yield f"builtin {value.__module__}.{value.__qualname__}"
        elif value is None or isinstance(value, _CONSTANTS):
            yield stable_text(value)
        elif isinstance(value, _CONTAINERS):
            yield from self._container(value)
        else:
            yield stable_text(value)
            yield from self._object(value)

    def _all(self, values: Iterable[Any]) -> Iterator[str]:
        for value in values:
            yield from self.texts(value)

    def _container(self, value: Any) -> Iterator[str]:
        if not self._of_state and not isinstance(value, tuple | frozenset):
            return
        self.reached.append(value)
        yield f"{type(value).__name__} of {len(value)}"
        if not self._first_time(value):
            return
        if isinstance(value, set | frozenset):
            yield from sorted(self._all(value))
        elif isinstance(value, dict | types.MappingProxyType):
            for key, item in value.items():
                yield from self._all((key, item))
        else:
            yield from self._all(value)

    def _object(self, value: Any) -> Iterator[str]:
        """The class, and what the object holds, as far as that can be read."""
        kind = type(value)
        yield from self._class(kind)
        if isinstance(value, torch.Tensor):
            self.reached.append(value)
        if kind.__module__ in ("torch", "torch._ops") or not self._first_time(value):
            return
        if isinstance(value, logging.Logger) or not self._of_state:
            return  # a logger's level and handlers change what is told, not what is made
        if is_cached_function(value):
            return  # what it has loaded changes with each call
        self.reached.append(value)
        if isinstance(value, torch.Tensor):
            held = value.detach().cpu().tolist() if value.device.type != "meta" else list(value.shape)
            yield hashlib.sha256(repr(held).encode()).hexdigest()
            return
        # Looked for in the class: some objects raise when they are asked for what they have not.
        if hasattr(kind, "tobytes"):
            yield hashlib.sha256(value.tobytes()).hexdigest()
        # A text with an address, or of a class that may print a set, differs between processes.
        elif is_fixed(kind.__module__) and not re.search(_ADDRESS, text := repr(value)):
            yield text
        if not is_fixed(kind.__module__) or isinstance(value, torch.nn.Module):
            yield from self._attributes(value)
        elif len(wrapped := [*layers(value)]) > 1:
            yield from self._all(wrapped[1:])

    def _attributes(self, value: Any) -> Iterator[str]:
        for name in sorted({*_slots(type(value)), *getattr(value, "__dict__", ())}):
            try:
                part = object.__getattribute__(value, name)
            except AttributeError:
                continue
            yield name
            yield from self.texts(part)

    def _class(self, cls: type) -> Iterator[str]:
        """Bases, methods, and values of a class that no version pins."""
        self.reached.append(cls)
        yield f"class {cls.__module__}.{cls.__qualname__} {_version(cls.__module__)}"
        if is_fixed(cls.__module__) or not self._first_time(cls):
            return
        yield from self._all(cls.__bases__)
        for name, member in sorted(vars(cls).items()):
            if name not in _MEMBERS_OF_ALL and not isinstance(member, types.GetSetDescriptorType):
                yield name
                functions = [item for item in layers(member) if isinstance(item, types.FunctionType)]
                plain = isinstance(member, (*_CONSTANTS, *_CONTAINERS, type))
                yield from self._all(functions or ([member] if plain else []))
        if (module := sys.modules.get(cls.__module__)) is not None:
            yield from self._module(module)

    def _function(self, function: types.FunctionType) -> Iterator[str]:
        version = _version(globals_module(function) or "")
        yield f"function {function.__module__}.{function.__qualname__} {version}"
        if not self._first_time(function):
            return
        self.reached.append(function)
        cells = [content(cell) for cell in function.__closure__ or ()]
        if is_fixed(globals_module(function)):
            # A wrapper of torch's; what it wraps may be the user's.
            yield from self._all(cell for cell in cells if isinstance(cell, types.FunctionType))
            return
        yield function_digest(function)
        yield from self._named(function.__globals__, names := _names([function.__code__]))
        for module in _imported(function):
            yield from self._of_module(module, names)
        yield from self._all((*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()))
        yield from self._all(cells)

    def _named(self, scope: dict[str, Any], names: frozenset[str]) -> Iterator[str]:
        for name in sorted(names):
            if name in scope:
                yield name
                value = scope[name]
                yield from (
                    self._of_module(value, names)
                    if isinstance(value, types.ModuleType)
                    else self.texts(value)
                )

    def _of_module(self, module: types.ModuleType, names: frozenset[str]) -> Iterator[str]:
        """A module's file, and the present values of what code names in it."""
        yield from self._module(module)
        if not is_fixed(module.__name__) and (id(module), names) not in self._read:
            self._read.add((id(module), names))
            yield from self._named(vars(module), names)

    def _module(self, module: types.ModuleType) -> Iterator[str]:
        self.reached.append(module)
        yield f"module {module.__name__} {_version(module.__name__)}"
        if not is_fixed(module.__name__) and self._first_time(module):
            yield file_digest(module) or "no file"


def is_fixed(name: str | None) -> bool:
    """True if a version fixes a module's code: one in the environment's fingerprint, or its package's own."""
    package = package_of(name or "")
    is_ours = package.startswith("warmrank.") and package != "warmrank.examples"
    # Of ours keys have versions, and it keeps no user's state.
    return is_ours or is_pinned_module(name) or bool(_version(name or ""))


def _version(name: str) -> str:
    """Version of the installed package that a module belongs to; empty for code that was not installed."""
    top = name.partition(".")[0]
    package: Any = sys.modules.get(top)
    parts = Path(file_of(package) or "").parts
    installed = "site-packages" in parts or "dist-packages" in parts
    return f"{top} {package.__version__}" if installed and hasattr(package, "__version__") else ""


def _slots(cls: type) -> Iterator[str]:
    for base in cls.__mro__:
        slots = vars(base).get("__slots__", ())
        yield from (slots,) if isinstance(slots, str) else slots


def _names(codes: Iterable[types.CodeType]) -> frozenset[str]:
    """Names that code and the code within it use."""
    return frozenset(name for code in codes for inner in with_inner(code) for name in inner.co_names)


def _imported(function: types.FunctionType) -> Iterator[types.ModuleType]:
    """Modules that a function imports when it runs."""
    package = function.__globals__.get("__package__") or ""
    for code in with_inner(function.__code__):
        before: list[Any] = []
        for instruction in dis.get_instructions(code):
            if instruction.opname == "IMPORT_NAME":
                level = next((item for item in before[-2:] if isinstance(item, int)), 0)
                with contextlib.suppress(ImportError):
                    name = importlib.util.resolve_name("." * level + instruction.argval, package)
                    yield importlib.import_module(name)
            before.append(instruction.argval)


def operator_digest(name: str, overload: Any) -> str:
    """Digest of what an operator does in Python while a graph is lowered; empty if that is nothing."""
    lowering, body = _code_of(name, overload)
    if not lowering and not body:
        return ""
    # The body runs on the device, where it may keep what it likes from call to call.
    return reachable_digest(*lowering) + reachable_digest(*body, of_state=False)


def reached_by_operator(name: str) -> list[Any]:
    """`reached` of what the digest of an operator is about."""
    lowering, body = _code_of(name, operators.find(name))
    return reached(*lowering) + reached(*body, of_state=False)


def _code_of(name: str, overload: Any) -> tuple[list[Any], list[Any]]:
    """The functions that run while a graph is lowered, and the body, if there is one."""
    lowering: list[Any] = []
    for item in operators.lowering_code(name, overload):
        lowering += [item[0], functions_of_file(*item)] if isinstance(item, tuple) else [item]
    return lowering, [body for body in (operators.body_of(name),) if body is not None]


def changed_operator(name: str, module: str, digest: str) -> str:
    """Change of an operator, which ``module`` registers, since it had a digest; empty if there is none."""
    absent = operators.missing(name, module)
    if absent:
        return absent
    try:
        present = operator_digest(name, operators.find(name))
    except NotPortable:
        present = "nowhere"
    return "" if present == digest else f"operator {name} changed: its code, or a constant that it reads"
