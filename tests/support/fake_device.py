"""A stand-in for ``torch.cuda`` on CPU memory: streams, private pools with real reuse, graphs that replay.

As on the device: a graph knows addresses only and owns nothing; what a capture leaves free is taken by the
next one of the same private pool; a private pool without graphs is released by ``empty_cache`` (here it is
overwritten); what waits for the device breaks a capture; and outputs hold nothing before the first replay.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from worker.torch_private.graph_memory import borrowed

SEGMENT_BYTES = 1 << 16
ROUNDING = 512
RELEASED, UNWRITTEN = 0xEE, 0xAB
_WAITS = ("aten._local_scalar_dense", "aten.nonzero", "aten.is_nonzero", "aten.equal")


class Block:
    """Memory in use; its storage holds it, and its end frees it."""

    def __init__(self, memory: Memory, start: int, size_bytes: int) -> None:
        self.memory, self.start, self.size_bytes = memory, start, size_bytes

    def __del__(self) -> None:
        self.memory.free(self)


class Memory:
    """One private pool: segments, and which of their bytes are in use."""

    def __init__(self, device: FakeDevice) -> None:
        self._device = device
        self.segments: list[torch.Tensor] = []
        self.used: dict[int, int] = {}
        self.is_stuck = False  # as after a capture that failed, of whose end the allocator is not told
        self.graphs: weakref.WeakSet[FakeGraph] = weakref.WeakSet()

    def take(self, size_bytes: int) -> Any:
        size_bytes = -(-max(size_bytes, 1) // ROUNDING) * ROUNDING
        start = next(self._fitting(size_bytes), None)
        if start is None:
            self.segments.append(torch.empty(max(size_bytes, SEGMENT_BYTES), dtype=torch.uint8))
            start = self.segments[-1].data_ptr()
        self.used[start] = size_bytes
        self._device.count(size_bytes)
        array = (ctypes.c_char * size_bytes).from_address(start)
        array.block = Block(self, start, size_bytes)  # type: ignore[attr-defined]
        return array

    def _fitting(self, size_bytes: int) -> Iterator[int]:
        for segment in self.segments:
            start = segment.data_ptr()
            end = start + segment.nbytes
            for used in sorted(address for address in self.used if start <= address < end):
                if used - start >= size_bytes:
                    yield start
                start = used + self.used[used]
            if end - start >= size_bytes:
                yield start

    def free(self, block: Block) -> None:
        del self.used[block.start]
        self._device.count(-block.size_bytes)

    def reset(self, before: list[torch.Tensor]) -> None:
        """Undo what a capture computed: on the device nothing runs, and old values stay where they were."""
        self.fill_from(len(before), UNWRITTEN)
        for segment, values in zip(self.segments, before, strict=False):
            segment.copy_(values)

    def fill_from(self, first: int, value: int) -> None:
        for segment in self.segments[first:]:
            segment.fill_(value)

    def fill(self, value: int) -> None:
        self.fill_from(0, value)


class FakeGraph(TorchDispatchMode):
    """Records operators with the addresses they worked on; a replay runs them there again."""

    device: FakeDevice  # set by the device, in a class of its own

    def __init__(self) -> None:
        super().__init__()
        self._steps: list[tuple[Any, Any, Any, list[tuple[int, torch.Tensor]]]] = []
        self._memory: Memory | None = None
        self._before: list[torch.Tensor] = []
        self._broken = False

    def capture_begin(self, pool: tuple[int, int], capture_error_mode: str) -> None:
        assert capture_error_mode in ("global", "thread_local", "relaxed")
        if self.device.current is self.device.default:
            raise RuntimeError("graphs must be captured on a non-default stream")
        if self.device.capturing is not None:
            raise RuntimeError("another capture is under way")
        self._memory = self.device.memory_of(pool)
        if self._memory.is_stuck:
            raise RuntimeError("already recording to this memory pool")
        self._memory.graphs.add(self)
        self._before = [segment.clone() for segment in self._memory.segments]
        self.device.capturing = self
        self.__enter__()

    def capture_end(self) -> None:
        self.__exit__(None, None, None)
        self.device.capturing = None
        assert self._memory is not None
        self._memory.reset(self._before)
        self.device.is_generator_stuck = self._memory.is_stuck = self._broken
        if self._broken:
            raise RuntimeError("operation failed due to a previous error during capture")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._broken or str(func).rpartition(".")[0] in _WAITS:
            self._broken = True
            raise RuntimeError("operation not permitted when stream is capturing\nand more lines")
        given = {item.untyped_storage().data_ptr() for item in _tensors((args, kwargs))}
        flat, spec = _pytree.tree_flatten(func(*args, **kwargs))
        fresh = [
            (index, self._housed(value))
            for index, value in enumerate(flat)
            if isinstance(value, torch.Tensor) and value.untyped_storage().data_ptr() not in given
        ]
        for index, value in fresh:
            flat[index] = value
        weak = _pytree.tree_map_only(torch.Tensor, _weak, (args, kwargs))
        self._steps.append((func, *weak, [(index, _weak(value)) for index, value in fresh]))
        return _pytree.tree_unflatten(flat, spec)

    def _housed(self, value: torch.Tensor) -> torch.Tensor:
        assert self._memory is not None
        array = self._memory.take(value.untyped_storage().nbytes())
        storage = torch.frombuffer(array, dtype=torch.uint8).untyped_storage()
        housed = torch.empty(0, dtype=value.dtype)
        return housed.set_(storage, value.storage_offset(), value.shape, value.stride()).copy_(value)

    def replay(self) -> None:
        for func, args, kwargs, fresh in self._steps:
            results = _pytree.tree_leaves(func(*args, **kwargs))
            for index, place in fresh:
                place.copy_(results[index])


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in _pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _weak(tensor: torch.Tensor) -> torch.Tensor:
    return borrowed([tensor], None)[0]


class FakeDevice:
    """What the backend needs of ``torch.cuda``."""

    def __init__(self, num_devices: int = 1) -> None:
        self.num_devices = num_devices
        self.default = self.Stream()
        self.current = self.default
        self.capturing: FakeGraph | None = None
        self.is_generator_stuck = False  # as torch leaves it when a capture fails
        self.memories: dict[tuple[int, int], Memory] = {}
        self.released: list[Memory] = []  # kept, so that a use after release reads what it must not
        self.allocated = self.peak = 0
        self._numbers = itertools.count(1)
        self.CUDAGraph = self.NPUGraph = type("CUDAGraph", (FakeGraph,), {"device": self})

    class Stream:
        """A stream; all work is done at once."""

    @contextlib.contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def device(self, index: int) -> contextlib.AbstractContextManager[None]:
        assert 0 <= index < self.num_devices
        return contextlib.nullcontext()

    def device_count(self) -> int:
        return self.num_devices

    def current_device(self) -> int:
        return 0

    def synchronize(self) -> None:
        if self.capturing is not None:
            raise RuntimeError("operation not permitted when stream is capturing")

    def empty_cache(self) -> None:
        self.synchronize()
        for pool_id in [name for name, memory in self.memories.items() if not memory.graphs]:
            self.released.append(self.memories.pop(pool_id))
            self.released[-1].fill(RELEASED)

    def graph_pool_handle(self) -> tuple[int, int]:
        return (0, next(self._numbers))

    def memory_of(self, pool_id: tuple[int, int]) -> Memory:
        return self.memories.setdefault(pool_id, Memory(self))

    def memory_snapshot(self, pool_id: tuple[int, int]) -> list[dict[str, int]]:
        segments = self.memories[pool_id].segments
        return [{"address": item.data_ptr(), "total_size": item.nbytes} for item in segments]

    def count(self, size_bytes: int) -> None:
        self.allocated += size_bytes
        self.peak = max(self.peak, self.allocated)

    def memory_stats(self) -> dict[str, int]:
        return {"allocated_bytes.all.current": self.allocated, "allocated_bytes.all.peak": self.peak}

    def reset_peak_memory_stats(self) -> None:
        self.peak = self.allocated

    def get_rng_state(self, index: int) -> torch.Tensor:
        assert index == 0
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, index: int) -> None:
        assert index == 0
        torch.set_rng_state(state)
