"""Memory of an emulated device: private pools whose memory is really handed out again.

What a capture leaves free is taken by the next one of the same pool. Nothing here owns what graphs know:
they know addresses, and whoever uses one after its memory went reads what it must not.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from warmrank.worker.values import Value

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
        """Takes what is told how many bytes were taken (or, negative, given back)."""
        self._count = count
        self.segments: list[torch.Tensor] = []
        self.used: dict[int, Use] = {}
        self.is_stuck = False  # as after a capture that failed, of whose end the allocator is not told

    def take(self, size_bytes: int) -> torch.UntypedStorage:
        """A storage of at least this size."""
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
        """Give memory back, unless a checkpoint took it away before, or the process is at its end."""
        if self.used.get(start) == use:
            del self.used[start]
            self._count(-use.size_bytes)

    def holds(self, address: int) -> bool:
        """Whether an address lies in this pool."""
        return any(item.data_ptr() <= address < item.data_ptr() + item.nbytes for item in self.segments)

    def checkpoint(self) -> dict[int, Use]:
        """What is in use now."""
        return dict(self.used)

    def restore(self, state: dict[int, Use]) -> None:
        """Count as in use what was so at a checkpoint, and as free all else, whoever still holds it."""
        before = sum(use.size_bytes for use in self.used.values())
        self.used = dict(state)
        self._count(sum(use.size_bytes for use in self.used.values()) - before)

    def values(self) -> list[torch.Tensor]:
        """A copy of all that the segments hold."""
        return [segment.clone() for segment in self.segments]

    def put_back(self, values: list[torch.Tensor]) -> None:
        """Undo what was computed since: on a device a capture runs nothing."""
        for segment in self.segments[len(values) :]:
            segment.fill_(UNWRITTEN)
        for segment, before in zip(self.segments, values, strict=False):
            segment.copy_(before)

    def release(self) -> list[torch.Tensor]:
        """Take the segments out of which nothing is in use; overwritten, so that a use afterwards shows."""
        gone = [segment for segment in self.segments if not self._used_in(segment)]
        self.segments = [segment for segment in self.segments if self._used_in(segment)]
        for segment in gone:
            segment.fill_(RELEASED)
        return gone

    def snapshot(self, **fields: Any) -> list[dict[str, Any]]:
        """The segments as the allocator of torch_npu lists them."""
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
