"""The memory of captured graphs on an accelerator: private pools of torch's allocator, and input buffers.

Work memory and outputs come from a private pool of torch's caching allocator. Nothing owns an output once
it is captured, so the next capture in the private pool takes the same memory: the largest graph first, and
all others fit into what is there. An anchor, a graph that is never replayed, keeps the private pool from
being released. Input buffers lie in segments outside of it, so that filling them never overwrites an output.

A handle is a name: memory is shared with whoever asks this package for a pool with the same handle, and not
with graphs that others capture under it, whose replays would overwrite ours unseen.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from warmrank.worker.devices.memory import memory_of

PrivatePoolId = tuple[int, int]
_ALIGNMENT = 512  # bytes, as the allocators of torch and torch_npu align; kernels may rely on it


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrivatePool:
    """One private pool of the allocator.

    Attributes:
        pool_id: the allocator's name for it.
        device_index: the device whose memory it is.
        anchor: the graph that keeps it.
    """

    pool_id: PrivatePoolId
    device_index: int
    anchor: Any


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
        """See `worker.devices.Pool.size_bytes`: what the allocator holds for it, and the input buffers."""
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
        sizes = [_aligned_bytes(tensor) for tensor in like]
        segment = self._segment(sum(sizes), like[0].device, (*like, *fixed))
        copies = []
        for tensor, start in zip(like, itertools.accumulate(sizes, initial=0), strict=False):
            copies.append(_placed(tensor, segment, start))
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


def _aligned_bytes(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first to its last element, rounded up; at least one unit."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    span = 1 + sum(max(size - 1, 0) * stride for size, stride in pairs)
    return -(-span * tensor.element_size() // _ALIGNMENT) * _ALIGNMENT


def _placed(like: torch.Tensor, segment: torch.Tensor, start: int) -> torch.Tensor:
    """A tensor shaped and strided like another, in a segment from a byte on."""
    storage = segment.untyped_storage()
    with torch.inference_mode(mode=False):
        place = torch.empty(0, dtype=like.dtype, device=like.device)
        return place.set_(storage, start // like.element_size(), like.shape, like.stride())
