"""What was traced, as digests of code: comments, file names and line numbers do not count.

A load compares the digest of each traced function with the function that the running process has under the
same name, as ccache's direct mode compares headers. Code of torch and of the standard library is pinned by
the versions in the environment fingerprint instead.

Process safety: pure reads of this process's modules.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
import sys
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker.errors import NotPortable

_PINNED = frozenset({"torch", "torch_npu", "torchair", *sys.stdlib_module_names}) - {"__main__"}
_DIGEST_CHARS = 32
_type_names: dict[type, str] = {}
_IGNORED_CLASS_NAMES = frozenset(
    {
        "__dict__",
        "__weakref__",
        "__doc__",
        "__module__",
        "__annotations__",
        "__firstlineno__",
        "__qualname__",
        "__static_attributes__",
        "__parameters__",
        "__orig_bases__",
        "__abstractmethods__",
        "_abc_impl",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedSource:
    """One traced piece of source.

    Attributes:
        kind: ``code`` (one function) or ``file`` (a module's whole syntax tree, for code that no name
            leads to).
        module: module it stands in.
        name: qualified name within the module; empty for ``file``.
        digest: hex digest.
    """

    kind: str
    module: str
    name: str
    digest: str


def is_pinned_module(name: str | None) -> bool:
    """Whether a module's code is fixed by a version in the environment fingerprint."""
    return name is not None and name.partition(".")[0] in _PINNED


def code_digest(code: types.CodeType) -> str:
    """Digest of what a code object does: instructions, names and constants, not where it stands."""
    hasher = hashlib.sha256()
    _feed_code(hasher, code)
    return hasher.hexdigest()[:_DIGEST_CHARS]


def function_digest(function: types.FunctionType) -> str:
    """`code_digest`, and default values, which the code object does not hold."""
    hasher = hashlib.sha256()
    _feed_code(hasher, function.__code__)
    _feed(hasher, *map(_stable_text, function.__defaults__ or ()))
    _feed(
        hasher,
        *(f"{key}={_stable_text(item)}" for key, item in sorted((function.__kwdefaults__ or {}).items())),
    )
    return hasher.hexdigest()[:_DIGEST_CHARS]


def _feed(hasher: Any, *texts: str) -> None:
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        hasher.update(len(data).to_bytes(8, "little"))
        hasher.update(data)


def _feed_code(hasher: Any, code: types.CodeType) -> None:
    hasher.update(code.co_code)
    hasher.update(code.co_exceptiontable)
    _feed(
        hasher,
        code.co_name,
        repr((code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)),
        repr((code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)),
    )
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _feed_code(hasher, constant)
        else:
            _feed(hasher, _stable_text(constant))


def _stable_text(value: object) -> str:
    """A text that is equal in every process for equal constants; for other objects only their type."""
    kind = type(value)
    if kind in (int, float, complex, bool, str, bytes, type(None), type(Ellipsis)):
        return f"{kind.__name__}:{value!r}"
    if isinstance(value, tuple | list):
        return f"{kind.__name__}({','.join(map(_stable_text, value))})"
    if isinstance(value, set | frozenset):
        return f"{kind.__name__}({','.join(sorted(map(_stable_text, value)))})"
    if isinstance(value, dict):
        return f"dict({','.join(f'{_stable_text(key)}:{_stable_text(item)}' for key, item in value.items())})"
    if isinstance(value, types.FunctionType):
        return f"function:{function_digest(value)}"
    if isinstance(value, type):
        return f"class:{value.__module__}.{value.__qualname__}"
    if kind.__module__ == "torch":
        return f"torch:{value}"
    return f"object:{kind.__module__}.{kind.__qualname__}"


def class_digest(cls: type) -> str:
    """Digest of a class's bases and of the names each of them defines.

    A method that is added, removed or overridden changes it; the body of a method that was not traced
    does not.
    """
    hasher = hashlib.sha256()
    for base in cls.__mro__:
        _feed(hasher, base.__module__, base.__qualname__)
        if not is_pinned_module(base.__module__):
            _feed(hasher, *sorted(set(vars(base)) - _IGNORED_CLASS_NAMES))
    return hasher.hexdigest()[:_DIGEST_CHARS]


def type_name(cls: type) -> str:
    """Name of a type for guards: ``module:qualname``, and a class digest where no version pins the class."""
    known = _type_names.get(cls)
    if known is None:
        known = f"{cls.__module__}:{cls.__qualname__}"
        if not is_pinned_module(cls.__module__):
            known = f"{known}#{class_digest(cls)}"
        _type_names[cls] = known
    return known


def collect(codes: Iterable[types.CodeType]) -> tuple[TracedSource, ...]:
    """Digests of all traced code outside torch and the standard library, sorted, each once.

    Raises:
        NotPortable: traced code whose source no later process could find (typed at a prompt, say).
    """
    found = {source for code in codes if (source := _of_code(code)) is not None}
    return tuple(sorted(found, key=lambda source: (source.module, source.name, source.kind)))


def _of_code(code: types.CodeType) -> TracedSource | None:
    module = _module_of(code)
    if module is not None and is_pinned_module(module.__name__):
        return None
    if module is not None:
        digest = _digest_by_name(module, code.co_qualname)
        if digest is not None and code in _codes_by_name(module, code.co_qualname):
            return TracedSource(kind="code", module=module.__name__, name=code.co_qualname, digest=digest)
        digest = _file_digest(module)
        if digest is not None:
            return TracedSource(kind="file", module=module.__name__, name="", digest=digest)
    msg = (
        f"the source of {code.co_qualname} ({code.co_filename}) cannot be found again by a later process, "
        "so a change of it could not be noticed; put it into a module or script file"
    )
    raise NotPortable(msg, what=code.co_qualname)


def _module_of(code: types.CodeType) -> types.ModuleType | None:
    for module in tuple(sys.modules.values()):
        if getattr(module, "__file__", None) == code.co_filename:
            return module
    return inspect.getmodule(code)


def changed(sources: Iterable[TracedSource]) -> Iterator[str]:
    """Readable names of the sources that are no longer what was traced."""
    for source in sources:
        present = _present_digest(source)
        if present is None:
            yield f"source of {source.module}:{source.name} is gone"
        elif present != source.digest:
            yield f"source of {source.module}{':' if source.name else ''}{source.name} changed"


def _present_digest(source: TracedSource) -> str | None:
    module = sys.modules.get(source.module)
    if module is None:
        try:
            module = importlib.import_module(source.module)
        except ImportError:
            return None
    if source.kind == "file":
        return _file_digest(module)
    return _digest_by_name(module, source.name)


def _digest_by_name(module: types.ModuleType, qualname: str) -> str | None:
    """One digest over everything that the name may mean (several lambdas share one name)."""
    objects = _objects_by_name(module, qualname)
    if not objects:
        return None
    digests = [
        function_digest(item) if isinstance(item, types.FunctionType) else code_digest(item)
        for item in objects
    ]
    return (
        digests[0]
        if len(digests) == 1
        else hashlib.sha256("".join(digests).encode()).hexdigest()[:_DIGEST_CHARS]
    )


def _codes_by_name(module: types.ModuleType, qualname: str) -> list[types.CodeType]:
    return [getattr(item, "__code__", item) for item in _objects_by_name(module, qualname)]


def _objects_by_name(module: types.ModuleType, qualname: str) -> list[Any]:
    """The function of this name, or, below ``<locals>``, the code objects of this name."""
    head, *inner = qualname.split(".<locals>.")
    function = _function_by_name(module, head)
    if function is None:
        return []
    if not inner:
        return [function]
    codes = [function.__code__]
    for part in ".".join(inner).replace("<locals>.", "").split("."):
        codes = [
            constant
            for code in codes
            for constant in code.co_consts
            if isinstance(constant, types.CodeType) and constant.co_name == part
        ]
    return codes


def _function_by_name(module: types.ModuleType, qualname: str) -> types.FunctionType | None:
    value: Any = module
    for part in qualname.split("."):
        try:
            value = inspect.getattr_static(value, part)
        except AttributeError:
            return None
    while True:
        if isinstance(value, staticmethod | classmethod):
            value = value.__func__
        elif isinstance(value, property):
            value = value.fget
        elif hasattr(value, "__wrapped__"):
            value = value.__wrapped__
        else:
            return value if isinstance(value, types.FunctionType) else None


def _file_digest(module: types.ModuleType) -> str | None:
    file = getattr(module, "__file__", None)
    if not file or not Path(file).is_file():
        return None
    tree = ast.parse(Path(file).read_bytes())
    return hashlib.sha256(ast.dump(tree).encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_CHARS]
