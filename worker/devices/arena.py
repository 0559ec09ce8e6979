"""Pools: memory that captured graphs share, in two regions that never overlap.

``inputs`` holds the buffers of copied inputs, ``work`` the intermediate values and outputs, so that filling
a buffer cannot overwrite a source which is an output of the pool. Each region grows by whole segments:

    region     segment [ graph 1 .................... ]    the largest; later graphs lie over the first
                       [ graph 2 ........ ]
                       [ graph 3 .. ]
               segment [ graph 4, larger than all before .......... ]

A segment lives as long as a graph that uses it, or a tensor in it; the largest one as long as its pool.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from warmrank.worker.devices import PoolHandle
from warmrank.worker.devices.memory import aligned, memory_of
from warmrank.worker.values import Value

_NUMBERS = itertools.count(1)


def tensor_in(
    storage: torch.UntypedStorage,
    offset: int,
    size: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype,
) -> torch.Tensor:
    """A tensor in a storage; ``offset`` counts elements.

    Made outside of inference mode, it can be written in and out of that mode.
    """
    return torch.empty(0, dtype=dtype, device="cpu").set_(storage, offset, size, stride)


class Segment:
    """Memory that was taken at once."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._memory = torch.empty(size_bytes, dtype=torch.uint8, device="cpu")

    def block(self, start: int, size_bytes: int) -> torch.UntypedStorage:
        """A stretch of this segment, as a storage of its own.

        So tensors of two blocks do not pass for views of one tensor, and saving one does not save them all.
        """
        if not size_bytes:
            return torch.UntypedStorage(0, device="cpu")  # type: ignore[no-untyped-call]
        memory = (ctypes.c_char * size_bytes).from_address(self._memory.data_ptr() + start)
        memory.segment = self._memory  # type: ignore[attr-defined]  # the storage holds this array
        return torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether the memory of ``tensor`` lies in this segment."""
        begin = self._memory.data_ptr()
        return begin <= tensor.untyped_storage().data_ptr() < begin + self.size_bytes or (
            begin <= tensor.data_ptr() < begin + self.size_bytes
        )


class Region:
    """Segments for one kind of memory."""

    def __init__(self) -> None:
        self._segments: list[weakref.ref[Segment]] = []
        self._largest: Segment | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size_bytes for segment in self._alive())

    def segment(self, size_bytes: int, apart_from: Iterable[torch.Tensor]) -> Segment:
        """A segment of at least this size with none of these tensors in it; hold it while it is needed."""
        tensors = list(apart_from)
        usable = [
            segment
            for segment in self._alive()
            if segment.size_bytes >= size_bytes and not any(segment.holds(tensor) for tensor in tensors)
        ]
        if usable:
            return max(usable, key=lambda segment: segment.size_bytes)
        taken = Segment(size_bytes)
        self._segments = [weakref.ref(segment) for segment in (*self._alive(), taken)]
        if self._largest is None or self._largest.size_bytes < size_bytes:
            self._largest = taken
        return taken

    def _alive(self) -> list[Segment]:
        return [segment for reference in self._segments if (segment := reference()) is not None]


class ArenaPool:
    """The two regions that graphs of one pool share."""

    def __init__(self) -> None:
        self.inputs = Region()
        self.work = Region()

    @property
    def size_bytes(self) -> int:
        """See `worker.devices.Pool.size_bytes`."""
        return self.inputs.size_bytes + self.work.size_bytes


class Buffers(Value):
    """A graph's inputs, the copied ones in a segment of the pool.

    Attributes:
        values: all inputs, in their order.
        size_bytes: bytes of the buffers.
        segment: where they lie; hold it as long as the buffers are used.
    """

    values: tuple[Any, ...]
    size_bytes: int
    segment: Segment


def buffers(pool: ArenaPool, inputs: Sequence[Any], copied: frozenset[int]) -> Buffers:
    """The inputs, the ``copied`` ones in buffers with equal strides, which the graph may rely on."""
    spans = {index: memory_of(inputs[index]) for index in sorted(copied)}
    sizes = {index: aligned(_span_bytes(inputs[index])) for index in spans}
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    segment = pool.inputs.segment(sum(sizes.values()), tensors)
    values = list(inputs)
    start = 0
    for index in spans:
        value = inputs[index]
        storage = segment.block(start, _span_bytes(value))
        values[index] = tensor_in(storage, 0, value.size(), value.stride(), value.dtype)
        memory_of(values[index]).copy_(memory_of(value))
        start += sizes[index]
    return Buffers(values=tuple(values), size_bytes=start, segment=segment)


def _span_bytes(tensor: torch.Tensor) -> int:
    """Bytes from the first to behind the last element."""
    if not tensor.numel():
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


class Pools:
    """The pools of this process by handle, as long as anybody holds them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: weakref.WeakValueDictionary[PoolHandle, ArenaPool] = weakref.WeakValueDictionary()

    def pool(self, handle: PoolHandle | None) -> ArenaPool:
        """The pool with this handle, for all who ask with it; without one, a pool of its own."""
        if handle is None:
            return ArenaPool()
        with self._lock:
            return self._known.setdefault(handle, ArenaPool())


def new_handle() -> PoolHandle:
    """A handle that no pool of this process has yet, in the form of ``torch.cuda.graph_pool_handle()``."""
    return (0, next(_NUMBERS))


POOLS = Pools()
