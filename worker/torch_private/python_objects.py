"""Python objects that Dynamo does not trace by itself: how a trace takes them.

* NumPy scalars are constants, computed with by NumPy and guarded by value; Dynamo would make tensors of
  them, which no condition and no size can be made of.
* ``operator.itemgetter`` and its kin, made before the trace, are made anew within it.
* ``ContextVar.get()`` gives the variable's value, whose guards stand under ``var.get()``.
* ``functools.cached_property`` takes no lock, as from Python 3.12 on: Dynamo enters none.

Relies on: ``VariableBuilder._wrap`` sees every object that has a source, once; ``ConstantVariable.create``
makes the results of constant folding; ``as_proxy`` gives what stands in the graph.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import numpy as np

from warmrank.worker.torch_private.patching import wrapped

FACTS = {
    "functools:cached_property": "__get__",
    "torch._dynamo.guards:GuardBuilder": "ID_MATCH",
    "torch._dynamo.source": "AttrSource CallFunctionNoArgsSource",
    "torch._dynamo.variables.base:VariableTracker": "build(tx, value, source)",
    "torch._dynamo.variables.builder:SourcelessBuilder": "create(tx, value)",
    "torch._dynamo.variables.builder:VariableBuilder": "_wrap(value) install_guards",
    "torch._dynamo.variables.constant:ConstantVariable": "create(value) as_proxy reconstruct(codegen)",
    "torch._dynamo.variables.user_defined:UserDefinedObjectVariable": "call_method(tx, name, args, kwargs)",
}

_GETTERS = (operator.itemgetter, operator.attrgetter, operator.methodcaller)


@contextlib.contextmanager
def python_objects_traced() -> Iterator[None]:
    """Within it, Dynamo traces the objects that the module's docstring names."""
    from torch._dynamo.variables.builder import SourcelessBuilder, VariableBuilder
    from torch._dynamo.variables.constant import ConstantVariable

    scalar, context_variable, getter = _numpy_scalar(), _context_variable(), _getter()

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def _wrap(builder: Any, value: Any) -> Any:
            from torch._dynamo.guards import GuardBuilder

            if isinstance(value, np.generic) and value.dtype.kind in "biufc":
                builder.install_guards(GuardBuilder.ID_MATCH)
                return scalar(value, source=builder.source)
            if isinstance(value, _GETTERS):
                builder.install_guards(GuardBuilder.ID_MATCH)
                return getter(value, source=builder.source)
            if isinstance(value, ContextVar):
                builder.install_guards(GuardBuilder.ID_MATCH)
                return context_variable(value, source=builder.source)
            return original(builder, value)

        return _wrap

    def create(original: Callable[..., Any]) -> Any:
        def folded(value: Any, **kwargs: Any) -> Any:
            return (scalar if isinstance(value, np.generic) else original)(value, **kwargs)

        return staticmethod(folded)

    def without_source(original: Any) -> Any:
        def built(tx: Any, value: Any) -> Any:
            return scalar(value) if isinstance(value, np.generic) else original(tx, value)

        return staticmethod(built)

    with (
        wrapped(VariableBuilder, "_wrap", wrap),
        wrapped(ConstantVariable, "create", create),
        wrapped(SourcelessBuilder, "create", without_source),
        wrapped(functools.cached_property, "__get__", lambda _: _get_cached),
    ):
        yield


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
