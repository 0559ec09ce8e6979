"""Where a guarded object is found: Dynamo's source expressions as steps from a root, shared between guards.

A table of nodes; each node is ``(parent, step, argument)`` and stands behind its parent, so that one pass
evaluates all, each prefix once. Roots have parent -1:

====================  ==========================================
``("local", name)``   an argument of the call (``self`` included), or a free variable of the function
``("global", name)``  a global of the module that the function stands in
``("import", name)``  a module, by the name under which it imports
``("builtins", "")``  the builtins, as a mapping
====================  ==========================================
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import importlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from warmrank.worker.errors import NotPortable
from warmrank.worker.guards import constants

Node = tuple[int, str, Any]

# Dynamo's name for the globals of a function that was made by `exec`, followed by an address.
UNNAMED_SCOPE = "___unnamed_scope"
# Names in the texts of constants that Dynamo looks up.
_CONSTANT_NAMES = {"torch": torch, "device": torch.device, "inf": math.inf, "nan": math.nan}
# A global that Dynamo named for the address of its value.
_ADDRESSED = r"_\d+_c\d+$"


class Missing:
    """Stands for an object that is not there; a class of its own so that no real value equals it."""

    def __repr__(self) -> str:
        return "<missing>"


MISSING = Missing()


class PathTable:
    """Builds the node table from expressions; equal prefixes become one node."""

    def __init__(
        self, import_aliases: Mapping[str, str], expressions: Mapping[str, str] | None = None
    ) -> None:
        """Args: modules by the tracer's names for them, and expressions for other globals of its making."""
        self.nodes: list[Node] = []
        self._expressions = expressions or {}
        self._index: dict[str, int] = {}
        self._added: dict[str, int] = {}  # parsing takes longer than all else; most come several times
        self._aliases = import_aliases

    @classmethod
    def of(cls, nodes: Sequence[Node], import_aliases: Mapping[str, str]) -> PathTable:
        """A table that holds nodes already."""
        table = cls(import_aliases)
        table.nodes = list(nodes)
        table._index = {repr(node): index for index, node in enumerate(nodes)}
        return table

    def add(self, expression: str) -> int:
        """Index of the node for an expression over ``L`` and ``G``.

        Raises:
            NotPortable: the expression has a form that has no portable counterpart.
        """
        if expression not in self._added:
            self._added[expression] = self.add_tree(ast.parse(expression, mode="eval").body)
        return self._added[expression]

    def add_tree(self, tree: ast.expr) -> int:
        """As `add`, for a parsed expression."""
        name = _global_name(tree)
        if name in self._expressions:
            return self.add(self._expressions[name])
        return self._node(self._step(tree))

    def _node(self, node: Node) -> int:
        key = repr(node)
        if key not in self._index:
            self._index[key] = len(self.nodes)
            self.nodes.append(node)
        return self._index[key]

    def add_cells(self, functions: Iterable[tuple[int, int]]) -> None:
        """Add the cells of functions, each given by its node and their number."""
        for function, num_cells in functions:
            for index in range(num_cells):
                self._node((self._node((function, "attr", "__closure__")), "item", index))

    def add_attribute(self, node: int, name: str) -> int:
        """Index of the node for an attribute of a node's object."""
        return self._node((node, "attr", name))

    def _step(self, tree: ast.expr) -> Node:
        if isinstance(tree, ast.Attribute):
            return self.add_tree(tree.value), "attr", tree.attr
        if isinstance(tree, ast.Subscript):
            return self._subscript(tree)
        if isinstance(tree, ast.Call):
            return self._call(tree)
        raise self._refusal(tree)

    def _subscript(self, tree: ast.Subscript) -> Node:
        base = tree.value
        position = _position_in(base, tree.slice)
        if position is not None:
            return self.add_tree(base), "nth_value", position
        index = _literal(tree.slice)
        if isinstance(base, ast.Name) and isinstance(index, str):
            return self._root(base.id, index)
        if isinstance(base, ast.Call) and ast.unparse(base.func) == "list" and isinstance(index, int):
            return self._listed(base.args[0]), "nth", index
        return self.add_tree(base), "item", constants.encode_index(index)

    def _listed(self, tree: ast.expr) -> int:
        """``list(dict.keys(x))[i]`` and ``list(x)[i]`` name the i-th member of ``x``."""
        if isinstance(tree, ast.Call) and ast.unparse(tree.func) == "dict.keys":
            return self.add_tree(tree.args[0])
        return self.add_tree(tree)

    def _root(self, scope: str, name: str) -> Node:
        if scope == "L":
            return -1, "local", name
        if name.startswith("__builtins_dict__"):
            return -1, "builtins", ""
        if name in self._aliases:
            return -1, "import", self._aliases[name]
        if name.startswith(UNNAMED_SCOPE):
            msg = "the function's globals are those of no module, so no later process can find them"
            raise NotPortable(msg, what=name)
        if re.search(_ADDRESSED, name):
            msg = f"the tracer's own global {name} is named for an address, which no later process has"
            raise NotPortable(msg, what=name)
        return -1, "global", name

    def _call(self, tree: ast.Call) -> Node:
        function = ast.unparse(tree.func)
        if function == "__import__":
            return -1, "import", _literal(tree.args[0])
        if function == "type":
            return self.add_tree(tree.args[0]), "type", ""
        if function in ("getattr", "object.__getattribute__"):
            return self.add_tree(tree.args[0]), "attr", _literal(tree.args[1])
        if function == "dict.__getitem__":
            position = _position_in(tree.args[0], tree.args[1])
            if position is not None:
                return self.add_tree(tree.args[0]), "nth_value", position
            return self.add_tree(tree.args[0]), "item", constants.encode_index(_literal(tree.args[1]))
        if function in ("list.__getitem__", "tuple.__getitem__"):
            return self.add_tree(tree.args[0]), "nth", _literal(tree.args[1])
        if function == "dict":
            return self.add_tree(tree.args[0]), "dict", ""
        if function in ("___dataclass_fields", "___namedtuple_fields"):
            return self.add_tree(tree.args[0]), "fields", ""
        return self._conversion(tree, function)

    def _conversion(self, tree: ast.Call, function: str) -> Node:
        if function == "___from_numpy":
            return self.add_tree(tree.args[0]), "from_numpy", ""
        if not tree.args and not tree.keywords and isinstance(tree.func, ast.Attribute | ast.Subscript):
            return self.add_tree(tree.func), "call", ""  # of a weak reference, or of a context variable's get
        raise self._refusal(tree)

    @staticmethod
    def _refusal(tree: ast.expr) -> NotPortable:
        text = ast.unparse(tree)
        msg = f"Dynamo guards {text}, which cannot be found again in another process"
        return NotPortable(msg, what=text)


def _position_in(base: ast.expr, key: ast.expr) -> Any:
    """The position i where ``key`` is ``list(dict.keys(base))[i]``, else None."""
    if isinstance(key, ast.Subscript) and ast.unparse(key.value) == f"list(dict.keys({ast.unparse(base)}))":
        return _literal(key.slice)
    return None


def _global_name(tree: ast.expr) -> Any:
    """The name in ``G[name]``, else None."""
    is_global = isinstance(tree, ast.Subscript) and isinstance(tree.value, ast.Name) and tree.value.id == "G"
    return _literal(tree.slice) if is_global else None  # type: ignore[attr-defined]


def _literal(tree: ast.expr) -> Any:
    """The constant that Dynamo wrote down, which may be one of torch's: a dtype, a device."""
    if isinstance(tree, ast.Constant):
        return tree.value
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    try:
        if names and names <= _CONSTANT_NAMES.keys():
            code = compile(ast.Expression(tree), "<constant>", "eval")
            return eval(code, {"__builtins__": {}, **_CONSTANT_NAMES})  # noqa: S307 - Dynamo's own text
        return ast.literal_eval(tree)
    except ValueError:
        text = ast.unparse(tree)
        msg = (
            f"Dynamo looks up {text}, which is no plain constant and cannot be found again in another process"
        )
        raise NotPortable(msg, what=text) from None


def root_names(nodes: Sequence[Node]) -> list[tuple[str, str]]:
    """For each node, step and argument of the root it starts from."""
    roots: list[tuple[str, str]] = []
    for parent, step, argument in nodes:
        roots.append((step, argument) if parent < 0 else roots[parent])
    return roots


def text(nodes: Sequence[Node], index: int) -> str:
    """A node's path as a reader would write it: ``self.layers['0'].weight``."""
    parent, step, argument = nodes[index]
    if parent < 0:
        return {"local": str(argument), "global": str(argument), "import": str(argument)}.get(
            step, "builtins"
        )
    base = text(nodes, parent)
    if step == "attr":
        return f"{base}.{argument}"
    if step == "item":
        return f"{base}[{constants.decode(argument)!r}]"
    named = {
        "type": f"type({base})",
        "nth": f"list({base})[{argument}]",
        "nth_value": f"list({base}.values())[{argument}]",
        "call": f"{base}()",
        "from_numpy": base,
    }
    return named.get(step, f"{step}({base})")


def resolve(
    nodes: Sequence[Node], values: list[Any], index: int, roots: Mapping[str, Mapping[str, Any]]
) -> Any:
    """Value of node ``index``, given the values of the nodes before it; `MISSING` where there is none.

    Args:
        nodes: the table.
        values: values of the nodes before ``index``.
        index: the node to evaluate.
        roots: mappings for the roots ``local`` and ``global``.
    """
    parent, step, argument = nodes[index]
    if parent < 0:
        return _root_value(step, argument, roots)
    base = values[parent]
    if base is MISSING:
        return MISSING
    try:
        return STEPS[step](base, argument)
    except Exception:  # noqa: BLE001 - a property or __getitem__ of the user's, or NumPy, may raise anything
        return MISSING


def _root_value(step: str, argument: str, roots: Mapping[str, Mapping[str, Any]]) -> Any:
    if step == "import":
        try:
            return importlib.import_module(argument)
        except ImportError:
            return MISSING
    if step == "builtins":
        return vars(builtins)
    return roots[step].get(argument, MISSING)


def _members(base: Any) -> list[Any]:
    """Keys or items in the order that Dynamo saw, whatever a subclass says."""
    if isinstance(base, dict):
        return list(dict.keys(base))
    return list(list.__iter__(base)) if isinstance(base, list) else list(base)


def _from_numpy(array: Any) -> torch.Tensor:
    if type(array).__module__ != "numpy":
        msg = f"{type(array).__qualname__} is no array"
        raise TypeError(msg)
    return torch.as_tensor(array)


STEPS: dict[str, Callable[[Any, Any], Any]] = {
    "attr": getattr,
    "item": lambda base, argument: base[
        argument if argument.__class__ is not dict else constants.decode(argument)
    ],
    "nth": lambda base, argument: _members(base)[argument],
    "nth_value": lambda base, argument: dict.__getitem__(base, _members(base)[argument]),
    "type": lambda base, _: type(base),
    "dict": lambda base, _: dict(base),
    "call": lambda base, _: base(),
    "from_numpy": lambda base, _: _from_numpy(base),
    "fields": lambda base, _: getattr(base, "_fields", None) or dataclasses.fields(base),
}
