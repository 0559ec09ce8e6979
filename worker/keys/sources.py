"""What was traced, as digests of code: comments, file names and line numbers do not count.

A load compares the digest of each traced function with the function that the running process has under the
same name, as ccache's direct mode compares headers. Code of torch and of the standard library is pinned by
the versions in the environment fingerprint instead.

Process safety: pure reads of this process's modules.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import importlib
import inspect
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from warmrank.worker.errors import NotPortable
from warmrank.worker.keys.code import (
    class_digest,
    code_digest,
    digested_codes,
    function_digest,
    globals_module,
    globals_read,
    is_pinned_module,
    joint_digest,
    layers,
    stable_text,
    type_name,
    with_inner,
)
from warmrank.worker.values import Value

__all__ = [
    "TracedSource",
    "class_digest",
    "code_digest",
    "collect",
    "file_digest",
    "function_digest",
    "is_pinned_module",
    "modules_by_file",
    "present_digest",
    "type_name",
]

_DIGEST_CHARS = 32


class TracedSource(Value):
    """One traced piece of source.

    Attributes:
        kind: ``code`` (one function), ``file`` (a module's whole syntax tree, for code that no name leads
            to), ``operator`` (all that one does in Python; an empty digest where that is nothing),
            ``patches`` (what somebody put into a class or module of torch) or ``builtins`` (names that mean
            Python's own as long as the module has none of its own).
        module: module it stands in; of an operator, the one that registers it, empty if there is none.
        name: qualified name within the module; empty for ``file``; the operator's, with its overload; of
            ``builtins``, all of them.
        digest: hex digest; of ``builtins``, those that the module has.
    """

    kind: str
    module: str
    name: str
    digest: str


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
    without_file = []
    for code in codes:
        module = _module_of(code, files)
        if module is not None and is_pinned_module(module.__name__):
            if code in map(_code_of, _functions_by_name(module, code.co_qualname)):
                found.add(_by_name(module, code.co_qualname))
            continue
        source = None if module is None else _of_code(code, module)
        if source is None:
            without_file.append(code)
        else:
            named.append((source, code))
    if without_file:
        covered = {id(code) for value in guarded for code in digested_codes(value)}
        rest = (code for code in without_file if id(code) not in covered)
        named += [(source, code) for code in rest if (source := _of_generated(code)) is not None]
    found.update((source for source, _ in named), _of_builtins(named))
    return tuple(sorted(found, key=lambda source: (source.module, source.name, source.kind)))


def _of_code(code: types.CodeType, module: types.ModuleType) -> TracedSource | None:
    """Code of a module, by its name or by the whole file; None where neither holds it."""
    if code in map(_code_of, _objects_by_name(module, code.co_qualname)):
        return _by_name(module, code.co_qualname)
    digest = file_digest(module)
    if digest is None or code_digest(code) not in _digests_in(Path(module.__file__ or "")):
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
            own = _shadowed(sys.modules[module], text)
            yield TracedSource(kind="builtins", module=module, name=text, digest=own)


def _shadowed(module: types.ModuleType, names: str) -> str:
    return " ".join(name for name in names.split() if name in vars(module))


def _digests_in(file: Path) -> set[str]:
    """Digests of all code in a file: what `exec` made under the file's name is not among them."""
    whole = compile(file.read_bytes(), str(file), "exec", dont_inherit=True)
    return {code_digest(code) for code in with_inner(whole)}


def _by_name(module: types.ModuleType, name: str) -> TracedSource:
    digest = _digest_by_name(module, name)
    assert digest is not None  # noqa: S101 - callers found the code under this name
    return TracedSource(kind="code", module=module.__name__, name=name, digest=digest)


def _of_generated(code: types.CodeType) -> TracedSource | None:
    """Code without a file: of Python itself, made by ``dataclass`` or ``namedtuple`` for a class, or run.

    Raises:
        NotPortable: neither a class nor a module holds it.
    """
    if code.co_filename.startswith("<frozen "):
        return None
    for module in tuple(sys.modules.values()):
        if code in map(_code_of, _objects_by_name(module, code.co_qualname)):
            return None if is_pinned_module(module.__name__) else _by_name(module, code.co_qualname)
        for name, function in _methods_without_file(module):
            if function.__code__ is code:
                return None if is_pinned_module(module.__name__) else _by_name(module, name)
    raise _nowhere(code)


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


def _nowhere(code: types.CodeType) -> NotPortable:
    msg = (
        f"the source of {code.co_qualname} ({code.co_filename}) cannot be found again by a later process, "
        "so a change of it could not be noticed; put it into a module or script file"
    )
    return NotPortable(msg, what=code.co_qualname)


def modules_by_file() -> dict[str, types.ModuleType]:
    """Loaded modules by file; the one that was imported first where several have the same."""
    found: dict[str, types.ModuleType] = {}
    for module in tuple(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str):
            found.setdefault(file, module)
    return found


def _module_of(code: types.CodeType, files: Mapping[str, types.ModuleType]) -> types.ModuleType | None:
    if code.co_filename.startswith("<"):
        return None
    return files.get(code.co_filename) or inspect.getmodule(code)


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
        return _shadowed(module, source.name)
    if source.kind == "file":
        return file_digest(module)
    return _digest_by_name(module, source.name)


def _digest_by_name(module: types.ModuleType, qualname: str) -> str | None:
    """One digest over everything that the name may mean: decorators, and lambdas that share one name."""
    objects = _objects_by_name(module, qualname)
    if not objects:
        return None
    return joint_digest([_digest_of(item, module, qualname) for item in objects])


def _digest_of(item: types.FunctionType | types.CodeType, module: types.ModuleType, qualname: str) -> str:
    """Digest of a function or code; of one of torch or Python, where it was made, defaults say enough."""
    if isinstance(item, types.CodeType):
        return code_digest(item)
    is_where_made = (globals_module(item), item.__code__.co_qualname) == (module.__name__, qualname)
    if is_where_made and is_pinned_module(module.__name__):
        return f"as made, with {stable_text((item.__defaults__, item.__kwdefaults__))}"
    return function_digest(item)


def _code_of(item: types.FunctionType | types.CodeType) -> types.CodeType:
    return item.__code__ if isinstance(item, types.FunctionType) else item


def _objects_by_name(module: types.ModuleType, qualname: str) -> list[types.FunctionType | types.CodeType]:
    """The functions of this name, decorators first, or, below ``<locals>``, the code objects of this name."""
    head, *inner = qualname.split(".<locals>.")
    functions = _functions_by_name(module, head)
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


def _functions_by_name(module: types.ModuleType, qualname: str) -> list[types.FunctionType]:
    value: Any = module
    for part in qualname.split("."):
        try:
            value = inspect.getattr_static(value, part)
        except AttributeError:
            return []
    return [layer for layer in layers(value) if isinstance(layer, types.FunctionType)]


def file_digest(module: types.ModuleType) -> str | None:
    """Digest of a module's whole syntax tree; None if it has no file."""
    file = getattr(module, "__file__", None)
    if not file or not Path(file).is_file():
        return None
    tree = ast.parse(Path(file).read_bytes())
    return hashlib.sha256(ast.dump(tree).encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_CHARS]
