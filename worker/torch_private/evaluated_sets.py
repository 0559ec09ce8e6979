"""Orders of sets and hashes of strings, which every process has its own of: Dynamo takes them for constants.

A set that the caller brings must have its members in the traced order. So must one that the function makes
of a list or tuple, and leaves so: the trace goes over it in the order that Python gives it in this process.
Of other sets, and of ``hash``, the outcome follows from how strings are hashed, which `HASHED` stands for, or
from addresses, which is refused. What a function that keeps its results (``functools.lru_cache``) makes of
constants counts as a whole, if it changes nothing.

Facts relied upon (``tests/unit/test_evaluated_sets.py``), of torch 2.11 to 2.15: whatever takes the members
of a set one by one passes ``unpack_var_sequence`` or ``tp_iter_impl`` of its variable, ``set.pop`` its
``call_method``, ``list.extend`` that of the list; ``sorted`` passes ``BuiltinVariable.call_sorted``, ``min``
and ``max`` ``_call_min_max``, and all builtins ``BuiltinVariable.call_function``. A variable's ``items`` is a
dict of the set's members, in the order of the trace. Whatever changes a set passes ``SideEffects.mutation``,
and whatever has an effect ``check_allowed_side_effect``, with a ``mutation_type`` that says if it is new.
Functions that keep their results are traced by ``WrapperUserFunctionVariable``, which holds ``wrapper_obj``.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from types import BuiltinFunctionType, MethodType
from typing import Any, Final

from warmrank.worker.repeatable import kept_result, order_of_set
from warmrank.worker.torch_private.evaluated_attributes import Note, with_subclasses
from warmrank.worker.torch_private.lowering import source_name
from warmrank.worker.torch_private.patching import wrapped

NoteCall = Callable[[Callable[..., Any], tuple[tuple[Any, ...], dict[str, Any]], Any], None]

FACTS = {
    "torch._dynamo.variables.builtin:BuiltinVariable": "call_sorted _call_min_max call_function",
    "torch._dynamo.variables.base:VariableTracker": "call_method(tx, name, args, kwargs)",
    "torch._dynamo.variables.lazy:LazyVariableTracker": "realize",
    "torch._dynamo.side_effects:SideEffects": "mutation(var) check_allowed_side_effect(item)",
    "torch._dynamo.variables.functions:WrapperUserFunctionVariable": "call_function(tx, args, kwargs)",
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

    def __init__(self, note: Note, note_call: NoteCall, refuse: Callable[[str], None]) -> None:
        self._note = note
        self._note_call = note_call
        self._refuse = refuse
        self._filled: dict[int, tuple[Any, list[Any]]] = {}  # made of a sequence: by identity, with its items
        self._in_order: set[int] = set()
        self._held: list[tuple[Any, Any, Any]] | None = None  # calls that a kept result may stand for
        self._has_effects = False  # of functions that keep their results
        self._sorting = 0
        self._sets: tuple[type[Any], ...] = ()

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Note what is traced within the context."""
        from torch._dynamo.side_effects import SideEffects
        from torch._dynamo.variables.base import VariableTracker
        from torch._dynamo.variables.builtin import BuiltinVariable
        from torch._dynamo.variables.functions import WrapperUserFunctionVariable
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
            stack.enter_context(wrapped(BuiltinVariable, "call_function", self._builtin))
            stack.enter_context(wrapped(SideEffects, "mutation", self._mutation))
            stack.enter_context(wrapped(SideEffects, "check_allowed_side_effect", self._effect))
            stack.enter_context(wrapped(WrapperUserFunctionVariable, "call_function", self._kept))
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
            elif self._is_as_filled(variable.realize()):
                self._put_in_order(variable.realize())
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

    def _is_as_filled(self, variable: Any) -> bool:
        _, items = self._filled.get(id(variable), (None, []))
        return bool(items) and items == list(variable.items)

    def _put_in_order(self, variable: Any) -> None:
        """Trace a set in the order that Python gives it, which is a condition."""
        if id(variable) in self._in_order:
            return
        members = (member.as_python_constant() for member in _members(variable))
        given = dict(zip(members, variable.items, strict=True))
        order = order_of_set(*given)
        self._tell(order_of_set, (tuple(given), {}), order)
        variable.items = {given[member]: variable.items[given[member]] for member in order}
        self._filled[id(variable)] = variable, list(variable.items)
        self._in_order.add(id(variable))

    def _mutation(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def mutation(effects: Any, variable: Any) -> Any:
            self._filled.pop(id(variable), None)
            return original(effects, variable)

        return mutation

    def _effect(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def check_allowed_side_effect(effects: Any, item: Any) -> Any:
            if self._held is not None and not type(item.mutation_type).__name__.endswith("New"):
                self._has_effects = True
            return original(effects, item)

        return check_allowed_side_effect

    def _kept(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call_function(variable: Any, tx: Any, args: Any, kwargs: Any) -> Any:
            if not hasattr(variable.wrapper_obj, "cache_info"):
                return original(variable, tx, args, kwargs)
            outer, self._held = self._held, []
            try:
                made = original(variable, tx, args, kwargs)
            finally:
                held, self._held = self._held, outer
            asked = held and not self._has_effects
            whole = _kept_call(variable.wrapper_obj, args, kwargs) if asked else None
            for call in held if whole is None else [whole]:
                self._tell(*call)
            return made

        return call_function

    def _tell(self, function: Any, given: Any, result: Any) -> None:
        if self._held is None:
            self._note_call(function, given, result)
        else:
            self._held.append((function, given, result))

    def _note_hash(self) -> None:
        self._tell(hash, ((HASHED,), {}), hash(HASHED))

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

    def _builtin(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call_function(builtin: Any, tx: Any, args: Any, kwargs: Any) -> Any:
            if builtin.fn is hash:
                self._tell_hashes(args)
            elif builtin.fn in _PRINTING:
                self._tell_sets(args)
            made = original(builtin, tx, args, kwargs)
            if builtin.fn in (set, frozenset) and args and _is_sequence(args[0]):
                members = list(_members(made))
                constant = all(
                    each.is_python_constant() and not _has_hash_of_address(each) for each in members
                )
                if constant and not all(map(_is_number, members)):
                    self._filled[id(made)] = made, list(made.items)
            return made

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


def _kept_call(function: Any, args: Any, kwargs: Any) -> tuple[Any, Any, Any] | None:
    """The call that says what a function makes of constants; None where no other process can ask that."""
    name = f"{function.__module__}:{function.__qualname__}"
    try:
        constants = tuple(item.realize().as_python_constant() for item in args)
        named = {key: item.realize().as_python_constant() for key, item in kwargs.items()}
        return kept_result, ((name, constants, named), {}), kept_result(name, constants, named)
    except Exception:  # noqa: BLE001 - whatever the function and its arguments raise
        return None


def _is_sequence(variable: Any) -> bool:
    try:
        return variable.python_type() in (list, tuple)
    except NotImplementedError:
        return False


def _is_number(variable: Any) -> bool:
    return variable.is_python_constant() and isinstance(variable.as_python_constant(), _NUMBERS)


def _has_hash_of_address(variable: Any) -> bool:
    variable = variable.realize()
    if isinstance(members := vars(variable).get("items"), list | tuple | set | dict):
        return any(_has_hash_of_address(getattr(member, "vt", member)) for member in members)
    if variable.is_python_constant():
        return _is_hashed_by_address(variable.as_python_constant())
    return _hash_by_address(variable.python_type())


def _is_hashed_by_address(value: Any) -> bool:
    if isinstance(value, tuple | frozenset):
        return any(map(_is_hashed_by_address, value))
    return (isinstance(value, float) and math.isnan(value)) or _hash_by_address(type(value))


def _hash_by_address(kind: Any) -> bool:
    return kind.__hash__ is object.__hash__ or issubclass(kind, _BOUND)


PROBES = {"sets have variables of their own": lambda: len(_set_classes()) > 1}
