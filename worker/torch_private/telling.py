"""Calls that tell people something (``print``, warnings, loggers), which a graph leaves out.

What a call asks a logger, such as its level, is a condition.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch._dynamo.config as dynamo_config
from torch._dynamo.source import AttrSource, CallFunctionNoArgsSource, TypeSource
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.misc import IgnoredFunctionVariable, LoggingLoggerVariable

from warmrank.worker.torch_private.patching import intercepted, steps_in

_log = logging.getLogger("torchair")
_TELLING = ("debug", "info", "warning", "warn", "error", "exception", "critical", "fatal", "log")
_FUNCTIONS = (
    print, warnings.warn, warnings.warn_explicit, warnings.simplefilter, warnings.filterwarnings,
    *(getattr(logging, name) for name in _TELLING),
)  # fmt: skip


class Telling:
    """Leaves such calls out of one trace."""

    def __init__(self, name: str, note_call: Callable[..., None]) -> None:
        """``note_call`` takes function, arguments and result of a call that the graph relies on."""
        self._name = name  # of the traced function
        self._note_call = note_call
        self._left_out: dict[str, None] = {}

    @contextlib.contextmanager
    def left_out(self) -> Iterator[None]:
        """Leave them out; then say which."""
        methods = (getattr(logging.Logger, name) for name in _TELLING)
        ignored = {*dynamo_config.ignore_logging_functions, *_FUNCTIONS, *methods}
        with dynamo_config.patch(ignore_logging_functions=ignored), intercepted(self):
            yield
        if self._left_out:
            told = ", ".join(sorted(self._left_out))
            _log.warning("%s calls %s; a compiled function leaves that out", self._name, told)

    @steps_in("torch._dynamo.variables.builder:VariableBuilder", "_wrap(value)")
    def _wrap(self, original: Any, builder: Any, value: Any) -> Any:
        return _LoggerLookup(value) if value is logging.getLogger else original(builder, value)

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
