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
import re
import sys
import tokenize
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from warmrank.worker.errors import WorkloadError
from warmrank.worker.rank.workload import check_arguments, no_function, not_imported

_BINDS_UNSEEN = re.compile(r"import \*|\b(__getattr__|globals|exec|vars|setattr|sys\.modules)\b")
"""Words of a module that may bind names which stand nowhere in its text."""


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
        with tokenize.open(source or "") as file:
            text = file.read()
        tree = ast.parse(text)
    except SyntaxError as error:
        return EntrypointFault(error=not_imported(entrypoint, f"SyntaxError: {error}"), source=source)
    except (OSError, UnicodeDecodeError, ValueError):
        return None
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    try:
        if not re.search(rf"\b{function}\b", text) and not _BINDS_UNSEEN.search(text):
            raise no_function(entrypoint, functions)
        found = functions.get(function)
        is_sure = sum(function in _names_of(node) for node in ast.walk(tree)) == 1
        if found is not None and is_sure and not found.decorator_list:
            check_arguments(entrypoint, _signature(found.args), None, arguments)
    except WorkloadError as error:
        return EntrypointFault(error=error, source=source)
    return None


def _names_of(node: ast.AST) -> list[str]:
    """The names that a node binds, wherever it stands."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            return [name]
        case ast.alias(name=name, asname=other):
            return [other or name.partition(".")[0]]
        case ast.Global(names=names):
            return names
        case _:
            return []


def _signature(args: ast.arguments) -> inspect.Signature:
    """The signature of a function; nothing of it runs, so defaults that are no constants are ellipses."""
    for each in ast.walk(args):
        if isinstance(each, ast.arg):
            each.annotation = None
    unknown = ast.Constant(...)
    args.defaults = [each if isinstance(each, ast.Constant) else unknown for each in args.defaults]
    args.kw_defaults = [
        each and (each if isinstance(each, ast.Constant) else unknown) for each in args.kw_defaults
    ]
    stub = ast.fix_missing_locations(ast.Expression(ast.Lambda(args, ast.Constant(None))))
    return inspect.signature(eval(compile(stub, "<signature>", "eval")))  # noqa: S307 - constants alone


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
