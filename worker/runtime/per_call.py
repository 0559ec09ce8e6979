"""The conditions on a call's arguments, compiled to one Python function that runs in microseconds.

Conditions that touch an argument are checked on every call, because a call may always bring another shape.
Those on what the function itself writes to are, too, and those that somebody asks for: what is cheap
(``guards="once"``: numbers, strings, dtypes and tensors that are variables of a module of Python's, some
50 ns each), or cannot be watched (`worker.runtime.call_guards`). Tensors are compared in C++ with those of
the last call for which their conditions were evaluated (`worker.torch_private.unchanged.Alike`).

Invariant: no name in the generated code but the function's own parameters is one of these. Our own names
are written with a ``$``, for which a prefix is put that none of the parameters has.
"""

from __future__ import annotations

import builtins
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
from warmrank.worker.torch_private.unchanged import Alike

Others = Mapping[int, frozenset[int]]
# Types whose members are looked up by no code of the user's.
_PLAIN = frozenset({list, tuple, dict})


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
    writer = _Writer(guards, function, per_call_nodes(guards, function, asked), others or {})
    prefix = "_"
    while any(name.startswith(prefix) for name in parameters(function.__code__)):
        prefix += "_w"
    source = "\n".join(writer.lines()).replace("$", prefix)
    scope = {f"{prefix}{name}": value for name, value in writer.scope.items()}
    exec(compile(source, "<input guards>", "exec"), scope)  # noqa: S102 - source made here from trusted guards
    if writer.tensors:
        scope[f"{prefix}alike"] = Alike(scope[f"{prefix}fit"], writer.tensors.values())
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
    roots = enumerate(root_names(guards.nodes))
    of_call = (index for index, (step, name) in roots if step == "local" and name in arguments)
    return frozenset((*of_call, *guards.volatile, *asked))


class _Writer:
    """Writes the source of one check; ``scope`` holds what it names, without the ``$``.

    Attributes:
        tensors: sizes and strides of the tensors that function ``fit`` takes, by node.
    """

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
        self._is_here = target() is None  # else tensors are fakes
        self.tensors: dict[int, tuple[Any, Any]] = {}
        named = (torch, type_name, holds, member, bool, float, int, str, Exception, id, len)
        self.scope: dict[str, Any] = {
            **{value.__name__: value for value in named},
            "globals": function.__globals__,
            "others": others,
            "plain": _PLAIN,
            "type": type if self._is_here else plain_type,
        }

    def lines(self) -> Iterator[str]:
        conditions: list[str] = []
        of_tensors: list[str] = []
        used: set[int] = set()
        for position, check in enumerate(self._guards.checks):
            nodes = [index for index in nodes_of(check) if check[1] != "distinct" or index in self._per_call]
            if self._per_call.isdisjoint(nodes):
                continue
            used |= {*nodes}
            if check[1] == "distinct":
                conditions += self._distinct(position, nodes)
            elif check[1] == "tensor":
                self._of_tensor(check, conditions, of_tensors)
            else:
                conditions.append(self._condition(check))
        shapes = [item for item in self._guards.shapes if not self._per_call.isdisjoint(item[1])]
        sized = tuple(dict.fromkeys(index for _, indexes in shapes for index in indexes))
        given = ", ".join(f"$p{index}" for index in self.tensors)
        if of_tensors:
            yield f"def $fit({given}):"
            yield f"    return {' and '.join(of_tensors)}"
            conditions.append(f"$alike({given})")
        if shapes:
            fit = self._keep(_shapes_function([expression for expression, _ in shapes], sized))
            conditions.append(f"{fit}({', '.join(f'$p{index}' for index in sized)})")
        yield f"def $check{self._signature}:"
        yield "    try:"
        for index in with_parents(self._guards.nodes, used.union(sized)):
            yield f"        $p{index} = {self._value(index)}"
        yield f"        return $bool({' and '.join(dict.fromkeys(conditions)) or 'True'})"
        yield "    except $Exception:"
        yield "        return False"

    def _distinct(self, position: int, nodes: list[int]) -> Iterator[str]:
        """That a call's objects are distinct, and none of them is one that a load has settled."""
        ids = ", ".join(f"$id($p{index})" for index in nodes)
        if len(nodes) > 1:
            yield f"$len({{{ids}}}) == {len(nodes)}"
        if position in self._others:
            yield f"$others[{position}].isdisjoint(({ids},))"

    def _of_tensor(self, check: Check, conditions: list[str], of_tensors: list[str]) -> None:
        node, _, expected = check
        if asks_for_gradients(self._guards.nodes, check, self._code):
            conditions.append("not $torch.is_grad_enabled()")
        fits = self._tensor(f"$p{node}", expected)
        if self._is_here and decode(expected["layout"]) is torch.strided and node not in self.tensors:
            self.tensors[node] = expected["sizes"], expected["strides"]
            of_tensors.append(fits)
        else:
            conditions.append(fits)

    def _value(self, index: int) -> str:
        parent, step, argument = self._guards.nodes[index]
        base = f"$p{parent}"
        if parent < 0:
            return self._root(index, step, argument)
        if step == "attr" and _is_plain_name(argument):
            return f"{base}.{argument}"
        if step == "item" and not isinstance(argument, dict):
            key = _literal(argument)
            return f"{base}[{key}] if $type({base}) in $plain else $member({base}, {key})"
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

    def _condition(self, check: Check) -> str:
        node, kind, expected = check
        value = f"$p{node}"
        if kind == "equals":
            return self._equals(value, expected)
        if kind == "type":
            module, _, name = expected.partition(":")
            plain = vars(builtins).get(name) if module == "builtins" else None
            if isinstance(plain, type):  # which nobody can change
                return f"$type({value}) is {self._keep(plain)}"
            return f"$type_name($type({value})) == {_literal(expected)}"
        if kind == "same":
            return f"{value} is $p{expected}"
        if kind == "none":
            return f"{value} is None"
        if kind == "length":
            return f"$len({value}) == {expected}"
        return f"$holds({kind!r}, {value}, {self._keep(expected)})"

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
        for numbers, wanted in (
            (
                (f"{value}.shape", expected["sizes"]),
                (f"{value}.stride()", expected["strides"]),
            )
            if layout is torch.strided
            else ()
        ):
            if None in wanted:
                parts.append(f"$len({numbers}) == {len(wanted)}")
                each = enumerate(wanted)
                parts += [f"{numbers}[{dim}] == {size}" for dim, size in each if size is not None]
            else:
                parts.append(f"{numbers} == {tuple(wanted)!r}")
        return f"({' and '.join(parts)})"


def _literal(value: Any) -> str:
    """A constant as source, without a ``$``."""
    return repr(value).replace("$", r"\x24")


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


def cheap_globals(guards: PortableGuards, function: FunctionType) -> frozenset[int]:
    """Nodes of the variables of modules whose conditions are cheap, and all below them."""
    kinds: dict[int, list[bool]] = {}
    for node, kind, expected in guards.checks:
        if kind == "equals":
            is_named = isinstance(expected, dict) and expected.keys() <= {"float", "dtype"}
            kinds.setdefault(node, []).append(is_named or expected.__class__ in (bool, int, str))
        elif kind != "distinct":
            kinds.setdefault(node, []).append(kind in _CHEAP)
    found: set[int] = set()
    for index, (parent, _, _) in enumerate(guards.nodes):
        if parent in found or (all(kinds.get(index, (False,))) and _is_variable(guards, index, function)):
            found.add(index)
    return frozenset(found)


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
