"""Check that no input which a compiled graph writes to shares memory with another one, before each call.

Invariants: byte ranges are compared, so slices of one tensor that lie apart are no overlap, and interleaved
ones count as one, which is slower and never wrong. Ranges of parameters, buffers and mutated inputs are
looked at again only when one of them has another address, or one that is written to another layout.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from warmrank.worker.devices import picker

if TYPE_CHECKING:
    from warmrank.worker.torch_private.unchanged import TensorWatch

_address = torch.Tensor.data_ptr
_shape = torch.Tensor.size
_stride = torch.Tensor.stride


class OverlapCheck:
    """Compares the inputs of one graph.

    Args:
        written: positions of the inputs that the graph writes to.
        fixed: positions of the other tensors that seldom change: parameters and buffers.
        others: positions of the other tensors.
    """

    def __init__(self, written: Sequence[int], fixed: Sequence[int], others: Sequence[int]) -> None:
        self._num_written = len(written)
        self._settled = picker((*written, *fixed))
        self._others = tuple(others)
        self._positions = (*written, *fixed)
        self._watch: TensorWatch | None = None  # from the second call on
        self._was_called = False
        self._known: list[Any] = []
        self._verdict = False
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._last_end = 0

    def __call__(self, inputs: Sequence[Any]) -> bool:
        """True if memory is shared."""
        # On the way of every call: lists are made by `map`, which runs no Python for an element.
        watch = self._watch
        if watch is None or not watch.same(inputs):
            words = None if watch is None else watch.take(inputs)
            settled = self._settled(inputs)
            written = settled[: self._num_written]
            known = [*map(_address, settled), *map(_shape, written), *map(_stride, written)]
            if known != self._known:
                self._look(settled)
                self._known = known
            if watch is not None:
                watch.keep(words)
            elif self._was_called:
                from warmrank.worker.torch_private.unchanged import TensorWatch

                self._watch = TensorWatch(self._positions)
            self._was_called = True
        if self._verdict:
            return True
        for index in self._others:
            tensor = inputs[index]
            if tensor.data_ptr() < self._last_end and self._meets(tensor):
                return True
        return False

    def _look(self, settled: Sequence[torch.Tensor]) -> None:
        ranges = [(*_range(tensor), index < self._num_written) for index, tensor in enumerate(settled)]
        ranges = sorted(item for item in ranges if item[0] < item[1])
        self._verdict = _overlap(ranges)
        written = [item for item in ranges if item[2]]
        self._starts = [start for start, _, _ in written]
        self._ends = [end for _, end, _ in written]
        self._last_end = max(self._ends, default=0)

    def _meets(self, tensor: torch.Tensor) -> bool:
        start, end = _range(tensor)
        # Written ranges lie apart here, so that the last one to start before `end` decides.
        position = bisect_right(self._starts, end - 1) - 1
        return start < end and position >= 0 and self._ends[position] > start


def _overlap(ranges: Sequence[tuple[int, int, bool]]) -> bool:
    """True if a written range meets any other; ``ranges`` are sorted by their starts."""
    end_of_written = end_of_any = 0
    for start, end, is_written in ranges:
        if start < (end_of_any if is_written else end_of_written):
            return True
        end_of_any = max(end_of_any, end)
        if is_written:
            end_of_written = max(end_of_written, end)
    return False


def _range(tensor: torch.Tensor) -> tuple[int, int]:
    """First byte of a tensor's memory, and the first after it; empty for a tensor without elements."""
    start = tensor.data_ptr()
    if not tensor.numel():
        return start, start
    if tensor.is_contiguous():
        return start, start + tensor.nbytes
    extent = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (extent + 1) * tensor.itemsize
