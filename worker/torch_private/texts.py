"""Texts of values that a trace knows, as Python's ``str``, ``repr`` and formats have them.

``"%s" % value``, ``str`` and f-strings take the text of an object from its methods, which are traced. What
``str.format`` asks of an object of the user's no trace follows. Containers are told of with the names that
Python gives them: Dynamo has texts for its own messages, and uses them for what users' code asks.
"""

from __future__ import annotations

import dataclasses
import inspect
import operator
import re
from collections import OrderedDict, defaultdict
from typing import Any, Final

from torch._dynamo.variables import (
    ConstDictVariable,
    ListVariable,
    TupleVariable,
    UserDefinedObjectVariable,
)
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.functions import UserFunctionVariable

from warmrank.worker.errors import NotPortable
from warmrank.worker.repeatable import REDUCED
from warmrank.worker.torch_private.arithmetic import decided
from warmrank.worker.torch_private.containers import is_own
from warmrank.worker.torch_private.evaluated_sets import kind_of
from warmrank.worker.torch_private.exceptions import ERRORS
from warmrank.worker.torch_private.patching import steps_in, steps_in_variables

_CONVERSION: Final = re.compile(r"%[#0 +-]*\d*(?:\.\d+)?[hlL]?(.)")
_TEXTS: Final = {"s": str, "r": repr, "a": ascii}
_OF_DATACLASS: Final = dataclasses.make_dataclass("_Empty", []).__repr__.__code__  # of the layer around it


class _Told:
    """Stands for a member whose text is known, in a container whose text is asked for."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


class Texts:
    """Steps in where Dynamo makes the text of a value."""

    def __init__(self) -> None:
        self._ordered: dict[int, Any] = {}  # views of an `OrderedDict`, by their ids

    @steps_in("torch._dynamo.variables.builtin:BuiltinVariable", "call_function")
    def _call(self, original: Any, variable: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        is_text = variable.fn in (operator.mod, operator.imod) and args[0].is_python_constant()
        if is_text and isinstance(template := args[0].as_python_constant(), str):
            args = _with_texts(tx, template, args[0], args[1].realize())
        elif variable.fn is format and args:
            template = VariableTracker.build(tx, "{:{}}" if len(args) > 1 else "{}")
            return template.call_method(tx, "format", [*args], kwargs)
        elif variable.fn is str and len(args) == 1 and _is_shown(args[0].realize()):
            variable = VariableTracker.build(tx, repr)
        return original(variable, tx, args, kwargs)

    @steps_in_variables("call_method(tx, name, args, kwargs)")
    def _call_method(self, original: Any, variable: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        is_format = name == "format" and variable.is_python_constant()
        if is_format and isinstance(template := variable.as_python_constant(), str):
            VariableTracker.visit(_refuse_formatted, [args, kwargs])
            args, kwargs = [*map(decided, args)], {key: decided(kwargs[key]) for key in kwargs}
            if "!" not in template:
                args = [_as_text(tx, arg) for arg in args]
                kwargs = {key: _as_text(tx, arg) for key, arg in kwargs.items()}
        elif name in ("__repr__", "__str__") and kind_of(variable) is OrderedDict and not (args or kwargs):
            return VariableTracker.build(tx, repr).call_function(tx, [variable], {})
        made = original(variable, tx, name, args, kwargs)
        if name in ("keys", "values", "items") and kind_of(variable) is OrderedDict:
            self._ordered[id(made)] = made
        return made

    @steps_in_variables("debug_repr")
    def _show(self, original: Any, variable: Any) -> Any:
        """Tell of containers as Python does; up to torch 2.13 this is what ``repr`` gives."""
        kind = kind_of(variable)
        if kind in (set, frozenset, tuple) and variable.is_python_constant():
            return repr(variable.as_python_constant())
        view = getattr(variable, "kv", None)  # keys, values or items
        items = vars(variable.dv_dict if view else variable).get("items")
        if not (view or kind is OrderedDict) or not isinstance(items, dict):
            return original(variable)
        told = ((_Told(key.vt.debug_repr()), _Told(value.debug_repr())) for key, value in items.items())
        made = OrderedDict(told) if kind is OrderedDict or id(variable) in self._ordered else dict(told)
        return repr(getattr(made, view)() if view else made)

    @steps_in_variables("repr_impl", "tp_repr_impl", is_optional=True, only="DictViewVariable")
    def _tell(self, original: Any, variable: Any, tx: Any) -> Any:
        text = original(variable, tx)
        is_ordered = id(variable) in self._ordered
        return VariableTracker.build(tx, f"o{text.as_python_constant()}") if is_ordered else text

    @steps_in("torch._dynamo.variables:ConstDictVariable", "as_python_constant()")
    def _constant(self, original: Any, variable: Any) -> Any:
        """The constant, of the right class also up to torch 2.12."""
        constant, kind = original(variable), kind_of(variable)
        if type(constant) is dict and kind is OrderedDict:
            return OrderedDict(constant)
        if type(constant) is dict and kind is defaultdict:
            return defaultdict(variable.default_factory.as_python_constant(), constant)
        return constant

    @steps_in("torch._dynamo.variables.functions:UserFunctionVariable", "call_function(tx, args, kwargs)")
    @steps_in("torch._dynamo.variables.functions:UserMethodVariable", "call_function(tx, args, kwargs)")
    def _of_dataclass(self, original: Any, variable: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        """Trace the text of a dataclass without what keeps one that holds itself from an endless text."""
        if getattr(variable.fn, "__code__", None) is _OF_DATACLASS:
            traced = UserFunctionVariable(variable.fn.__wrapped__)
            return traced.call_function(tx, [*variable.self_args(), *args], kwargs)
        return original(variable, tx, args, kwargs)

    @steps_in("torch._dynamo.symbolic_convert:InstructionTranslatorBase", "_format_value(fmt_spec, flags)")
    def _format(self, original: Any, tx: Any, spec: Any, flags: int) -> Any:
        held = decided(tx.pop())
        text = _as_text(tx, held)
        if text is not held:
            flags &= ~3  # it is what a conversion would make
        tx.push(text)
        value = text.realize()
        is_error = isinstance(value, ERRORS) and all(arg.is_python_constant() for arg in value.args)
        if flags & 3 or not (is_error or isinstance(value, UserDefinedObjectVariable)):
            return original(tx, spec, flags)
        kind = value.python_type()
        if is_own(kind, "__format__"):
            tx.push(tx.pop().realize().call_method(tx, "__format__", [spec], {}))
        elif not spec.as_python_constant() and (is_error or is_own(kind, "__str__") or _is_shown(value)):
            tx.push(VariableTracker.build(tx, str).call_function(tx, [tx.pop()], {}))
        else:
            return original(tx, spec, flags)
        return None


def _as_text(tx: Any, variable: Any) -> Any:
    """The text that a list or dict of numbers that vary has now, before it changes; all else as it is."""
    held = variable.realize()
    changes = isinstance(held, ListVariable | ConstDictVariable) and not held.is_python_constant()
    return VariableTracker.build(tx, repr).call_function(tx, [held], {}) if changes else variable


def _refuse_formatted(variable: Any) -> None:
    if isinstance(variable, UserDefinedObjectVariable):
        name = variable.python_type().__qualname__
        msg = f"the function formats a {name} by `str.format`, which no trace follows; use an f-string"
        raise NotPortable(msg, what="str.format")


def _is_shown(variable: Any) -> bool:
    """True if ``str`` of a value is its ``repr``, that of a container of Python's or of a user's class."""
    kind = kind_of(variable)
    if kind in (*REDUCED, list, tuple, dict):
        return True
    if not isinstance(variable, UserDefinedObjectVariable) or not is_own(kind, "__repr__"):
        return False
    return inspect.getattr_static(kind, "__str__") is vars(object)["__str__"]


def _with_texts(tx: Any, template: str, held: Any, given: Any) -> list[Any]:
    """A template (its text and its variable) and what fills it, with texts in place of objects."""
    items = [decided(item) for item in (given.items if isinstance(given, TupleVariable) else [given])]
    given = TupleVariable(items) if isinstance(given, TupleVariable) else items[0]
    kinds = [kind for kind in _CONVERSION.findall(template) if kind != "%"]
    if given.is_python_constant() or len(kinds) != len(items):
        return [held, given]
    pairs = list(zip(kinds, items, strict=True))
    is_asked = [kind in _TEXTS and not item.is_python_constant() for kind, item in pairs]
    texts = [
        VariableTracker.build(tx, _TEXTS[kind]).call_function(tx, [item], {}) if asked else item
        for (kind, item), asked in zip(pairs, is_asked, strict=True)
    ]
    waiting = iter(is_asked)

    def taking_text(found: re.Match[str]) -> str:
        return f"{found[0][:-1]}s" if found[1] != "%" and next(waiting) else found[0]

    template = _CONVERSION.sub(taking_text, template)
    return [VariableTracker.build(tx, template), TupleVariable(texts)]
