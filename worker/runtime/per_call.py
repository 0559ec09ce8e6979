"""The conditions on a call's arguments, compiled to one Python function that runs in microseconds.

Conditions that touch an argument are checked on every call, because a call may always bring another shape.
Those on what the function itself writes to are, too, and those that somebody asks for: what is cheap
(``guards="once"``: numbers, strings, dtypes and tensors that are variables of a module of Python's, some
50 ns each, a tensor one microsecond), or cannot be watched (`worker.runtime.snapshot`).

Invariant: no name in the generated code but the function's own parameters is one of these. Our own names
are written with a ``$``, for which a prefix is put that none of the parameters has.
"""

from __future__ import annotations

import inspect
import keyword
import math
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any

import torch

from warmrank.worker.keys.code import is_pinned_module, type_name
from warmrank.worker.runtime.artifact import Check, Node, PortableGuards
from warmrank.worker.runtime.check import (
    argument_names,
    asks_for_gradients,
    holds,
    member,
    parameters,
    plain_type,
    resolve,
    root_names,
    take_step,
)
from warmrank.worker.runtime.decoding import decode
from warmrank.worker.settings import target

Others = Mapping[int, frozenset[int]]


def compile_input_check(
    guards: PortableGuards,
    function: FunctionType,
    *,
    asked: Collection[int] | None = None,
    others: Others | None = None,
) -> Callable[..., bool]:
    """A function of the cached function's own signature that says whether a call's arguments fit.

    It raises `TypeError` for arguments that the signature does not take, as the function itself would.

    Args:
        guards: conditions.
        function: the cached function.
        asked: nodes whose conditions are checked on every call beside those on arguments and on what the
            function writes to; by default what is cheap.
        others: by the position of a check of distinct objects, ids of those that a call does not bring.
    """
    if asked is None:
        asked = cheap_globals(guards, function)
    builder = _Builder(guards, function, per_call_nodes(guards, function, asked), others or {})
    prefix = _unlike(parameters(function.__code__))
    source = "\n".join(builder.lines()).replace("$", prefix)
    scope = {f"{prefix}{name}": value for name, value in builder.scope.items()}
    exec(compile(source, "<input guards>", "exec"), scope)  # noqa: S102 - source made here from trusted guards
    check: FunctionType = scope[f"{prefix}check"]
    check.__defaults__ = function.__defaults__
    check.__kwdefaults__ = function.__kwdefaults__
    check.__name__, check.__qualname__ = function.__name__, function.__qualname__
    return check


def per_call_nodes(
    guards: PortableGuards, function: FunctionType, asked: Collection[int] = ()
) -> frozenset[int]:
    """Nodes whose conditions are checked on every call: below arguments, written to, or asked for."""
    arguments = argument_names(function.__code__)
    of_call = (
        index
        for index, (step, name) in enumerate(root_names(guards.nodes))
        if step == "local" and name in arguments
    )
    return frozenset((*of_call, *guards.volatile, *asked))


class _Builder:
    """Writes the source of one check function; ``scope`` holds what it names, without the ``$``."""

    def __init__(
        self, guards: PortableGuards, function: FunctionType, per_call: frozenset[int], others: Others
    ) -> None:
        self._guards = guards
        self._code = function.__code__
        self._per_call = per_call
        self._others = others
        # Without defaults, which are set on the finished function.
        self._signature = inspect.signature(FunctionType(self._code, {}, closure=function.__closure__))
        self._cells = dict(zip(self._code.co_freevars, function.__closure__ or (), strict=True))
        named = (torch, type_name, holds, member, bool, float, int, str, Exception, id, len)
        self.scope: dict[str, Any] = {
            **{value.__name__: value for value in named},
            "globals": function.__globals__,
            "others": others,
            "type": type if target() is None else plain_type,
        }

    def lines(self) -> Iterator[str]:
        narrowed = [self._per_call_part(*numbered) for numbered in enumerate(self._guards.checks)]
        checks = [(check, taken) for check, taken in narrowed if check is not None]
        shapes = [item for item in self._guards.shapes if not self._per_call.isdisjoint(item[1])]
        used = {index for check, _ in checks for index in nodes_of(check)}
        used |= {index for _, indexes in shapes for index in indexes}
        conditions = [condition for item in checks for condition in self._conditions(*item)]
        if shapes:
            nodes = tuple(dict.fromkeys(index for _, indexes in shapes for index in indexes))
            fit = self._keep(_shapes_function([expression for expression, _ in shapes], nodes))
            conditions.append(f"{fit}({', '.join(f'$p{index}' for index in nodes)})")
        yield f"def $check{self._signature}:"
        yield "    try:"
        for index in with_parents(self._guards.nodes, used):
            yield f"        $p{index} = {self._value(index)}"
        yield f"        return $bool({' and '.join(conditions) or 'True'})"
        yield "    except $Exception:"
        yield "        return False"

    def _per_call_part(self, position: int, check: Check) -> tuple[Check | None, str]:
        """The check, or the part of it, that is asked on every call; None if a load has settled it.

        And, of distinct objects, the name of the ids of those that a load has settled.
        """
        nodes = nodes_of(check)
        if check[1] != "distinct":
            return (check if not self._per_call.isdisjoint(nodes) else None), ""
        first, *rest = [index for index in nodes if index in self._per_call] or [-1]
        taken = f"$others[{position}]" if position in self._others and first >= 0 else ""
        return ((first, "distinct", rest) if rest or taken else None), taken

    def _value(self, index: int) -> str:
        parent, step, argument = self._guards.nodes[index]
        base = f"$p{parent}"
        if parent < 0:
            return self._root(index, step, argument)
        if step == "attr" and _is_plain_name(argument):
            return f"{base}.{argument}"
        if step == "item" and not isinstance(argument, dict):
            return f"$member({base}, {_literal(argument)})"
        if step == "type":
            return f"$type({base})"
        return f"{self._keep(lambda value: take_step(step, value, argument))}({base})"

    def _root(self, index: int, step: str, argument: Any) -> str:
        if step == "local" and argument in parameters(self._code):
            return str(argument)
        if step == "global":
            return f"$globals[{_literal(argument)}]"
        if step == "local" and argument in self._cells:
            return f"{self._keep(self._cells[argument])}.cell_contents"
        return self._keep(resolve(self._guards.nodes, [], index, {"local": {}}))

    def _keep(self, value: Any) -> str:
        name = f"k{len(self.scope)}"
        self.scope[name] = value
        return f"${name}"

    def _conditions(self, check: Check, taken: str) -> Iterator[str]:
        node, kind, expected = check
        if kind != "distinct":
            yield self._condition(check)
            return
        ids = ", ".join(f"$id($p{index})" for index in (node, *expected))
        if expected:
            yield f"$len({{{ids}}}) == {len(expected) + 1}"
        if taken:
            yield f"{taken}.isdisjoint(({ids},))"

    def _condition(self, check: Check) -> str:
        node, kind, expected = check
        value = f"$p{node}"
        if kind == "equals":
            return self._equals(value, expected)
        if kind == "tensor":
            fits = self._tensor(value, expected)
            asks = asks_for_gradients(self._guards.nodes, check, self._code)
            return f"({fits} and not $torch.is_grad_enabled())" if asks else fits
        plain = {
            "same": f"{value} is $p{expected}",
            "type": f"$type_name($type({value})) == {_literal(expected)}",
            "none": f"{value} is None",
            "length": f"$len({value}) == {expected}",
        }
        return plain.get(kind) or f"$holds({kind!r}, {value}, {self._keep(expected)})"

    def _equals(self, value: str, expected: Any) -> str:
        if expected.__class__ in (bool, int, str):
            kind = expected.__class__.__name__
            return f"({value}.__class__ is ${kind} and {value} == {_literal(expected)})"
        named = expected if isinstance(expected, dict) else {}
        if "dtype" in named:
            return f"{value} is {self._keep(decode(named))}"
        if "float" in named and abs(known := decode(named)) > 0:  # no NaN, no zero with a sign
            return f"({value}.__class__ is $float and {value} == {self._keep(known)})"
        return f"$holds('equals', {value}, {self._keep(expected)})"

    def _tensor(self, value: str, expected: dict[str, Any]) -> str:
        layout = decode(expected["layout"])
        parts = [
            f"$type_name($type({value})) == {_literal(expected['type'])}",
            f"{value}.dtype is {self._keep(decode(expected['dtype']))}",
            f"{value}.device.type == {expected['device']!r}",
            f"{value}.layout is {self._keep(layout)}",
            f"{value}.requires_grad is {expected['requires_grad']}",
            f"{value}.is_conj() is {expected['lazy_bits'][0]}",
            f"{value}.is_neg() is {expected['lazy_bits'][1]}",
        ]
        if layout is torch.strided:
            parts += _dimensions(f"{value}.shape", expected["sizes"])
            parts += _dimensions(f"{value}.stride()", expected["strides"])
        return f"({' and '.join(parts)})"


def _dimensions(value: str, wanted: list[int | None]) -> list[str]:
    if None not in wanted:
        return [f"{value} == {tuple(wanted)!r}"]
    return [
        f"$len({value}) == {len(wanted)}",
        *(f"{value}[{index}] == {size}" for index, size in enumerate(wanted) if size is not None),
    ]


def _literal(value: Any) -> str:
    """A constant as source, without a ``$``."""
    return repr(value).replace("$", r"\x24")


def _unlike(names: Iterable[str]) -> str:
    """A prefix that none of the names has; ASCII, so that Python changes nothing about it."""
    prefix = "_"
    while any(name.startswith(prefix) for name in names):
        prefix += "_w"
    return prefix


def _is_plain_name(name: Any) -> bool:
    """True if a name means the same in source: no keyword, and not one that Python writes otherwise."""
    return isinstance(name, str) and name.isascii() and name.isidentifier() and not keyword.iskeyword(name)


def _shapes_function(expressions: list[str], nodes: tuple[int, ...]) -> Callable[..., bool]:
    """The conditions on sizes as one function of the nodes that they name; only these are its parameters."""
    parameters = ", ".join(f"p{index}" for index in nodes)
    source = f"lambda {parameters}: {' and '.join(f'({expression})' for expression in expressions)}"
    # As in `worker.runtime.check`: the expressions are part of an artifact, which was trusted before.
    function: Callable[..., bool] = eval(source, {"math": math, "torch": torch})  # noqa: S307
    return function


def with_parents(nodes: Sequence[Node], used: Iterable[int]) -> list[int]:
    """Nodes, and all those on the way to them, in order."""
    wanted: set[int] = set()
    for leaf in used:
        index = leaf
        while index >= 0 and index not in wanted:
            wanted.add(index)
            index = nodes[index][0]
    return sorted(wanted)


def nodes_of(check: Check) -> tuple[int, ...]:
    """The nodes that a check looks at."""
    node, kind, expected = check
    if kind == "same":
        return node, expected
    return (node, *expected) if kind == "distinct" else (node,)


_CHEAP = frozenset({"none", "not_none", "tensor", "gears", "geared"})


def reads_training(guards: PortableGuards) -> bool:
    """True if a condition is about the ``training`` flag of any module."""
    return any(
        guards.nodes[node][1:] in (("attr", "training"), ("item", "training")) for node, _, _ in guards.checks
    )


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
    """True if a node is a global of the function's module, or of a module that a global names."""
    parent, step, _ = guards.nodes[index]
    if parent < 0:
        return step == "global"
    of_parent, root, name = guards.nodes[parent]
    if of_parent >= 0 or step != "attr" or root not in ("global", "import"):
        return False
    module = sys.modules.get(name) if root == "import" else function.__globals__.get(name)
    return isinstance(module, ModuleType) and not is_pinned_module(module.__name__)
