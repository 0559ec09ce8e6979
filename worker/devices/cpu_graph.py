"""A captured graph on the CPU; imported with the first capture, which a process that only loads never makes.

A recording of one run says which kernels the graph calls on which memory (`worker.torch_private.recording`).
All that the run allocated gets a place in the work region of a pool, and a replay calls the same kernels on
these fixed addresses: no Python of the graph, no views, no allocator. As on a device, outputs hold nothing
before the first replay, and every replay in the pool may overwrite them. Each
operation becomes one call that leaves its results where the plan says:

    in-place operators, and those with ``out``    as recorded
    structured ones (they have ``out`` variants)  that variant, on the planned tensors
    ``clone``, conversions                        ``copy_`` into the planned tensor
    all others, collectives                       as recorded, and a copy of those results that are used

An output in the memory of a copied input is a copy in the work region: filling the buffer for a later call
must not change what an earlier one returned before that call's own replay does.

A pool has two regions: ``inputs`` holds the buffers of copied inputs, ``work`` the intermediate values and
outputs, so that filling a buffer cannot overwrite a source which is an output of the pool. Each region grows
by whole segments:

    region     segment [ graph 1 .................... ]    the largest; later graphs lie over the first
                       [ graph 2 ........ ]
               segment [ graph 3, larger than all before .......... ]

A segment lives as long as a graph that uses it, or a tensor in it; the largest one as long as its pool.
"""

from __future__ import annotations

import bisect
import ctypes
import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch

from warmrank.worker import collection
from warmrank.worker.devices import CapturedGraph, PoolHandle, aligned, memory_of, span_bytes, tensor_in
from warmrank.worker.errors import StateChanged
from warmrank.worker.torch_private.collectives import wait, waited
from warmrank.worker.torch_private.kernels import Call, call_of, into, only_copies, out_variant, run
from warmrank.worker.torch_private.places import Place, check, lazily
from warmrank.worker.torch_private.recording import Operation, Recording, leaves_of, record
from warmrank.worker.torch_private.warm import known_groups
from warmrank.worker.values import Value

ALIGNMENT = 64  # bytes: a cache line, and the widest vector of any CPU that torch has kernels for
_NUMBERS = itertools.count(1)
_lock = threading.Lock()


def captured(
    graph: Callable[..., tuple[Any, ...]], inputs: Sequence[Any], *, copied: frozenset[int], pool: ArenaPool
) -> CapturedGraph:
    """Run and record ``graph`` on ``inputs``; see `DeviceBackend.capture`."""
    for value in inputs:
        if isinstance(value, torch.Tensor):
            check(value)
    # Out of inference mode, so that what is made here can be written in and out of it.
    with collection.paused(), torch.inference_mode(mode=False), torch.no_grad():
        values, input_bytes, input_segment = buffers(pool, inputs, copied)
        recording = record(graph, values, copied)
        calls, outputs, work_bytes, segment = _program(recording, copied, pool.work)
    return CapturedGraph(
        inputs=values,
        outputs=outputs,
        origins=recording.origins,
        size_bytes=input_bytes + work_bytes,
        replay=functools.partial(run, calls),
        held=(pool, input_segment, segment),
    )


def _program(
    recording: Recording, copied: frozenset[int], region: Region
) -> tuple[tuple[Call, ...], tuple[Any, ...], int, Segment]:
    """Plan the memory of a recording, take it out of a region, and bind every call to it.

    Returns the calls, the graph's outputs with the values of the recorded run, the bytes that the plan spans,
    and the segment to hold for both.
    """
    buffers = frozenset(recording.inputs[index].storage for index in copied)
    twins = {storage: -1 - storage for storage in buffers & _storages(recording.outputs)}
    steps = _steps(recording)
    lifetimes = _lifetimes(recording, steps, twins)
    offsets, size_bytes = planned(list(lifetimes.values()))
    apart = [tensor for storage, tensor in recording.given.items() if storage not in buffers]
    segment = region.segment(size_bytes, apart)
    memory = _Memory(recording)
    for (storage, lifetime), offset in zip(lifetimes.items(), offsets, strict=True):
        memory.storages[storage] = segment.block(offset, lifetime.size_bytes)
    calls = [_call(step, memory) for step in steps]
    copies = [memory.copied(memory.storages[storage], twin) for storage, twin in twins.items()]
    calls += copies
    returned = {
        place.storage: memory.copied(tensor.untyped_storage(), place.storage)
        for place, tensor in zip(recording.outputs, recording.results, strict=True)
        if isinstance(place, Place) and place.storage in recording.made
    }
    if known_groups():
        wait(recording.results)
    run([*returned.values(), *copies])
    outputs = tuple(
        memory.resolved(
            value._replace(storage=twins[value.storage])
            if isinstance(value, Place) and value.storage in twins
            else value
        )
        for value in recording.outputs
    )
    return tuple(calls), outputs, size_bytes, segment


_Way = Literal["as recorded", "copy", "out", "computed"]


class _Step(Value):
    """One operation of the program."""

    number: int  # of the operation in the recording
    operation: Operation
    way: _Way  # how a replay repeats it
    kept: tuple[int, ...]  # positions of the results that need memory


def _steps(recording: Recording) -> list[_Step]:
    """The operations that have an effect on the outputs or on inputs, or may have one outside."""
    last = dict.fromkeys(_storages(recording.outputs), len(recording.operations))
    for number in range(len(recording.operations) - 1, -1, -1):
        for storage in recording.operations[number].touched:
            last.setdefault(storage, number)
    steps = []
    for number, operation in enumerate(recording.operations):
        made = {index: place for index, place in enumerate(operation.results) if place is not None}
        used = tuple(index for index, place in made.items() if last[place.storage] > number)
        way = _way(operation, list(made.values()))
        if made and not used and way in ("copy", "out"):
            continue
        kept = used if way == "computed" else tuple(made)
        steps.append(_Step(number=number, operation=operation, way=way, kept=kept))
    return steps


def _way(operation: Operation, made: Sequence[Place]) -> _Way:
    if operation.collective:
        return "computed"
    if not made:
        return "as recorded"
    plain = not any(place.conjugate or place.negative or _overlaps(place) for place in made)
    if plain and only_copies(operation.overload):
        return "copy"
    if plain and len(made) == len(operation.results) and out_variant(operation.overload) is not None:
        return "out"
    return "computed"


def _overlaps(place: Place) -> bool:
    """True if elements lie on each other, which a kernel refuses to write to."""
    return any(stride == 0 and size > 1 for stride, size in zip(place.stride, place.size, strict=True))


def _lifetimes(recording: Recording, steps: Sequence[_Step], twins: dict[int, int]) -> dict[int, Lifetime]:
    """First and last use of each storage that needs memory."""
    end = len(recording.operations)
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for step in steps:
        results = step.operation.results
        dropped = {
            place.storage
            for index, place in enumerate(results)
            if place is not None and index not in step.kept
        }
        kept = {place.storage for index in step.kept if (place := results[index]) is not None}
        for storage in step.operation.touched - (dropped - kept):
            first.setdefault(storage, step.number)
            last[storage] = step.number
    for storage in _storages(recording.outputs):
        first.setdefault(storage, end)
        last[storage] = end
    lifetimes = {
        storage: Lifetime(size_bytes=recording.made[storage], first=begin, last=last[storage])
        for storage, begin in first.items()
        if storage in recording.made
    }
    for storage, twin in twins.items():
        size_bytes = recording.given[storage].untyped_storage().nbytes()
        lifetimes[twin] = Lifetime(size_bytes=size_bytes, first=end, last=end)
    return lifetimes


class _Memory:
    """The tensors of a program: one for each place, on the storage that the place now stands for."""

    def __init__(self, recording: Recording) -> None:
        self.storages = {storage: tensor.untyped_storage() for storage, tensor in recording.given.items()}
        self._tensors: dict[Place, torch.Tensor] = {}

    def tensor(self, place: Place) -> torch.Tensor:
        """The tensor at a place; the same object each time."""
        found = self._tensors.get(place)
        if found is None:
            storage = self.storages[place.storage]
            plain = tensor_in(storage, place.offset, place.size, place.stride, place.dtype)
            found = self._tensors[place] = lazily(plain, place)
        return found

    def resolved(self, value: Any) -> Any:
        """The value, with tensors instead of places."""
        if isinstance(value, Place):
            return self.tensor(value)
        if type(value) is list or type(value) is tuple:
            return type(value)([self.resolved(item) for item in value])
        return value

    def copied(self, source: torch.UntypedStorage, target: int) -> Call:
        """The call that copies a whole storage into another one of its size."""
        size = (source.nbytes(),)
        from_bytes, to_bytes = (
            tensor_in(storage, 0, size, (1,), torch.uint8) for storage in (source, self.storages[target])
        )
        return functools.partial(to_bytes.copy_, from_bytes)


def _call(step: _Step, memory: _Memory) -> Call:
    operation = step.operation
    args = memory.resolved(operation.args)
    kwargs = {key: memory.resolved(value) for key, value in operation.kwargs.items()}
    targets = [memory.resolved(operation.results[index]) for index in step.kept]
    if step.way == "as recorded":
        return call_of(operation.overload, args, kwargs)
    if step.way == "copy":
        return functools.partial(targets[0].copy_, args[0])
    variant = out_variant(operation.overload) if step.way == "out" else None
    if variant is not None:
        return into(variant, args, kwargs, targets)
    call = (waited if operation.collective else call_of)(operation.overload, args, kwargs)
    results = leaves_of(operation.overload)
    keeps = [(index, _kept(target)) for index, target in zip(step.kept, targets, strict=True)]

    def compute() -> None:
        produced = results(call())
        for index, keep in keeps:
            keep(produced[index])

    return compute if keeps else call


def _kept(target: torch.Tensor) -> Callable[[torch.Tensor], None]:
    """The call that copies a result to where the plan says."""
    shape, dtype, cells = target.shape, target.dtype, memory_of(target)
    is_plain, copy = cells is target, cells.copy_

    def keep(produced: torch.Tensor) -> None:
        if produced.shape != shape or produced.dtype != dtype:  # copy_ would broadcast
            wanted, found = f"{dtype} {tuple(shape)}", f"{produced.dtype} {tuple(produced.shape)}"
            raise StateChanged(f"a result inside a captured graph, of {wanted},", found, while_running=True)
        copy(produced if is_plain else memory_of(produced))

    return keep


def _storages(value: Any) -> set[int]:
    if isinstance(value, Place):
        return {value.storage}
    if isinstance(value, list | tuple):
        return set().union(*(_storages(item) for item in value))
    return set()


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
        """True if the memory of ``tensor`` lies in this segment."""
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
    sizes = {index: aligned(span_bytes(inputs[index]), ALIGNMENT) for index in sorted(copied)}
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    segment = pool.inputs.segment(sum(sizes.values()), tensors)
    values = list(inputs)
    start = 0
    for index, size in sizes.items():
        value = inputs[index]
        storage = segment.block(start, span_bytes(value))
        values[index] = tensor_in(storage, 0, value.size(), value.stride(), value.dtype)
        memory_of(values[index]).copy_(memory_of(value))
        start += size
    return tuple(values), start, segment


_pools: weakref.WeakValueDictionary[PoolHandle, ArenaPool] = weakref.WeakValueDictionary()


def pool_of(handle: PoolHandle | None) -> ArenaPool:
    """The pool with this handle, for all who ask with it; without one, a pool of its own."""
    if handle is None:
        return ArenaPool()
    with _lock:
        return _pools.setdefault(handle, ArenaPool())


def new_handle() -> PoolHandle:
    """A handle that no pool of this process has yet, in the form of ``torch.cuda.graph_pool_handle()``."""
    return (0, next(_NUMBERS))
