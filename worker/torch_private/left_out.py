"""Calls that tell people something, which no graph can make: logging, ``warnings.warn`` and ``print``.

They are left out of what is compiled, with one line in the log, as are filters of warnings. What a call asks
a logger (its level) is a condition.

Relies on: ``config.ignore_logging_functions`` makes calls of its members give None, by
``IgnoredFunctionVariable.call_function``; ``LoggingLoggerVariable.call_method`` takes every call of a logger.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from warmrank.worker.torch_private.patching import wrapped

FACTS = {
    "torch._dynamo.config": "ignore_logging_functions patch",
    "torch._dynamo.source": "AttrSource CallFunctionNoArgsSource TypeSource",
    "torch._dynamo.variables.base:VariableTracker": "build(tx, value, source)",
    "torch._dynamo.variables.builder:VariableBuilder": "_wrap(value)",
    "torch._dynamo.variables.misc:IgnoredFunctionVariable": "call_function(tx, args, kwargs)",
    "torch._dynamo.variables.misc:LoggingLoggerVariable": "call_method(tx, name, args, kwargs)",
}

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
def telling_left_out(name: str) -> Iterator[None]:
    """Within it, Dynamo leaves calls out that tell people something; ``name`` is whose they are."""
    import torch._dynamo.config as dynamo_config
    from torch._dynamo.variables.builder import VariableBuilder
    from torch._dynamo.variables.misc import IgnoredFunctionVariable, LoggingLoggerVariable

    found: dict[str, None] = {}
    lookup = _lookup_variable()

    def wrap_lookup(original: Callable[..., Any]) -> Callable[..., Any]:
        def _wrap(builder: Any, value: Any) -> Any:
            return lookup(value) if value is logging.getLogger else original(builder, value)

        return _wrap

    ignored = {*_FUNCTIONS, *(getattr(logging.Logger, method) for method in _TELLING)}
    with (
        dynamo_config.patch(ignore_logging_functions={*dynamo_config.ignore_logging_functions, *ignored}),
        wrapped(IgnoredFunctionVariable, "call_function", partial(_noting, found)),
        wrapped(LoggingLoggerVariable, "call_method", partial(_of_logger, found)),
        wrapped(VariableBuilder, "_wrap", wrap_lookup),
    ):
        yield
    if found:
        _log.warning("%s calls %s, which what is compiled leaves out", name, ", ".join(sorted(found)))


def _noting(found: dict[str, None], original: Callable[..., Any]) -> Callable[..., Any]:
    def call_function(variable: Any, *args: Any, **kwargs: Any) -> Any:
        found[variable.value.__qualname__] = None
        return original(variable, *args, **kwargs)

    return call_function


def _of_logger(found: dict[str, None], original: Callable[..., Any]) -> Callable[..., Any]:
    def call_method(variable: Any, tx: Any, method: str, args: Any, kwargs: Any) -> Any:
        if method in _TELLING:
            found[f"{type(variable.value).__qualname__}.{method}"] = None
        elif method == "isEnabledFor" and args and args[0].is_python_constant():
            return _is_enabled(variable, tx, args[0].as_python_constant())
        elif (added := _added(variable, tx, method)) is not None:
            return added.call_function(tx, [variable, *args], kwargs)
        return original(variable, tx, method, args, kwargs)

    return call_method


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


def _is_enabled(variable: Any, tx: Any, level: int) -> Any:
    """A logger's answer; what it depends on is guarded."""
    from torch._dynamo.source import AttrSource, CallFunctionNoArgsSource
    from torch._dynamo.variables.base import VariableTracker

    logger, source = variable.value, variable.source
    if source is not None:
        of_level = CallFunctionNoArgsSource(AttrSource(source, "getEffectiveLevel"))
        VariableTracker.build(tx, logger.getEffectiveLevel(), of_level).realize()
        VariableTracker.build(tx, logger.disabled, AttrSource(source, "disabled")).realize()
        of_manager = AttrSource(AttrSource(source, "manager"), "disable")
        VariableTracker.build(tx, logger.manager.disable, of_manager).realize()
    return VariableTracker.build(tx, logger.isEnabledFor(level))
