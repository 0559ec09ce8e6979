"""Orders of sets and hashes of strings, which every process has its own of: Dynamo takes them for constants.

A set that the caller brings must have its members in the traced order. Of one that the function makes itself,
and of ``hash``, the outcome follows from how strings are hashed, which `HASHED` stands for, or from
addresses, which is refused.

Facts relied upon (``tests/unit/test_evaluated_sets.py``), of torch 2.11 to 2.15: whatever takes the members
of a set one by one passes ``unpack_var_sequence`` or ``tp_iter_impl`` of its variable, ``set.pop`` its
``call_method``, ``list.extend`` that of the list; ``sorted`` passes ``BuiltinVariable.call_sorted``, ``min``
and ``max`` ``_call_min_max``, and all builtins ``BuiltinVariable.call_function``.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from types import BuiltinFunctionType, MethodType
from typing import Any, Final

from worker.torch_private.evaluated_attributes import Note, with_subclasses
from worker.torch_private.lowering import source_name
from worker.torch_private.patching import wrapped

FACTS = {
    "torch._dynamo.variables.builtin:BuiltinVariable": "call_sorted _call_min_max call_function",
    "torch._dynamo.variables.base:VariableTracker": "call_method(tx, name, args, kwargs)",
    "torch._dynamo.variables.lazy:LazyVariableTracker": "realize",
}
HASHED: Final = "PYTHONHASHSEED"
"""A string by whose hash processes are told apart; named for what decides on it."""

_ORDERED = ("unpack_var_sequence", "tp_iter_impl")
_TAKING = ("extend", "extendleft", "__iadd__", "__init__")
_PRINTING = (str, repr, ascii, format)
_NUMBERS = (bool, int, float, complex)
_BOUND = (MethodType, BuiltinFunctionType)


class NotedSets:
    """Tells of sets whose order a trace relies on, and of hashes of strings."""

    def __init__(self, note: Note, note_hash: Callable[[], None], refuse: Callable[[str], None]) -> None:
        self._note = note
        self._note_hash = note_hash
        self._refuse = refuse
        self._sorting = 0
        self._sets: tuple[type[Any], ...] = ()

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Note what is traced within the context."""
        from torch._dynamo.variables.base import VariableTracker
        from torch._dynamo.variables.builtin import BuiltinVariable
        from torch._dynamo.variables.lazy import LazyVariableTracker

        self._sets = _set_classes()
        with contextlib.ExitStack() as stack:
            for cls in with_subclasses(VariableTracker):
                for name in set(_ORDERED) & vars(cls).keys():
                    stack.enter_context(wrapped(cls, name, self._order))
                if "call_method" in vars(cls) and cls is not LazyVariableTracker:
                    stack.enter_context(wrapped(cls, "call_method", self._method))
            stack.enter_context(wrapped(BuiltinVariable, "call_sorted", self._sorted))
            stack.enter_context(wrapped(BuiltinVariable, "_call_min_max", self._sorted))
            stack.enter_context(wrapped(BuiltinVariable, "call_function", self._hash))
            yield

    def _order(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def unpack(variable: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._sorting:
                self._tell_sets([variable])
            return original(variable, *args, **kwargs)

        return unpack

    def _method(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call_method(variable: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
            if name in ("pop", "__iter__"):
                self._tell_sets([variable])
            elif name in _TAKING:
                self._tell_sets(args)
            elif name == "__hash__":
                self._tell_hashes([variable])
            return original(variable, tx, name, args, kwargs)

        return call_method

    def _tell_sets(self, variables: Iterable[Any]) -> None:
        for variable in variables:
            if not isinstance(variable.realize(), self._sets):
                continue
            if variable.source is not None:
                self._note("order", source_name(variable.source), None)
            else:
                self._tell_hashes(_members(variable.realize()))

    def _tell_hashes(self, variables: Iterable[Any]) -> None:
        """Note that hashes count, unless those of numbers; refuse those of addresses."""
        for variable in variables:
            if _has_hash_of_address(variable):
                self._refuse(
                    f"{variable.python_type().__qualname__} objects hash by their addresses, on which hash() "
                    "and the order of a set hang, and which no other process has; use a list or a number"
                )
            elif not _is_number(variable):
                self._note_hash()

    def _sorted(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def sort(builtin: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
            if "key" in kwargs:  # equal keys keep the order that they had
                return original(builtin, tx, *args, **kwargs)
            self._sorting += 1
            try:
                return original(builtin, tx, *args, **kwargs)
            finally:
                self._sorting -= 1

        return sort

    def _hash(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call_function(builtin: Any, tx: Any, args: Any, kwargs: Any) -> Any:
            if builtin.fn is hash:
                self._tell_hashes(args)
            elif builtin.fn in _PRINTING:
                self._tell_sets(args)
            return original(builtin, tx, args, kwargs)

        return call_function


def _set_classes() -> tuple[type[Any], ...]:
    """Variables of sets whose order follows from hashes."""
    from torch._dynamo.variables.base import VariableTracker

    names = {"SetVariable", "FrozensetVariable", "UserDefinedSetVariable"}
    in_order = {"OrderedSetVariable", "DictKeySetVariable"}
    return tuple(
        cls
        for cls in with_subclasses(VariableTracker)
        if (kinds := {base.__name__ for base in cls.__mro__}) & names and not kinds & in_order
    )


def _members(variable: Any) -> Iterator[Any]:
    items = getattr(variable, "items", None)
    if items is None:  # a class of the user's around a set
        yield variable
    else:
        yield from (getattr(key, "vt", key) for key in items)


def _is_number(variable: Any) -> bool:
    return variable.is_python_constant() and isinstance(variable.as_python_constant(), _NUMBERS)


def _has_hash_of_address(variable: Any) -> bool:
    variable = variable.realize()
    if isinstance(members := vars(variable).get("items"), list | tuple | set):
        return any(_has_hash_of_address(getattr(member, "vt", member)) for member in members)
    kind: Any = variable.python_type()
    if variable.is_python_constant():
        value = variable.as_python_constant()
        kind = _BOUND[0] if isinstance(value, float) and math.isnan(value) else type(value)
    return kind.__hash__ is object.__hash__ or issubclass(kind, _BOUND)


PROBES = {"sets have variables of their own": lambda: len(_set_classes()) > 1}
