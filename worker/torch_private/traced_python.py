"""Python's own library as traces run it, put in its place by `worker.torch_private.tracer_python`.

Artifacts name these functions among their sources, so a load imports this module, and it nothing of Dynamo.
"""

from __future__ import annotations

from functools import partial
from types import FunctionType
from typing import Any


def call_registered(registry: Any, kinds: Any, *args: Any, **kwargs: Any) -> Any:
    """Call what is registered for the first of some classes, the bases of a class in their order."""
    for kind in kinds:
        if kind in registry:
            return registry[kind](*args, **kwargs)
    raise TypeError


def call_method(function: Any, instance: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a method by the class of its argument; `PythonChanges` traces another call in its place."""
    return function.dispatch(type(args[0]))(instance, *args, **kwargs)


def get_dispatching(self: Any, instance: Any, owner: Any = None) -> Any:
    """``functools.singledispatchmethod.__get__``, for functions."""
    del owner
    return partial(call_method, self.dispatcher, instance)


def get_cached(self: Any, instance: Any, owner: Any = None) -> Any:
    """``functools.cached_property.__get__`` without its lock."""
    del owner
    if instance is None:
        return self
    cache = instance.__dict__
    if self.attrname not in cache:
        cache[self.attrname] = self.func(instance)
    return cache[self.attrname]


def get_partial(self: Any, instance: Any, owner: Any = None) -> Any:
    """``functools.partialmethod.__get__``, for a function without its ``__get__``, which Dynamo has not."""
    if isinstance(self.func, FunctionType):
        bound = () if instance is None else (instance,)
        return partial(self.func, *bound, *self.args, **self.keywords)
    get = getattr(self.func, "__get__", None)
    method = self.func if get is None else get(instance, owner)
    if method is self.func:
        return self._make_unbound_method().__get__(instance, owner)
    return partial(method, *self.args, **self.keywords)
