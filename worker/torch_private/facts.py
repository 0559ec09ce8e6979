"""Facts about torch on which this room relies: declared beside their use, checked before the first compile.

A module's ``FACTS`` map an object of torch (``module``, ``module:Class``, ``module:Class()`` for an instance)
to names that it has; behind a function's name, parameters that it takes: ``"guards create_symbol(source)"``.
What it imports of torch's private parts, and what its classes step in for (`patching.steps_in`), are facts as
well, and that it can be imported. Its ``PROBES`` map a sentence to a function that returns
whether it is so. A warm load checks nothing: its artifact was compiled by this very torch, after all of it.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch

from warmrank.worker.errors import TorchUnsupported
from warmrank.worker.torch_private.patching import named, targets_of
from warmrank.worker.values import Value

_log = logging.getLogger(__name__)

NEWEST: Final = (2, 15)
TESTED: Final = f"2.11 to {NEWEST[0]}.{NEWEST[1]}"
"""Releases of torch that the test suite ran on, see docs/status.md."""

_COMPILE = (
    "dynamo_guards", "evaluated", "evaluated_calls", "evaluated_reads", "evaluated_values",
    "kernels", "lowering", "marks", "operators", "patching", "places", "raised", "recording",
    "symbols", "tracer_changes", "tracer_python", "tracing", "warm",
)  # fmt: skip
GROUPS: Final = {
    "compile": _COMPILE,
    "trial": ("trial",),
    "inductor": ("inductor", "libraries"),
    "torchair": ("torchair",),
    "offline": ("fake_ranks",),
}
"""Use -> modules of this room. A ``trial`` is a trace, which takes longer than all the others."""

_NAME = re.compile(r"\w+(?:\([^)]*\))?")
_IMPORT = re.compile(r"(?m)^ *from (torch\.(?:_|\S+\._|fx\.experimental)\S*) import (\([^)]*\)|.+)$")


class Fact(Value):
    """A fact as it was found: the module that relies on it, and what is there instead; empty if it holds."""

    module: str
    text: str
    instead: str


def examined(group: str) -> Iterator[Fact]:
    """The facts of a group's modules, each checked now."""
    for name in GROUPS[group]:
        module: ModuleType | None = None
        try:
            module = importlib.import_module(f"{__package__}.{name}")
        except (ImportError, AttributeError) as error:
            yield Fact(module=name, text="what it imports", instead=f"{type(error).__name__}: {error}")
        for owner, names in (*imported(name), *(() if module is None else declared(module))):
            text = f"{owner} has {' '.join(names)}"
            yield Fact(module=name, text=text, instead=_checked(_missing, owner, names))
        for text, probe in getattr(module, "PROBES", {}).items():
            yield Fact(module=name, text=text, instead=_checked(_refuted, probe))


def imported(name: str) -> Iterator[tuple[str, Sequence[str]]]:
    """Private modules of torch that a module imports from, and what; read out of its source."""
    for owner, names in _IMPORT.findall(Path(__file__).with_name(f"{name}.py").read_text("utf-8")):
        yield owner, re.findall(r"\w+", re.sub(r" as \w+", "", names))


def declared(module: ModuleType) -> Iterator[tuple[str, Sequence[str]]]:
    """Objects of torch that a module declares to rely on, and names that each has, with parameters."""
    for owner, names in getattr(module, "FACTS", {}).items():
        yield owner, _NAME.findall(names)
    for kind in vars(module).values():
        if isinstance(kind, type) and kind.__module__ == module.__name__:
            targets = [target for member in vars(kind).values() for target in targets_of(member)]
            yield from ((target.owner, target.names) for target in targets if not target.is_optional)


def require(*groups: str) -> None:
    """Check the facts of groups, each once in a process; the trial only of a torch newer than the tests'.

    Raises:
        TorchUnsupported: it names all facts that do not hold, this torch, and the releases that work.
    """
    for group in groups:
        _require(group)


@functools.cache
def _require(group: str) -> None:
    if group == "trial" and not untested():
        return
    broken = [fact for fact in examined(group) if fact.instead]
    if broken:
        lines = "\n".join(f"  {fact.module}: {fact.text}: {fact.instead}" for fact in broken)
        msg = (
            f"this is torch {torch.__version__}, in which facts do not hold that compiling relies on:\n"
            f"{lines}\nCompile with torch {TESTED}."
        )
        facts = [fact.text for fact in broken]
        raise TorchUnsupported(msg, facts=facts, torch=str(torch.__version__), works=TESTED)
    if group == "trial":
        told = "torch %s is newer than those that warmrank is tested with (%s); all that it relies on holds"
        _log.warning(told, torch.__version__, TESTED)


def untested() -> str:
    """The releases that are tested, where torch is newer than those; empty for all others."""
    release = re.findall(r"\d+", str(torch.__version__))[:2]
    return TESTED if tuple(map(int, release)) > NEWEST else ""


def _checked(check: Callable[..., str], *about: Any) -> str:
    """What a check says is there instead of a fact; empty if that holds."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Inductor's own at its import, of no use to whoever compiles
            return check(*about)
    except Exception as error:  # noqa: BLE001 - a torch that nobody has read may raise anything
        return f"{type(error).__name__}: {error}"


def _refuted(probe: Callable[[], bool]) -> str:
    return "" if probe() else "it is not so"


def _missing(path: str, names: Sequence[str]) -> str:
    """The names that an object does not have, and functions that take other parameters."""
    owner = named(path)
    parsed = [text.removesuffix(")").partition("(")[::2] for text in names]
    wrong = [name for name, _ in parsed if not _has(owner, name)]
    if wrong:
        return f"no {', '.join(wrong)}"
    for name, wanted in parsed:
        known = inspect.signature(getattr(owner, name)).parameters if wanted else ()
        if not set(wanted.split(", ")) <= {"", *known}:
            return f"{name}({', '.join(known)})"
    return ""


def _has(owner: Any, name: str) -> bool:
    """True if an object has an attribute, or the instances of a class have it from when they are made."""
    if hasattr(owner, name) or (isinstance(owner, dict) and name in owner):
        return True
    if isinstance(owner, ModuleType):
        return hasattr(owner, "__path__") and find_spec(f"{owner.__name__}.{name}") is not None
    kinds = owner.__mro__ if isinstance(owner, type) else ()
    making = [vars(kind).get(method) for kind in kinds for method in ("__init__", "__post_init__")]
    named = [getattr(getattr(method, "__code__", None), "co_names", ()) for method in making]
    return any(name in names for names in named) or any(
        name in vars(kind).get("__annotations__", ()) for kind in kinds
    )
