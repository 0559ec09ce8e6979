"""The sources of an artifact as this process has them: traced code, operators' Python, patches of torch.

A load compares the digest of each traced function with the function that the running process has under the
same name, as ccache's direct mode compares headers. Code of torch and of the standard library is pinned by
the versions in the environment fingerprint instead.

Process safety: pure reads of this process's modules.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import types
import zlib
from collections.abc import Iterable, Iterator
from functools import cache, partial
from operator import itemgetter
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Final

from warmrank.worker.keys.code import (
    code_digest,
    digest_of_texts,
    file_digest,
    function_digest,
    globals_module,
    is_pinned_module,
    joint_digest,
    layers,
    stable_text,
)
from warmrank.worker.runtime.artifact import TracedSource

_DEFAULT_STORAGE: Final = "Storage"  # of the default type, which is a condition of its own


def changed(sources: Iterable[TracedSource]) -> Iterator[str]:
    """Readable names of the sources that are no longer what was traced."""
    for source in sources:
        if source.kind == "operator":
            from warmrank.worker.keys.reachable import changed_operator

            if what := changed_operator(source.name, source.module, source.digest):
                yield what
            continue
        if source.kind == "patches":
            if patches_digest(holder_of(source.module, source.name)) != source.digest:
                where = f"{source.module}.{source.name}".rstrip(".")
                yield f"{where} was patched, or a patch of it changed"
            continue
        present = present_digest(source)
        if present is None:
            yield f"source of {source.module}:{source.name} is gone"
        elif present != source.digest and source.kind == "builtins":
            yield f"{source.module} has globals of its own for other names of Python's than before: {present}"
        elif present != source.digest:
            yield f"source of {source.module}{':' if source.name else ''}{source.name} changed"


def missing_operators(sources: Iterable[TracedSource]) -> Iterator[str]:
    """Import what registers the operators of an artifact; yields a reason for each that is missing."""
    from warmrank.worker.torch_private.operators import missing

    for source in sources:
        if source.kind == "operator" and (absent := missing(source.name, source.module)):
            yield absent


def holder_of(module: str, name: str) -> Any:
    """The class or module of torch that a source of kind ``patches`` is about."""
    holder = importlib.import_module(module)
    return getattr(holder, name) if name else holder


def patches_digest(holder: Any) -> str:
    """Digest of others' functions in a class or module of torch, and of torch's own under other names."""
    found = []
    for name, value in vars(holder).items():
        kind = value.__class__
        if kind is BuiltinFunctionType:  # most are
            own = value.__name__ == name
        elif kind is FunctionType and value.__code__.co_name == name == value.__name__:
            own = str(value.__globals__.get("__name__")).partition(".")[0] == "torch" or _is_own(name, value)
        elif isinstance(value, type):
            own = name in (value.__name__, _DEFAULT_STORAGE)
        else:
            own = kind is ModuleType or _is_own(name, value)
        if not own:
            found.append((name, value))
    patches = [_patch(name, value) for name, value in sorted(found, key=itemgetter(0))]
    if {*map(type, patches)} - {str}:
        from warmrank.worker.keys.reachable import reachable_digest

        return reachable_digest(*patches)
    return digest_of_texts(map(stable_text, patches))


def _is_own(name: str, value: Any) -> bool:
    if name == _DEFAULT_STORAGE:
        return True
    if _is_users(value):
        return False
    if isinstance(value, FunctionType) and value.__code__.co_name not in (name, value.__name__):
        return "<locals>" in value.__code__.co_qualname  # a decorator's
    return getattr(value, "__name__", name) == name or isinstance(value, ModuleType)


def _is_users(value: Any) -> bool:
    if isinstance(value, property):
        value = value.fget
    if isinstance(value, FunctionType):
        return not _is_pinned(globals_module(value))
    return isinstance(value, (partial, MethodType)) or not (  # a union would be made anew each time
        isinstance(value, type) or _is_pinned(type(value).__module__)
    )


@cache
def _is_pinned(module: str | None) -> bool:
    return module == "typing_extensions" or is_pinned_module(module)  # which marks functions as deprecated


def _patch(name: str, value: Any) -> Any:
    """Source of a patch: a name for torch's own functions, else the value, with all that it reaches."""
    if _is_users(value):
        return (name, value)
    code = getattr(value, "__code__", value)
    place = getattr(code, "co_qualname", getattr(value, "__qualname__", ""))
    return f"{name}={getattr(value, '__module__', '')}.{place}"


def shadowed(module: types.ModuleType, names: str) -> str:
    """Names of Python's own, of those given, that a module has globals of its own for."""
    return " ".join(name for name in names.split() if name in vars(module))


def present_digest(source: TracedSource) -> str | None:
    """Digest of what this process has under a source's name; None if there is nothing.

    What a version pins is what it was as long as nobody has imported it.
    """
    module = sys.modules.get(source.module)
    if module is None and is_pinned_module(source.module):
        return source.digest
    if module is None:
        try:
            module = importlib.import_module(source.module)
        except ImportError:
            return None
    if source.kind == "builtins":
        return shadowed(module, source.name)
    if source.kind == "file":
        return file_digest(module)
    return digest_by_name(module, source.name)


def digest_by_name(module: types.ModuleType, qualname: str) -> str | None:
    """One digest over everything that the name may mean: decorators, and lambdas that share one name."""
    objects = objects_by_name(module, qualname)
    if not objects:
        return None
    return joint_digest([_digest_of(item, module, qualname) for item in objects])


def _digest_of(item: types.FunctionType | types.CodeType, module: types.ModuleType, qualname: str) -> str:
    """Digest of a function or code; of one of torch or Python, where it was made, a short one."""
    if isinstance(item, types.CodeType):
        return code_digest(item)
    code = item.__code__
    is_where_made = (globals_module(item), code.co_qualname) == (module.__name__, qualname)
    if is_where_made and is_pinned_module(module.__name__):
        numbers = tuple(value for value in code.co_consts if isinstance(value, int | float))
        values = stable_text((numbers, item.__defaults__, item.__kwdefaults__))
        return f"as made, {zlib.crc32(code.co_code):08x} with {values}"
    return function_digest(item)


def code_of(item: types.FunctionType | types.CodeType) -> types.CodeType:
    """The code of a function, or code itself."""
    return item.__code__ if isinstance(item, types.FunctionType) else item


def objects_by_name(module: types.ModuleType, qualname: str) -> list[types.FunctionType | types.CodeType]:
    """The functions of this name, decorators first, or, below ``<locals>``, the code objects of this name."""
    head, *inner = qualname.split(".<locals>.")
    functions = functions_by_name(module, head)
    if not inner:
        return list(functions)
    codes = [function.__code__ for function in functions]
    for part in ".".join(inner).split("."):
        codes = [
            constant
            for code in codes
            for constant in code.co_consts
            if isinstance(constant, types.CodeType) and constant.co_name == part
        ]
    return list(codes)


def functions_by_name(module: types.ModuleType, qualname: str) -> list[types.FunctionType]:
    """The functions of this name in a module, decorators first."""
    value: Any = module
    for part in qualname.split("."):
        try:
            value = inspect.getattr_static(value, part)
        except AttributeError:
            return []
    return [layer for layer in layers(value) if isinstance(layer, types.FunctionType)]
