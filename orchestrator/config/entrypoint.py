"""Looks for the function that a config's entrypoint names, and at what it takes, without running any of it.

Invariants: a module that its path leads to is found and read, never run; only where the path does not lead
to it are its parent packages imported, because they may look elsewhere. What is not certain to be missing
counts as there: ranks look again, on their nodes.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.util
import inspect
import pkgutil
import sys
import tokenize
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from warmrank.worker.errors import WorkloadError
from warmrank.worker.rank.workload import check_arguments, no_function, no_workload, not_imported

_MAX_HOPS = 8
"""Imports and other names that are followed from an entrypoint to the function behind it."""

_WRITE_NAMES = frozenset({"globals", "exec", "vars"})
"""Functions by which a module can bind names that stand nowhere in its text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntrypointFault:
    """An entrypoint that cannot be called."""

    error: WorkloadError  # what a rank would raise
    source: Path | None = None  # the file that was read; None where the module is not found


def entrypoint_fault(entrypoint: str, arguments: Mapping[str, object]) -> EntrypointFault | None:
    """Say why a call of ``module:function`` with these arguments is certain to fail; None where it is not."""
    module, _, function = entrypoint.partition(":")
    if reason := missing_module(module):
        return EntrypointFault(error=not_imported(entrypoint, reason, _nearest_module(module)))
    source = _source_of(module)
    try:
        tree = _read(source)
    except SyntaxError as error:
        return EntrypointFault(error=not_imported(entrypoint, f"SyntaxError: {error}"), source=source)
    if tree is None or not _is_plain(tree):
        return None
    bound = _bindings(tree)
    if function not in bound:
        known = [name for name, nodes in bound.items() if isinstance(nodes[-1], ast.FunctionDef)]
        return EntrypointFault(error=no_function(entrypoint, known), source=source)
    found = _behind(module, function, hops=_MAX_HOPS)
    try:
        if isinstance(found, ast.Constant | ast.List | ast.Tuple | ast.Dict | ast.Set | ast.JoinedStr):
            raise no_function(entrypoint, ())
        if isinstance(found, ast.FunctionDef) and not found.decorator_list:
            check_arguments(entrypoint, _signature(found.args), None, arguments)
        if returned := _returned_instead(found):
            raise no_workload(entrypoint, returned)
    except WorkloadError as error:
        return EntrypointFault(error=error, source=source)
    return None


def missing_module(name: str) -> str:
    """Error text if the module cannot be imported, else ``""``."""
    importlib.invalidate_caches()
    with _current_directory_first(), redirect_stdout(sys.stderr):
        try:
            is_found = _leads_to(name) is not None or (
                not name.endswith(".py")  # a file's name: nothing to import its module for
                and importlib.util.find_spec(name) is not None
            )
            if is_found or name in sys.modules:  # a parent package may have put it there
                return ""
        except ModuleNotFoundError as error:
            return _words(error, name)
        except Exception:  # noqa: BLE001 - a parent package raised: the ranks tell of it, as of any code
            return ""
    return f"No module named {name!r}"


def _nearest_module(name: str) -> str:
    """The module whose name comes nearest, here or in the packages on the way."""
    places, parts = [str(Path.cwd())], name.split(".")
    for depth, part in enumerate(parts):
        with _current_directory_first():
            spec = _leads_to(".".join(parts[: depth + 1]))
        if spec is None:
            known = [module.name for module in pkgutil.iter_modules(places)]
            close = difflib.get_close_matches(part, known, n=1)
            return ".".join([*parts[:depth], *close, *parts[depth + 1 :]]) if close else ""
        places = list(spec.submodule_search_locations or ())
    return ""


def shadow(directory: Path) -> Path | None:
    """A module in a directory that ranks, which look there first, would import in place of `warmrank`."""
    spec = PathFinder.find_spec("warmrank", [str(directory)])
    if spec is None or spec.origin is None:
        return None
    origin = Path(spec.origin)
    try:  # our package is known by its words: a job has it in a directory of its own
        is_ours = origin.name == "__init__.py" and b"warmrank" in origin.read_bytes().partition(b"\n")[0]
    except OSError:
        return None  # the import tells of it
    return None if is_ours else origin


@contextmanager
def _current_directory_first() -> Iterator[None]:
    """Look for modules where ranks do, who have the directory that a launch is started in on their path."""
    here, before = str(Path.cwd()), list(sys.path)
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path[:] = before


def _leads_to(name: str) -> ModuleSpec | None:
    """The module that the import path leads to, as far as can be said without importing its parents."""
    places, so_far, spec = None, "", None
    for part in name.split("."):
        so_far = f"{so_far}.{part}" if so_far else part
        try:
            spec = PathFinder.find_spec(so_far, places)
        except KeyError:  # a namespace package in another one looks for that among what is imported
            return None
        if spec is None:
            return None
        places = spec.submodule_search_locations or []
    return spec


def _words(error: ModuleNotFoundError, name: str) -> str:
    """The words of an import; empty where a parent package is there, and misses something else."""
    if isinstance(error.__cause__, AttributeError):
        parent = name.rpartition(".")[0]
        return f"No module named {name!r}; {parent!r} is not a package"
    is_asked_for = error.name == name or name.startswith(f"{error.name}.")
    return str(error) if is_asked_for else ""


def _source_of(module: str) -> Path | None:
    """The file of Python code that a module is in; None where it has none, or may be another one."""
    with _current_directory_first():
        spec = _leads_to(module)
    origin = spec.origin if spec is not None else None
    return Path(origin) if origin is not None and origin.endswith(".py") else None


def _read(source: Path | None) -> ast.Module | None:
    try:
        if source is None:
            return None
        with tokenize.open(source) as file:
            return ast.parse(file.read())
    except (OSError, UnicodeDecodeError, ValueError):
        return None


def _is_plain(tree: ast.Module) -> bool:
    """True if every name that the module binds stands in its text."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(names=[ast.alias(name="*")]) | ast.FunctionDef(name="__getattr__"):
                return False
            case ast.Name(id=name) if name in _WRITE_NAMES:
                return False
            case ast.Attribute(value=ast.Name(id="sys"), attr="modules"):
                return False
            case _:
                pass
    return True


def _bindings(tree: ast.Module) -> dict[str, list[ast.AST | None]]:
    """The nodes that each name of a module is bound to, in order; None for one that cannot be followed."""
    found: dict[str, list[ast.AST | None]] = {}

    def visit(node: ast.AST, *, is_certain: bool) -> None:
        for child in ast.iter_child_nodes(node):
            for name, value in _bound_by(child):
                found.setdefault(name, []).append(value if is_certain else None)
            match child:
                case ast.Assign(targets=[ast.Name()]) if is_certain:
                    pass  # `_bound_by` tells the only name that it binds
                case _ if not isinstance(child, _OWN_SCOPES):
                    visit(child, is_certain=False)

    visit(tree, is_certain=True)
    for node in ast.walk(tree):
        for name in node.names if isinstance(node, ast.Global) else ():
            found.setdefault(name, []).append(None)
    return found


_OWN_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def _bound_by(node: ast.AST) -> list[tuple[str, ast.AST | None]]:
    """Names that one node binds itself."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [(name, node)]
        case ast.ImportFrom(names=names):
            return [(each.asname or each.name, node) for each in names]
        case ast.Import(names=names):
            return [(each.asname or each.name.partition(".")[0], None) for each in names]
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            return [(name, value)]
        case ast.Name(id=str(name), ctx=ast.Store() | ast.Del()) | ast.MatchMapping(rest=str(name)):
            return [(name, None)]
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            return [(name, None)]
        case _:
            return []


def _behind(module: str, name: str, *, hops: int) -> ast.AST | None:
    """The node behind a name of a module, through imports and other names; None where that is not certain."""
    source = _source_of(module)
    try:
        tree = _read(source)
    except SyntaxError:
        return None
    if tree is None or source is None or hops == 0 or not _is_plain(tree):
        return None
    match _bindings(tree).get(name):
        case [ast.ImportFrom() as found]:
            original = next(each.name for each in found.names if (each.asname or each.name) == name)
            package = module if source.name == "__init__.py" else module.rpartition(".")[0]
            parts = package.split(".")
            above = ".".join(parts[: len(parts) - (found.level - 1)]) if found.level else ""
            target = ".".join(part for part in (above, found.module or "") if part)
            return _behind(target, original, hops=hops - 1) if target else None
        case [ast.Name(id=other)]:
            return _behind(module, other, hops=hops - 1)
        case [found]:
            return found
        case _:
            return None


def _returned_instead(found: ast.AST | None) -> str:
    """The type that a call is certain to return in place of a workload; empty where it may return one."""
    match found:
        case ast.ClassDef(name=name, bases=bases, keywords=[], decorator_list=[]):
            own = {getattr(node, "name", "") for node in found.body}
            plain = all(ast.unparse(base).rpartition(".")[2] in _PLAIN_BASES for base in bases)
            return name if plain and "__new__" not in own else ""
        case ast.AsyncFunctionDef(decorator_list=[]):
            return "a coroutine"
        case ast.FunctionDef(decorator_list=[]):
            nodes = list(_own_nodes(found))
            if any(isinstance(node, ast.Yield | ast.YieldFrom) for node in nodes):
                return "a generator"
            ends = any(
                (isinstance(node, ast.Return) and node.value) or isinstance(node, ast.Raise) for node in nodes
            )
            return "" if ends else "None"
        case _:
            return ""


_PLAIN_BASES = frozenset({"Module", "object"})
"""Bases, by the last part of their names, whose instances are no workload."""


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function, without those of functions and classes within it."""
    for child in ast.iter_child_nodes(function):
        yield child
        if not isinstance(child, _OWN_SCOPES):
            yield from _own_nodes(child)


class _Unevaluated(str):
    """A default as it stands in the text, which is how a signature shows it."""

    __slots__ = ()
    __repr__ = str.__str__


def _default(node: ast.expr | None) -> object:
    return inspect.Parameter.empty if node is None else _Unevaluated(ast.unparse(node))


def _signature(args: ast.arguments) -> inspect.Signature:
    """The signature of a function as it stands in its text."""
    kinds = inspect.Parameter
    plain = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(plain) - len(args.defaults)) + args.defaults
    parameters = [
        kinds(
            each.arg,
            kinds.POSITIONAL_ONLY if index < len(args.posonlyargs) else kinds.POSITIONAL_OR_KEYWORD,
            default=_default(defaults[index]),
        )
        for index, each in enumerate(plain)
    ]
    if args.vararg is not None:
        parameters.append(kinds(args.vararg.arg, kinds.VAR_POSITIONAL))
    parameters += [
        kinds(each.arg, kinds.KEYWORD_ONLY, default=_default(default))
        for each, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)
    ]
    if args.kwarg is not None:
        parameters.append(kinds(args.kwarg.arg, kinds.VAR_KEYWORD))
    return inspect.Signature(parameters)
