"""Containers, where Dynamo does otherwise than Python: those of the user's own classes, and their members.

Where code of C takes a container as a whole it looks past methods that its class has, or calls them:
``dict(d)`` reads what a dict holds, whatever its ``items`` says, but of an ``OrderedDict`` it asks ``keys``
and ``__getitem__``. Dynamo decides that otherwise, in each release in another way. So a container with such
methods of its own is refused there. Methods called by their names, subscripts, ``in``, loops and what goes
over a container by its ``__iter__`` are traced as Python runs them. A set of a class of its own is refused
wherever it is, as changes of it are lost; so is such a deque, whose changes ask these methods.

Members of a list or tuple stay the objects that they are, also where all that they hold is constant: Dynamo
computes with constants, and makes others of them. Changes in place are made by methods; one that puts a list
into itself is refused. Copies of Python's containers are made as their code of C makes them, those of a deque
with its limit. ``in``, and ``count``, find an object itself, or an equal one. Attributes of a
`types.SimpleNamespace` may be set. The place that a member of an `IntEnum` stands for is its number.

Relied on (``tests/fuzz/parts/evaluated.py``): every call of a frame goes through ``call_function``, and
every instruction through ``step``; methods of C's have the names ``method_of`` finds.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import operator
from collections import OrderedDict, defaultdict, deque
from types import FunctionType, MethodDescriptorType, SimpleNamespace
from typing import Any, Final

import torch
from torch._dynamo.guards import GuardBuilder
from torch._dynamo.source import DictSubclassGetItemSource
from torch._dynamo.variables import (
    BuiltinVariable,
    ConstDictVariable,
    TensorVariable,
    TupleVariable,
    UserDefinedClassVariable,
    UserDefinedObjectVariable,
    base,
    builtin,
    dicts,
)
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.functions import (
    BaseUserFunctionVariable,
    FunctoolsPartialVariable,
    PolyfilledFunctionVariable,
    SkipFunctionVariable,
)
from torch._dynamo.variables.lazy import LazyVariableTracker
from torch._dynamo.variables.lists import BaseListVariable, ListVariable, RangeVariable
from torch._dynamo.variables.misc import LambdaVariable
from torch._dynamo.variables.tensor import SymNodeVariable
from torch._dynamo.variables.user_defined import UserDefinedDictVariable

from warmrank.worker.errors import NotPortable
from warmrank.worker.keys.code import is_pinned_module
from warmrank.worker.repeatable import (
    REDUCED,
    get_contained,
    get_container_copied,
    get_container_reduced,
    get_extreme,
)
from warmrank.worker.torch_private.arithmetic import decided
from warmrank.worker.torch_private.patching import steps_in, steps_in_variables

_REPEATS: Final = torch.__version__ >= "2.13"  # lists in place
_COUNTS_KEYS: Final = torch.__version__ >= "2.13"  # those that are read, where a dict is an object with one
_IS_ONE: Final = "items" in inspect.signature(UserDefinedDictVariable).parameters  # an object, and its dict
_BOTH_CHANGE: Any = getattr(base, "ValueAndAttributeMutationExisting", None)  # where they are one
_VARS: Any = getattr(dicts, "DunderDictVariable", ())  # from torch 2.13 on
BUILTIN: Any = getattr(builtin, "BaseBuiltinVariable", BuiltinVariable)  # from torch 2.13 on
# Methods that matter where a container is taken as a whole, by its class; of the first class that fits.
_ASKED: Final = {
    OrderedDict: frozenset(
        {
            "__getitem__", "__iter__", "__contains__", "keys", "values", "items", "get", "__setitem__",
            "update", "copy", "__or__", "__ror__", "__bool__",
        }
    ),
    dict: frozenset({"__getitem__", "__iter__", "__contains__", "keys", "values", "items", "get"}),
    list: frozenset({"__iter__"}),
    tuple: frozenset({"__iter__"}),
    deque: frozenset({"__getitem__", "__iter__"}),
}  # fmt: skip
# What code of C asks of a container by its methods alone, or does not look into.
_KEEPING: Final = (
    iter, len, list, tuple, sorted, enumerate, zip, map, filter, min, max, any, all, reversed, next,
    isinstance, issubclass, type, super, id, hash, callable, repr, str, print, hasattr, getattr, setattr,
    delattr,
    operator.getitem, operator.setitem, operator.delitem, operator.contains, operator.is_, operator.is_not,
    operator.not_, operator.truth, itertools.chain, itertools.islice, itertools.accumulate, functools.reduce,
)  # fmt: skip
# Methods that put a container into another one, or an object, and those that ask one themselves.
_STORING: Final = frozenset(
    {
        "append", "appendleft", "insert", "setdefault", "get", "pop", "index", "count", "remove",
        "__setitem__", "__setattr__",
    }
)  # fmt: skip
# What looks at no argument, and leaves them to the other one of the two methods.
_LEAVING: Final = (object.__init__, object.__new__, dict.__new__, list.__new__)
_WHOLE: Final = frozenset({"copy", "setdefault", "count", "__or__", "__ror__", "__ior__", "fromkeys"})
# How many values from the top of the stack an instruction takes as wholes.
_TAKES: Final = {
    "DICT_MERGE": 1, "DICT_UPDATE": 1, "SET_UPDATE": 1, "CALL_FUNCTION_EX": 2, "BINARY_OP": 2,
    "MATCH_MAPPING": 1, "MATCH_SEQUENCE": 1,
}  # fmt: skip
# In-place operators, and the methods that do the same for a container.
_IN_PLACE: Final = {
    operator.iadd: (list, "extend"), operator.imul: (list, "extend"), operator.ior: (set | dict, "update"),
    operator.iand: (set, "intersection_update"), operator.isub: (set, "difference_update"),
    operator.ixor: (set, "symmetric_difference_update"),
}  # fmt: skip
# Functions that give members of a list or tuple on.
_GIVING: Final = (operator.add, operator.mul, operator.iadd, operator.imul, max, min)
_OPERATORS: Final = {function.__name__ for function in _IN_PLACE}
_TRUTH: Final = ("UNARY_NOT", "TO_BOOL", "POP_JUMP_", "JUMP_IF_")


def _has_plain_keys(value: Any) -> bool:
    """True for a dict of a class of the user's whose keys are all constants."""
    return (
        _COUNTS_KEYS
        and isinstance(value, dict)
        and type(value) is not dict
        and not isinstance(value, OrderedDict | defaultdict)
        and type(value).__new__ is dict.__new__
        and all(type(key) in (str, int, bool) for key in dict.keys(value))
    )


def _dict_by_key(builder: Any, value: Any) -> Any:
    """A variable whose conditions are on the keys that are read, as with Python's own dicts.

    Dynamo's own takes members by their places, so that all keys and their order are conditions.
    """
    builder.install_guards(GuardBuilder.TYPE_MATCH)
    members = {
        ConstantVariable.create(key): LazyVariableTracker.create(
            member, DictSubclassGetItemSource(builder.get_source(), key), tx=builder.tx
        )
        for key, member in dict.items(value)
    }
    track = builder.tx.output.side_effects.track_object_existing
    if _IS_ONE:
        own = UserDefinedDictVariable(value, items=members, source=builder.source)
        return track(value, own, mutation_type_cls=_BOTH_CHANGE)
    held = ConstDictVariable(members, mutation_type=base.ValueMutationExisting(), source=builder.source)
    held.should_reconstruct_all = True
    return track(value, UserDefinedDictVariable(value, dict_vt=held, source=builder.source))


class Containers:
    """Steps in where Dynamo traces what the module's docstring says."""

    def __init__(self) -> None:
        self._giving: Any = ()  # arguments whose members a call gives on
        self._is_wrapping = False  # a tuple of the caller's

    @steps_in("torch._dynamo.variables.builder:VariableBuilder", "_wrap(value)")
    def _wrap(self, original: Any, builder: Any, value: Any) -> Any:
        _refuse_kind(type(value))
        if _has_plain_keys(value):
            return _dict_by_key(builder, value)
        before, self._is_wrapping = self._is_wrapping, type(value) is tuple
        try:
            return original(builder, value)
        finally:
            self._is_wrapping = before

    @steps_in("torch._dynamo.variables.constant:ConstantVariable", "is_literal(obj)")
    def _is_literal(self, original: Any, value: Any, *args: Any) -> Any:
        """True for members of a tuple that are constants; a list is an object of the caller's."""
        return not (self._is_wrapping and type(value) in (list, set)) and original(value, *args)

    @steps_in("torch._dynamo.variables.builtin", "check_unspec_or_constant_args(args)")
    def _are_constants(self, original: Any, args: Any, kwargs: Any) -> Any:
        """True for arguments that Dynamo computes with; not where members of theirs go on."""
        return original(args, kwargs) and not any(map(_holds_containers, self._giving))

    @steps_in("torch._dynamo.variables.user_defined", "is_standard_setattr(val)")
    def _sets_as_objects_do(self, original: Any, method: Any) -> bool:
        return original(method) or method is SimpleNamespace.__setattr__

    @steps_in("torch._dynamo.utils", "iter_contains(items, search, tx)")
    @steps_in("torch._dynamo.variables.lists", "iter_contains(items, search, tx)")
    def _contains(self, _original: Any, items: Any, sought: Any, tx: Any, *_: Any) -> Any:
        """Look for an object itself, or an equal one, in turn; Dynamo misses a constant among numbers."""
        every = [sought, *items]
        if all(each.is_python_constant() for each in every):
            values = [each.as_python_constant() for each in every]
            return VariableTracker.build(tx, values[0] in values[1:])
        return _found(tx, *every)

    @steps_in("torch._dynamo.variables.lists:RangeVariable", "sq_contains(tx, item)", is_optional=True)
    def _range_contains(self, original: Any, variable: Any, tx: Any, item: Any) -> Any:
        """As a bool: Dynamo counts."""
        return VariableTracker.build(tx, bool(original(variable, tx, item).as_python_constant()))

    @steps_in("torch._dynamo.variables.dicts:DictItemsVariable", "sq_contains(tx, item)", is_optional=True)
    @steps_in(
        "torch._dynamo.variables.dicts:DictItemsVariable", "sq_contains_impl(tx, item)", is_optional=True
    )
    def _items_contain(self, original: Any, variable: Any, tx: Any, item: Any) -> Any:
        pair = item.realize()
        if isinstance(pair, TupleVariable) and any(map(_is_compared, pair.items)):
            return _found(tx, pair, *variable.view_items_vt)
        return original(variable, tx, item)

    @steps_in("torch._dynamo.variables.functions", "check_unspec_or_constant_args(args)")
    def _are_constants_of_polyfill(self, original: Any, args: Any, kwargs: Any) -> Any:
        return original(args, kwargs) and not any(map(_holds_containers, args))

    @steps_in(
        "torch._dynamo.variables.user_defined:UserDefinedClassVariable", "call_function(tx, args, kwargs)"
    )
    def _call_class(self, original: Any, variable: Any, *call: Any) -> Any:
        _refuse_kind(variable.value)
        return original(variable, *call)

    @steps_in("torch._dynamo.variables.builtin:BuiltinVariable", "call_function(tx, args, kwargs)")
    def _operate(self, original: Any, variable: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if (changed := _changed_in_place(variable.fn, tx, args)) is not None:
            return changed
        if variable.fn in (min, max) and "key" in kwargs:
            chosen: Any = VariableTracker.build(tx, get_extreme)
            return chosen.call_function(tx, [variable, *args], kwargs)
        before = self._giving
        self._giving = args[:1] if variable.fn is operator.getitem else args if variable.fn in _GIVING else ()
        try:
            return original(variable, tx, args, kwargs)
        finally:
            self._giving = before

    @steps_in(
        "torch._dynamo.variables.user_defined:UserDefinedObjectVariable",
        "nb_index_impl",
        "nb_int_impl",
        "nb_float_impl",
        is_optional=True,  # from torch 2.13 on
    )
    def _number(self, original: Any, variable: Any, tx: Any) -> Any:
        """The number that a member of an `IntEnum` is, for which Dynamo asks without end."""
        value: Any = variable.as_python_constant() if variable.is_python_constant() else None
        make: Any = {"nb_int_impl": int, "nb_float_impl": float}.get(original.__name__, operator.index)
        own = "" if make is operator.index else f"__{make.__name__}__"  # C asks no int for its ``__index__``
        if not isinstance(value, int | float if own else int) or is_own(type(value), own):
            return original(variable, tx)
        return ConstantVariable.create(make(value))

    @steps_in("torch._dynamo.variables.functions:SkipFunctionVariable", "call_function(tx, args, kwargs)")
    def _call_unbound(self, original: Any, variable: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        """Call a method of C's, taken from the very class of its object, as one of that object."""
        method = variable.value
        if isinstance(method, MethodDescriptorType) and args:
            held = args[0].realize()
            if held.python_type() is method.__objclass__:
                return held.call_method(tx, method.__name__, args[1:], kwargs)
        return original(variable, tx, args, kwargs)

    @steps_in_variables("call_method(tx, name, args, kwargs)")
    def _call_method(self, original: Any, variable: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Copy a container of Python's as its code of C does."""
        if name in ("__reduce__", "__reduce_ex__", "__copy__"):
            held = args[0].realize() if name == "__copy__" and args else variable
            copied = get_container_copied if name == "__copy__" else get_container_reduced
            if held.python_type() in REDUCED:
                return VariableTracker.build(tx, copied).call_function(tx, [held], {})
        if isinstance(variable, SymNodeVariable) and (args or not name.startswith("__")):
            variable, args = decided(variable), [*map(decided, args)]
        made = original(variable, tx, name, args, kwargs)
        if name == "__contains__" and isinstance(variable, RangeVariable):  # up to torch 2.12
            return VariableTracker.build(tx, bool(made.as_python_constant()))
        return made

    @steps_in("torch._dynamo.variables:ConstDictVariable", "reconstruct(codegen)")
    def _make(self, original: Any, variable: Any, codegen: Any) -> None:
        if isinstance(variable, _VARS) and variable.source is None:
            msg = (
                "the function hands on `vars` of an object that it makes, which no trace follows; hand on a "
                "copy, `dict(vars(...))`"
            )
            raise NotPortable(msg, what="vars")
        original(variable, codegen)

    @steps_in("torch._dynamo.side_effects:SideEffects", "codegen_update_mutated")
    def _write(self, original: Any, effects: Any, *args: Any, **kwargs: Any) -> None:
        """Refuse a change that Dynamo makes by a copy which is its own member."""
        for changed in effects._get_modified_vars():
            is_remade = isinstance(changed, ConstDictVariable) and changed.should_reconstruct_all
            if is_remade or isinstance(changed, BaseListVariable):
                VariableTracker.visit(functools.partial(_refuse_cycle, changed), changed.items)
        original(effects, *args, **kwargs)

    @steps_in("torch._dynamo.variables.lists:BaseListVariable", "modified", is_optional=True)
    @steps_in("torch._dynamo.variables.lists:BaseListVariable", "sq_repeat_impl", is_optional=True)
    def _made_of_deque(self, original: Any, variable: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(variable, *args, **kwargs)
        if variable.python_type() is not deque:
            return made
        return type(made)(made.items, maxlen=variable.maxlen, mutation_type=made.mutation_type)

    @steps_in("torch._dynamo.symbolic_convert:InstructionTranslatorBase", "step")
    def _step(self, original: Any, tx: Any) -> Any:
        name = tx.instructions[tx.instruction_pointer].opname if tx.instruction_pointer is not None else ""
        if name in _TAKES:
            for variable in tx.stack[-_TAKES[name] :]:
                _refuse(variable)
        elif name.startswith(_TRUTH) and "__bool__" in _asked(_class_of(tx.stack[-1])):
            _refuse(tx.stack[-1])
        return original(tx)

    @steps_in("torch._dynamo.symbolic_convert:InstructionTranslatorBase", "call_function(fn, args, kwargs)")
    def _call(self, original: Any, tx: Any, function: Any, args: Any, kwargs: Any) -> Any:
        called = function.realize()
        if not (_runs_python(called) or _keeps(called)):
            method, holder = method_of(called)
            if method.strip("_") in _OPERATORS and issubclass(_class_of(holder) or object, list | set | dict):
                _refuse_operator(method.strip("_"), _class_of(holder))
            if method in _WHOLE:
                _refuse(holder)
            if method not in _STORING:
                for given in _taken(method, called if holder is None else holder, args, kwargs):
                    _refuse(given)
        return original(tx, function, args, kwargs)


def _is_compared(variable: Any) -> bool:
    """True where ``==`` need not give a bool, nor True for an object and itself."""
    return isinstance(variable.realize(), TensorVariable | UserDefinedObjectVariable)


def _found(tx: Any, sought: Any, *items: Any) -> Any:
    contained: Any = VariableTracker.build(tx, get_contained)
    return contained.call_function(tx, [sought, TupleVariable([*items])], {})


def _changed_in_place(operate: Any, tx: Any, args: Any) -> Any:
    """A container changed by a method: up to torch 2.13 an operator's change may be lost; None for others."""
    kind, method = _IN_PLACE.get(operate, ((), ""))
    cls: Any = _class_of(args[0]) if kind else None
    is_right = cls in (None, dict) or (cls is list and (operate is operator.iadd or _REPEATS))
    if is_right or not issubclass(cls, kind) or is_own(cls, f"__{operate.__name__}__"):
        return None
    if issubclass(cls, set) and not issubclass(_class_of(args[1]) or object, set | frozenset):
        return None
    if is_own(cls, method):
        _refuse_operator(operate.__name__, cls)
    changed, given = args[0].realize(), args[1]
    if operate is operator.imul:
        times: Any = given.as_python_constant() if given.is_python_constant() else None
        if not isinstance(times, int) or times < 1:
            _refuse_operator(operate.__name__, cls)
        given = TupleVariable([*changed.unpack_var_sequence(tx)] * (times - 1))
    changed.call_method(tx, method, [given], {})
    return changed


def _runs_python(called: Any) -> bool:
    """True for functions that are traced themselves, and for what the user's ``__init__`` makes."""
    if isinstance(called, UserDefinedClassVariable):
        makers = (getattr(called.value, name, None) for name in ("__init__", "__new__"))
        return any(isinstance(make, FunctionType) for make in makers)
    return isinstance(called, BaseUserFunctionVariable | FunctoolsPartialVariable | UserDefinedObjectVariable)


def _keeps(called: Any) -> bool:
    if isinstance(called, LambdaVariable):  # ``dataclasses.fields``
        return True
    if not isinstance(called, BUILTIN | PolyfilledFunctionVariable | SkipFunctionVariable):
        return False  # others leave conditions where they are asked
    function = called.as_python_constant()
    return any(function is one for one in _KEEPING)


def _holds_containers(variable: Any) -> bool:
    """True if a list or tuple holds lists or dicts."""
    made = variable.realize()
    items = [item.realize() for item in made.items] if isinstance(made, BaseListVariable) else []
    return any(
        isinstance(item, ListVariable | ConstDictVariable)
        or (isinstance(item, TupleVariable) and _holds_containers(item))
        for item in items
    )


def method_of(called: Any) -> tuple[str, Any]:
    """Name of a method of C's, and what it is bound to: a variable, or a class; empty for a function."""
    holder = getattr(called, "obj", None)
    if holder is None:
        return "", None
    of_c = getattr(getattr(called, "descriptor", None), "__name__", "")
    name = getattr(called, "name", None) or getattr(called, "method_name", None) or of_c
    return name, getattr(holder, "objvar", holder)  # that of ``super()``


def _taken(method: str, holder: Any, args: Any, kwargs: Any) -> tuple[Any, ...]:
    """Arguments that a method of C's, or a function, may go over; not those that it stores, or leaves."""
    is_class = isinstance(holder, BUILTIN | UserDefinedClassVariable)
    cls = holder.as_python_constant() if is_class else _class_of(holder)
    if method in ("__init__", "__new__") and getattr(cls, method) in _LEAVING:
        return ()
    is_unbound = is_class and method not in ("", "fromkeys")
    is_dict = isinstance(cls, type) and issubclass(cls, dict)  # which stores what it is given by name
    return (*args[is_unbound:], *(() if is_dict else kwargs.values()))


def _class_of(variable: Any) -> Any:
    """The class of a value; a variable that nothing was asked yet is left so. None where there is none."""
    if isinstance(variable, LazyVariableTracker) and not variable.is_realized():
        return type(variable.original_value())
    try:
        return variable.python_type()
    except NotImplementedError:
        return None


def _asked(cls: Any) -> frozenset[str]:
    """Methods of a user's class that matter where one of its containers is taken as a whole."""
    of_python = next((kind for kind in _ASKED if isinstance(cls, type) and issubclass(cls, kind)), None)
    if of_python is None:
        return frozenset()
    own = cls.__mro__[: cls.__mro__.index(of_python)]
    names = {name for base in own if not is_pinned_module(base.__module__) for name in vars(base)}
    return _ASKED[of_python] & names


def is_own(cls: Any, name: str) -> bool:
    """True if a class has a method of the user's."""
    return isinstance(inspect.getattr_static(cls, name, None), FunctionType)


def _refuse_cycle(changed: Any, member: Any) -> None:
    if member is changed:
        kind = _class_of(changed).__name__
        msg = f"the function puts a {kind} into itself, and would find a copy; keep an object that has it"
        raise NotPortable(msg, what=kind)


def _refuse_operator(name: str, cls: Any) -> None:
    msg = (
        f"the function changes a {cls.__qualname__} by {name}, which no trace follows; change it by a method "
        "(extend, update) that its class has from Python"
    )
    raise NotPortable(msg, what=cls.__qualname__)


def _refuse(variable: Any) -> None:
    cls = _class_of(variable)
    if asked := _asked(cls):
        name = cls.__qualname__
        msg = (
            f"the function takes a {name} as a whole, and {name} has {', '.join(sorted(asked))} of its own, "
            "which code of C may call or not; go over it in a loop or a comprehension"
        )
        raise NotPortable(msg, what=name)


def _refuse_kind(cls: Any) -> None:
    if not isinstance(cls, type) or cls in (set, frozenset):
        return
    if issubclass(cls, set | frozenset) or (issubclass(cls, deque) and _asked(cls)):
        name = cls.__qualname__
        kind = next(kind.__name__ for kind in (deque, set, frozenset) if issubclass(cls, kind))
        msg = (
            f"the function reads a {name}, a {kind} of a class of its own, which no trace follows; use a "
            f"{kind} of Python's"
        )
        raise NotPortable(msg, what=name)
