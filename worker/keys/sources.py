"""Digests of traced code; comments, file names and line numbers do not count."""

from __future__ import annotations

import builtins
import gc
import inspect
import sys
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from warmrank.worker.errors import NotPortable
from warmrank.worker.keys.code import (
    code_digest,
    digested_functions,
    file_digest,
    functions_by_name,
    globals_module,
    globals_read,
    is_pinned_module,
    layers,
    modules_by_file,
    with_inner,
)
from warmrank.worker.runtime.artifact import TracedSource
from warmrank.worker.runtime.sources import (
    code_of,
    digest_by_name,
    holder_of,
    objects_by_name,
    patches_digest,
    shadowed,
)

# Functions that Dynamo calls, or leaves in its graph, without a look into them.
_PATCHED: Final = (
    ("torch", ""), ("torch", "Tensor"), ("torch.functional", ""), ("torch.nn.functional", ""),
    ("torch._C._nn", ""), ("torch._VF", ""),
)  # fmt: skip


def collect(codes: Iterable[types.CodeType], guarded: Iterable[Any] = ()) -> tuple[TracedSource, ...]:
    """Digests of all traced code, sorted, each once.

    Of torch and the standard library, which versions pin, only what a name leads to: somebody may change it.

    Args:
        codes: what was traced.
        guarded: objects whose class or description is a condition; code without a file that this covers
            (of a cell of a notebook, say) needs no digest of its own.

    Raises:
        NotPortable: traced code that no later process could find.
    """
    files = modules_by_file()
    found: set[TracedSource] = set()
    named: list[tuple[TracedSource, types.CodeType]] = []
    without_file, elsewhere = [], []
    for code in codes:
        module = None
        if not code.co_filename.startswith("<"):
            module = files.get(code.co_filename) or inspect.getmodule(code)
        if module is not None and is_pinned_module(module.__name__):
            if code in map(code_of, functions_by_name(module, code.co_qualname)):
                found.add(_by_name(module, code.co_qualname))
            continue
        source = None if module is None else _of_code(code, module)
        if source is None or source.kind == "file":
            elsewhere.append(code)
        if source is None:
            without_file.append(code)
        else:
            named.append((source, code))
    put = dict(_put_into_torch(code for code in elsewhere))
    found.update(put.values())
    without_file = [code for code in without_file if code not in put]
    if without_file:
        covered = {id(code) for value in guarded for code in digested_codes(value)}
        rest = (code for code in without_file if id(code) not in covered)
        named += [(source, code) for code in rest if (source := _of_generated(code)) is not None]
    found.update((source for source, _ in named), _of_builtins(named))
    return tuple(sorted(found, key=lambda source: (source.module, source.name, source.kind)))


def _put_into_torch(codes: Iterable[types.CodeType]) -> Iterator[tuple[types.CodeType, TracedSource]]:
    """Code that functions of torch or Python were given, and the names of these functions."""
    wanted = list(codes)
    for function in gc.get_referrers(*wanted) if wanted else ():
        name = globals_module(function) if isinstance(function, types.FunctionType) else None
        module = sys.modules.get(name or "")
        if (
            module is not None
            and is_pinned_module(name)
            and function in functions_by_name(module, function.__qualname__)
        ):
            yield function.__code__, _by_name(module, function.__qualname__)


def _of_code(code: types.CodeType, module: types.ModuleType) -> TracedSource | None:
    """Code of a module, by its name or by the whole file; None where neither holds it."""
    if code in map(code_of, objects_by_name(module, code.co_qualname)):
        return _by_name(module, code.co_qualname)
    digest, file = file_digest(module), Path(module.__file__ or "")
    if digest is None:
        return None
    whole = compile(file.read_bytes(), str(file), "exec", dont_inherit=True)
    if code_digest(code) not in map(code_digest, with_inner(whole)):  # `exec` made it under the file's name
        return None
    return TracedSource(kind="file", module=module.__name__, name="", digest=digest)


def _of_builtins(named: Iterable[tuple[TracedSource, types.CodeType]]) -> Iterator[TracedSource]:
    """For each module, the names of Python's own that code of it reads."""
    read: dict[str, set[str]] = {}
    for source, code in named:
        read.setdefault(source.module, set()).update(filter(vars(builtins).__contains__, globals_read(code)))
    for module, names in read.items():
        if names:
            text = " ".join(sorted(names))
            own = shadowed(sys.modules[module], text)
            yield TracedSource(kind="builtins", module=module, name=text, digest=own)


def _by_name(module: types.ModuleType, name: str) -> TracedSource:
    digest = digest_by_name(module, name)
    assert digest is not None  # noqa: S101 - callers found the code under this name
    return TracedSource(kind="code", module=module.__name__, name=name, digest=digest)


def _of_generated(code: types.CodeType) -> TracedSource | None:
    """Code without a file: of Python itself, made by ``dataclass`` or ``namedtuple`` for a class, or run."""
    if code.co_filename.startswith("<frozen "):
        return None
    for module in tuple(sys.modules.values()):
        if code in map(code_of, objects_by_name(module, code.co_qualname)):
            return None if is_pinned_module(module.__name__) else _by_name(module, code.co_qualname)
        for name, function in _methods_without_file(module):
            if function.__code__ is code:
                return None if is_pinned_module(module.__name__) else _by_name(module, name)
    raise NotPortable(
        f"the source of {code.co_qualname} ({code.co_filename}) cannot be found again by a later process, "
        "so a change of it could not be noticed; put it into a module or script file"
    )


def _methods_without_file(module: types.ModuleType) -> Iterator[tuple[str, types.FunctionType]]:
    """Generated methods of a module's classes, with the name that leads to each."""
    classes = [item for item in tuple(vars(module).values()) if _defines(module, item)]
    while classes:
        cls = classes.pop()
        for name, value in tuple(vars(cls).items()):
            if _defines(module, value) and value.__qualname__ == f"{cls.__qualname__}.{name}":
                classes.append(value)
            for layer in layers(value):
                if isinstance(layer, types.FunctionType) and layer.__code__.co_filename.startswith("<"):
                    yield f"{cls.__qualname__}.{name}", layer


def _defines(module: types.ModuleType, value: Any) -> bool:
    # Not isinstance: it asks the value for its __class__, and some modules hold objects that warn then.
    return issubclass(type(value), type) and value.__module__ == module.__name__


def digested_codes(value: Any) -> Iterator[types.CodeType]:
    """Code whose content the name of a value's class, or the description of a function or class, covers."""
    if isinstance(value, types.MethodType):
        value = value.__func__
    if isinstance(value, types.CodeType):
        yield from with_inner(value)
    elif isinstance(value, types.FunctionType):
        if not is_pinned_module(globals_module(value)):
            yield from with_inner(value.__code__)
    else:
        for base in (value if isinstance(value, type) else type(value)).__mro__:
            for function in digested_functions(base):
                yield from with_inner(function.__code__)


def patch_sources() -> tuple[TracedSource, ...]:
    """Digests of patches to the parts of torch that run while a graph is lowered, which no tracer sees."""
    return tuple(
        TracedSource(kind="patches", module=module, name=name, digest=patches_digest(holder_of(module, name)))
        for module, name in _PATCHED
    )
