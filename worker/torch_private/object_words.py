"""Whether Python objects changed, told by single words of memory: thousands of them in a few microseconds.

Facts relied upon (tested in ``tests/unit/test_object_words.py``; those on CPython are checked at import, and
where one does not hold, here or in another Python, a slower reader of the same kind is used):

* CPython 3.11 and 3.12, 64 bits: a dict's version is the word at 24; any change of the dict makes it another.
* A class's version is at 384; a change of the class or of any of its bases makes it another, or none.
* An object's class is at 8; its ``__dict__``, once asked for, at -24 (``Py_TPFLAGS_MANAGED_DICT``) or at
  ``__dictoffset__``; a cell's content is at 16; a function's code, defaults and keyword defaults are at 48,
  56 and 64.
* ``torch._C._dynamo.guards.dict_version`` is there after ``import torch``; it gives another number after any
  change of the dict, in every version of Python.

Invariant: whatever is read belongs to an object that is held here, and so does what a pointer pointed to, so
that no other object can take its address.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

dict_version = torch._C._dynamo.guards.dict_version
Key = tuple[str, int]
_WORD = 8
_MANAGED_DICT = 1 << 4
_IMMUTABLE = 1 << 8
_KNOWN_LAYOUT = (
    sys.implementation.name == "cpython"
    and sys.version_info[:2] in ((3, 11), (3, 12))
    and ctypes.sizeof(ctypes.c_void_p) == _WORD
)
_DICT, _CLASS, _TYPE, _CELL = 24, 384, 8, 16
_FUNCTION = {"code": 48, "defaults": 56, "kwdefaults": 64}


def word(address: int) -> int:
    """The word of memory at an address."""
    return ctypes.c_uint64.from_address(address).value


def _at(offset: int, value: Any) -> int:
    return id(value) + offset


def _id_of(pointee: Callable[[Any], Any], value: Any) -> int:
    return id(pointee(value))


def _class_dicts(cls: type) -> list[dict[str, Any]]:
    """The dicts under the classes that an attribute of ``cls`` may come from."""
    bases = (base for base in cls.__mro__ if not base.__flags__ & _IMMUTABLE)
    return [item for base in bases for item in gc.get_referents(base.__dict__) if type(item) is dict]


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


# What a kind of watch points to, which is held; None for those that are versions.
_POINTEE: dict[str, Callable[[Any], Any]] = {
    "dict": lambda _: None,
    "class": lambda _: None,
    "type": type,
    "namespace": lambda value: value.__dict__,
    "cell": _content,
    "code": lambda function: function.__code__,
    "defaults": lambda function: function.__defaults__,
    "kwdefaults": lambda function: function.__kwdefaults__,
}
_SLOW: dict[str, Callable[[Any], Any]] = {
    **{kind: functools.partial(_id_of, pointee) for kind, pointee in _POINTEE.items()},
    "dict": dict_version,
    "class": lambda cls: (*map(dict_version, _class_dicts(cls)), *map(id, cls.__mro__)),
}


def _class_address(cls: type) -> int | None:
    with contextlib.suppress(AttributeError):
        type.__getattribute__(cls, "warmrank has no such attribute")  # gives the class a version
    address = id(cls) + _CLASS
    return address if ctypes.c_uint32.from_address(address).value else None


def _namespace_address(value: Any) -> int | None:
    kind, namespace = type(value), value.__dict__  # which is made where there was none
    if kind.__flags__ & _MANAGED_DICT:
        address = id(value) - 3 * _WORD
    elif kind.__dictoffset__ > 0:
        address = id(value) + kind.__dictoffset__
    else:
        return None
    return address if word(address) == id(namespace) else None


_ADDRESS: dict[str, Callable[[Any], int | None]] = {
    "dict": lambda value: id(value) + _DICT,
    "class": _class_address,
    "type": lambda value: id(value) + _TYPE,
    "namespace": _namespace_address,
    "cell": lambda value: id(value) + _CELL,
    **{kind: functools.partial(_at, offset) for kind, offset in _FUNCTION.items()},
}


def _fast_kinds() -> frozenset[str]:
    """The kinds whose words are where they should be in this Python."""
    return frozenset(kind for kind, follows in _TRIALS.items() if follows()) if _KNOWN_LAYOUT else frozenset()


def _dict_follows() -> bool:
    trial: dict[str, int] = {}
    words = []
    for value in range(4):
        words.append((word(id(trial) + _DICT), dict_version(trial)))
        trial["value"] = value
    return all(len(set(seen)) == len(words) for seen in zip(*words, strict=True))


def _class_follows() -> bool:
    base = type("base", (), {})
    trial = type("trial", (base,), {})
    words = []
    for value in range(3):
        address = _class_address(trial)
        words.append(0 if address is None else word(address))
        base.value = value  # type: ignore[attr-defined]
        words.append(word(id(trial) + _CLASS))
    return (
        0 not in words[::2]
        and len(set(words[::2])) == 3
        and all(before != after for before, after in zip(words[::2], words[1::2], strict=True))
    )


def _pointers_follow(kind: str, value: Any) -> Callable[[], bool]:
    def follow() -> bool:
        address = _ADDRESS[kind](value)
        return address is not None and word(address) == id(_POINTEE[kind](value))

    return follow


class _Trial:
    pass


def _trial(value: int = 0, *, other: int = 1) -> Callable[[], int]:
    return lambda: value + other


_TRIALS: dict[str, Callable[[], bool]] = {
    "dict": _dict_follows,
    "class": _class_follows,
    "type": _pointers_follow("type", _Trial()),
    "namespace": _pointers_follow("namespace", _Trial()),
    "cell": _pointers_follow("cell", (_trial().__closure__ or ())[0]),
    **{kind: _pointers_follow(kind, _trial) for kind in _FUNCTION},
}
FAST = _fast_kinds()


class Words:
    """Words of memory as they were when this was made."""

    __slots__ = ("_indexes", "_known", "_view")

    def __init__(self, addresses: Sequence[int]) -> None:
        base = min(addresses, default=0)
        span = (max(addresses, default=0) - base) // _WORD + 1
        words: Any = (ctypes.c_uint64 * span).from_address(base) if addresses else b""
        self._view = np.frombuffer(words, dtype=np.uint64)
        self._indexes = np.array([(address - base) // _WORD for address in addresses], dtype=np.intp)
        self._known = self._view.take(self._indexes).tobytes()

    def values(self) -> list[int]:
        """The words, in the order of their addresses as given."""
        known: list[int] = np.frombuffer(self._known, dtype=np.uint64).tolist()
        return known

    def same(self) -> bool:
        """Whether none of them changed."""
        return self._view.take(self._indexes).tobytes() == self._known

    def changed(self) -> list[int]:
        """Positions of those that did."""
        present = self._view.take(self._indexes)
        return np.flatnonzero(present != np.frombuffer(self._known, dtype=np.uint64)).tolist()


class Watched:
    """Objects as they were when this was made; `changed` is of no use to them afterwards."""

    __slots__ = ("_held", "_keys", "_slow", "_words")

    def __init__(self, watches: Iterable[tuple[str, Any]]) -> None:
        self._held: list[Any] = []
        self._keys: list[Key] = []
        self._slow: list[tuple[Key, Callable[[Any], Any], Any, Any]] = []
        addresses = []
        for kind, value in watches:
            self._held.append((value, _POINTEE[kind](value)))
            address = _ADDRESS[kind](value) if kind in FAST else None
            if address is None or address % _WORD:
                self._slow.append(((kind, id(value)), _SLOW[kind], value, _SLOW[kind](value)))
            else:
                self._keys.append((kind, id(value)))
                addresses.append(address)
        self._words = Words(addresses)

    def same(self) -> bool:
        """Whether none of the objects changed."""
        return self._words.same() and all(read(value) == known for _, read, value, known in self._slow)

    def changed(self) -> list[Key]:
        """Kind and id of those that did."""
        slow = [key for key, read, value, known in self._slow if read(value) != known]
        return [*(self._keys[index] for index in self._words.changed()), *slow]
