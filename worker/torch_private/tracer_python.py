"""Python's own library as Dynamo is to trace it, for one trace.

* ``functools.cached_property`` takes no lock, as from Python 3.12 on; ``functools.partialmethod`` binds its
  function without ``__get__``. What ``functools.singledispatch`` and its kin look up is refused.
* ``"%s" % value`` and ``str`` take the text of an object from its ``__str__`` or ``__repr__``, f-strings from
  ``__format__`` too, and these are traced; so is ``__eq__`` of a dict's keys, as from torch 2.14 on.
* An object with an ``__enter__`` of the user's can be entered, whenever it was made.
* ``id`` is no condition where ``copy`` asks for it, which keys the memo of one deep copy by addresses; which
  objects are one is a condition of its own. Others keep what they know by addresses from call to call.
* A float that ``torch.compile`` makes an input of a graph, a tensor whose ``item_memo`` is its symbol, is a
  constant once `TensorifyState` names that (`make_floats_constants`).
* Copies and repetitions of a deque have its limit, as in torch 2.14 and 2.15.

Tested in ``tests/fuzz/parts/evaluated.py``.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import operator
import re
from collections import deque
from collections.abc import Iterator
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

from torch._dynamo.exc import TensorifyScalarRestartAnalysis
from torch._dynamo.symbolic_convert import InstructionTranslator, TensorifyState
from torch._dynamo.variables import TupleVariable, UserDefinedObjectVariable
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.ctx_manager import GenericContextWrappingVariable

from warmrank.worker.errors import NotPortable
from warmrank.worker.keys.code import is_users_function
from warmrank.worker.repeatable import get_cached, get_partial
from warmrank.worker.torch_private.patching import intercepted, replaced, steps_in

if TYPE_CHECKING:
    from torch.fx import GraphModule

_DISPATCH: Final = functools.singledispatch(lambda _: None).dispatch.__code__
_CONVERSION: Final = re.compile(r"%[#0 +-]*\d*(?:\.\d+)?[hlL]?(.)")
_TEXTS: Final = {"s": str, "r": repr, "a": ascii}


class PythonChanges:
    """Steps in where Dynamo is to trace what the module's docstring says."""

    def __init__(self) -> None:
        self._is_asking = False  # `copy` for an address

    @contextlib.contextmanager
    def made(self) -> Iterator[None]:
        """Put the changes in place."""
        with (
            intercepted(self),
            replaced(functools.cached_property, "__get__", get_cached),  # which Dynamo traces
            replaced(functools.partialmethod, "__get__", get_partial),  # likewise
        ):
            yield

    @steps_in("torch._dynamo.variables.functions:UserFunctionVariable", "call_function(tx, args, kwargs)")
    def _call(self, original: Any, variable: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if getattr(variable.fn, "__code__", None) is _DISPATCH:
            msg = (
                "functools.singledispatch chooses a function by what is registered, of which no condition "
                "can be made; call the function of that type by its name"
            )
            raise NotPortable(msg, what="functools.singledispatch")
        return original(variable, tx, args, kwargs)

    @steps_in("torch._dynamo.variables.builtin:BuiltinVariable", "call_function")
    def _call_builtin(self, original: Any, variable: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        is_text = variable.fn in (operator.mod, operator.imod) and args[0].is_python_constant()
        if is_text and isinstance(template := args[0].as_python_constant(), str):
            args = _with_texts(tx, template, args[0], args[1].realize())
        elif variable.fn is str and len(args) == 1 and _is_shown(args[0].realize()):
            variable = VariableTracker.build(tx, repr)
        return original(variable, tx, args, kwargs)

    @steps_in("torch._dynamo.symbolic_convert:InstructionTranslatorBase", "_format_value(fmt_spec, flags)")
    def _format(self, original: Any, tx: Any, spec: Any, flags: int) -> Any:
        value = tx.stack[-1].realize()
        if flags & 3 or not isinstance(value, UserDefinedObjectVariable):
            return original(tx, spec, flags)
        if _is_of_user(value, "__format__"):
            tx.push(tx.pop().realize().call_method(tx, "__format__", [spec], {}))
        elif not spec.as_python_constant() and (_is_of_user(value, "__str__") or _is_shown(value)):
            tx.push(VariableTracker.build(tx, str).call_function(tx, [tx.pop()], {}))
        else:
            return original(tx, spec, flags)
        return None

    @steps_in(
        "torch._dynamo.variables.user_defined:UserDefinedObjectVariable",
        "is_python_equal(other)",
        is_optional=True,  # up to torch 2.13
    )
    def _is_equal(self, original: Any, variable: Any, other: Any) -> bool:
        if not _is_of_user(variable, "__eq__"):
            return bool(original(variable, other))
        answer = variable.call_method(InstructionTranslator.current_tx(), "__eq__", [other], {})
        return answer.as_python_constant() is True

    @steps_in("torch._dynamo.variables.builtin:BuiltinVariable", "call_id(tx, args)")
    def _address(self, original: Any, variable: Any, tx: Any, *args: Any) -> Any:
        args = tuple(arg.realize() for arg in args)  # with the guards of its own
        self._is_asking = tx.f_globals.get("__name__") == copy.__name__
        try:
            return original(variable, tx, *args)
        finally:
            self._is_asking = False

    @steps_in("torch._guards:GuardsSet", "add(guard)")
    def _guard(self, original: Any, guards: Any, guard: Any, *args: Any, **kwargs: Any) -> None:
        if not self._is_asking:
            original(guards, guard, *args, **kwargs)

    @steps_in("torch._dynamo.variables.builder:VariableBuilder", "_wrap(value)")
    def _wrap(self, original: Any, builder: Any, value: Any) -> Any:
        made = original(builder, value)
        if type(made) is UserDefinedObjectVariable and _can_be_entered(type(value)):
            vars(made)["cm_obj"] = value
            made.__class__ = GenericContextWrappingVariable
        return made

    @steps_in("torch._dynamo.variables.lists:BaseListVariable", "modified", is_optional=True)
    @steps_in("torch._dynamo.variables.lists:BaseListVariable", "sq_repeat_impl", is_optional=True)
    def _made_of_deque(self, original: Any, variable: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(variable, *args, **kwargs)
        if variable.python_type() is not deque:
            return made
        return type(made)(made.items, maxlen=variable.maxlen, mutation_type=made.mutation_type)


def make_floats_constants(graph_module: GraphModule) -> None:
    """Let Dynamo trace again with floats, which it made inputs of a graph, as constants that are guarded.

    Raises:
        TensorifyScalarRestartAnalysis: there are such inputs; Dynamo begins again.
    """
    fakes = (node.meta.get("example_value") for node in graph_module.graph.nodes if node.op == "placeholder")
    memos = [memo for fake in fakes if (memo := getattr(fake, "item_memo", None)) is not None]
    for memo in memos:
        TensorifyState.specialize(memo.node._expr.name)
    if memos:
        raise TensorifyScalarRestartAnalysis


def _can_be_entered(kind: type) -> bool:
    """True if a class has an ``__enter__`` and an ``__exit__`` of the user's."""
    return all(is_users_function(getattr(kind, name, None)) for name in ("__enter__", "__exit__"))


def _is_of_user(variable: Any, name: str) -> bool:
    """True if the class of an object has a method of the user's."""
    return isinstance(inspect.getattr_static(variable.python_type(), name, None), FunctionType)


def _is_shown(variable: Any) -> bool:
    """True if the text of an object is what its class, one of the user's, has for ``repr``."""
    return (
        isinstance(variable, UserDefinedObjectVariable)
        and inspect.getattr_static(variable.python_type(), "__str__") is vars(object)["__str__"]
        and _is_of_user(variable, "__repr__")
    )


def _with_texts(tx: Any, template: str, held: Any, given: Any) -> list[Any]:
    """A template (its text and its variable) and what fills it, with texts in place of objects."""
    items = given.items if isinstance(given, TupleVariable) else [given]
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
