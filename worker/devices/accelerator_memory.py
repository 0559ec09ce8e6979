"""Private pools of torch's allocator, input buffers, and the calls that record a graph into them.

Work memory and outputs come from a private pool of torch's caching allocator. Nothing owns an output once
it is captured, so the next capture in the private pool takes the same memory: the largest graph first, and
all others fit into what is there. An anchor, a graph that is never replayed, keeps the private pool from
being released. Input buffers lie in segments outside of it, so that filling them never overwrites an output.
A handle shares memory only among those who ask this package for a pool, not with graphs that others capture
under it, whose replays would overwrite ours unseen. Whatever fails in a recording, stream, allocator and
generator are usable afterwards.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from warmrank.worker.devices.memory import aligned, memory_of, span_bytes, tensor_in
from warmrank.worker.torch_private.places import drop_workspaces, stop_allocating

PrivatePoolId = tuple[int, int]
_ALIGNMENT = 512  # bytes, as the allocators of torch and torch_npu align; kernels may rely on it


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrivatePool:
    """One private pool of the allocator."""

    pool_id: PrivatePoolId  # the allocator's name for it
    device_index: int
    anchor: Any  # the graph that keeps it


class AcceleratorPool:
    """Memory that graphs share: private pools for their work, and arenas for their inputs."""

    def __init__(self, module: Any, make: Callable[[int], PrivatePool]) -> None:
        """Takes the device's module (``torch.cuda``), and what makes a private pool on a device."""
        self._module = module
        self._make = make
        self._private: list[PrivatePool] = []
        self._segments: list[torch.Tensor] = []

    @property
    def size_bytes(self) -> int:
        """See `Pool.size_bytes`: what the allocator holds for it, and the input buffers."""
        held = sum(end - start for private in self._private for start, end in self._spans(private))
        return held + sum(segment.nbytes for segment in self._segments)

    def buffers(
        self, like: Sequence[torch.Tensor], fixed: Sequence[torch.Tensor]
    ) -> tuple[list[torch.Tensor], int]:
        """Copies of tensors, with the same strides, which a graph may rely on; and the bytes they take.

        They overlap with the buffers of other graphs of this pool, but neither with each other nor with any
        of ``like`` and ``fixed``.
        """
        if not like:
            return [], 0
        sizes = [aligned(max(span_bytes(tensor), 1), _ALIGNMENT) for tensor in like]
        segment = self._segment(sum(sizes), like[0].device, (*like, *fixed))
        copies = []
        for tensor, start in zip(like, itertools.accumulate(sizes, initial=0), strict=False):
            offset = start // tensor.element_size()
            with torch.inference_mode(mode=False):
                place = tensor_in(
                    segment.untyped_storage(), offset, tensor.shape, tensor.stride(), tensor.dtype
                )
            copies.append(place)
            memory_of(copies[-1]).copy_(memory_of(tensor))
        return copies, sum(sizes)

    def _segment(
        self, size_bytes: int, device: torch.device, apart_from: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        for segment in self._segments:
            span = (segment.data_ptr(), segment.data_ptr() + segment.nbytes)
            fits = segment.device == device and segment.nbytes >= size_bytes
            if fits and not _any_inside(apart_from, [span]):
                return segment
        with torch.inference_mode(mode=False):  # graphs that are called in and out of it share the segment
            self._segments.append(torch.empty(size_bytes, dtype=torch.uint8, device=device))
        return self._segments[-1]

    def private(self, device_index: int, fixed: Sequence[torch.Tensor]) -> PrivatePool:
        """A private pool without any input that is used where it lies: replays would overwrite it."""
        for private in self._private:
            if private.device_index == device_index and not _any_inside(fixed, self._spans(private)):
                return private
        private = self._make(device_index)
        self._private.append(private)
        return private

    def abandon(self, private: PrivatePool) -> None:
        """Capture no more into it: a capture failed there, and the allocator may not have noticed its end."""
        self._private.remove(private)

    def _spans(self, private: PrivatePool) -> list[tuple[int, int]]:
        """Address ranges that the allocator holds for a private pool."""
        return [
            (segment["address"], segment["address"] + segment["total_size"])
            for segment in self._module.memory_snapshot(private.pool_id)
        ]


def _any_inside(tensors: Iterable[torch.Tensor], spans: Sequence[tuple[int, int]]) -> bool:
    addresses = [tensor.untyped_storage().data_ptr() for tensor in tensors]
    return any(start <= address < end for address in addresses for start, end in spans)


_GRAPHS = {"cuda": "CUDAGraph", "npu": "NPUGraph"}
# What another thread does meanwhile (a free, an event query) must not make this capture fail.
_ERROR_MODE = "thread_local"


class Recorder:
    """Records on the devices of one kind; one capture at a time in a process, which is the caller's duty."""

    def __init__(self, kind: str, module: Any, *, memory: str) -> None:
        """Takes the device's module, and the type of its tensors' device."""
        self._graph_type = getattr(module, _GRAPHS[kind])
        self._module = module
        self._memory = memory
        self._streams: dict[int, Any] = {}

    def warm_up(self, graph: Callable[..., Any], inputs: tuple[Any, ...], index: int) -> None:
        """Run once, so that libraries, kernels and communicators are there before the capture."""
        self._module.synchronize()
        with self._module.stream(self._stream(index)):
            graph(*inputs)
        self._module.synchronize()

    def measured(
        self, graph: Callable[..., tuple[Any, ...]], inputs: tuple[Any, ...], private: PrivatePool
    ) -> tuple[Any, tuple[Any, ...], int]:
        """Record into a private pool; also says how many bytes were in use there at once.

        That is a difference of the device's statistics, whose peak is reset for it: nothing tells the peak of
        one private pool. What other threads allocate in the meantime is counted as well.
        """
        drop_workspaces(self._memory)
        before = self._allocated_bytes("current")
        self._module.reset_peak_memory_stats()
        try:
            recorded, outputs = self._recorded(lambda: graph(*inputs), private.device_index, private.pool_id)
        finally:
            drop_workspaces(self._memory)
        return recorded, outputs, max(0, self._allocated_bytes("peak") - before)

    def recover(self, index: int) -> None:
        """Record what works: a capture that failed leaves the generator in the belief that it goes on.

        Eager calls that draw numbers would fail until the next one ends.
        """
        with contextlib.suppress(RuntimeError):  # the error that counts is already on its way
            self.private_pool(index)

    def private_pool(self, index: int) -> PrivatePool:
        """A new private pool; its anchor records one small kernel, because torch warns of empty graphs."""
        pool_id = tuple(self._module.graph_pool_handle())
        device = torch.device(self._memory, index)
        anchor, _ = self._recorded(lambda: (torch.zeros(1, device=device),), index, pool_id)
        return PrivatePool(pool_id=pool_id, device_index=index, anchor=anchor)

    @contextlib.contextmanager
    def generator_restored(self, index: int) -> Iterator[None]:
        """Gives the default generator its state back: a warm-up draws numbers that nobody gets to see."""
        state = self._module.get_rng_state(index)
        try:
            yield
        finally:
            self._module.set_rng_state(state, index)

    def _recorded(
        self, work: Callable[[], tuple[Any, ...]], index: int, pool_id: PrivatePoolId
    ) -> tuple[Any, tuple[Any, ...]]:
        """What ``torch.cuda.graph`` does; but stream and allocator are put back also where it fails."""
        recorded = self._graph_type()
        self._module.synchronize()
        self._module.empty_cache()
        with self._module.stream(self._stream(index)):
            recorded.capture_begin(pool=pool_id, capture_error_mode=_ERROR_MODE)
            try:
                outputs = tuple(work())
            except BaseException:
                with contextlib.suppress(RuntimeError):  # a consequence, which would hide the cause
                    recorded.capture_end()
                stop_allocating(self._memory, index, pool_id)
                raise
            try:
                recorded.capture_end()
            except RuntimeError:
                stop_allocating(self._memory, index, pool_id)
                raise
        return recorded, outputs

    def _stream(self, index: int) -> Any:
        """The stream of all captures on a device: memory of a private pool is only reused on one stream."""
        if index not in self._streams:
            self._streams[index] = self._module.Stream()
        return self._streams[index]

    def _allocated_bytes(self, which: str) -> int:
        return int(self._module.memory_stats().get(f"allocated_bytes.all.{which}", 0))
