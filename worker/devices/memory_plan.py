"""Where in a stretch of memory each block lies, so that blocks which are never needed at once share bytes.

Pure arithmetic: no memory is touched. The rule is best fit in the order of first use, as an allocator would
do it; it needs one pass, because a plan is made on the first call of a new process.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from warmrank.worker.values import Value

ALIGNMENT = 64  # bytes: a cache line, and the widest vector of any CPU that torch has kernels for


class Lifetime(Value):
    """One block: its size, and the first and last step that need it (both included)."""

    size_bytes: int
    first: int
    last: int


class Plan(Value):
    """Offsets of the blocks, in their order, and the bytes that all of them span."""

    offsets: tuple[int, ...]
    size_bytes: int


def aligned(size_bytes: int) -> int:
    """The size, rounded up so that what follows is aligned."""
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


def planned(blocks: Sequence[Lifetime]) -> Plan:
    """Offsets at which no two blocks that are needed in the same step overlap."""
    ends: dict[int, list[int]] = {}
    offsets = [0] * len(blocks)
    free = _FreeList()
    pending: list[int] = []  # last steps of placed blocks, in order
    for index in sorted(range(len(blocks)), key=lambda number: blocks[number].first):
        block = blocks[index]
        while pending and pending[0] < block.first:
            for done in ends.pop(pending.pop(0)):
                free.give(offsets[done], aligned(blocks[done].size_bytes))
        offsets[index] = free.take(aligned(block.size_bytes))
        if block.last not in ends:
            bisect.insort(pending, block.last)
        ends.setdefault(block.last, []).append(index)
    return Plan(offsets=tuple(offsets), size_bytes=free.top)


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
