"""The conditions on a call's arguments, compiled to one Python function that runs in microseconds.

The module's own conditions are checked once per load; those that touch an argument are checked on every
call, because a call may always bring another shape. So are those that are cheap (`worker.guards.once`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any

import torch

from worker.guards import constants
from worker.guards.check import HOLDS, asks_for_gradients
from worker.guards.model import Check, PortableGuards
from worker.guards.once import cheap_globals
from worker.guards.paths import root_names
from worker.guards.plain_types import plain_type
from worker.sources import type_name
from worker.target import target

_NAME = re.compile(r"\b(p\d+|math|torch)\b")


def compile_input_check(guards: PortableGuards, function: FunctionType) -> Callable[..., bool]:
    """A function of the cached function's own signature that says whether a call's arguments fit.

    It raises `TypeError` for arguments that the signature does not take, as the function itself would.
    """
    builder = _Builder(guards, function)
    source = "\n".join(builder.lines())
    scope = builder.scope
    exec(compile(source, "<input guards>", "exec"), scope)  # noqa: S102 - source made here from trusted guards
    check: FunctionType = scope["check"]
    check.__defaults__ = function.__defaults__
    check.__kwdefaults__ = function.__kwdefaults__
    check.__name__, check.__qualname__ = function.__name__, function.__qualname__
    return check


class _Builder:
    """Writes the source of one check function."""

    def __init__(self, guards: PortableGuards, function: FunctionType) -> None:
        self._guards = guards
        self._code = function.__code__
        self._roots = roots = root_names(guards.nodes)
        once = {_parameters(self._code)[0], *self._code.co_freevars}
        asked = {*guards.volatile, *cheap_globals(guards, function)}
        self._per_call = [
            index in asked or (step == "local" and name not in once)
            for index, (step, name) in enumerate(roots)
        ]
        self._cells = dict(zip(self._code.co_freevars, function.__closure__ or (), strict=True))
        self.scope: dict[str, Any] = {
            # Underscored, because a parameter may be called torch, type, id or len.
            "_math": math,
            "_torch": torch,
            "_type_name": type_name,
            "_holds": HOLDS,
            "_globals": function.__globals__,
            "_bool": bool,
            "_float": float,
            "_int": int,
            "_str": str,
            "_id": id,
            "_len": len,
            "_type": type if target() is None else plain_type,
        }

    def lines(self) -> Iterator[str]:
        checks = [narrowed for check in self._guards.checks if (narrowed := self._per_call_part(check))]
        shapes = [item for item in self._guards.shapes if any(self._per_call[index] for index in item[1])]
        used = {index for check in checks for index in _nodes_of(check)}
        used |= {index for _, indexes in shapes for index in indexes}
        conditions = [self._condition(check) for check in checks]
        conditions += ["(" + _NAME.sub(r"_\1", expression) + ")" for expression, _ in shapes]
        yield f"def check({_signature(self._code)}):"
        yield "    try:"
        for index in self._with_parents(used):
            yield f"        _p{index} = {self._value(index)}"
        yield f"        return _bool({' and '.join(conditions) or 'True'})"
        yield "    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):"
        yield "        return False"

    def _per_call_part(self, check: Check) -> Check | None:
        """The check, or the part of it, that is asked on every call; None if a load has settled it."""
        if check[1] != "distinct":
            return check if any(self._per_call[index] for index in _nodes_of(check)) else None
        first, *rest = [index for index in _nodes_of(check) if self._per_call[index]] or [0]
        return (first, "distinct", rest) if rest else None

    def _with_parents(self, used: Iterable[int]) -> list[int]:
        wanted: set[int] = set()
        for leaf in used:
            index = leaf
            while index >= 0 and index not in wanted:
                wanted.add(index)
                index = self._guards.nodes[index][0]
        return sorted(wanted)

    def _value(self, index: int) -> str:
        parent, step, argument = self._guards.nodes[index]
        if parent < 0:
            return self._root(index, step, argument)
        base = f"_p{parent}"
        if step == "attr" and str(argument).isidentifier():
            return f"{base}.{argument}"
        if step == "item" and not isinstance(argument, dict):
            return f"{base}[{argument!r}]"
        if step == "type":
            return f"_type({base})"
        from worker.guards.paths import _STEPS

        name = self._keep(lambda value, step=step, argument=argument: _STEPS[step](value, argument))
        return f"{name}({base})"

    def _root(self, index: int, step: str, argument: Any) -> str:
        if step == "local" and argument in _parameters(self._code):
            return str(argument)
        if step == "global":
            return f"_globals[{argument!r}]"
        if step == "local" and argument in self._cells:
            return f"{self._keep(self._cells[argument])}.cell_contents"
        from worker.guards.paths import resolve

        return self._keep(
            resolve(self._guards.nodes, [], index, {"local": {}, "global": self.scope["_globals"]})
        )

    def _keep(self, value: Any) -> str:
        name = f"_k{len(self.scope)}"
        self.scope[name] = value
        return name

    def _condition(self, check: Check) -> str:
        node, kind, expected = check
        value = f"_p{node}"
        if kind == "same":
            return f"{value} is _p{expected}"
        if kind == "distinct":
            names = ", ".join(f"_id(_p{index})" for index in (node, *expected))
            return f"_len({{{names}}}) == {len(expected) + 1}"
        if kind == "type":
            return f"_type_name(_type({value})) == {expected!r}"
        if kind == "none":
            return f"{value} is None"
        if kind == "length":
            return f"_len({value}) == {expected}"
        if kind == "equals":
            return self._equals(value, expected)
        if kind == "tensor":
            fits = self._tensor(value, expected)
            if asks_for_gradients(self._guards.nodes, check, self._code):
                return f"({fits} and not _torch.is_grad_enabled())"
            return fits
        return f"_holds[{kind!r}]({value}, {self._keep(expected)})"

    def _equals(self, value: str, expected: Any) -> str:
        if expected.__class__ in (bool, int, str):
            return f"({value}.__class__ is _{expected.__class__.__name__} and {value} == {expected!r})"
        named = expected if isinstance(expected, dict) else {}
        if "dtype" in named:
            return f"{value} is {self._keep(constants.decode(named))}"
        if "float" in named and abs(known := constants.decode(named)) > 0:  # no NaN, no zero with a sign
            return f"({value}.__class__ is _float and {value} == {self._keep(known)})"
        return f"_holds['equals']({value}, {self._keep(expected)})"

    def _tensor(self, value: str, expected: dict[str, Any]) -> str:
        parts = [
            f"_type_name(_type({value})) == {expected['type']!r}",
            f"{value}.dtype is {self._keep(constants.decode(expected['dtype']))}",
            f"{value}.device.type == {expected['device']!r}",
            f"{value}.layout is {self._keep(constants.decode(expected['layout']))}",
            f"{value}.requires_grad is {expected['requires_grad']}",
            f"{value}.is_conj() is {expected['lazy_bits'][0]}",
            f"{value}.is_neg() is {expected['lazy_bits'][1]}",
        ]
        if constants.decode(expected["layout"]) is torch.strided:
            parts += _dimensions(f"{value}.shape", expected["sizes"])
            parts += _dimensions(f"{value}.stride()", expected["strides"])
        return f"({' and '.join(parts)})"


def _nodes_of(check: Check) -> tuple[int, ...]:
    """The nodes that a check looks at."""
    node, kind, expected = check
    if kind == "same":
        return node, expected
    return (node, *expected) if kind == "distinct" else (node,)


def _dimensions(value: str, wanted: list[int | None]) -> list[str]:
    if None not in wanted:
        return [f"{value} == {tuple(wanted)!r}"]
    return [
        f"_len({value}) == {len(wanted)}",
        *(f"{value}[{index}] == {size}" for index, size in enumerate(wanted) if size is not None),
    ]


def _parameters(code: CodeType) -> tuple[str, ...]:
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    return code.co_varnames[:count]


def _signature(code: CodeType) -> str:
    """The parameter list of a function, without defaults (they are set on the finished function)."""
    names = list(code.co_varnames)
    positional = names[: code.co_argcount]
    keyword_only = names[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    position = code.co_argcount + code.co_kwonlyargcount
    parts = list(positional)
    if code.co_posonlyargcount:
        parts.insert(code.co_posonlyargcount, "/")
    if code.co_flags & 4:
        parts.append(f"*{names[position]}")
        position += 1
    elif keyword_only:
        parts.append("*")
    parts += keyword_only
    if code.co_flags & 8:
        parts.append(f"**{names[position]}")
    return ", ".join(parts)
