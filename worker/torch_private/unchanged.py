"""Detect changes of Python objects and tensors by single words of memory, thousands in a few microseconds.

Relied on (``tests/unit/test_changes_after_load.py``):

* CPython 3.11 and 3.12, 64 bits: the offsets below. A dict's and a class's version differ after any change
  (of the class or its bases); ``__dict__`` is at -24 (``Py_TPFLAGS_MANAGED_DICT``) or ``__dictoffset__``. A
  build that lays objects out otherwise (for debugging), or another Python, has a slower reader.
* ``torch._C._dynamo.guards.dict_version`` differs after any change of the dict; not in Python 3.13.0, which
  reports no change of an instance's.
* A tensor points to its implementation in C++ (sizes, strides, offset, dtype, device, dispatch keys), that to
  its storage and to autograd's data. Offsets are found by value in trial tensors, and compared with what each
  watched tensor says. Where one is elsewhere (many dimensions, no strides, another Python), nothing is
  watched, and callers ask tensor by tensor.

Invariants: every object read, and what its pointers led to, is held here, so no other object can take its
address; a word is read only where the pointer that leads to it is unchanged.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import operator
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from warmrank.worker.keys.code import content

dict_version = torch._C._dynamo.guards.dict_version
Key = tuple[str, int]
_WORD = 8
_MANAGED_DICT = 1 << 4
_IMMUTABLE = 1 << 8
_SUPPORTED = sys.implementation.name == "cpython" and ctypes.sizeof(ctypes.c_void_p) == _WORD
_KNOWN_LAYOUT = _SUPPORTED and sys.version_info[:2] in ((3, 11), (3, 12)) and not sys.abiflags
_FUNCTION = {"code": 48, "defaults": 56, "kwdefaults": 64}
_OFFSETS = {"dict": 24, "type": 8, "cell": 16, **_FUNCTION}
_CLASS = 384
FAST = frozenset(
    (*_OFFSETS, "class", "namespace") if _KNOWN_LAYOUT and not hasattr(sys, "getobjects") else ()
)
"""Kinds of watches that a word of memory tells."""


def word(address: int) -> int:
    """The word of memory at an address."""
    return ctypes.c_uint64.from_address(address).value


@functools.cache
def dicts_tell() -> bool:
    """True if watches see every change of a dict, and so of an instance's."""
    instance = type("Instance", (), {})()
    versions = []
    for value in range(3):
        instance.value = value
        versions.append(dict_version(instance.__dict__))
    del instance.value
    return len({*versions, dict_version(instance.__dict__)}) == 4


# What a kind of watch points to, which is held; None for those that are versions.
_POINTEE: dict[str, Callable[[Any], Any]] = {
    "dict": lambda _: None,
    "class": lambda _: None,
    "type": type,
    "module": sys.modules.get,
    "namespace": operator.attrgetter("__dict__"),
    "cell": content,
    **{kind: operator.attrgetter(f"__{kind}__") for kind in _FUNCTION},
}


def _read_slowly(kind: str, value: Any) -> Any:
    if kind == "dict":
        return dict_version(value)
    if kind == "class":
        bases = (base for base in value.__mro__ if not base.__flags__ & _IMMUTABLE)
        parts = (item for base in bases for item in gc.get_referents(base.__dict__))
        return (*[dict_version(item) for item in parts if type(item) is dict], *map(id, value.__mro__))
    return id(_POINTEE[kind](value))


def _address(kind: str, value: Any) -> int | None:
    """Address of the word of a watch; None where it is not in its usual place."""
    if kind == "class":
        with contextlib.suppress(AttributeError):
            type.__getattribute__(value, "warmrank has no such attribute")  # gives the class a version
        address = id(value) + _CLASS
        return address if ctypes.c_uint32.from_address(address).value else None
    if kind != "namespace":
        return id(value) + _OFFSETS[kind]
    cls, namespace = type(value), value.__dict__  # which is made where there was none
    is_managed = cls.__flags__ & _MANAGED_DICT
    if not is_managed and cls.__dictoffset__ <= 0:
        return None
    address = id(value) - 3 * _WORD if is_managed else id(value) + cls.__dictoffset__
    return address if word(address) == id(namespace) else None


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
        """The words, in the order of the given addresses."""
        known: list[int] = np.frombuffer(self._known, dtype=np.uint64).tolist()
        return known

    def same(self) -> bool:
        """True if none of them changed."""
        return self._view.take(self._indexes).tobytes() == self._known

    def changed(self) -> list[int]:
        """Positions of the changed words."""
        present = self._view.take(self._indexes)
        return np.flatnonzero(present != np.frombuffer(self._known, dtype=np.uint64)).tolist()


class Watched:
    """Objects as they were when this was made; `changed` is of no use to them afterwards."""

    __slots__ = ("_held", "_keys", "_slow", "_words")

    def __init__(self, watches: Iterable[tuple[str, Any]]) -> None:
        self._held: list[Any] = []
        self._keys: list[Key] = []
        self._slow: list[tuple[str, Any, Any]] = []  # kind, object, what was read of it
        addresses = []
        for kind, value in watches:
            self._held.append((value, _POINTEE[kind](value)))
            address = _address(kind, value) if kind in FAST else None
            if address is None or address % _WORD:
                self._slow.append((kind, value, _read_slowly(kind, value)))
            else:
                self._keys.append((kind, id(value)))
                addresses.append(address)
        self._words = Words(addresses)

    def same(self) -> bool:
        """True if none of the objects changed."""
        return self._words.same() and all(
            _read_slowly(kind, value) == known for kind, value, known in self._slow
        )

    def changed(self) -> list[Key]:
        """Kind and id of the changed objects."""
        slow = [(kind, id(value)) for kind, value, known in self._slow if _read_slowly(kind, value) != known]
        return [*(self._keys[index] for index in self._words.changed()), *slow]


_MAX_WAIT = 256
_OF_AUTOGRAD = 20  # words that autograd's data of a tensor has at least
_ITEMS = tuple.__basicsize__
_Said = dict[int, int | None]
"""Address -> the word that a tensor says should be there; None where it does not say."""


class TensorWatch:
    """Tensors among the inputs of each call, at these positions, as they were in an earlier call.

    For tensors that change on every call, words are taken anew after 2, 4, 8 ... looks only.
    """

    __slots__ = ("_looks", "_positions", "_wait", "_words")

    def __init__(self, positions: Sequence[int]) -> None:
        self._positions = np.array(positions, dtype=np.intp)
        self._words: _TensorWords | None = None
        self._looks, self._wait = 0, 2

    def same(self, inputs: Sequence[Any]) -> bool:
        """True if they are the same objects, unchanged, in the same memory."""
        words = self._words
        if words is None or len(inputs) != words.num_inputs or type(inputs) is not tuple:
            return False
        return _ids(inputs).take(self._positions).tobytes() == words.ids and words.same()

    def take(self, inputs: Sequence[Any]) -> _TensorWords | None:
        """Forget the old words, and read those to `keep` once the caller has checked the tensors."""
        self._words = None
        self._looks += 1
        if self._looks < self._wait:
            return None
        self._looks, self._wait = 0, min(2 * self._wait, _MAX_WAIT)
        if (places := _places()) is not None:
            other = contextlib.suppress(AttributeError, LookupError, RuntimeError)  # no tensors as known here
            with other, torch._C.DisableTorchFunctionSubclass():
                return _TensorWords([inputs[index] for index in self._positions], len(inputs), places)
        self._wait = sys.maxsize
        return None

    def keep(self, words: _TensorWords | None) -> None:
        """Compare with these from now on."""
        self._words = words


def _ids(items: tuple[Any, ...]) -> Any:
    """Ids of a tuple's items, out of its memory."""
    return np.frombuffer(ctypes.string_at(id(items) + _ITEMS, len(items) * _WORD), dtype=np.uint64)


class _Places(NamedTuple):
    """Offsets: in a tensor, in its implementation, in a storage, in autograd's data."""

    implementation: int
    kind: int
    storage: int
    autograd: int
    sizes: int
    strides: int
    offset: int
    keys: int
    data: int
    num_bytes: int
    requires_grad: int


class _TensorWords:
    __slots__ = ("_held", "_stages", "ids", "num_inputs")

    def __init__(self, tensors: Sequence[torch.Tensor], num_inputs: int, places: _Places) -> None:
        self._held = tensors  # so that no other objects get their ids
        self.ids = np.array([*map(id, tensors)], dtype=np.uint64).tobytes()
        self.num_inputs = num_inputs
        said: tuple[_Said, _Said, _Said] = ({}, {}, {})
        for tensor in tensors:
            _add_words(*said, tensor, places)
        self._stages = tuple(map(_read, said))

    def same(self) -> bool:
        objects, implementations, memory = self._stages
        return objects.same() and implementations.same() and memory.same()


def _add_words(
    objects: _Said, implementations: _Said, memory: _Said, tensor: torch.Tensor, places: _Places
) -> None:
    """Add the words of a tensor, of its implementation, and of what that points to."""
    sizes, strides = tensor.size(), tensor.stride()
    at, storage = tensor._cdata, tensor.untyped_storage()
    if len(sizes) * _WORD > places.strides - places.sizes:
        raise LookupError("more dimensions than their usual place holds")
    objects[id(tensor) + places.implementation] = at
    objects[id(tensor) + places.kind] = id(type(tensor))
    # Between offset and keys: the number of elements, dtype, device, and flags.
    implementations.update(dict.fromkeys(range(at + places.offset, at + places.keys, _WORD)))
    implementations[at + places.autograd] = None
    implementations[at + places.storage] = storage._cdata
    implementations[at + places.sizes - _WORD] = len(sizes)
    for first, numbers in ((places.sizes, sizes), (places.strides, strides)):
        implementations.update(zip(range(at + first, at + places.keys, _WORD), numbers, strict=False))
    implementations[at + places.offset] = int(tensor.storage_offset())
    implementations[at + places.keys] = _keys_of(tensor)
    memory[storage._cdata + places.data] = storage.data_ptr()
    memory[storage._cdata + places.num_bytes] = storage.nbytes()
    if autograd := word(at + places.autograd):
        memory[autograd + places.requires_grad] = None


def _read(said: _Said) -> Words:
    """The words at some addresses; LookupError where one is not what the tensors say."""
    words = Words([*said])
    for value, present in zip(said.values(), words.values(), strict=True):
        if value not in (None, present):
            raise LookupError("words of a tensor are elsewhere")
    return words


def _keys_of(tensor: torch.Tensor) -> int:
    return torch._C._dispatch_keys(tensor).raw_repr()


@functools.cache
def _places() -> _Places | None:
    """Offsets of the words in this build; None where one of them was not found."""
    if not _SUPPORTED:
        return None
    with torch.inference_mode(mode=False), torch.no_grad():
        try:
            places = _found()
        except (AttributeError, LookupError, RuntimeError, ValueError):
            return None
        return places if _changes_show(places) else None


def _found() -> _Places:
    """Search tensors with numbers that stand nowhere else in them."""
    memory = torch.empty(20_011, dtype=torch.uint8, device="cpu")
    trial = memory.as_strided((101, 103), (107, 1), 57)
    at, storage = trial._cdata, trial.untyped_storage()
    holder = (trial,)
    if [*_ids(holder)] != [id(trial)]:
        raise LookupError("items of a tuple are elsewhere")
    sizes = _find(at, 101, 32)
    bare = torch.empty(1, device="cpu")
    pointers = range(_find(at, storage._cdata, 32) + _WORD, sizes - _WORD, _WORD)
    empty = [place for place in pointers if not word(bare._cdata + place)]
    bare.requires_grad_(True)
    (autograd,) = (place for place in empty if word(bare._cdata + place))
    known = word(bare._cdata + autograd)
    words = range(known, known + _OF_AUTOGRAD * _WORD, _WORD)
    asked = [*map(word, words)]
    bare.requires_grad_(False)
    now = [*map(word, words)]
    (requires_grad,) = (place for place, *seen in zip(words, asked, now, strict=True) if len({*seen}) > 1)
    of_tensor = torch.Tensor.__basicsize__ // _WORD
    return _Places(
        implementation=_find(id(trial), at, of_tensor),
        kind=_find(id(trial), id(type(trial)), of_tensor),
        storage=_find(at, storage._cdata, 32),
        autograd=autograd,
        sizes=sizes,
        strides=_find(at, 107, 32),
        offset=_find(at, 57, 32),
        keys=_find(at, _keys_of(trial), 32),
        data=_find(storage._cdata, storage.data_ptr(), 16),
        num_bytes=_find(storage._cdata, 20_011, 16),
        requires_grad=requires_grad - known,
    )


def _find(address: int, value: int, limit: int) -> int:
    """Offset of the first word that holds a value; nothing behind it is read."""
    for place in range(0, limit * _WORD, _WORD):
        if word(address + place) == value:
            return place
    raise LookupError(f"{value} is not in {limit} words")


_CHANGES: tuple[Callable[[torch.Tensor], Any], ...] = (
    lambda tensor: setattr(tensor, "data", tensor.data.double()),
    lambda tensor: setattr(tensor, "data", tensor.data.clone()),
    lambda tensor: tensor.requires_grad_(False),
    lambda tensor: tensor.t_(),
)


def _changes_show(places: _Places) -> bool:
    """True if changes show in the words, also in those that `_found` could not look for."""
    for change in _CHANGES:
        tensor = torch.empty((2, 3), dtype=torch.float32, device="cpu").requires_grad_(True)
        words = _TensorWords([tensor], 1, places)
        if not words.same():
            return False
        change(tensor)
        if words.same():
            return False
    return True
