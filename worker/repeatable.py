"""Calls that a load makes again: what a trace relied on holds where they return what they did."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a class statement


def order_of_set(*members: Any) -> list[Any]:
    """The members of a set that they are put into one by one, as it iterates over them."""
    return list(set(members))


def kept_result(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Result of a function that keeps its results (``functools.lru_cache``), in plain values.

    ``name`` is the function's ``module:name``; its arguments are constants.
    """
    module, _, path = name.partition(":")
    function: Any = importlib.import_module(module)
    for part in path.split("."):
        function = getattr(function, part)
    return _plain(function(*args, **kwargs))


def _plain(value: Any) -> Any:
    """Nested tuples that are equal where values are; an object counts by its class's name and attributes."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind in (list, tuple):
        return (kind.__name__, *map(_plain, value))
    if kind in (set, frozenset):
        return (kind.__name__, *sorted(map(_plain, value), key=repr))
    if kind.__name__ in ("dict", "OrderedDict", "defaultdict") and isinstance(value, dict):
        return (kind.__name__, *((_plain(key), _plain(item)) for key, item in value.items()))
    classes = kind.__mro__[:-1]
    if not all(cls.__flags__ & _HEAP_TYPE and "__slots__" not in vars(cls) for cls in classes) or callable(
        value
    ):
        msg = f"{kind.__qualname__} cannot be compared by its attributes"
        raise TypeError(msg)
    return (f"{kind.__module__}:{kind.__qualname__}", _plain(vars(value)))
