"""Changes to Dynamo for one trace: more Python has a graph, and no accident becomes a condition.

* Modules of torch's settings are modules like others: a setting is guarded by its value. Since torch 2.14
  Dynamo traces how they look one up, through objects that no later process has.
* NumPy scalars are constants, computed with by NumPy and guarded by value; ``operator.itemgetter`` and its
  kin, made before the trace, are made anew within it; ``ContextVar.get()`` gives the variable's value,
  guarded under ``var.get()``; ``functools.cached_property`` takes no lock, as from Python 3.12 on;
  ``functools.partialmethod`` binds its function without ``__get__``.
* A metaclass's ``__call__`` makes the instances of its classes; Dynamo takes Python's own in its place.
* Calls that tell people something (logging, ``warnings.warn``, ``print``, filters of warnings) are left out
  of what is compiled, with one line in the log. What a call asks a logger (its level) is a condition.
* A missing key is guarded (``os.environ.get``, ``try: d["k"] except KeyError``): Dynamo leaves no guard
  where ``ObservedKeyError`` is caught. So are variables that functions of the standard library read.
* Each call of a ``nested_compile_region`` is traced: Dynamo takes the graph of an earlier call whose guards
  hold for the later one, which gets none.
* Views among a call's arguments are tensors of their own. Dynamo traces a view with its base, and puts
  conditions on the base's sizes: a slice of a buffer that grows would be traced again for every length.

Relied on: ``VariableBuilder._wrap`` sees every object that has a source, once; ``ConstantVariable.create``
makes the results of constant folding; ``as_proxy`` gives what stands in the graph;
``config.ignore_logging_functions`` makes calls of its members give None, by
``IgnoredFunctionVariable.call_function``; ``LoggingLoggerVariable.call_method`` takes every call of a
logger; ``MetaTensorDescriber.describe_tensor`` gives a dataclass with ``is_view``, ``base`` and
``creation_meta``, and a tensor that is no view gets its own sizes and the storage of its kin; for a view,
``VariableBuilder`` calls ``wrap_to_fake_tensor_and_record`` twice, the second time with
``AttrSource(source, "_base")``, and drops the result; code that reads ``_base`` makes a node
``getattr(tensor, "_base")`` by ``SubgraphTracer.create_proxy``, and one that reads ``_version`` a call of
``prims._tensor_version``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import logging
import operator
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np
import torch

from warmrank.worker.errors import NotPortable
from warmrank.worker.keys.code import is_pinned_module
from warmrank.worker.torch_private.lowering import source_name
from warmrank.worker.torch_private.patching import Hook, intercepted, wrapped

FACTS = {
    "functools:cached_property": "__get__",
    "functools:partialmethod": "__get__",
    "torch._dynamo": "symbolic_convert",
    "torch._dynamo.config": "ignore_logging_functions patch",
    "torch._dynamo.exc": "ObservedKeyError",
    "torch._dynamo.guards:GuardBuilder": "MODULE_MATCH ID_MATCH",
    "torch._dynamo.output_graph:SubgraphTracer": "create_proxy(kind, target, args)",
    "torch._dynamo.side_effects:SideEffects": "track_object_existing",
    "torch._dynamo.source": "AttrSource CallFunctionNoArgsSource GetItemSource TypeMROSource TypeSource",
    "torch._dynamo.source:AttrSource": "base member",
    "torch._dynamo.symbolic_convert": "is_stdlib(mod)",
    "torch._dynamo.variables": "PythonModuleVariable(value) ConstDictVariable",
    "torch._dynamo.variables.base:VariableTracker": "build(tx, value, source)",
    "torch._dynamo.variables.builder": "wrap_to_fake_tensor_and_record(source)",
    "torch._dynamo.variables.builder:SourcelessBuilder": "create(tx, value)",
    "torch._dynamo.variables.builder:VariableBuilder": "_wrap(value) install_guards source tx",
    "torch._dynamo.variables.constant:ConstantVariable": "create(value) as_proxy reconstruct(codegen)",
    "torch._dynamo.variables.misc:IgnoredFunctionVariable": "call_function(tx, args, kwargs)",
    "torch._dynamo.variables.misc:LoggingLoggerVariable": "call_method(tx, name, args, kwargs)",
    "torch._dynamo.variables.misc:SuperVariable": "call_method(tx, name, args, kwargs)",
    "torch._dynamo.variables.user_defined:UserDefinedClassVariable": "call_function(tx, args, kwargs)",
    "torch._dynamo.variables.user_defined:UserDefinedObjectVariable": "call_method(tx, name, args, kwargs)",
    "torch._dynamo.variables:ConstDictVariable": (
        "getitem_const_raise_exception_if_absent install_dict_contains_guard"
    ),
    "torch._guards": "InvokeSubgraphCache",
    "torch._subclasses.meta_utils:MetaTensorDesc": "is_view base creation_meta",
    "torch._subclasses.meta_utils:MetaTensorDescriber": "describe_tensor",
    "torch.utils._config_module": "ConfigModule",
}


_GETTERS = (operator.itemgetter, operator.attrgetter, operator.methodcaller)
_REUSE = "add_reuse_entry"  # from torch 2.12 on
_log = logging.getLogger("torchair")
_TELLING = ("debug", "info", "warning", "warn", "error", "exception", "critical", "fatal", "log")
_FUNCTIONS = frozenset(
    {
        print,
        warnings.warn,
        warnings.warn_explicit,
        warnings.simplefilter,
        warnings.filterwarnings,
        *(getattr(logging, name) for name in _TELLING),
    }
)


@contextlib.contextmanager
def tracer_changed(name: str, note_call: Callable[..., None]) -> Iterator[None]:
    """Within it, Dynamo traces, guards and leaves out what the module's docstring says.

    Args:
        name: of the traced function, for the line in the log on calls that are left out.
        note_call: takes function, arguments and result of a call that the graph relies on.
    """
    import torch._dynamo.config as dynamo_config
    from torch._dynamo import symbolic_convert
    from torch._dynamo.variables import ConstDictVariable
    from torch._dynamo.variables.builder import SourcelessBuilder, VariableBuilder
    from torch._dynamo.variables.constant import ConstantVariable
    from torch._dynamo.variables.misc import IgnoredFunctionVariable, LoggingLoggerVariable, SuperVariable
    from torch._dynamo.variables.user_defined import UserDefinedClassVariable
    from torch._guards import InvokeSubgraphCache

    left_out: dict[str, None] = {}
    ignored = {*_FUNCTIONS, *(getattr(logging.Logger, method) for method in _TELLING)}
    hooks = [
        Hook(VariableBuilder, "_wrap", _wrap),
        Hook(ConstantVariable, "create", _create_constant),
        Hook(SourcelessBuilder, "create", _create_without_source),
        Hook(ConstDictVariable, "getitem_const_raise_exception_if_absent", _get_item),
        Hook(symbolic_convert, "is_stdlib", lambda _original, _module: False),
        Hook(UserDefinedClassVariable, "call_function", _call_class),
        Hook(SuperVariable, "call_method", partial(_call_super, UserDefinedClassVariable.call_function)),
        Hook(IgnoredFunctionVariable, "call_function", partial(_ignore, left_out)),
        Hook(LoggingLoggerVariable, "call_method", partial(_call_logger, left_out, note_call)),
    ]
    if hasattr(InvokeSubgraphCache, _REUSE):
        hooks.append(Hook(InvokeSubgraphCache, _REUSE, lambda *_args, **_kwargs: None))
    with (
        dynamo_config.patch(ignore_logging_functions={*dynamo_config.ignore_logging_functions, *ignored}),
        intercepted(hooks),
        wrapped(functools.cached_property, "__get__", lambda _: _get_cached),  # which Dynamo traces
        wrapped(functools.partialmethod, "__get__", lambda _: _get_partial),  # likewise
    ):
        yield
    if left_out:
        told = ", ".join(sorted(left_out))
        _log.warning("%s calls %s, which what is compiled leaves out", name, told)


def _wrap(original: Any, builder: Any, value: Any) -> Any:
    """A variable for an object of the caller's."""
    from torch._dynamo.guards import GuardBuilder
    from torch._dynamo.variables import PythonModuleVariable
    from torch.utils._config_module import ConfigModule

    if value is logging.getLogger:
        return _lookup_variable()(value)
    if isinstance(value, ConfigModule):
        builder.install_guards(GuardBuilder.MODULE_MATCH)
        variable = PythonModuleVariable(value, source=builder.source)
        builder.tx.output.side_effects.track_object_existing(value, variable)
        return variable
    if isinstance(value, np.generic) and value.dtype.kind in "biufc":
        make = _numpy_scalar()
    elif isinstance(value, _GETTERS):
        make = _getter()
    elif isinstance(value, ContextVar):
        make = _context_variable()
    else:
        return original(builder, value)
    builder.install_guards(GuardBuilder.ID_MATCH)
    return make(value, source=builder.source)


def _create_constant(original: Any, value: Any, **kwargs: Any) -> Any:
    return (_numpy_scalar() if isinstance(value, np.generic) else original)(value, **kwargs)


def _create_without_source(original: Any, tx: Any, value: Any) -> Any:
    return _numpy_scalar()(value) if isinstance(value, np.generic) else original(tx, value)


def _get_item(original: Any, variable: Any, tx: Any, key: Any) -> Any:
    from torch._dynamo.exc import ObservedKeyError

    try:
        return original(variable, tx, key)
    except ObservedKeyError:
        variable.install_dict_contains_guard(tx, [key])
        raise


@functools.cache
def _numpy_scalar() -> Any:
    from torch._dynamo.variables.constant import ConstantVariable

    class NumpyScalarVariable(ConstantVariable):
        def __init__(self, value: Any, **kwargs: Any) -> None:
            super().__init__(value.item(), **kwargs)
            self.value = value

        def as_proxy(self) -> Any:
            return self.value.item()

        def reconstruct(self, codegen: Any) -> None:
            codegen.append_output(codegen.create_load_const(self.value, checked=False))

    return NumpyScalarVariable


@functools.cache
def _context_variable() -> Any:
    from torch._dynamo.source import AttrSource, CallFunctionNoArgsSource
    from torch._dynamo.variables.base import VariableTracker
    from torch._dynamo.variables.user_defined import UserDefinedObjectVariable

    class ContextVariable(UserDefinedObjectVariable):
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

    return ContextVariable


@functools.cache
def _getter() -> Any:
    from torch._dynamo.variables.user_defined import UserDefinedObjectVariable

    class GetterVariable(UserDefinedObjectVariable):
        def call_function(self, tx: Any, args: Any, kwargs: Any) -> Any:
            return _made_anew(tx, self.value).call_function(tx, args, kwargs)

    return GetterVariable


def _made_anew(tx: Any, value: Any) -> Any:
    """What a call of the object's class with its arguments gives within the trace."""
    from torch._dynamo.variables.base import VariableTracker

    cls, args = value.__reduce__()
    keywords = getattr(cls, "keywords", {})  # of a partial, for a methodcaller with keyword arguments
    if keywords:
        cls, args = cls.func, (*cls.args, *args)
    made = [VariableTracker.build(tx, item) for item in args]
    named = {name: VariableTracker.build(tx, item) for name, item in keywords.items()}
    return VariableTracker.build(tx, cls).call_function(tx, made, named)


def _get_cached(self: Any, instance: Any, owner: Any = None) -> Any:
    """``functools.cached_property.__get__`` without its lock."""
    del owner
    if instance is None:
        return self
    cache = instance.__dict__
    if self.attrname not in cache:
        cache[self.attrname] = self.func(instance)
    return cache[self.attrname]


def _get_partial(self: Any, instance: Any, owner: Any = None) -> Any:
    """``functools.partialmethod.__get__``, for a function without its ``__get__``, which Dynamo has not."""
    if isinstance(self.func, FunctionType):
        bound = () if instance is None else (instance,)
        return partial(self.func, *bound, *self.args, **self.keywords)
    get = getattr(self.func, "__get__", None)
    method = self.func if get is None else get(instance, owner)
    if method is self.func:
        return self._make_unbound_method().__get__(instance, owner)
    return partial(method, *self.args, **self.keywords)


def _call_class(original: Any, variable: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    """An instance, made by a metaclass's ``__call__`` where it has one of the user's."""
    from torch._dynamo.source import TypeSource

    source = variable.source and TypeSource(variable.source)
    make = _maker(tx, type(variable.value), source, 0)
    if make is None:
        return original(variable, tx, args, kwargs)
    return make.call_function(tx, [variable, *args], kwargs)


def _call_super(
    call_class: Callable[..., Any], original: Any, variable: Any, tx: Any, name: str, *call: Any
) -> Any:
    """``super().__call__`` of a metaclass, which may be Python's own."""
    from torch._dynamo.source import TypeSource

    made = variable.objvar
    cls = getattr(made, "value", None)
    if name != "__call__" or not isinstance(cls, type):
        return original(variable, tx, name, *call)
    metaclass: type = type(cls)
    source = made.source and TypeSource(made.source)
    behind = metaclass.__mro__.index(variable.typevar.as_python_constant()) + 1
    make = _maker(tx, metaclass, source, behind)
    args, kwargs = call
    if make is None:
        return call_class(made, tx, args, kwargs)
    return make.call_function(tx, [made, *args], kwargs)


def _maker(tx: Any, metaclass: type, source: Any, start: int) -> Any:
    """The user's ``__call__`` among a metaclass's bases from ``start`` on, None for Python's."""
    from torch._dynamo.source import AttrSource, GetItemSource, TypeMROSource
    from torch._dynamo.variables.base import VariableTracker

    for position, base in enumerate(metaclass.__mro__[start:], start):
        make = vars(base).get("__call__")
        if isinstance(make, FunctionType) and not is_pinned_module(make.__module__):
            found = source and AttrSource(GetItemSource(TypeMROSource(source), position), "__call__")
            return VariableTracker.build(tx, make, found)
        if make is not None:
            return None
    return None


def _ignore(left_out: dict[str, None], original: Any, variable: Any, *args: Any, **kwargs: Any) -> Any:
    left_out[variable.value.__qualname__] = None
    return original(variable, *args, **kwargs)


def _call_logger(
    left_out: dict[str, None], note_call: Callable[..., None], original: Any, variable: Any, *call: Any
) -> Any:
    tx, method, args, kwargs = call
    if method in _TELLING:
        left_out[f"{type(variable.value).__qualname__}.{method}"] = None
    elif method == "isEnabledFor" and args and args[0].is_python_constant():
        return _is_enabled(variable, tx, args[0].as_python_constant(), note_call)
    elif (added := _added(variable, tx, method)) is not None:
        return added.call_function(tx, [variable, *args], kwargs)
    return original(variable, *call)


@functools.cache
def _lookup_variable() -> Any:
    from torch._dynamo.variables.misc import IgnoredFunctionVariable, LoggingLoggerVariable

    class LookupVariable(IgnoredFunctionVariable):
        """``logging.getLogger``, called with a name."""

        def call_function(self, tx: Any, args: Any, kwargs: Any) -> Any:
            del tx, kwargs
            return LoggingLoggerVariable(self.value(*(item.as_python_constant() for item in args)))

    return LookupVariable


def _added(variable: Any, tx: Any, method: str) -> Any:
    """A method that somebody added to the class of loggers, to be traced; None for those of Python."""
    from torch._dynamo.source import AttrSource, TypeSource
    from torch._dynamo.variables.base import VariableTracker

    function = inspect.getattr_static(type(variable.value), method, None)
    module = getattr(function, "__module__", "logging")
    if module == "logging" or variable.source is None:
        return None
    return VariableTracker.build(tx, function, AttrSource(TypeSource(variable.source), method))


def _is_enabled(variable: Any, tx: Any, level: int, note_call: Callable[..., None]) -> Any:
    """A logger's answer; what it depends on is guarded, and asked again of one that the code looks up."""
    from torch._dynamo.source import AttrSource, CallFunctionNoArgsSource
    from torch._dynamo.variables.base import VariableTracker

    logger, source = variable.value, variable.source
    if source is not None:
        of_level = CallFunctionNoArgsSource(AttrSource(source, "getEffectiveLevel"))
        VariableTracker.build(tx, logger.getEffectiveLevel(), of_level).realize()
        VariableTracker.build(tx, logger.disabled, AttrSource(source, "disabled")).realize()
        of_manager = AttrSource(AttrSource(source, "manager"), "disable")
        VariableTracker.build(tx, logger.manager.disable, of_manager).realize()
    enabled = logger.isEnabledFor(level)
    if source is None:
        note_call(logging.Logger.isEnabledFor, ((logger, level), {}), enabled)
    return VariableTracker.build(tx, enabled)


# What a tensor knows of itself that is not the same for equal tensors, and what to do without it.
_INSTEAD = {"_base": "pass that tensor instead", "_version": "count the writes in an attribute of the module"}


@contextlib.contextmanager
def views_by_themselves() -> Iterator[None]:
    """Within it, Dynamo makes no difference between a view and another tensor.

    Raises:
        NotPortable: the traced code asks a tensor for its base.
    """
    from torch._dynamo.output_graph import SubgraphTracer
    from torch._dynamo.variables import builder
    from torch._subclasses.meta_utils import MetaTensorDescriber

    asked: list[tuple[str, str]] = []
    hooks = (
        Hook(builder, "wrap_to_fake_tensor_and_record", partial(_record_without_bases, set())),
        Hook(MetaTensorDescriber, "describe_tensor", _describe_as_no_view),
        Hook(SubgraphTracer, "create_proxy", partial(_create_proxy, asked)),
    )
    with intercepted(hooks):
        try:
            yield
        except Exception as error:
            _refuse(asked, error)
            raise
    _refuse(asked, None)


def _refuse(asked: Sequence[tuple[str, str]], error: Exception | None) -> None:
    for tensor, attribute in asked:
        msg = f"the function asks {tensor} for {attribute}, which no graph can hold; {_INSTEAD[attribute]}"
        raise NotPortable(msg, what=f"{tensor}.{attribute}") from error


def _record_without_bases(recorded: set[Any], original: Any, *args: Any, source: Any, **more: Any) -> Any:
    from torch._dynamo.source import AttrSource

    if isinstance(source, AttrSource) and source.member == "_base" and source.base in recorded:
        return None
    recorded.add(source)
    return original(*args, source=source, **more)


def _describe_as_no_view(original: Any, describer: Any, tensor: torch.Tensor, **options: Any) -> Any:
    described = original(describer, tensor, **options)
    if described.is_view and type(tensor) in (torch.Tensor, torch.nn.Parameter):
        return dataclasses.replace(described, is_view=False, base=None, creation_meta=None)
    return described


def _create_proxy(
    asked: list[tuple[str, str]], original: Any, tracer: Any, kind: str, target: Any, *call: Any, **more: Any
) -> Any:
    args = call[0] if call else more["args"]
    attribute = "_version" if "_tensor_version" in str(target) else args[1] if target is getattr else ""
    if attribute in _INSTEAD:
        source = getattr(args[0].node.meta.get("grapharg"), "source", None)
        asked.append((source_name(source) if source else "a tensor", attribute))
    return original(tracer, kind, target, *call, **more)
