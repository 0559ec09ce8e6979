"""Whether tensors changed, and their memory with them, told by words: those of a whole model in microseconds.

A tensor points to its implementation in C++, which holds sizes, strides, offset, dtype, device and dispatch
keys, and points to its storage and to what autograd knows of it.

Facts relied upon (tested in ``tests/unit/test_tensor_words.py``): where these words are. None is taken for
granted: each is found by its value, in tensors made for it, and what stands there for a tensor that is to be
watched is compared with what the tensor says. Where something is elsewhere (more dimensions than the
implementation has room for, a layout without strides, another Python), nothing is watched, and callers ask
tensor by tensor.

Invariant: a word is read only where a pointer that leads to it is what it was, so none of memory given back.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from warmrank.worker.torch_private.object_words import Words, word

_WORD = 8
_MAX_WAIT = 256
_OF_AUTOGRAD = 20  # words that what autograd knows of a tensor has at least
_ITEMS = tuple.__basicsize__


_Said = dict[int, int | None]
"""Address -> the word that a tensor says should be there; None where it says nothing of it."""


class TensorWatch:
    """Tensors among the inputs of each call, as they were in an earlier one.

    What changes on every call is not worth its words: they are taken anew after 2, 4, 8 ... looks.

    Args:
        positions: of the tensors.
    """

    __slots__ = ("_looks", "_positions", "_wait", "_words")

    def __init__(self, positions: Sequence[int]) -> None:
        self._positions = np.array(positions, dtype=np.intp)
        self._words: _TensorWords | None = None
        self._looks, self._wait = 0, 2

    def same(self, inputs: Sequence[Any]) -> bool:
        """Whether they are the same objects, and nothing about them and where they lie has changed."""
        words = self._words
        if words is None or len(inputs) != words.num_inputs or type(inputs) is not tuple:
            return False
        return _ids(inputs).take(self._positions).tobytes() == words.ids and words.same()

    def take(self, inputs: Sequence[Any]) -> _TensorWords | None:
        """Forget what was, and read what is; to be kept once the caller has looked at the tensors himself."""
        self._words = None
        self._looks += 1
        if self._looks < self._wait:
            return None
        self._looks, self._wait = 0, min(2 * self._wait, _MAX_WAIT)
        words = _words_of(inputs, self._positions)
        if words is None:
            self._wait = sys.maxsize
        return words

    def keep(self, words: _TensorWords | None) -> None:
        """Compare with these from now on."""
        self._words = words


def _ids(items: tuple[Any, ...]) -> Any:
    """Ids of a tuple's items, out of its memory."""
    return np.frombuffer(ctypes.string_at(id(items) + _ITEMS, len(items) * _WORD), dtype=np.uint64)


class _Places(NamedTuple):
    """Offsets: in a tensor, in its implementation, in a storage, in what autograd knows."""

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
        objects: _Said = {}
        implementations: _Said = {}
        memory: _Said = {}
        for tensor in tensors:
            _add_words(objects, implementations, memory, tensor, places)
        self._stages = tuple(map(_read, (objects, implementations, memory)))

    def same(self) -> bool:
        objects, implementations, memory = self._stages
        return objects.same() and implementations.same() and memory.same()


def _words_of(inputs: Sequence[Any], positions: Iterable[int]) -> _TensorWords | None:
    places = _places()
    if places is None:
        return None
    try:
        with torch._C.DisableTorchFunctionSubclass():
            return _TensorWords([inputs[index] for index in positions], len(inputs), places)
    except (AttributeError, LookupError, RuntimeError):  # no tensor, or one of another build
        return None


def _add_words(
    objects: _Said, implementations: _Said, memory: _Said, tensor: torch.Tensor, places: _Places
) -> None:
    """Add the words of a tensor object, of its implementation, and of what that one points to.

    Raises:
        LookupError: there is no room for so many dimensions.
    """
    sizes, strides = tensor.size(), tensor.stride()
    at, storage = tensor._cdata, tensor.untyped_storage()
    if len(sizes) * _WORD > places.strides - places.sizes:
        msg = f"{len(sizes)} dimensions are elsewhere"
        raise LookupError(msg)
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
    """The words at some addresses.

    Raises:
        LookupError: not all of them say what the tensors say.
    """
    words = Words([*said])
    if any(
        value is not None and value != now for value, now in zip(said.values(), words.values(), strict=True)
    ):
        msg = "words of a tensor are elsewhere"
        raise LookupError(msg)
    return words


def _keys_of(tensor: torch.Tensor) -> int:
    return torch._C._dispatch_keys(tensor).raw_repr()


@functools.cache
def _places() -> _Places | None:
    """Where the words are in this build; None where one of them was not found."""
    if sys.implementation.name != "cpython" or ctypes.sizeof(ctypes.c_void_p) != _WORD:
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
        msg = "items of a tuple are elsewhere"
        raise LookupError(msg)
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
    return _Places(
        implementation=_find(id(trial), at, torch.Tensor.__basicsize__ // _WORD),
        kind=_find(id(trial), id(type(trial)), torch.Tensor.__basicsize__ // _WORD),
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
    msg = f"{value} is not in {limit} words"
    raise LookupError(msg)


_CHANGES: tuple[Callable[[torch.Tensor], Any], ...] = (
    lambda tensor: setattr(tensor, "data", tensor.data.double()),
    lambda tensor: setattr(tensor, "data", tensor.data.clone()),
    lambda tensor: tensor.requires_grad_(False),
    lambda tensor: tensor.t_(),
)


def _changes_show(places: _Places) -> bool:
    """Whether changes show in the words, those of which no number to be found by is known too."""
    for change in _CHANGES:
        tensor = torch.empty((2, 3), dtype=torch.float32, device="cpu").requires_grad_(True)
        words = _TensorWords([tensor], 1, places)
        if not words.same():
            return False
        change(tensor)
        if words.same():
            return False
    return True
