"""Changes to Dynamo for one trace: more Python has a graph, and no accident becomes a condition.

* Modules of torch's settings are modules like others: since torch 2.14 Dynamo traces how they look one up,
  through objects that no later process has.
* NumPy scalars are constants, computed with by NumPy; ``operator.itemgetter`` and its kin are made anew
  within the trace; ``ContextVar.get()`` gives the variable's value, guarded under ``var.get()``.
* Calls that tell people something are left out. What a call asks a logger (its level) is a condition.
* A missing key is guarded, also where ``ObservedKeyError`` is caught; so are variables that functions of the
  standard library read.
* Views among a call's arguments are tensors of their own. Dynamo puts conditions on the sizes of their bases:
  a slice of a buffer that grows would be traced again for every length.

Relied on: ``as_proxy`` gives what stands in the graph; ``MetaTensorDescriber`` gives a dataclass with
``is_view``, ``base`` and ``creation_meta``, and a tensor that is no view gets its own sizes and the storage
of its kin; for a view a second fake tensor is recorded, with ``AttrSource(source, "_base")``, and dropped;
code that reads ``_base`` makes a node ``getattr(tensor, "_base")``, one that reads ``_version`` a call of
``prims._tensor_version``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import logging
import operator
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import FunctionType, WrapperDescriptorType
from typing import Any

import numpy as np
import torch
import torch._dynamo.config as dynamo_config
from torch._dynamo.exc import ObservedKeyError
from torch._dynamo.guards import GuardBuilder
from torch._dynamo.source import AttrSource, CallFunctionNoArgsSource, TypeSource
from torch._dynamo.variables import PythonModuleVariable
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.misc import IgnoredFunctionVariable, LoggingLoggerVariable
from torch._dynamo.variables.user_defined import UserDefinedObjectVariable
from torch.utils._config_module import ConfigModule

from warmrank.worker.errors import NotPortable
from warmrank.worker.keys.code import globals_module, is_pinned_module
from warmrank.worker.torch_private.lowering import source_name
from warmrank.worker.torch_private.patching import intercepted, steps_in

_GETTERS = (operator.itemgetter, operator.attrgetter, operator.methodcaller)
_log = logging.getLogger("torchair")
_TELLING = ("debug", "info", "warning", "warn", "error", "exception", "critical", "fatal", "log")
_FUNCTIONS = (
    print, warnings.warn, warnings.warn_explicit, warnings.simplefilter, warnings.filterwarnings,
    *(getattr(logging, name) for name in _TELLING),
)  # fmt: skip


class TracerChanges:
    """Steps in where Dynamo is to trace, guard or leave out what the module's docstring says."""

    def __init__(self, name: str, note_call: Callable[..., None]) -> None:
        """``note_call`` takes function, arguments and result of a call that the graph relies on."""
        self._name = name  # of the traced function
        self._note_call = note_call
        self._left_out: dict[str, None] = {}

    @contextlib.contextmanager
    def made(self) -> Iterator[None]:
        """Put the changes in place; then say which calls were left out."""
        methods = (getattr(logging.Logger, name) for name in _TELLING)
        ignored = {*dynamo_config.ignore_logging_functions, *_FUNCTIONS, *methods}
        with dynamo_config.patch(ignore_logging_functions=ignored), intercepted(self):
            yield
        if self._left_out:
            told = ", ".join(sorted(self._left_out))
            _log.warning("%s calls %s; a compiled function leaves that out", self._name, told)

    @steps_in("torch._dynamo.variables.builder:VariableBuilder", "_wrap(value)")
    def _wrap(self, original: Any, builder: Any, value: Any) -> Any:
        """A variable for an object of the caller's."""
        if value is logging.getLogger:
            return _LoggerLookup(value)
        if isinstance(value, ConfigModule):
            builder.install_guards(GuardBuilder.MODULE_MATCH)
            variable = PythonModuleVariable(value, source=builder.source)
            builder.tx.output.side_effects.track_object_existing(value, variable)
            return variable
        if isinstance(value, np.generic) and value.dtype.kind in "biufc":
            make: Any = _NumpyScalar
        elif isinstance(value, _GETTERS):
            make = _Getter
        elif isinstance(value, ContextVar):
            make = _ContextVariable
        else:
            return original(builder, value)
        builder.install_guards(GuardBuilder.ID_MATCH)
        return make(value, source=builder.source)

    @steps_in("torch._dynamo.variables.constant:ConstantVariable", "create(value)")
    def _create_constant(self, original: Any, value: Any, **kwargs: Any) -> Any:
        return (_NumpyScalar if isinstance(value, np.generic) else original)(value, **kwargs)

    @steps_in("torch._dynamo.variables.builder:SourcelessBuilder", "create(tx, value)")
    def _create_without_source(self, original: Any, tx: Any, value: Any) -> Any:
        return _NumpyScalar(value) if isinstance(value, np.generic) else original(tx, value)

    @steps_in("torch._dynamo.variables:ConstDictVariable", "getitem_const_raise_exception_if_absent")
    def _get_item(self, original: Any, variable: Any, tx: Any, key: Any) -> Any:
        try:
            return original(variable, tx, key)
        except ObservedKeyError:
            variable.install_dict_contains_guard(tx, [key])
            raise

    @steps_in("torch._dynamo.symbolic_convert", "is_stdlib(mod)")
    def _is_stdlib(self, _original: Any, _module: Any) -> bool:
        return False

    @steps_in("torch._guards:InvokeSubgraphCache", "add_reuse_entry", is_optional=True)  # from torch 2.12 on
    def _reuse_no_region(self, *_args: Any, **_kwargs: Any) -> None:
        """Trace each call of a region: Dynamo would take the graph of an earlier one, without its guards."""

    @steps_in(
        "torch._dynamo.variables.user_defined:UserDefinedClassVariable", "call_function(tx, args, kwargs)"
    )
    def _call_class(self, original: Any, variable: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        """Refuse an instance that a metaclass of the user's makes.

        Raises:
            NotPortable: the metaclass, or a base of it, has a ``__call__``.
        """
        metaclass = type(variable.value)
        make = next((vars(base)["__call__"] for base in metaclass.__mro__ if "__call__" in vars(base)), None)
        is_pinned = isinstance(make, FunctionType) and is_pinned_module(globals_module(make))
        if not (is_pinned or isinstance(make, WrapperDescriptorType)):
            name = f"{metaclass.__qualname__}.__call__"
            msg = (
                f"{name} makes the {variable.value.__qualname__} that the function asks for, which is not "
                "traced; make it before the call and keep it as an attribute"
            )
            raise NotPortable(msg, what=name)
        return original(variable, tx, args, kwargs)

    @steps_in("torch._dynamo.variables.misc:IgnoredFunctionVariable", "call_function(tx, args, kwargs)")
    def _ignore(self, original: Any, variable: Any, *args: Any, **kwargs: Any) -> Any:
        self._left_out[variable.value.__qualname__] = None
        return original(variable, *args, **kwargs)

    @steps_in("torch._dynamo.variables.misc:LoggingLoggerVariable", "call_method(tx, name, args, kwargs)")
    def _call_logger(self, original: Any, variable: Any, *call: Any) -> Any:
        tx, method, args, kwargs = call
        if method in _TELLING:
            self._left_out[f"{type(variable.value).__qualname__}.{method}"] = None
        elif method == "isEnabledFor" and args and args[0].is_python_constant():
            return self._is_enabled(variable, tx, args[0].as_python_constant())
        elif (added := _added(variable, tx, method)) is not None:
            return added.call_function(tx, [variable, *args], kwargs)
        return original(variable, *call)

    def _is_enabled(self, variable: Any, tx: Any, level: int) -> Any:
        """A logger's answer; what it depends on is guarded, and asked again of one that the code looks up."""
        logger, source = variable.value, variable.source
        if source is not None:
            of_level = CallFunctionNoArgsSource(AttrSource(source, "getEffectiveLevel"))
            VariableTracker.build(tx, logger.getEffectiveLevel(), of_level).realize()
            VariableTracker.build(tx, logger.disabled, AttrSource(source, "disabled")).realize()
            of_manager = AttrSource(AttrSource(source, "manager"), "disable")
            VariableTracker.build(tx, logger.manager.disable, of_manager).realize()
        enabled = logger.isEnabledFor(level)
        if source is None:
            self._note_call(logging.Logger.isEnabledFor, (logger, level), enabled)
        return VariableTracker.build(tx, enabled)


class _NumpyScalar(ConstantVariable):
    """A scalar of NumPy's, which computes with it."""

    def __init__(self, value: Any, **kwargs: Any) -> None:
        super().__init__(value.item(), **kwargs)
        self.value = value

    def as_proxy(self) -> Any:
        return self.value.item()

    def reconstruct(self, codegen: Any) -> None:
        codegen.append_output(codegen.create_load_const(self.value, checked=False))


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


class _LoggerLookup(IgnoredFunctionVariable):
    """``logging.getLogger``, called with a name."""

    def call_function(self, tx: Any, args: Any, kwargs: Any) -> Any:
        del tx, kwargs
        return LoggingLoggerVariable(self.value(*(item.as_python_constant() for item in args)))


def _added(variable: Any, tx: Any, method: str) -> Any:
    """A method that somebody added to the class of loggers, to be traced; None for those of Python."""
    function = inspect.getattr_static(type(variable.value), method, None)
    module = getattr(function, "__module__", "logging")
    if module == "logging" or variable.source is None:
        return None
    return VariableTracker.build(tx, function, AttrSource(TypeSource(variable.source), method))


# What a tensor knows of itself that is not the same for equal tensors, and what to do without it.
_INSTEAD = {"_base": "pass that tensor instead", "_version": "count the writes in an attribute of the module"}


class ViewsByThemselves:
    """Steps in where Dynamo makes a difference between a view and another tensor."""

    def __init__(self) -> None:
        self._recorded: set[Any] = set()
        self._asked: list[tuple[str, str]] = []  # tensor and attribute

    @contextlib.contextmanager
    def made(self) -> Iterator[None]:
        """Make none within the context.

        Raises:
            NotPortable: the traced code asks a tensor for its base.
        """
        with intercepted(self):
            try:
                yield
            except Exception as error:
                self._refuse(error)
                raise
        self._refuse(None)

    def _refuse(self, error: Exception | None) -> None:
        for tensor, attribute in self._asked:
            msg = (
                f"the function asks {tensor} for {attribute}, which no graph can hold; {_INSTEAD[attribute]}"
            )
            raise NotPortable(msg, what=f"{tensor}.{attribute}") from error

    @steps_in("torch._dynamo.variables.builder", "wrap_to_fake_tensor_and_record(source)")
    def _record_without_bases(self, original: Any, *args: Any, source: Any, **more: Any) -> Any:
        if isinstance(source, AttrSource) and source.member == "_base" and source.base in self._recorded:
            return None
        self._recorded.add(source)
        return original(*args, source=source, **more)

    @steps_in("torch._subclasses.meta_utils:MetaTensorDescriber", "describe_tensor")
    def _describe_as_no_view(
        self, original: Any, describer: Any, tensor: torch.Tensor, **options: Any
    ) -> Any:
        described = original(describer, tensor, **options)
        if described.is_view and type(tensor) in (torch.Tensor, torch.nn.Parameter):
            return dataclasses.replace(described, is_view=False, base=None, creation_meta=None)
        return described

    @steps_in("torch._dynamo.output_graph:SubgraphTracer", "create_proxy(kind, target, args)")
    def _create_proxy(
        self, original: Any, tracer: Any, kind: str, target: Any, *call: Any, **more: Any
    ) -> Any:
        args = call[0] if call else more["args"]
        attribute = "_version" if "_tensor_version" in str(target) else args[1] if target is getattr else ""
        if attribute in _INSTEAD:
            source = getattr(args[0].node.meta.get("grapharg"), "source", None)
            self._asked.append((source_name(source) if source else "a tensor", attribute))
        return original(tracer, kind, target, *call, **more)
