"""Programs and changes as text: a small package whose parts each put one piece of state into the result.

A `Part` fills slots of the package's files; a `Change` fills some of them anew, or says what is done to the
built model. Slots are: helper, conf, ops (files beside the main one); base, top, fields, init, params, body
(of the class); after (the build); args, kwargs (of the calls); configure, options (of `cache_compile`).
Inside them ``#`` stands for a number of the part's own.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

PACKAGE = "fuzzed"

_HEAD = """\
import collections, contextvars, copy, dataclasses, enum, fractions, functools, itertools, math, operator, os
import re, sys, types, typing, weakref
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from tests.fuzz import kinds as K
"""
HELPER = """

def same(value):
    return value


def attempt(thing, name, other):
    try:
        return getattr(thing, name)
    except AttributeError:
        return other


def taken(y, number):
    return y + number

"""


_ARGUMENTS = """\
NUM_CALLS = 3


def arguments(call):
    x = {x}
    return [x{args}], dict({kwargs})
"""
_CALLS = """\
N = K.numbers


def a(*args, **kwargs):
    return list(args), kwargs


def arguments(call):
    return ({calls})[call]


NUM_CALLS = len({calls})
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One difference between two processes, or between two calls of one.

    Attributes:
        name: what it is, in words.
        slots: slots of the part that read otherwise in the changed process.
        mutate: statements on ``m``, the built model, and the modules; run before the first call of the
            changed process, or after a load.
        environment: environment variables of the changed process; None removes one.
        context: context managers of the changed process's calls.
        rank: rank and world size of the changed process.
        alone: on real ranks, only the first finds the files that it left.
        x: first argument of the changed process, if another.
        said: pattern of the reason for which what was compiled does not fit.
        fits: what was compiled fits still.
        refused: the changed program is refused, for that reason.
    """

    name: str
    slots: Mapping[str, str] = field(default_factory=dict)
    mutate: str = ""
    environment: Mapping[str, str | None] = field(default_factory=dict)
    context: str = ""
    rank: tuple[int, int] | None = None
    alone: bool = False
    x: str = ""
    said: str = ""
    fits: bool = False
    refused: bool = False


NOTHING = Change(name="nothing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One piece of state, how the function reads it, and how it may change.

    Attributes:
        name: kind of state, a path of words.
        slots: text by slot.
        changes: what may change.
        environment: environment variables that it needs.
        ranks: it asks for a process group.
        refused: pattern of the refusal; empty for what is compiled.
        said: pattern of a reason that a change is missed for, or, if nothing changes, another process; empty
            for any.
    """

    name: str
    slots: Mapping[str, str]
    changes: tuple[Change, ...] = ()
    environment: Mapping[str, str | None] = field(default_factory=dict)
    ranks: bool = False
    refused: str = ""
    said: str = ""

    def numbered(self, number: int) -> Part:
        """This part with a number of its own in place of each ``#``."""

        def put(texts: Mapping[str, str]) -> dict[str, str]:
            return {name: text.replace("#", str(number)) for name, text in texts.items()}

        changes = tuple(
            replace(
                change,
                slots=put(change.slots),
                mutate=change.mutate.replace("#", str(number)),
                environment={k.replace("#", str(number)): v for k, v in change.environment.items()},
            )
            for change in self.changes
        )
        environment = {key.replace("#", str(number)): value for key, value in self.environment.items()}
        return replace(self, slots=put(self.slots), changes=changes, environment=environment)


Slots = Mapping[str, str]


def part(
    name: str,
    slots: Slots,
    *,
    sources: Mapping[str, Slots] | None = None,
    mutations: Mapping[str, str] | None = None,
    contexts: Mapping[str, str] | None = None,
    environments: Mapping[str, Mapping[str, str | None]] | None = None,
    **more: Any,
) -> Part:
    """A part with its changes, by kind and name; ``more`` are its other fields."""
    changes = [Change(name=f"{name}: {key}", slots=value) for key, value in (sources or {}).items()]
    changes += [Change(name=f"{name}: {key}", mutate=value) for key, value in (mutations or {}).items()]
    changes += [Change(name=f"{name}: {key}", context=value) for key, value in (contexts or {}).items()]
    changes += [
        Change(name=f"{name}: {key}", environment=value) for key, value in (environments or {}).items()
    ]
    return Part(name=name, slots=slots, changes=tuple(changes), **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A package made of parts.

    Attributes:
        parts: its parts.
        x: expression of the first argument; ``call`` counts the calls.
        calls: expression of the arguments of all calls, made by ``a(...)``; if empty: three, of slots.
        context: context managers of the calls.
        tolerance: largest absolute difference from eager.
        mode: of `cache_compile`.
        dynamic: of `cache_compile`.
        gloo: runs on two real ranks.
        engine: ``torchair``: of `cache_compile`, on an emulated NPU.
        fresh: eager knows nothing of what TorchAir is asked; right is what that compiles in an empty cache.
    """

    parts: tuple[Part, ...]
    x: str = "torch.arange(12, dtype=torch.float64).reshape(3, 4).clone() / 8 + call"
    calls: str = ""
    context: str = "torch.no_grad()"
    tolerance: float = 0.0
    mode: str = "reduce-overhead"
    dynamic: bool = True
    gloo: bool = False
    engine: str = ""
    fresh: bool = False

    @property
    def name(self) -> str:
        ranks = ", two ranks" if self.gloo else ""
        return f"{' + '.join(part.name for part in self.parts)} ({self.mode}{ranks})"

    @property
    def ranks(self) -> bool:
        return any(part.ranks for part in self.parts)

    @property
    def environment(self) -> dict[str, str | None]:
        return {name: value for part in self.parts for name, value in part.environment.items()}

    def changed(self, index: int, change: Change) -> Program:
        """This program with a change of one of its parts, or, if the index is -1, of the whole."""
        parts = list(self.parts)
        if index >= 0:
            parts[index] = replace(parts[index], slots={**parts[index].slots, **change.slots})
        elif change.slots:
            parts.append(Part(name="unseen", slots=change.slots))
        return replace(self, parts=tuple(parts), x=change.x or self.x)

    def without(self, index: int) -> Program:
        """This program without one of its parts."""
        return replace(self, parts=(*self.parts[:index], *self.parts[index + 1 :]))

    def files(self) -> dict[str, str]:
        """Text by file name."""
        return {
            "__init__.py": "",
            "conf.py": f"{_HEAD}\n{self._joined('conf')}",
            "helper.py": f"{_HEAD}from {PACKAGE} import conf\n{HELPER}\n{self._joined('helper')}",
            "ops.py": f"{_HEAD}\n{self._joined('ops')}",
            "main.py": f"{_HEAD}from {PACKAGE} import conf, helper, ops\n{self._joined('top')}{self._main()}",
        }

    def write(self, directory: Path) -> None:
        """Write the package below a directory."""
        package = directory / PACKAGE
        package.mkdir(parents=True, exist_ok=True)
        for name, text in self.files().items():
            (package / name).write_text(text)

    def _joined(self, slot: str) -> str:
        return "\n".join(part.slots[slot] for part in self.parts if slot in part.slots)

    def _main(self) -> str:
        def block(slot: str, depth: int) -> str:
            return textwrap.indent(self._joined(slot), "    " * depth) or "    " * depth + "pass"

        def listed(slot: str) -> str:
            return "".join(f", {part.slots[slot]}" for part in self.parts if part.slots.get(slot))

        if self.calls:
            arguments = _CALLS.format(calls=self.calls)
        else:
            args, kwargs = listed("args"), listed("kwargs").lstrip(", ")
            arguments = _ARGUMENTS.format(x=self.x, args=args, kwargs=kwargs)
        return f"""
class Main({self._joined("base") or "nn.Module"}):
{block("fields", 1)}

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4, dtype=torch.float64)
{block("init", 2)}

    def forward(self, x{listed("params")}):
        y = x
{block("body", 2)}
        return y


def build():
    torch.manual_seed(0)
    m = Main().to(K.DEVICE)
{block("after", 1)}
    return m


{arguments}

def options(config, package):
{block("configure", 1)}
    return dict({listed("options").lstrip(", ")})


def called(function, args, kwargs):
    return function(*args, **kwargs)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One change of a program.

    Attributes:
        index: number of the part that changes; -1 for the program as a whole.
        later: the change comes after a load, in the same process.
    """

    index: int
    change: Change
    later: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A program and changes to it."""

    seed: int
    program: Program
    pairs: tuple[Pair, ...]


def source(program: Program, names: Sequence[str] = ("conf.py", "helper.py", "main.py")) -> str:
    """The files that differ between programs, as one text for people."""
    files = program.files()
    return "\n".join(f"# --- {name}\n{files[name]}" for name in names)
