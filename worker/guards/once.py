"""What ``guards="once"`` looks at on every call beside the arguments, because it is cheap and often changed.

Numbers, strings, dtypes and tensors that are variables of a module of Python's: some 50 ns each, a tensor one
microsecond. And the ``training`` flag of the cached function's own module, which ``train()`` and ``eval()``
set along with those of all modules within.
"""

from __future__ import annotations

import sys
from types import FunctionType, ModuleType
from typing import Any

from warmrank.worker.guards.model import PortableGuards
from warmrank.worker.keys.code import is_pinned_module

_FLAG = "training"
_CHEAP = frozenset({"none", "not_none", "tensor", "gears", "geared"})


def reads_training(guards: PortableGuards) -> bool:
    """Whether a condition is about the ``training`` flag of any module."""
    asked = {node for node, _, _ in guards.checks}
    return any(guards.nodes[node][1:] in (("attr", _FLAG), ("item", _FLAG)) for node in asked)


def cheap_globals(guards: PortableGuards, function: FunctionType) -> frozenset[int]:
    """Nodes of the variables of modules whose conditions are cheap, and all below them."""
    kinds: dict[int, list[bool]] = {}
    for node, kind, expected in guards.checks:
        if kind != "distinct":
            kinds.setdefault(node, []).append(_is_cheap(kind, expected))
    found: set[int] = set()
    for index, (parent, _, _) in enumerate(guards.nodes):
        if parent in found or (all(kinds.get(index, (False,))) and _is_variable(guards, index, function)):
            found.add(index)
    return frozenset(found)


def _is_cheap(kind: str, expected: Any) -> bool:
    if kind != "equals":
        return kind in _CHEAP
    return expected.__class__ in (bool, int, str) or (
        isinstance(expected, dict) and expected.keys() <= {"float", "dtype"}
    )


def _is_variable(guards: PortableGuards, index: int, function: FunctionType) -> bool:
    """Whether a node is a global of the function's module, or of a module that a global names."""
    parent, step, _ = guards.nodes[index]
    if parent < 0:
        return step == "global"
    of_parent, root, name = guards.nodes[parent]
    if of_parent >= 0 or step != "attr" or root not in ("global", "import"):
        return False
    module = sys.modules.get(name) if root == "import" else function.__globals__.get(name)
    return isinstance(module, ModuleType) and not is_pinned_module(module.__name__)
