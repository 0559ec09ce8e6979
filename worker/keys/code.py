"""Digests of code objects, functions and classes: equal in every process for what does the same.

Comments, file names, line numbers and annotations do not count. Code of torch and of the standard library is
pinned by the versions in the environment fingerprint, so only what somebody else put into it counts.
"""

from __future__ import annotations

import ast
import contextlib
import dis
import functools
import hashlib
import inspect
import os
import re
import sys
import types
from collections.abc import Iterable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

_CACHED_FUNCTIONS = "warmrank.worker.runtime.function"
_DISTRIBUTIONS = frozenset({"torch", "torch_npu", "torchair"})
_STANDARD_LIBRARY = f"{Path(os.__file__).parent}{os.sep}"
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_DIGEST_CHARS = 32
_type_names: dict[type, str] = {}
_patched: dict[type, bool] | None = None  # within `types_anew`
_IGNORED_CLASS_NAMES = frozenset(
    {"__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__firstlineno__",
     "__qualname__", "__static_attributes__", "__parameters__", "__orig_bases__", "__abstractmethods__",
     "_abc_impl", "__slotnames__"}
)  # fmt: skip
_IMMUTABLE_TYPE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE: nobody can put anything into such a class
# Functions of C, which say their names; and values that are no functions.
_IN_C = frozenset(
    {types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
     types.GetSetDescriptorType, types.MemberDescriptorType}
)  # fmt: skip
_NO_FUNCTIONS = frozenset({str, int, float, bool, type(None), tuple, list, dict, set})
# Whose decorators run a context around a function, such as casts, or code of the user's.
_DECORATORS = frozenset({"contextlib", "torch.amp.autocast_mode", "torch.utils._contextlib"})
_COMPARED_ELSEWHERE = frozenset({"torch", "torch.nn.parameter"})
# Members of ``nn.Module`` that its source gives a second name.
_SECOND_NAMES = frozenset({("forward", "_forward_unimplemented"), ("__call__", "Module._wrapped_call_impl")})
# Class attributes that say how instances are laid out; Dynamo relies on them without a guard.
UNNAMED = "?"  # behind the digest of a class that its name does not lead to
_LAYOUT_NAMES = frozenset({"_fields", "__match_args__", "__slots__"})
_ADDRESSES = re.compile(r"\d{9,}")
_LITERALS = (int, float, complex, bool, str, bytes, type(None), type(Ellipsis))


def is_pinned_module(name: str | None) -> bool:
    """True if a module's code is fixed by a version in the environment fingerprint."""
    if name is None or name == "__main__":
        return False
    top = name.partition(".")[0]
    if top in _DISTRIBUTIONS or top not in sys.stdlib_module_names:
        return top in _DISTRIBUTIONS
    file = file_of(sys.modules.get(top))
    return file is None or _stands_in_python(file)  # not somebody else's file of that name


@functools.cache
def _stands_in_python(file: str) -> bool:
    return file.startswith(_STANDARD_LIBRARY) and _INSTALLED.isdisjoint(Path(file).parts)


def package_of(name: str) -> str:
    """The package that a module is released in; of ours, whose examples are user code, the room as well."""
    top, _, rest = name.partition(".")
    return f"{top}.{rest.partition('.')[0]}" if top == "warmrank" else top


def code_digest(code: types.CodeType) -> str:
    """Digest of what a code object does: instructions, names and constants, not where it stands."""
    hasher = hashlib.sha256()
    _feed_code(hasher, code)
    return hasher.hexdigest()[:_DIGEST_CHARS]


def function_digest(function: types.FunctionType) -> str:
    """`code_digest`, and default values, which the code object does not hold."""
    hasher, named = hashlib.sha256(), function.__kwdefaults__ or {}
    _feed_code(hasher, function.__code__)
    _feed(hasher, map(stable_text, function.__defaults__ or ()))
    given = [name for name in function.__code__.co_varnames if name in named]
    _feed(hasher, (f"{_anywhere(name)}={stable_text(named[name])}" for name in given))
    return hasher.hexdigest()[:_DIGEST_CHARS]


def digest_of_texts(texts: Iterable[str]) -> str:
    """Digest of lines of text."""
    joined = "\n".join(texts).encode("utf-8", "surrogatepass")
    return hashlib.sha256(joined).hexdigest()[:_DIGEST_CHARS]


def joint_digest(digests: list[str]) -> str:
    """One digest for several; that of a single one is its own."""
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("".join(digests).encode()).hexdigest()[:_DIGEST_CHARS]


def _feed(hasher: Any, texts: Iterable[str]) -> None:
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        hasher.update(len(data).to_bytes(8, "little"))
        hasher.update(data)


def _feed_code(hasher: Any, code: types.CodeType) -> None:
    hasher.update(code.co_code)
    hasher.update(code.co_exceptiontable)
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    _feed(hasher, (code.co_name, repr(counts), _anywhere(repr(names))))
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _feed_code(hasher, constant)
        else:
            _feed(hasher, (stable_text(constant),))


def _anywhere(names: str) -> str:
    """Names without the addresses of objects, by which generated code (beartype's) calls them."""
    return _ADDRESSES.sub("#", names)


def stable_text(value: object) -> str:
    """A text that is equal in every process for equal constants; for other objects only their type."""
    kind = type(value)
    if kind in _LITERALS:
        return f"{kind.__name__}:{value!r}"
    if isinstance(value, tuple | list | set | frozenset):
        texts = map(stable_text, value)
        return f"{kind.__name__}({','.join(texts if isinstance(value, tuple | list) else sorted(texts))})"
    if isinstance(value, dict):
        return f"dict({','.join(f'{stable_text(key)}:{stable_text(item)}' for key, item in value.items())})"
    if isinstance(value, slice):
        return f"slice({','.join(map(stable_text, (value.start, value.stop, value.step)))})"
    if isinstance(value, types.FunctionType):
        return f"function:{function_digest(value)}"
    if isinstance(value, type):
        return f"class:{value.__module__}.{value.__qualname__}"
    if kind.__module__ in ("torch", "torch._ops"):
        return f"torch:{value}"
    return f"object:{kind.__module__}.{kind.__qualname__}"


def with_inner(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code object, and those of the functions and classes within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from with_inner(constant)


def globals_read(code: types.CodeType) -> Iterator[str]:
    """Names of globals, or of Python's own, in the order in which code reads them."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield str(instruction.argval)


def layers(value: Any) -> Iterator[Any]:
    """The object that a name is bound to, and all that it wraps, outermost first."""
    seen: set[int] = set()
    while value is not None and id(value) not in seen:
        seen.add(id(value))
        yield value
        if isinstance(value, staticmethod | classmethod):
            value = value.__func__
        elif isinstance(value, property):
            value = value.fget
        elif isinstance(value, functools.cached_property | functools.partialmethod | functools.partial):
            value = value.func
        elif isinstance(value, type):
            return
        else:
            try:
                # Not getattr: some objects (pydantic's stand-ins) raise when asked for anything.
                value = object.__getattribute__(value, "__dict__").get("__wrapped__")
            except AttributeError:
                return


def content(cell: types.CellType) -> Any:
    """The value in a closure's cell; None for one that is not filled yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def globals_module(function: types.FunctionType) -> str | None:
    """The module whose globals a function uses: not `__module__`, which `functools.wraps` copies."""
    name = function.__globals__.get("__name__")
    return name if isinstance(name, str) else None


def _is_ambiguous(function: types.FunctionType) -> bool:
    """True if its name and its file do not tell a function: others have that name, or it is in no file.

    Such as those of a notebook or of `exec`, within functions, and lambdas.
    """
    elsewhere = function.__globals__.get("__file__") != function.__code__.co_filename
    return elsewhere or is_of_replaced_module(function) or not _stands_at_its_name(function)


def _stands_at_its_name(function: types.FunctionType) -> bool:
    """True if the name of a function's code leads to it; a version tells those that it pins."""
    module = globals_module(function)
    return _is_pinned(module) or function in functions_by_name(
        sys.modules.get(module or ""), function.__code__.co_qualname
    )


def functions_by_name(module: types.ModuleType | None, qualname: str) -> list[types.FunctionType]:
    """The functions of this name in a module, decorators first."""
    value: Any = module
    for part in qualname.split("."):
        try:
            value = inspect.getattr_static(value, part)
        except AttributeError:
            return []
    return [layer for layer in layers(value) if isinstance(layer, types.FunctionType)]


def is_of_replaced_module(function: types.FunctionType) -> bool:
    """True if another module has taken the name of a function's own, so nobody finds its globals."""
    module = sys.modules.get(globals_module(function) or "")
    return module is not None and vars(module) is not function.__globals__


def class_digest(cls: type) -> str:
    """Digest of a class's bases, and of those of its metaclass, and of the names that each of them defines.

    A method that is added, removed, overridden, put there from elsewhere, or made a property changes it; the
    body of a method that was not traced does not, unless others may have its name, or it stands in no file.
    """
    hasher = hashlib.sha256()
    for base in digested_bases(cls):
        module = getattr(base, "__module__", "")
        if is_pinned_module(module):
            members = _patched_members(base)
        else:
            own = sorted(vars(base).items())
            members = [_member(base, *item) for item in own if item[0] not in _IGNORED_CLASS_NAMES]
        _feed(hasher, (module, base.__qualname__, *members))
    return hasher.hexdigest()[:_DIGEST_CHARS]


def digested_bases(cls: type) -> Iterator[type]:
    """The classes that a class's digest tells of: its bases, and those of a metaclass of the user's."""
    metaclass: type = type(cls)
    yield from cls.__mro__
    if not is_pinned_module(metaclass.__module__):
        yield from metaclass.__mro__


def digested_functions(cls: type) -> Iterator[types.FunctionType]:
    """Functions of a class's own that a digest holds with code and default values, not by name alone."""
    pinned = is_pinned_module(getattr(cls, "__module__", ""))
    if cls.__flags__ & _IMMUTABLE_TYPE:
        return
    for _, value in patches(cls) if pinned else tuple(vars(cls).items()):
        functions = (layer for layer in layers(value) if isinstance(layer, types.FunctionType))
        yield from filter(is_users_function if pinned else _is_ambiguous, functions)


def patches(holder: Any) -> list[tuple[str, Any]]:
    """Others' functions in a class or module that a version pins, and its own under other names, by name."""
    if isinstance(holder, type) and holder.__flags__ & _IMMUTABLE_TYPE:
        return []
    prefix = f"{holder.__qualname__}." if isinstance(holder, type) else ""
    found = []
    for name, value in tuple(vars(holder).items()):  # to which another thread may import more
        kind = value.__class__
        if kind is types.BuiltinFunctionType or kind in _IN_C:  # most are
            own = value.__name__ == name
        elif kind in _NO_FUNCTIONS:
            continue
        elif kind is types.FunctionType and value.__code__.co_qualname == prefix + name:
            own = str(value.__globals__.get("__name__")).startswith("torch.") or not is_users(value)
        elif isinstance(value, type):
            own = name in (value.__name__, "Storage")  # of the default type, which is a condition of its own
        else:
            is_constant = isinstance(value, types.ModuleType) or kind.__module__ == "torch"  # such as dtypes
            own = is_constant or _stands_there(holder, name, value, prefix + name)
        if not own:
            found.append((name, value))
    return sorted(found, key=itemgetter(0))


def _stands_there(holder: Any, name: str, value: Any, place: str) -> bool:
    """True if a source has a value under this name; or a decorator, torch or torch_npu put it there."""
    found = list(layers(value))
    if any(is_users(layer) or _runs_context(layer) for layer in found):
        return False
    if isinstance(found[-1], types.FunctionType):
        qualname, module = found[-1].__code__.co_qualname, globals_module(found[-1]) or ""
        elsewhere = isinstance(holder, type) and package_of(module) != package_of(holder.__module__)
        return qualname == place or "<locals>" in qualname or elsewhere or (name, qualname) in _SECOND_NAMES
    return bool(getattr(value, "__name__", name) == name)


def _runs_context(layer: Any) -> bool:
    return isinstance(layer, types.FunctionType) and globals_module(layer) in _DECORATORS


def is_users(value: Any) -> bool:
    """True for a function that no version fixes, and for what only somebody else puts into torch."""
    if isinstance(value, types.FunctionType):
        return not _is_pinned(globals_module(value))
    return isinstance(value, (functools.partial, types.MethodType)) or not (  # no unions: each made anew
        isinstance(value, type) or _is_pinned(type(value).__module__)
    )


@functools.cache
def _is_pinned(module: str | None) -> bool:
    return module == "typing_extensions" or is_pinned_module(module)  # which marks functions as deprecated


def _member(cls: type, name: str, value: Any) -> str:
    """A name that a class defines, with what its value is where that is part of the class's form."""
    if name in _LAYOUT_NAMES:
        return f"{name}={stable_text(value)}"
    if name == "__dataclass_fields__":  # without annotations, which change nothing
        # All as stable texts: kw_only may be dataclasses.MISSING, whose own text holds its address.
        own = getattr(cls, name).values()  # as `worker.values` makes them, when it is asked
        fields = ((f.name, f.default, f.default_factory, f.init, f.kw_only) for f in own)
        return f"{name}={';'.join(','.join((known, *map(stable_text, rest))) for known, *rest in fields)}"
    if isinstance(value, type):
        return f"{name}={value.__module__}.{value.__qualname__}"
    found = list(layers(value))
    if not (found and isinstance(found[-1], types.FunctionType)):
        return name
    names, own = [], f"{cls.__module__}.{cls.__qualname__}.{name}"
    for layer in found:
        if isinstance(layer, types.FunctionType):
            body = f"#{function_digest(layer)}" if _is_ambiguous(layer) else ""
            place = f"{layer.__module__}.{layer.__qualname__}"
            names.append(f"{'' if place == own else place}{body}")
        else:
            names.append(type(layer).__qualname__)
    return name if names == [""] else f"{name}={'<'.join(names)}"


def _patched_members(cls: type) -> list[str]:
    """Members that somebody put into a class of torch or Python: functions with digests, others by name."""
    found = []
    for name, value in patches(cls):
        users = [
            f"{layer.__module__}.{layer.__qualname__}#{function_digest(layer)}"
            for layer in layers(value)
            if is_users_function(layer)
        ]
        if users or cls.__module__ not in _COMPARED_ELSEWHERE:
            found.append(f"{name}={'<'.join(users) or place_of(value)}")
    return found


def place_of(value: Any) -> str:
    """Name of the place where a function stands."""
    code = getattr(value, "__code__", value)
    place = getattr(code, "co_qualname", getattr(value, "__qualname__", type(value).__qualname__))
    return f"{getattr(value, '__module__', '')}.{place}"


def is_cached_function(value: Any) -> bool:
    """True for a `CachedFunction`, by a module that need not be there."""
    return isinstance(value, getattr(sys.modules.get(_CACHED_FUNCTIONS), "CachedFunction", ()))


def is_users_function(value: Any) -> bool:
    """True for a function in Python that no version in the environment fingerprint fixes."""
    return isinstance(value, types.FunctionType) and not is_pinned_module(globals_module(value))


def is_found_by_name(value: Any) -> bool:
    """True if a function or class is the only one of its name: what its module has under that."""
    if "<" in value.__qualname__:  # made by a call, or without a name
        return False
    found: Any = sys.modules.get(value.__module__)
    for part in value.__qualname__.split("."):
        found = inspect.getattr_static(found, part, None)
    return found is value or getattr(found, "__func__", None) is value


def type_name(cls: type) -> str:
    """Name of a type for guards: ``module:qualname``, and a class digest where no version pins the class.

    A class that its name does not lead to, of which there may be several, is told from one that it does.
    """
    names = _type_names  # what another thread forgets meanwhile gets no name of before
    known = names.get(cls)
    if known is None:
        module = getattr(cls, "__module__", "")  # one made in a namespace without __name__ has none
        known = f"{module}:{cls.__qualname__}"
        # Patches of torch.Tensor are a source of their own, see `worker.runtime.sources`.
        if not is_pinned_module(module) or any(
            _is_patched(base) for base in cls.__mro__ if base.__module__ != "torch"
        ):
            known = f"{known}#{class_digest(cls)}{'' if is_found_by_name(cls) else UNNAMED}"
        names[cls] = known
    return known


def _is_patched(cls: type) -> bool:
    known = _patched  # another thread may take it away
    if known is None:
        return bool(_patched_members(cls))
    if cls not in known:
        known[cls] = bool(_patched_members(cls))
    return known[cls]


@contextlib.contextmanager
def types_anew() -> Iterator[None]:
    """Compute the names of layers anew, looking at each class once within."""
    global _patched  # noqa: PLW0603
    forget_types()
    _patched = {}
    try:
        yield
    finally:
        _patched = None


def forget_types() -> None:
    """Compute the names of classes anew that somebody may have put another method into since."""
    global _type_names  # noqa: PLW0603
    _type_names = {
        cls: name
        for cls, name in [*_type_names.items()]
        if cls.__flags__ & _IMMUTABLE_TYPE or getattr(cls, "__module__", "") == "torch"
    }


def file_digest(module: types.ModuleType) -> str | None:
    """Digest of a module's whole syntax tree; None if it has no file."""
    file = file_of(module)
    if not file or not Path(file).is_file():
        return None
    tree = ast.parse(Path(file).read_bytes())
    return hashlib.sha256(ast.dump(tree).encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_CHARS]


def file_of(module: Any) -> Any:
    """File of what stands in ``sys.modules``; a module that imports when it is asked is not asked."""
    return getattr(module, "__dict__", {}).get("__file__")


def modules_by_file() -> dict[str, types.ModuleType]:
    """Loaded modules by file; the one that was imported first where several have the same."""
    found: dict[str, types.ModuleType] = {}
    for module in tuple(sys.modules.values()):
        file = file_of(module)
        if isinstance(file, str):
            found.setdefault(file, module)
    return found
