"""Sets that a trace makes, and how each was made: Python alone says in which order it has the members.

Dynamo goes over a set as it was filled. What `order_of_set` makes again has the order that eager goes over.

Relied on: a set's variable has ``items``, a dict of its members, as keys with ``vt``.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from types import BuiltinFunctionType, MethodType
from typing import Any, Final

from torch._dynamo.variables.base import VariableTracker

from warmrank.worker.repeatable import order_of_set
from warmrank.worker.torch_private.patching import steps_in, steps_in_variables

MAKING: Final = {
    operator.or_: "__or__", operator.and_: "__and__", operator.sub: "__sub__", operator.xor: "__xor__",
}  # fmt: skip
"""Operators that make a set, and their methods."""
_FOLLOWED: Final = frozenset(
    {
        *MAKING.values(), "__ior__", "__iand__", "__isub__", "__ixor__", "union", "intersection",
        "difference", "symmetric_difference", "intersection_update", "difference_update",
        "symmetric_difference_update", "clear", "copy",
    }
)  # fmt: skip
FILLING: Final = ("add", "update")
EMPTY: Final = ("set",)
"""A set without members, as `order_of_set` takes it."""
_MANY: Final = 200
"""Members of a set of which no other order is tried than that of the trace."""
_LOSING: Final = ("remove", "discard")
_NUMBERS: Final = (bool, int, float, complex)


@dataclass(slots=True)
class _NewSet:
    """A set that the trace makes."""

    variable: Any
    made: tuple[Any, ...] | None  # as `order_of_set` takes it; None: nobody can make it again
    is_in_order: bool = False


class NewSets:
    """The sets that one trace makes."""

    def __init__(self) -> None:
        self._new: dict[int, _NewSet] = {}  # by their variables

    def __contains__(self, variable: Any) -> bool:
        return id(variable) in self._new

    def forget(self, variable: Any) -> None:
        """Forget how a set was made: it changes."""
        self._new.pop(id(variable), None)

    def operand(self, variable: Any) -> tuple[Any, ...] | None:
        """A set, or what it is made with, for `order_of_set`; None where nobody can make it again."""
        variable = variable.realize()
        if variable in self:
            return self._new[id(variable)].made
        kind, items = kind_of(variable), vars(variable).get("items")
        if items is None or not (kind in (list, tuple) or (kind is frozenset and variable.source is None)):
            return None
        return _constants(kind.__name__.replace("tuple", "list"), values(items))

    def fill(self, variable: Any, before: Any, known: Iterable[Any], *given: Any) -> None:
        """Note what was put into a set.

        Args:
            variable: the set.
            before: what it was, as `order_of_set` takes it.
            known: keys of the members that it had.
            *given: sets, or what gives its members one by one.
        """
        added: Any = dict.fromkeys(known)
        added = _constants("list", (key.vt for key in variable.items if key not in added))
        of = [self.operand(each) for each in given]
        if not any(issubclass(kind_of(each) or dict, set | frozenset | dict) for each in given):
            self.keep(variable, before if added == ("list",) else _made(before, "update", added))
        elif before == EMPTY and len(of) == 1 and of[0] is not None and of[0][0] == "frozenset":
            self.keep(variable, _made(before, "update", _literal(of[0])))
        else:
            self.note(variable, before, "update", *of)

    def note(self, variable: Any, before: Any, method: str, *given: Any) -> None:
        """Note a method by which a set was made or changed; ``before`` and ``given`` are operands."""
        self.keep(variable, _made(_strict(before), method, *map(_strict, given)))

    def step_of(self, method: str, args: Any) -> tuple[Any, ...] | None:
        """A method's name and operands, before it is called; None for one that is not followed."""
        if method in _LOSING and len(args) == 1:
            member = _constants("member", args)
            return member and (method, member)
        return (method, *map(self.operand, args)) if method in _FOLLOWED else None

    def keep(self, variable: Any, made: tuple[Any, ...] | None) -> None:
        """Note how a set was made."""
        self._new[id(variable)] = _NewSet(variable, made)

    def put_in_order(self, variable: Any, note_call: Callable[..., None]) -> bool:
        """Put a set in the order that Python gives it, a condition unless it is one of numbers.

        Returns:
            False if that order is not known.
        """
        new = self._new.get(id(variable))
        if new is None or new.made is None:
            return False
        if new.is_in_order:
            return True
        items = variable.items
        given = {key.vt.as_python_constant(): key for key in items}
        try:
            order = order_of_set(*new.made)
        except ValueError:
            return False
        if len(order) != len(items) or given.keys() != {*order}:
            return False
        if not all(isinstance(each, _NUMBERS) for each in _members(new.made)):
            note_call(order_of_set, new.made, order)
        variable.items = {given[member]: items[given[member]] for member in order}
        new.is_in_order = True
        return True


class TextHooks:
    """Steps in where Dynamo makes a set of constants anew: one in another order has another text."""

    def __init__(self) -> None:
        self._brought: dict[int, tuple[Any, Any]] = {}  # sets from before the call, by their variables

    @steps_in("torch._dynamo.variables.builder:VariableBuilder", "__call__(value)")
    def _build(self, original: Any, builder: Any, value: Any) -> Any:
        made = original(builder, value)
        if type(value) in (set, frozenset):
            self._brought[id(made)] = value, made
        return made

    @steps_in_variables("as_python_constant", only="SetVariable")
    @steps_in_variables("as_python_constant", only="FrozensetVariable")
    def _constant(self, original: Any, variable: Any) -> Any:
        """The constant, in the order of the trace where one can be made so."""
        constant, order = original(variable), [key.vt.as_python_constant() for key in variable.items]
        before, _ = self._brought.get(id(variable), (None, None))
        if before is not None and [*before] == order:
            copied = before.copy()
            return copied if [*copied] == order else before
        tried = _shuffled(order) if len(order) < _MANY else [order]
        return next((made for made in map(type(constant), tried) if [*made] == order), constant)

    @steps_in_variables("repr_impl", "tp_repr_impl", is_optional=True, only="SetVariable")
    @steps_in_variables("repr_impl", "tp_repr_impl", is_optional=True, only="FrozensetVariable")
    def _text(self, original: Any, variable: Any, tx: Any) -> Any:
        if not variable.is_python_constant():
            return original(variable, tx)
        return VariableTracker.build(tx, repr(variable.as_python_constant()))


def _made(before: tuple[Any, ...] | None, method: str, *given: tuple[Any, ...] | None) -> Any:
    """Operand for the result of a method; None where nobody can make it again."""
    if before is None or None in given:
        return None
    start, *steps = before[1:] if before[0] == "made" else (before,)
    return ("made", start, *steps, (method, *given))


def _literal(constant: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """A set of the code's constants, filled so that it has the order of the process; None if that fails."""
    tried = _shuffled(constant[1:])
    return next((("literal", *each) for each in tried if (*frozenset(each),) == constant[1:]), None)


def _shuffled(members: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Members in their order, then in others."""
    shuffle = Random(0)  # noqa: S311 - the same each time
    yield members
    yield from (shuffle.sample(members, len(members)) for _ in range(200))


def _strict(operand: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
    """An operand of which literals must have one order only, however Python filled them."""
    if operand is None:
        return None
    kind, *found = operand
    if kind != "made":
        return ("frozenset" if kind == "literal" else kind, *found)
    return ("made", _strict(found[0]), *((name, *map(_strict, given)) for name, *given in found[1:]))


def _constants(kind: str, variables: Iterable[Any]) -> tuple[Any, ...] | None:
    """An operand of constants; None if one is none, or has a hash that no other process has."""
    found = [each.realize() for each in variables]
    if any(not each.is_python_constant() or has_hash_of_address(each) for each in found):
        return None
    return (kind, *(each.as_python_constant() for each in found))


def _members(operand: tuple[Any, ...]) -> Iterator[Any]:
    kind, *found = operand
    if kind != "made":
        yield from found
        return
    for each in (found[0], *(given for step in found[1:] for given in step[1:])):
        yield from _members(each)


def kind_of(variable: Any) -> type | None:
    """The type of what a variable stands for; None where Dynamo knows none."""
    try:
        kind: type = variable.python_type()
    except NotImplementedError:
        return None
    return kind


def values(members: Iterable[Any]) -> Iterator[Any]:
    """Variables of a container's members, which may be keys around them."""
    return (getattr(member, "vt", member) for member in members)


def held_in(variables: Iterable[Any]) -> list[Any]:
    """Variables, and all that they hold, keys included: what the text of one is made of."""
    found: list[Any] = []
    seen: dict[int, Any] = {}

    def look(variable: Any) -> None:
        found.append(variable.realize())
        items = vars(found[-1]).get("items")
        if isinstance(items, dict):
            VariableTracker.visit(look, [*values(items)], seen)

    VariableTracker.visit(look, [*variables], seen)
    return found


def is_number(variable: Any) -> bool:
    """True for a constant number, whose hash is the same in every process."""
    return variable.is_python_constant() and isinstance(variable.as_python_constant(), _NUMBERS)


def has_hash_of_address(variable: Any) -> bool:
    """True if the hash of an object, or of what it holds, is an address."""
    variable = variable.realize()
    if isinstance(members := vars(variable).get("items"), list | tuple | set | dict):
        return any(map(has_hash_of_address, values(members)))
    if variable.is_python_constant():
        return _is_hashed_by_address(variable.as_python_constant())
    return _hash_by_address(variable.python_type())


def _is_hashed_by_address(value: Any) -> bool:
    if isinstance(value, tuple | frozenset):
        return any(map(_is_hashed_by_address, value))
    return (isinstance(value, float) and math.isnan(value)) or _hash_by_address(type(value))


def _hash_by_address(kind: Any) -> bool:
    return kind.__hash__ is object.__hash__ or issubclass(kind, (MethodType, BuiltinFunctionType))
