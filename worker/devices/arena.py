"""Memory of captured graphs on the CPU: a plan of blocks, and pools of two regions.

``inputs`` holds the buffers of copied inputs, ``work`` the intermediate values and outputs, so that filling
a buffer cannot overwrite a source which is an output of the pool. Each region grows by whole segments:

    region     segment [ graph 1 .................... ]    the largest; later graphs lie over the first
                       [ graph 2 ........ ]
               segment [ graph 3, larger than all before .......... ]

A segment lives as long as a graph that uses it, or a tensor in it; the largest one as long as its pool.
"""

from __future__ import annotations

import bisect
import ctypes
import itertools
import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from warmrank.worker.devices import aligned, memory_of, span_bytes, tensor_in
from warmrank.worker.devices.port import PoolHandle
from warmrank.worker.values import Value

ALIGNMENT = 64  # bytes: a cache line, and the widest vector of any CPU that torch has kernels for


class Lifetime(Value):
    """One block: its size, and the first and last step that need it (both included)."""

    size_bytes: int
    first: int
    last: int


def planned(blocks: Sequence[Lifetime]) -> tuple[tuple[int, ...], int]:
    """Offsets at which no two blocks needed in the same step overlap, and the bytes that all span."""
    ends: dict[int, list[int]] = {}
    offsets = [0] * len(blocks)
    free = _FreeList()
    pending: list[int] = []  # last steps of placed blocks, in order
    for index in sorted(range(len(blocks)), key=lambda number: blocks[number].first):
        block = blocks[index]
        while pending and pending[0] < block.first:
            for done in ends.pop(pending.pop(0)):
                free.give(offsets[done], aligned(blocks[done].size_bytes, ALIGNMENT))
        offsets[index] = free.take(aligned(block.size_bytes, ALIGNMENT))
        if block.last not in ends:
            bisect.insort(pending, block.last)
        ends.setdefault(block.last, []).append(index)
    return tuple(offsets), free.top


class _FreeList:
    """Free ranges below the highest byte that was ever taken."""

    def __init__(self) -> None:
        self.top = 0
        self._ranges: list[tuple[int, int]] = []  # (offset, size), by offset; no two touch

    def take(self, size: int) -> int:
        """The smallest free range that is large enough; else the last one grows, or a new one."""
        fitting = [item for item in self._ranges if item[1] >= size]
        if fitting:
            offset, found = min(fitting, key=lambda item: item[1])
            place = self._ranges.index((offset, found))
            self._ranges[place : place + 1] = [(offset + size, found - size)] if found > size else []
            return offset
        offset = self.top
        if self._ranges and sum(self._ranges[-1]) == self.top:
            offset, _ = self._ranges.pop()
        self.top = offset + size
        return offset

    def give(self, offset: int, size: int) -> None:
        """Back to the free ranges; neighbours become one."""
        if not size:
            return
        place = bisect.bisect(self._ranges, (offset, size))
        if place < len(self._ranges) and self._ranges[place][0] == offset + size:
            size += self._ranges.pop(place)[1]
        if place and sum(self._ranges[place - 1]) == offset:
            before, length = self._ranges.pop(place - 1)
            offset, size, place = before, size + length, place - 1
        self._ranges.insert(place, (offset, size))


_NUMBERS = itertools.count(1)


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
        """See `Pool.size_bytes`."""
        return self.inputs.size_bytes + self.work.size_bytes


def buffers(
    pool: ArenaPool, inputs: Sequence[Any], copied: frozenset[int]
) -> tuple[tuple[Any, ...], int, Segment]:
    """The inputs, the ``copied`` ones in buffers with equal strides, which the graph may rely on.

    Also the bytes of the buffers, and the segment where they lie: hold it as long as they are used.
    """
    spans = {index: memory_of(inputs[index]) for index in sorted(copied)}
    sizes = {index: aligned(span_bytes(inputs[index]), ALIGNMENT) for index in spans}
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    segment = pool.inputs.segment(sum(sizes.values()), tensors)
    values = list(inputs)
    start = 0
    for index in spans:
        value = inputs[index]
        storage = segment.block(start, span_bytes(value))
        values[index] = tensor_in(storage, 0, value.size(), value.stride(), value.dtype)
        memory_of(values[index]).copy_(memory_of(value))
        start += sizes[index]
    return tuple(values), start, segment


_pools: weakref.WeakValueDictionary[PoolHandle, ArenaPool] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def pool_of(handle: PoolHandle | None) -> ArenaPool:
    """The pool with this handle, for all who ask with it; without one, a pool of its own."""
    if handle is None:
        return ArenaPool()
    with _lock:
        return _pools.setdefault(handle, ArenaPool())


def new_handle() -> PoolHandle:
    """A handle that no pool of this process has yet, in the form of ``torch.cuda.graph_pool_handle()``."""
    return (0, next(_NUMBERS))
