"""Things that a load makes anew: calls that a trace relied on, Python's functions as Dynamo traced them.

A load looks their sources up, so nothing of Dynamo is imported here.
"""

from __future__ import annotations

import copyreg
import importlib.util
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Mapping
from functools import partial
from operator import attrgetter
from random import Random
from types import FunctionType, MethodType
from typing import Any

PLAIN = (bool, int, float, complex, str, bytes, type(None))
REDUCED = (OrderedDict, defaultdict, deque)
"""Containers of Python's that code of C copies."""
_OPERANDS = {"set": set, "frozenset": frozenset, "literal": frozenset, "list": list}
RECIPES = "einops.einops:_prepare_transformation_recipe"
"""Orders of sets, which it goes over, change nothing of the results of a recipe; see `_recipe`."""
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a class statement


def order_of_set(kind: str, *made: Any) -> list[Any]:
    """Members of a set as it iterates over them, made again as it was made in a trace.

    Args:
        kind: ``"made"``, or one of constants: ``"set"``, ``"frozenset"``, ``"literal"``, ``"list"``,
            ``"member"``.
        *made: the constants; of a set that was made, what there was first, and then names of methods, each
            with what it was given, in tuples of the same form.

    Raises:
        ValueError: the order of a frozenset hangs on the order in which it was filled, which is another one
            in code that was read from a cache of Python's.
    """
    return list(_made_again(kind, *made))


def _made_again(kind: str, *made: Any) -> Any:
    if kind == "member":
        return made[0]
    if kind != "made":
        operand = _OPERANDS[kind](made)
        shuffle = Random(0)  # noqa: S311 - the same each time
        if kind == "frozenset" and any(
            [*frozenset(shuffle.sample(made, len(made)))] != [*operand] for _ in range(32)
        ):
            raise ValueError("it has several orders")
        return operand
    found = _made_again(*made[0])
    for method, *given in made[1:]:
        answer = getattr(found, method)(*(_made_again(*each) for each in given))
        found = found if answer is None else answer
    return found


def import_error(statement: str, package: str) -> str:
    """Class and text of the `ImportError` that an import in a module of a package raises; empty for none."""
    try:
        exec(statement, {"__package__": package})  # noqa: S102 - an import that was traced
    except ImportError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def modules_sought(statement: str, package: str) -> tuple[str, ...]:
    """Names of all modules that an import in a module of a package may look for."""
    words = statement.replace(",", " ").split()
    name, members = words[1], words[3:]
    try:
        name = importlib.util.resolve_name(name, package)
    except ImportError:  # it is relative to no package
        return ()
    parents = name.split(".")
    names = [".".join(parents[: n + 1]) for n in range(len(parents))]
    return (*names, *(f"{name}.{member}" for member in members))


def kept_result(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Result of a function that keeps its results (``functools.lru_cache``), in plain values.

    ``name`` is the function's ``module:name``; its arguments are constants.
    """
    module, _, path = name.partition(":")
    return _plain(attrgetter(path)(importlib.import_module(module))(*args, **kwargs))


def _plain(value: Any) -> Any:
    """Nested tuples that are equal where values are; an object counts by its class's name and attributes."""
    kind = type(value)
    if kind in PLAIN:
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
        raise TypeError(f"{kind.__qualname__} cannot be compared by its attributes")
    name, attributes = f"{kind.__module__}:{kind.__qualname__}", vars(value)
    return (name, _plain(_recipe(attributes) if name == "einops.einops:TransformRecipe" else attributes))


def _recipe(made: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe of einops without the orders of the sets it was made of, which change nothing of its results.

    These number the axes that it adds, and are orders of the factors of products.
    """
    axes = [[sorted(factors) for factors in group] for group in made["input_composition_known_unknown"]]
    first = sum(len(factors) for group in axes for factors in group)
    added = (axis for group in made["output_composite_axes"] for axis in group if axis >= first)
    numbers = {axis: number for number, axis in enumerate((*range(first), *added))}
    return {
        **made,
        "elementary_axes_lengths": [made["elementary_axes_lengths"][axis] for axis in numbers],
        "axis_name2elementary_axis": {
            k: numbers[axis] for k, axis in made["axis_name2elementary_axis"].items()
        },
        "input_composition_known_unknown": axes,
        "added_axes": {position: numbers[axis] for position, axis in made["added_axes"].items()},
        "output_composite_axes": [
            [numbers[axis] for axis in group] for group in made["output_composite_axes"]
        ],
    }


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


def get_reduced(self: Any, protocol: int, /) -> Any:
    """``object.__reduce_ex__``, protocol 2 and later, by which ``copy`` and ``deepcopy`` copy an object."""
    del protocol
    cls: Any = type(self)
    if cls.__reduce__ is not object.__reduce__:
        return self.__reduce__()
    args: Any = ()
    kwargs: Any = {}
    if hasattr(cls, "__getnewargs_ex__"):
        args, kwargs = self.__getnewargs_ex__()
    elif hasattr(cls, "__getnewargs__"):
        args = self.__getnewargs__()
    if cls.__getstate__ is not object.__getstate__:
        state = self.__getstate__()
    else:
        state = getattr(self, "__dict__", None) or None
    items = iter(self) if isinstance(self, list) else None
    pairs = iter(self.items()) if isinstance(self, dict) else None
    if kwargs:
        return copyreg.__newobj_ex__, (cls, args, kwargs), state, items, pairs  # type: ignore[attr-defined]
    return copyreg.__newobj__, (cls, *args), state, items, pairs  # type: ignore[attr-defined]


def get_container_reduced(self: Any) -> Any:
    """``__reduce_ex__`` of a container of `REDUCED`."""
    if isinstance(self, deque):
        return deque, () if self.maxlen is None else ((), self.maxlen), None, iter(self)
    args = (self.default_factory,) if isinstance(self, defaultdict) else ()
    return type(self), args, None, None, iter(self.items())


def get_container_copied(self: Any) -> Any:
    """``__copy__`` of a container of `REDUCED`."""
    return deque(self, self.maxlen) if isinstance(self, deque) else defaultdict(self.default_factory, self)


def get_item(self: Any, name: str) -> Any:
    """``__getattr__`` of a dict's class, where that is ``dict.__getitem__``."""
    return dict.__getitem__(self, name)


def get_item_if_there(self: Any, name: str) -> Any:
    """The same, where that is ``dict.get``."""
    return dict.get(self, name)


_EQUAL = (MethodType, int)
"""Equal where they are one: methods are made anew at each look, and one number need not be one object."""


def get_contained(sought: Any, items: Iterable[Any]) -> bool:
    """``sought in items``; of an iterator no more is taken."""
    for item in items:  # noqa: SIM110 - written like `get_counted`, its twin
        if (not isinstance(item, _EQUAL) and item is sought) or item == sought:
            return True
    return False


def get_counted(items: Iterable[Any], sought: Any) -> int:
    """``operator.countOf``."""
    count = 0
    for item in items:
        if (not isinstance(item, _EQUAL) and item is sought) or item == sought:
            count += 1
    return count


def get_raised(error: Any, text: str) -> None:
    """Raise an error, for code of C."""
    raise error(text)


def get_checked(error: Any, condition: Any, message: Any = None) -> None:
    """``torch._check``, or one of its kin, which raises an error of another class."""
    if condition:
        return
    if message is None:
        raise error(
            "Expected cond to be True, but got False. (Could this error message be improved? "
            "If so, please report an enhancement request to PyTorch.)"
        )
    if not callable(message):
        raise TypeError("message must be a callable")
    raise error(str(message()))


def get_extreme(choose: Any, /, *items: Any, key: Any, **default: Any) -> Any:
    """``min`` or ``max`` by a key."""
    if len(items) != 1 and default:
        name = choose.__name__
        raise TypeError(f"Cannot specify a default for {name}() with multiple positional arguments")
    among = list(items[0] if len(items) == 1 else items)
    if key is None or not among:
        return choose(among, **default)
    found, least = among[0], key(among[0])
    for item in among[1:]:
        value = key(item)
        if value > least if choose is max else value < least:
            found, least = item, value
    return found


get_reduced.__torch_dynamo_polyfill__ = get_reduced  # type: ignore[attr-defined]  # that Dynamo is to trace it
get_counted.__torch_dynamo_polyfill__ = get_counted  # type: ignore[attr-defined]  # likewise
