"""Memory of an emulated device: private pools whose memory is really handed out again.

What a capture leaves free is taken by the next one of the same pool. Nothing here owns what graphs know:
they know addresses, and whoever uses one after its memory went reads what it must not.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree

from warmrank.worker.torch_private.collectives import unsent, waited
from warmrank.worker.torch_private.operators import argument_name, argument_of, schema_name, written_arguments
from warmrank.worker.torch_private.places import borrowed, leaves
from warmrank.worker.torch_private.recording import Watch, traits_of
from warmrank.worker.values import Value

if TYPE_CHECKING:
    from .device import Device

SEGMENT_BYTES = 1 << 16
ROUNDING = 512  # bytes, as the allocators of torch and torch_npu round
RELEASED, UNWRITTEN = 0xEE, 0xAB
_TOKENS = itertools.count(1)


class Use(Value):
    """A piece of memory in use.

    Attributes:
        size_bytes: of it.
        token: of the block that took it; memory that was taken again has another one.
    """

    size_bytes: int
    token: int


class Block:
    """Memory in use; its storage holds it, and its end frees it."""

    def __init__(self, memory: Memory, start: int, use: Use) -> None:
        self._memory, self._start, self._use = memory, start, use

    def __del__(self) -> None:
        self._memory.free(self._start, self._use)


class Memory:
    """One private pool: segments, and which of their bytes are in use."""

    def __init__(self, count: Callable[[int], None]) -> None:
        self._count = count
        self.segments: list[torch.Tensor] = []
        self.used: dict[int, Use] = {}
        self.is_stuck = False  # as after a capture that failed, of whose end the allocator is not told

    def take(self, size_bytes: int) -> torch.UntypedStorage:
        size_bytes = -(-max(size_bytes, 1) // ROUNDING) * ROUNDING
        start = next(self._fitting(size_bytes), None)
        if start is None:
            with torch.inference_mode(mode=False):  # the next one to write here may not be in that mode
                self.segments.append(torch.empty(max(size_bytes, SEGMENT_BYTES), dtype=torch.uint8))
            start = self.segments[-1].data_ptr()
        use = self.used[start] = Use(size_bytes=size_bytes, token=next(_TOKENS))
        self._count(size_bytes)
        array: Any = (ctypes.c_char * size_bytes).from_address(start)
        array.block = Block(self, start, use)
        return torch.frombuffer(array, dtype=torch.uint8).untyped_storage()

    def _fitting(self, size_bytes: int) -> Iterator[int]:
        for segment in self.segments:
            start = segment.data_ptr()
            end = start + segment.nbytes
            for used in sorted(self._used_in(segment)):
                if used - start >= size_bytes:
                    yield start
                start = used + self.used[used].size_bytes
            if end - start >= size_bytes:
                yield start

    def _used_in(self, segment: torch.Tensor) -> list[int]:
        start = segment.data_ptr()
        return [address for address in self.used if start <= address < start + segment.nbytes]

    def free(self, start: int, use: Use) -> None:
        if self.used.get(start) == use:
            del self.used[start]
            self._count(-use.size_bytes)

    def holds(self, address: int) -> bool:
        return any(item.data_ptr() <= address < item.data_ptr() + item.nbytes for item in self.segments)

    def checkpoint(self) -> dict[int, Use]:
        return dict(self.used)

    def restore(self, state: dict[int, Use]) -> None:
        before = sum(use.size_bytes for use in self.used.values())
        self.used = dict(state)
        self._count(sum(use.size_bytes for use in self.used.values()) - before)

    def values(self) -> list[torch.Tensor]:
        return [segment.clone() for segment in self.segments]

    def put_back(self, values: list[torch.Tensor]) -> None:
        for segment in self.segments[len(values) :]:
            segment.fill_(UNWRITTEN)
        for segment, before in zip(self.segments, values, strict=False):
            segment.copy_(before)

    def release(self) -> list[torch.Tensor]:
        gone = [segment for segment in self.segments if not self._used_in(segment)]
        self.segments = [segment for segment in self.segments if self._used_in(segment)]
        for segment in gone:
            segment.fill_(RELEASED)
        return gone

    def snapshot(self, **fields: Any) -> list[dict[str, Any]]:
        found = []
        for segment in self.segments:
            uses = [self.used[address] for address in self._used_in(segment)]
            blocks = [{"state": "active_allocated", "size": use.size_bytes} for use in uses]
            allocated = sum(use.size_bytes for use in uses)
            found.append(
                {
                    "address": segment.data_ptr(),
                    "total_size": segment.nbytes,
                    "allocated_size": allocated,
                    "blocks": blocks,
                    **fields,
                }
            )
        return found


NOT_PERMITTED = "operation not permitted when stream is capturing\nand more lines"
# They need what the device has computed before the host can go on.
_WAITING = (
    "aten::_local_scalar_dense",
    "aten::nonzero",
    "aten::is_nonzero",
    "aten::equal",
    "aten::masked_select",
)
# They take memory and run nothing.
_EMPTY = (
    "aten::empty", "aten::empty_like", "aten::empty_permuted", "aten::empty_strided", "aten::new_empty",
    "aten::new_empty_strided",
)  # fmt: skip


class Step:
    """One recorded operator."""

    __slots__ = ("_call", "_fresh")

    def __init__(self, call: Callable[[], Any], fresh: list[tuple[int, torch.Tensor]]) -> None:
        self._call = call
        self._fresh = fresh

    def run(self) -> None:
        results = leaves(self._call())
        for index, place in self._fresh:
            place.copy_(results[index])


class Recording(Watch):
    """What a capture sees and keeps."""

    def __init__(self, memory: Memory) -> None:
        super().__init__()
        self.memory = memory
        self._before = memory.values()
        self._outside: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._random = torch.get_rng_state()
        self.steps: list[Step] = []
        self.broken = False

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = schema_name(func)
        if self.broken or name in _WAITING:
            self.broken = True
            raise RuntimeError(NOT_PERMITTED)
        self._keep_what_is_written(func, args, kwargs)
        result = unsent(func, args, kwargs) if traits_of(func).sends else _call_of(func, args, kwargs)()
        flat, form = _pytree.tree_flatten(result)
        if name in _EMPTY:  # an index out of it must not be out of range while this runs
            flat = [value.zero_() for value in flat]
        # Asked after the call: one that gives a tensor other memory (`set_`) has made none.
        given = {item.untyped_storage().data_ptr() for item in _tensors((args, kwargs))}
        fresh = [
            (index, self._housed(value))
            for index, value in enumerate(flat)
            if isinstance(value, torch.Tensor) and value.untyped_storage().data_ptr() not in given
        ]
        for index, value in fresh:
            flat[index] = value
        if name in _EMPTY:
            return _pytree.tree_unflatten(flat, form)
        call = _call_of(func, *_pytree.tree_map_only(torch.Tensor, _weak, (args, kwargs)))
        self.steps.append(Step(call, [(index, _weak(value)) for index, value in fresh]))
        return _pytree.tree_unflatten(flat, form)

    def undo(self) -> None:
        for place, values in reversed(self._outside.values()):  # storages may overlap
            place.copy_(values)
        self.memory.put_back(self._before)
        torch.set_rng_state(self._random)

    def _keep_what_is_written(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if schema_name(func).startswith("c10d::"):
            written: list[Any] = [args, kwargs]  # its schemas do not say what they write to
        else:
            positions = written_arguments(func, args, kwargs)
            written = [argument_of(func, args, kwargs, argument_name(func, index)) for index in positions]
        for tensor in _tensors(written):
            address = tensor.untyped_storage().data_ptr()
            if address not in self._outside and not self.memory.holds(address):
                place = _bytes_of(tensor)
                self._outside[address] = (place, place.clone())

    def _housed(self, value: torch.Tensor) -> torch.Tensor:
        storage = self.memory.take(value.untyped_storage().nbytes())
        housed = torch.empty(0, dtype=value.dtype)
        return housed.set_(storage, value.storage_offset(), value.shape, value.stride()).copy_(value)


class Graph:
    """One captured graph; what ``torch.cuda.CUDAGraph`` and ``torch_npu._C._NPUGraph`` are."""

    device: Device  # set by the device, in a class of its own

    def __init__(self) -> None:
        self._steps: list[Step] | None = None
        self._memory: Memory | None = None
        self._pool: tuple[int, int] = (0, 0)

    def capture_begin(
        self,
        pool: tuple[int, int] | None = None,
        capture_error_mode: str = "global",
        report_shape: bool = False,
    ) -> None:
        del report_shape
        if capture_error_mode not in ("global", "thread_local", "relaxed"):
            msg = f"unknown capture error mode {capture_error_mode}"
            raise RuntimeError(msg)
        self._pool = pool or self.device.graph_pool_handle()
        self._memory = self.device.begin_capture(self, self._pool)

    def capture_end(self) -> None:
        recording = self.device.end_capture()
        if recording.broken:
            msg = "operation failed due to a previous error during capture"
            raise RuntimeError(msg)
        self._steps = recording.steps

    def replay(self) -> None:
        if self._steps is None:
            msg = "called replay of a graph without a preceding successful capture"
            raise RuntimeError(msg)
        for step in self._steps:
            step.run()

    def reset(self) -> None:
        self._steps = None
        if self._memory is not None:
            self.device.forget(self, self._pool)
            self._memory = None

    def pool(self) -> tuple[int, int]:
        return self._pool


def _call_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any]:
    if traits_of(func).sends:
        return waited(func, args, kwargs)
    return lambda: _finished(func(*args, **kwargs))


def _finished(result: Any) -> Any:
    for item in result if isinstance(result, tuple) else (result,):
        if hasattr(item, "wait") and not isinstance(item, torch.Tensor):
            item.wait()
    return result


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in leaves(tree) if isinstance(leaf, torch.Tensor)]


def _weak(tensor: torch.Tensor) -> torch.Tensor:
    return borrowed([tensor], None)[0]


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,))
