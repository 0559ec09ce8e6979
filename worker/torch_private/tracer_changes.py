"""Changes to Dynamo for one trace: more Python has a graph, and no accident becomes a condition.

* What ``torch.finfo`` says is guarded by its dtype.
* Modules of torch's settings are modules like others: since torch 2.14 Dynamo traces how they look one up,
  through objects that no later process has.
* NumPy scalars are constants, computed with by NumPy; ``operator.itemgetter`` and its kin are made anew
  within the trace; ``ContextVar.get()`` gives the variable's value, guarded under ``var.get()``.
* A missing key is guarded, also where ``ObservedKeyError`` is caught; so are variables that functions of
  the standard library read.
* ``functools.cached_property`` takes no lock, as from Python 3.12 on; ``functools.partialmethod`` binds its
  function without ``__get__``. What ``functools.singledispatch`` and its kin look up is refused.
* Texts are Python's (`Texts`), and so is ``__eq__`` of a dict's keys, as from torch 2.14 on.
* Clocks are refused.
* An object with an ``__enter__`` of the user's can be entered, whenever it was made.
* ``id`` is no condition where ``copy`` asks for it, which keys the memo of one deep copy by addresses, nor
  where ``parametrize.cached()`` does within a call; which objects are one is a condition of its own. Others
  keep what they know by addresses from call to call.
* ``copy`` and ``deepcopy`` make an object anew as Python does, with what lists and dicts hold and what its
  class says of its state; not by ``__slots__``.
* A dict of the caller's whose order changes (``move_to_end``) has the new order after the call.
* ``__getattr__ = dict.__getitem__`` (or ``dict.get``) of a dict's class is followed.
* Bound methods are compared by function and object.
* ``torch.autograd.Variable``, of the days before torch 0.4, makes a tensor of the same memory.
* ``torch.addcdiv`` with a number stays one operator: quotient, product and sum round otherwise.
"""

from __future__ import annotations

import contextlib
import copy
import copyreg
import functools
import inspect
import math
import operator
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from types import FunctionType, MethodType, WrapperDescriptorType
from typing import Any, Final

import numpy as np
import torch
from torch._dynamo import polyfills
from torch._dynamo.exc import ObservedKeyError, Unsupported
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import AttrSource, CallFunctionNoArgsSource
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._dynamo.variables import (
    PythonModuleVariable,
    TorchCtxManagerClassVariable,
    UserDefinedObjectVariable,
)
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.ctx_manager import AutocastModeVariable, GenericContextWrappingVariable
from torch._dynamo.variables.functions import (
    FunctoolsPartialVariable,
    PolyfilledFunctionVariable,
    UserFunctionVariable,
    UserMethodVariable,
)
from torch._dynamo.variables.misc import DeletedVariable
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable, tracing_state_functions
from torch.distributions.constraints import is_dependent
from torch.nn.modules.activation import _is_make_fx_tracing
from torch.nn.utils import parametrize
from torch.utils._config_module import ConfigModule

from warmrank.worker.errors import NotPortable
from warmrank.worker.keys.code import globals_module, is_pinned_module, is_users_function
from warmrank.worker.repeatable import (
    get_cached,
    get_contained,
    get_counted,
    get_item,
    get_item_if_there,
    get_partial,
    get_reduced,
)
from warmrank.worker.torch_private.arithmetic import NumpyScalar
from warmrank.worker.torch_private.containers import is_own
from warmrank.worker.torch_private.encoders import TRACED_INSTEAD, leaves_padding
from warmrank.worker.torch_private.exceptions import base_after
from warmrank.worker.torch_private.patching import intercepted, replaced, steps_in
from warmrank.worker.torch_private.texts import Texts

_GETTERS = (operator.itemgetter, operator.attrgetter, operator.methodcaller)
_LOCKS: Final = (type(threading.Lock()), type(threading.RLock()))
_DISPATCH: Final = functools.singledispatch(lambda _: None).dispatch.__code__
_GET_ITEM: Final = ((dict.__getitem__, get_item), (dict.get, get_item_if_there))


class TracerChanges:
    """Steps in where Dynamo is to trace, guard or leave out what the module's docstring says."""

    def __init__(self) -> None:
        self._is_asking = False  # `copy` for an address

    @contextlib.contextmanager
    def made(self) -> Iterator[None]:
        """Put the changes in place."""
        handlers: Any = PolyfilledFunctionVariable._get_polyfill_handlers()
        of_torch: Any = TorchInGraphFunctionVariable._get_handlers()
        with (
            intercepted(self, Texts()),
            replaced(functools.cached_property, "__get__", get_cached),  # which Dynamo traces
            replaced(functools.partialmethod, "__get__", get_partial),  # likewise
            replaced(of_torch, torch.addcdiv, functools.partial(_addcdiv, of_torch[torch.addcdiv])),
            replaced(tracing_state_functions(), _is_make_fx_tracing, False),
            replaced(polyfills, "impl_CONTAINS_OP_fallback", get_contained),
            replaced(handlers, operator.countOf, get_counted),
            replaced(handlers, object.__reduce_ex__, get_reduced)
            if object.__reduce_ex__ in handlers
            else contextlib.nullcontext(),  # up to torch 2.12, which copies nothing so
        ):
            yield

    @steps_in("torch._dynamo.variables.builder:VariableBuilder", "_wrap(value)")
    def _wrap(self, original: Any, builder: Any, value: Any) -> Any:
        """A variable for an object of the caller's."""
        if isinstance(value, ConfigModule):
            builder.install_guards(GuardBuilder.MODULE_MATCH)
            variable = PythonModuleVariable(value, source=builder.source)
            builder.tx.output.side_effects.track_object_existing(value, variable)
            return variable
        if isinstance(value, torch.autocast):
            return _autocast(builder, value)
        if type(value) in (torch.finfo, torch.iinfo):
            builder.install_guards(GuardBuilder.TYPE_MATCH)
            install_guard(AttrSource(builder.source, "dtype").make_guard(GuardBuilder.EQUALS_MATCH))
            return VariableTracker.build(builder.tx, value)
        if type(value) in (torch.no_grad, torch.enable_grad):
            builder.install_guards(GuardBuilder.TYPE_MATCH)
            return TorchCtxManagerClassVariable(type(value)).call_function(builder.tx, [], {})
        if isinstance(value, np.generic) and value.dtype.kind in "biufc":
            make: Any = NumpyScalar
        elif isinstance(value, _GETTERS):
            make = _Getter
        elif isinstance(value, ContextVar):
            make = _ContextVariable
        else:
            made = original(builder, value)
            enters = (getattr(type(value), name, None) for name in ("__enter__", "__exit__"))
            if type(made) is UserDefinedObjectVariable and all(map(is_users_function, enters)):
                vars(made)["cm_obj"] = value
                made.__class__ = GenericContextWrappingVariable
            return made
        builder.install_guards(GuardBuilder.ID_MATCH)
        return make(value, source=builder.source)

    @steps_in("torch._dynamo.variables.constant:ConstantVariable", "create(value)")
    def _create_constant(self, original: Any, value: Any, **kwargs: Any) -> Any:
        return (NumpyScalar if isinstance(value, np.generic) else original)(value, **kwargs)

    @steps_in("torch._dynamo.variables.builder:SourcelessBuilder", "create(tx, value)")
    def _create_without_source(self, original: Any, tx: Any, value: Any) -> Any:
        return NumpyScalar(value) if isinstance(value, np.generic) else original(tx, value)

    @steps_in("torch._dynamo.variables:ConstDictVariable", "getitem_const_raise_exception_if_absent")
    def _get_item(self, original: Any, variable: Any, tx: Any, key: Any) -> Any:
        try:
            return original(variable, tx, key)
        except ObservedKeyError:
            variable.install_dict_contains_guard(tx, [key])
            raise

    @steps_in("torch._dynamo.variables:ConstDictVariable", "has_new_items")
    def _has_new_items(self, original: Any, variable: Any) -> Any:
        """A dict whose order changed is written anew, not only its new items."""
        pairs = zip(variable.items, variable.original_items, strict=False)
        if any(key != type(key)(getattr(before, "vt", before)) for key, before in pairs):
            variable.should_reconstruct_all = True
        return original(variable)

    @steps_in("torch._dynamo.symbolic_convert", "is_stdlib(mod)")
    def _is_stdlib(self, _original: Any, _module: Any) -> bool:
        return False

    @steps_in("torch._dynamo.variables.user_defined:UserDefinedObjectVariable", "_check_for_getattr")
    def _getattr(self, original: Any, variable: Any) -> Any:
        found = original(variable)
        return next((traced for of_dict, traced in _GET_ITEM if found is of_dict), found)

    @steps_in("torch._guards:InvokeSubgraphCache", "add_reuse_entry", is_optional=True)  # from torch 2.12 on
    def _reuse_no_region(self, *_args: Any, **_kwargs: Any) -> None:
        """Trace each call of a region: Dynamo would take the graph of an earlier one, without its guards."""

    @steps_in(
        "torch._dynamo.variables.user_defined:UserDefinedClassVariable", "call_function(tx, args, kwargs)"
    )
    def _call_class(self, original: Any, variable: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        """Refuse an instance that a metaclass of the user's makes."""
        metaclass = type(variable.value)
        make = next((vars(base)["__call__"] for base in metaclass.__mro__ if "__call__" in vars(base)), None)
        is_pinned = isinstance(make, FunctionType) and is_pinned_module(globals_module(make))
        if not (is_pinned or make is dict or isinstance(make, WrapperDescriptorType)):
            name = f"{metaclass.__qualname__}.__call__"
            msg = (
                f"{name} makes the {variable.value.__qualname__} that the function asks for, which is not "
                "traced; make it before the call and keep it as an attribute"
            )
            raise NotPortable(msg, what=name)
        if make is dict:  # of a TypedDict
            return VariableTracker.build(tx, dict).call_function(tx, args, kwargs)
        if variable.value is functools.partial and args:
            args, kwargs = _flattened(args, kwargs)
        if variable.value is torch.autograd.Variable and _is_plain(args, kwargs):
            return args[0].call_method(tx, "detach", [], {})
        return original(variable, tx, args, kwargs)

    @steps_in("torch._dynamo.variables.misc:SuperVariable", "call_method(tx, name, args, kwargs)")
    def _call_of_base(self, original: Any, variable: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Delete an attribute as classes without a ``__delattr__`` do: descriptors are asked first."""
        held = variable.objvar
        if name == "__delattr__" and isinstance(held, UserDefinedObjectVariable):
            base = base_after(variable, held.python_type(), name)
            if base is not None and vars(base)[name] is object.__delattr__:
                _refuse_deleter(held.python_type(), args[0])
                return held.method_setattr_standard(tx, args[0], DeletedVariable())
        return original(variable, tx, name, args, kwargs)

    @steps_in("torch._dynamo.variables.torch:TorchInGraphFunctionVariable", "call_function(tx, args, kwargs)")
    def _call_of_torch(self, original: Any, variable: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if variable.value is torch.compiler.is_compiling and leaves_padding(tx.f_code, tx.symbolic_locals):
            msg = (
                "an encoder that is the cached function itself returns no zeros for padding, as eager does; "
                "call it within a module of your own, or make it with enable_nested_tensor=False"
            )
            raise NotPortable(msg, what="torch.nn.TransformerEncoder")
        if variable.value in (math.prod, math.fsum) and args:  # which take no generator
            args = [VariableTracker.build(tx, list).call_function(tx, args[:1], {}), *args[1:]]
        return original(variable, tx, args, kwargs)

    @steps_in("torch._dynamo.variables.functions:UserFunctionVariable", "call_function(tx, args, kwargs)")
    def _call(self, original: Any, variable: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if getattr(variable.fn, "__code__", None) is _DISPATCH:
            msg = (
                "functools.singledispatch chooses a function by what is registered, of which no condition "
                "can be made; call the function of that type by its name"
            )
            raise NotPortable(msg, what="functools.singledispatch")
        instead = TRACED_INSTEAD.get(variable.fn)
        if instead is not None and tx.f_code is not instead.__code__:
            args = [*variable.self_args(), *args]
            variable = UserFunctionVariable(instead)
        return original(variable, tx, args, kwargs)

    @steps_in("torch._dynamo.variables.functions:NestedUserFunctionVariable", "get_function")
    def _made_function(self, original: Any, variable: Any, *converting: Any, **allowed: bool) -> Any:
        try:
            return original(variable, *converting, **allowed)
        except Unsupported as error:  # of a cell that the function is to fill: `:=` in a comprehension
            raise NotImplementedError from error

    @steps_in("torch._dynamo.variables.functions:SkipFunctionVariable", "call_function(tx, args, kwargs)")
    def _call_skipped(self, original: Any, variable: Any, *call: Any) -> Any:
        if variable.value is is_dependent:
            msg = (
                "torch.distributions looks at the values that a distribution is given, which no graph can; "
                "pass validate_args=False, or call Distribution.set_default_validate_args(False) before, as "
                "torch.compile does for the whole process"
            )
            raise NotPortable(msg, what="torch.distributions")
        return original(variable, *call)

    @steps_in(
        "torch._dynamo.symbolic_convert:InstructionTranslatorBase",
        "unsupported_ctx_graph_break(ctx)",
        is_optional=True,
    )
    def _enter(self, original: Any, *context: Any) -> Any:
        if isinstance(vars(context[-1].realize()).get("value"), _LOCKS):
            msg = (
                "the function takes a lock, which what is compiled would not hold; take it around the call. "
                "Where it guards what is done once (the first output_hidden_states=True of a transformers "
                "model), call the function once without the cache before"
            )
            raise NotPortable(msg, what="lock")
        return original(*context)

    @steps_in("torch._dynamo.variables.functions:SkipFunctionVariable", "call_function(tx, args, kwargs)")
    def _refuse_clock(self, original: Any, variable: Any, *call: Any) -> Any:
        if getattr(variable.value, "__module__", None) == "time":
            msg = (
                f"time.{variable.value.__name__} is called, and a compiled function asks no clock; measure "
                "and wait around the call of the function"
            )
            raise NotPortable(msg, what="time")
        return original(variable, *call)

    @steps_in("torch._dynamo.variables.functions:UserFunctionVariable", "bind_args")
    def _bind(self, original: Any, variable: Any, *call: Any) -> Any:
        bound = original(variable, *call)
        if variable.fn is get_reduced and _is_copied_by_slots(cls := bound["self"].python_type()):
            name = cls.__qualname__
            msg = f"the function copies a {name}, whose __slots__ no trace copies; give it a __copy__"
            raise NotPortable(msg, what=name)
        return bound

    @steps_in("torch._dynamo.variables.builtin:BuiltinVariable", "call_function")
    def _call_builtin(self, original: Any, variable: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if variable.fn in (operator.eq, operator.ne) and any(map(_bound, args)):
            is_equal = _bound(args[0]) == _bound(args[1])
            return VariableTracker.build(tx, is_equal is (variable.fn is operator.eq))
        return original(variable, tx, args, kwargs)

    @steps_in(
        "torch._dynamo.variables.functions:UserFunctionVariable", "is_python_equal(other)", is_optional=True
    )
    @steps_in(
        "torch._dynamo.variables.user_defined:UserDefinedObjectVariable",
        "is_python_equal(other)",
        is_optional=True,  # up to torch 2.13
    )
    def _is_equal(self, original: Any, variable: Any, other: Any) -> bool:
        if (method := _bound(variable)) is not None:
            return method == _bound(other)
        if not is_own(variable.python_type(), "__eq__"):
            return bool(original(variable, other))
        answer = variable.call_method(InstructionTranslator.current_tx(), "__eq__", [other], {})
        return answer.as_python_constant() is True

    @steps_in(
        "torch._dynamo.variables.functions:BaseUserFunctionVariable",
        "richcompare_impl(tx, other, op)",
        is_optional=True,  # in torch 2.13 and 2.14; before, Dynamo breaks the graph
    )
    @steps_in(
        "torch._dynamo.variables.functions:UserMethodVariable",
        "tp_richcompare_impl(tx, other, op)",
        is_optional=True,  # from torch 2.15 on, as the next
    )
    @steps_in(
        "torch._dynamo.variables.user_defined:UserDefinedObjectVariable",
        "tp_richcompare_impl(tx, other, op)",
        is_optional=True,
    )
    def _compare(self, original: Any, variable: Any, tx: Any, other: Any, op: str) -> Any:
        if (method := _bound(variable)) is None:
            return original(variable, tx, other, op)
        return VariableTracker.build(tx, (method == _bound(other)) is (op == "__eq__"))

    @steps_in("torch._dynamo.variables.builtin:BuiltinVariable", "call_id(tx, args)")
    def _address(self, original: Any, variable: Any, tx: Any, *args: Any) -> Any:
        args = tuple(arg.realize() for arg in args)  # with the guards of its own
        asking = tx.f_globals.get("__name__")
        # What its cache holds within a call, by addresses, is gone after it.
        is_caching = asking == parametrize.__name__ and not parametrize._cache_enabled
        self._is_asking = asking == copy.__name__ or is_caching
        try:
            return original(variable, tx, *args)
        finally:
            self._is_asking = False

    @steps_in("torch._guards:GuardsSet", "add(guard)")
    def _guard(self, original: Any, guards: Any, guard: Any, *args: Any, **kwargs: Any) -> None:
        if not self._is_asking:
            original(guards, guard, *args, **kwargs)


def _addcdiv(original: Any, *call: Any, value: Any = None, **kwargs: Any) -> Any:
    if value is None or value.is_python_constant():
        return None  # nothing special
    return original(*call, value=value, **kwargs)


def _autocast(builder: Any, value: Any) -> Any:
    """A context of casts, guarded by what it holds; one of a user's class is an object like any other."""
    if not is_pinned_module(type(value).__module__):
        return builder.wrap_user_defined(value)
    builder.install_guards(GuardBuilder.TYPE_MATCH)
    fields = ("device", "fast_dtype", "_enabled", "_cache_enabled")
    for name in fields:
        install_guard(AttrSource(builder.source, name).make_guard(GuardBuilder.EQUALS_MATCH))
    return AutocastModeVariable([getattr(value, name) for name in fields], source=builder.source)


class _ContextVariable(UserDefinedObjectVariable):
    """A ``ContextVar``."""

    def call_method(self, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        variable: Any = self.value
        try:
            value = variable.get()
        except LookupError:  # nobody set it, which no path could say
            return super().call_method(tx, name, args, kwargs)
        if name != "get" or self.source is None:
            return super().call_method(tx, name, args, kwargs)
        source = CallFunctionNoArgsSource(AttrSource(self.source, "get"))
        return VariableTracker.build(tx, value, source)


class _Getter(UserDefinedObjectVariable):
    """An ``itemgetter`` or its kin, made anew within the trace, by a call of its class with its arguments."""

    def call_function(self, tx: Any, args: Any, kwargs: Any) -> Any:
        value: Any = self.value
        cls, given = value.__reduce__()
        keywords = getattr(cls, "keywords", {})  # of a partial, for a methodcaller with keyword arguments
        if keywords:
            cls, given = cls.func, (*cls.args, *given)
        made = [VariableTracker.build(tx, item) for item in given]
        named = {name: VariableTracker.build(tx, item) for name, item in keywords.items()}
        anew = VariableTracker.build(tx, cls).call_function(tx, made, named)
        return anew.call_function(tx, args, kwargs)


def _bound(variable: Any) -> tuple[Any, int] | None:
    """Function and address of the object that a bound method was made of; None for all else."""
    variable = variable.realize()
    if isinstance(variable, UserMethodVariable):
        owner = (variable.im_self if hasattr(variable, "im_self") else variable.obj).realize()  # from 2.15 on
        return variable.get_function(), id(getattr(owner, "value", owner))
    value = getattr(variable, "value", None) if isinstance(variable, UserDefinedObjectVariable) else None
    return (value.__func__, id(value.__self__)) if type(value) is MethodType else None


def _flattened(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Arguments of ``functools.partial`` as Python keeps them: those of a partial of a partial together."""
    function = args[0].realize()
    if not isinstance(function, FunctoolsPartialVariable):
        return args, kwargs
    return [function.func, *function.args, *args[1:]], {**function.keywords, **kwargs}


def _is_plain(args: Any, kwargs: Any) -> bool:
    """True if ``Variable`` is given a tensor, and shall not require gradients, which all do without."""
    is_asked = kwargs.get("requires_grad")
    is_none = is_asked is None or (is_asked.is_python_constant() and not is_asked.as_python_constant())
    return len(args) == 1 and kwargs.keys() <= {"requires_grad"} and is_none and args[0].realize().is_tensor()


def _refuse_deleter(cls: type, name: Any) -> None:
    """Refuse a descriptor's own ``__delete__`` before torch 2.13, which asks its ``__set__``."""
    attribute = name.as_python_constant() if name.is_python_constant() else ""
    descriptor = type(inspect.getattr_static(cls, attribute, None))
    if torch.__version__ < "2.13" and is_own(descriptor, "__delete__"):
        what = f"{descriptor.__qualname__}.__delete__"
        msg = f"the function deletes {attribute} by {what}, which torch {torch.__version__} does not trace"
        raise NotPortable(f"{msg}; call a method that does the same", what=what)


def _is_copied_by_slots(cls: Any) -> bool:
    """True if ``copy`` takes values of slots over to a copy of an instance by itself."""
    own = cls.__reduce__ is not object.__reduce__ or cls.__getstate__ is not object.__getstate__
    return not own and bool(copyreg._slotnames(cls))  # type: ignore[attr-defined]
