"""Values that traced code looks up in dicts and sets, or compares: Dynamo reads them without a guard.

It hashes what it has made no variable of yet, in order not to guard it, and compares the objects behind
variables whose members it has not looked at.

Facts relied upon (``tests/unit/test_evaluated_values.py``), of torch 2.11 to 2.15:

* each key is wrapped in a ``HashableTracker``, in 2.11 a class inside of ``ConstDictVariable``;
* two variables are compared by a method ``is_python_equal`` of the first one, where its class has one;
* ``LazyVariableTracker.realize_all`` makes variables, and with them guards, of all that a value holds.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any

from warmrank.worker.torch_private.evaluated_attributes import with_subclasses
from warmrank.worker.torch_private.patching import wrapped

FACTS = {
    "torch._dynamo.variables.dicts": "ConstDictVariable",
    "torch._dynamo.variables.lazy:LazyVariableTracker": "realize_all(value)",
    "torch._dynamo.variables.base": "VariableTracker",
}

_EQUAL = "is_python_equal"  # of classes of variables, not of all in 2.15


@contextlib.contextmanager
def values_guarded() -> Iterator[None]:
    """Within it, Dynamo guards whatever it hashes or compares."""
    from torch._dynamo.variables.base import VariableTracker
    from torch._dynamo.variables.lazy import LazyVariableTracker

    def wrap_key(original: Callable[..., Any]) -> Callable[..., Any]:
        def init(key: Any, variable: Any) -> None:
            LazyVariableTracker.realize_all(variable)
            original(key, variable)

        return init

    def wrap_equal(original: Callable[..., Any]) -> Callable[..., Any]:
        def is_python_equal(variable: Any, other: Any) -> Any:
            LazyVariableTracker.realize_all((variable, other))
            return original(variable, other)

        return is_python_equal

    with contextlib.ExitStack() as stack:
        stack.enter_context(wrapped(_key_class(), "__init__", wrap_key))
        for cls in with_subclasses(VariableTracker):
            if _EQUAL in vars(cls) and cls is not LazyVariableTracker:
                stack.enter_context(wrapped(cls, _EQUAL, wrap_equal))
        yield


def _key_class() -> type[Any]:
    from torch._dynamo.variables.dicts import ConstDictVariable

    nested: type[Any] | None = getattr(ConstDictVariable, "_HashableTracker", None)
    if nested is not None:
        return nested
    home = importlib.import_module("torch._dynamo.variables.hashable")  # from 2.12
    known: type[Any] = home.HashableTracker
    return known


PROBES = {"keys of dicts are wrapped in a class that says so": lambda: "__init__" in vars(_key_class())}
