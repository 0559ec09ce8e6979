"""The sources of an artifact as this process has them: traced code, operators' Python, patches of torch.

A load compares the digest of each traced function with the function that the running process has under the
same name, as ccache's direct mode compares headers. Code of torch and of the standard library is pinned by
the versions in the environment fingerprint instead.

Process safety: pure reads of this process's modules.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from types import CodeType, FunctionType, ModuleType
from typing import Any

from warmrank.worker.keys.code import (
    code_digest,
    digest_of_texts,
    file_digest,
    function_digest,
    functions_by_name,
    globals_module,
    is_pinned_module,
    is_users,
    joint_digest,
    layers,
    patches,
    place_of,
    stable_text,
)
from warmrank.worker.runtime.artifact import TracedSource

_patches_digests: ContextVar[dict[Any, str] | None] = ContextVar("patches_digests", default=None)


def changed(sources: Iterable[TracedSource]) -> Iterator[str]:
    """Readable names of the sources that are no longer what was traced."""
    for source in sources:
        if source.kind == "operator":
            from warmrank.worker.keys.reachable import changed_operator

            if what := changed_operator(source.name, source.module, source.digest):
                yield what
            continue
        present = present_digest(source)
        if present == source.digest:
            continue
        if source.kind == "patches":
            where = f"{source.module}.{source.name}".rstrip(".")
            yield f"{where} was patched, or a patch of it changed"
        elif present is None:
            yield f"source of {source.module}:{source.name} is gone"
        elif source.kind == "builtins":
            yield f"{source.module} has globals of its own for other names of Python's than before: {present}"
        else:
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


@contextlib.contextmanager
def patches_looked_at_once() -> Iterator[None]:
    """Look at each class and module of torch once, however many artifacts are checked within."""
    token = _patches_digests.set({})
    try:
        yield
    finally:
        _patches_digests.reset(token)


def patches_digest(holder: Any) -> str:
    """Digest of others' functions in a class or module of torch, and of torch's own under other names."""
    known = _patches_digests.get()
    if known is None:
        return _patches_digest(holder)
    if holder not in known:
        known[holder] = _patches_digest(holder)
    return known[holder]


def _patches_digest(holder: Any) -> str:
    found = patches(holder)
    names = [f"{name}={place_of(value)}" for name, value in found]
    if users := of_users(found):
        from warmrank.worker.keys.reachable import reachable_digest

        return reachable_digest(*names, *users)
    return digest_of_texts(names)


def of_users(found: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Those patches that no version fixes."""
    return [item for item in found if any(map(is_users, layers(item[1])))]


def shadowed(module: ModuleType, names: str) -> str:
    """Names of Python's own, of those given, that a module has globals of its own for."""
    return " ".join(name for name in names.split() if name in vars(module))


def present_digest(source: TracedSource) -> str | None:
    """Digest of what this process has under a source's name; None if there is nothing.

    What a version pins is what it was as long as nobody has imported it.
    """
    if source.kind == "patches":
        return patches_digest(holder_of(source.module, source.name))
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


def digest_by_name(module: ModuleType, qualname: str) -> str | None:
    """One digest over everything that the name may mean: decorators, and lambdas that share one name.

    Of a function of torch or Python, where it was made, a short one.
    """
    digests = []
    for item in objects_by_name(module, qualname):
        if isinstance(item, CodeType):
            digests.append(code_digest(item))
            continue
        code = item.__code__
        is_where_made = (globals_module(item), code.co_qualname) == (module.__name__, qualname)
        if is_where_made and is_pinned_module(module.__name__):
            numbers = tuple([value for value in code.co_consts if isinstance(value, int | float)])
            values = stable_text((numbers, item.__defaults__, item.__kwdefaults__))
            digests.append(f"as made, {zlib.crc32(code.co_code):08x} with {values}")
        else:
            digests.append(function_digest(item))
    return joint_digest(digests) if digests else None


def code_of(item: FunctionType | CodeType) -> CodeType:
    """The code of a function, or code itself."""
    return item.__code__ if isinstance(item, FunctionType) else item


def objects_by_name(module: ModuleType, qualname: str) -> list[FunctionType | CodeType]:
    """The functions of this name, decorators first, or, below ``<locals>``, the code objects of this name."""
    head, *inner = qualname.split(".<locals>.")
    found: list[FunctionType | CodeType] = [*functions_by_name(module, head)]
    for part in ".".join(inner).split(".") if inner else ():
        within = [constant for item in found for constant in code_of(item).co_consts]
        found = [item for item in within if isinstance(item, CodeType) and item.co_name == part]
    return found
