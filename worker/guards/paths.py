"""Writing paths: Dynamo's source expressions as a table of nodes (see `worker.runtime.check`)."""

from __future__ import annotations

import ast
import math
import re
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch

from warmrank.worker.errors import NotPortable
from warmrank.worker.keys.code import is_found_by_name
from warmrank.worker.runtime import constants
from warmrank.worker.runtime.artifact import Node
from warmrank.worker.runtime.check import resolve, roots_of
from warmrank.worker.torch_private.dynamo_guards import TracedGuard
from warmrank.worker.torch_private.trace_notes import TracedWrite
from warmrank.worker.torch_private.warm import dict_keys, is_registry

# Dynamo's name for the globals of a function that was made by `exec`, followed by an address.
UNNAMED_SCOPE = "___unnamed_scope"
# Names in the texts of constants that Dynamo looks up.
_CONSTANT_NAMES = {"torch": torch, "device": torch.device, "inf": math.inf, "nan": math.nan}
# Functions of one object, and the step that each takes from it.
_CONVERSIONS = {
    "type": "type",
    "dict": "dict",
    "___dataclass_fields": "fields",
    "___namedtuple_fields": "fields",
    "___from_numpy": "from_numpy",
}
# A global that Dynamo named for the address of its value.
ADDRESSED = r"_\d+_c\d+$"


class PathTable:
    """Builds the node table from expressions; equal prefixes become one node."""

    def __init__(
        self, import_aliases: Mapping[str, str], expressions: Mapping[str, str] | None = None
    ) -> None:
        """Take modules by the tracer's names for them, and expressions for other globals of its making."""
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
        if isinstance(tree, ast.Subscript) and isinstance(tree.value, ast.Name) and tree.value.id == "G":
            name = _literal(tree.slice)
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

    def add_base(self, node: int, place: int, *, of_class: bool) -> int:
        """Index of the node for a class that a node's object, if ``of_class``, or its type derives from."""
        cls = node if of_class else self._node((node, "type", ""))
        return self._node((self.add_attribute(cls, "__mro__"), "item", place)) if place else cls

    def _step(self, tree: ast.expr) -> Node:
        if isinstance(tree, ast.Attribute):
            return self.add_tree(tree.value), "attr", tree.attr
        if isinstance(tree, ast.Subscript):
            return self._item(tree.value, tree.slice)
        if isinstance(tree, ast.Call):
            return self._call(tree)
        raise _refusal(tree)

    def _item(self, base: ast.expr, key: ast.expr) -> Node:
        """Step of ``base[key]``; ``x[list(dict.keys(x))[i]]`` is the i-th value of ``x``.

        ``list(dict.keys(x))[i]`` and ``list(x)[i]`` name its i-th member. What a registry has of a class is
        found by the class: others come and go with the modules that a program imports.
        """
        keys = f"list(dict.keys({ast.unparse(base)}))"
        if isinstance(key, ast.Subscript) and ast.unparse(key.value) == keys:
            holder, place = self.add_tree(base), _literal(key.slice)
            cls = self._registered(holder, place)
            by_class = isinstance(cls, type)
            return (holder, "item", constants.encode(cls)) if by_class else (holder, "nth_value", place)
        index = _literal(key)
        if isinstance(base, ast.Name) and isinstance(index, str):
            return self._root(base.id, index)
        if isinstance(base, ast.Call) and ast.unparse(base.func) == "list" and isinstance(index, int):
            (listed,) = base.args
            if isinstance(listed, ast.Call) and ast.unparse(listed.func) == "dict.keys":
                (listed,) = listed.args
            holder = self.add_tree(listed)
            found = self._registered(holder, index)
            return (holder, "nth", index) if found is None else self._import(found)
        return self.add_tree(base), "item", constants.encode_index(index)

    def _registered(self, node: int, place: int) -> type | FunctionType | None:
        """The class, or function, at a place of a registry; None for other dicts."""
        held = self._global(node)
        found = dict_keys(held)[place] if is_registry(held) else None
        return found if isinstance(found, type | FunctionType) and is_found_by_name(found) else None

    def is_keyed_by_classes(self, node: int) -> bool:
        """True for a registry whose members are all found by their classes, none by its place."""
        by_place = any(parent == node and step in ("nth", "nth_value") for parent, step, _ in self.nodes)
        return is_registry(self._global(node)) and not by_place

    def _global(self, node: int) -> Any:
        """The object at the end of a path through attributes of modules; None for other paths."""
        parent, step, argument = self.nodes[node]
        if parent < 0:
            return sys.modules.get(argument) if step == "import" else None
        base = self._global(parent) if step == "attr" else None
        return getattr(base, argument, None) if isinstance(base, types.ModuleType) else None

    def _import(self, key: type | FunctionType) -> Node:
        node = self._node((-1, "import", key.__module__))
        *outer, name = key.__qualname__.split(".")
        for holder in outer:
            node = self.add_attribute(node, holder)
        return node, "attr", name

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
        if re.search(ADDRESSED, name):
            msg = f"the tracer's own global {name} is named for an address, which no later process has"
            raise NotPortable(msg, what=name)
        return -1, "global", name

    def _call(self, tree: ast.Call) -> Node:
        function = ast.unparse(tree.func)
        if function == "__import__":
            return -1, "import", _literal(tree.args[0])
        if function in _CONVERSIONS:
            return self.add_tree(tree.args[0]), _CONVERSIONS[function], ""
        if function in ("getattr", "object.__getattribute__"):
            return self.add_tree(tree.args[0]), "attr", _literal(tree.args[1])
        if function == "dict.__getitem__":
            return self._item(tree.args[0], tree.args[1])
        if function in ("list.__getitem__", "tuple.__getitem__"):
            return self.add_tree(tree.args[0]), "nth", _literal(tree.args[1])
        if not tree.args and not tree.keywords and isinstance(tree.func, ast.Attribute | ast.Subscript):
            return self.add_tree(tree.func), "call", ""  # of a weak reference, or of a context variable's get
        raise _refusal(tree)


def _refusal(tree: ast.expr) -> NotPortable:
    text = ast.unparse(tree)
    return NotPortable(f"Dynamo guards {text}, which cannot be found again in another process", what=text)


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


def volatile_nodes(table: PathTable, writes: Iterable[TracedWrite]) -> tuple[int, ...]:
    """Nodes whose value a call may change.

    For an attribute: the object itself (whether it has the attribute) and all below the attribute. For a
    list, a dict or another container: the container and all below it.

    Raises:
        NotPortable: the function writes to an object that has no path.
    """
    found: set[int] = set()
    for write in writes:
        try:
            holder = table.add(write.source)
        except NotPortable as error:
            msg = f"the function writes to {write.source}, which no later process can find: {error.message}"
            raise NotPortable(msg, what=write.source) from error
        if write.attribute:
            found |= _of_attribute(table, holder, write.attribute)
        else:
            found |= _below(table, {holder})
    return tuple(sorted(found))


def _of_attribute(table: PathTable, holder: int, name: str) -> set[int]:
    owners = {holder}
    roots: set[int] = set()
    for index, (parent, step, argument) in enumerate(table.nodes):
        if parent == holder and (step, argument) == ("attr", "__dict__"):
            owners.add(index)
        elif parent in owners and argument == name:
            roots.add(index)
    return owners | _below(table, roots)


def _below(table: PathTable, roots: set[int]) -> set[int]:
    found = set(roots)
    for index, (parent, _, _) in enumerate(table.nodes):
        if parent in found:
            found.add(index)
    return found


def made_globals(guards: Iterable[TracedGuard], made: Mapping[str, Any]) -> dict[str, str]:
    """For each global of the tracer's, an expression that leads to its object; none where nothing does."""
    wanted = {id(value): name for name, value in made.items() if isinstance(value, type | dict)}
    found: dict[str, str] = {}
    for guard in guards if wanted else ():
        if not guard.source or any(f"G[{name!r}]" in guard.source for name in wanted.values()):
            continue
        for value, expression in _reached(guard.value, guard.source):
            if id(value) in wanted:
                found.setdefault(wanted[id(value)], expression)
    return found


def _reached(value: Any, source: str) -> Iterator[tuple[Any, str]]:
    """The class of a value, and the globals of functions that it is or that its class holds."""
    if isinstance(value, types.FunctionType):
        yield value.__globals__, f"{source}.__globals__"
        return
    cls, expression = (value, source) if isinstance(value, type) else (type(value), f"type({source})")
    yield cls, expression
    members: dict[str, Any] = {}  # of the first class that has each
    for base in reversed(cls.__mro__):
        members |= vars(base)
    for name, member in members.items():
        if isinstance(member, types.FunctionType):
            yield member.__globals__, f"{expression}.{name}.__globals__"


class NodeValues:
    """Objects of a table's nodes in a call, each looked up once; nodes may be added later."""

    def __init__(self, nodes: Sequence[Node], function: FunctionType, arguments: Mapping[str, Any]) -> None:
        self._nodes = nodes
        self._roots = roots_of(function, arguments)
        self._values: list[Any] = []

    def all(self) -> list[Any]:
        """A value for every node; `MISSING` where there is nothing."""
        for index in range(len(self._values), len(self._nodes)):
            self._values.append(self.again(index))
        return self._values

    def __getitem__(self, node: int) -> Any:
        """The value of one node."""
        return self.all()[node]

    def again(self, node: int) -> Any:
        """Look a node up once more; the object may be made by this very look-up."""
        return resolve(self._nodes, self._values, node, self._roots)
