"""The chunks that stand in the object store for others to take: which, how many, and for how long.

Invariants: a chunk is put once for all takers, and freed when all have had it; at most ``room_bytes`` of them
stand at once, so nothing spills; one goes early only if nobody is taking it. A chunk is given to one taker
more than there are copies of it on other nodes, so that they come to take it from each other, not all from
here: Ray takes an object from any node that has it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Ref = TypeVar("Ref")

ROOM_BYTES = 256 << 20
KEEP_S = 1.0
"""A chunk that nobody takes stands for so long, though there is no room for another: more may come for it."""
LEASE_S = 30.0
"""A taker that has not said after so long that it has its chunk is not waited for."""


@dataclass(slots=True, kw_only=True)
class _Standing(Generic[Ref]):
    """A chunk that stands there."""

    ref: Ref
    num_bytes: int
    wanted_s: float
    num_had: int = 0
    given_s: list[float] = field(default_factory=list)

    def num_out(self, now_s: float) -> int:
        """Takers that are at it."""
        self.given_s = [given_s for given_s in self.given_s if now_s - given_s < LEASE_S]
        return len(self.given_s)

    def is_idle(self, now_s: float) -> bool:
        """Whether it may go."""
        return not self.num_out(now_s) and now_s - self.wanted_s >= KEEP_S


class Shelf(Generic[Ref]):
    """Chunks by their numbers; not for several threads at once.

    Args:
        put: puts bytes where all nodes can take them; what it returns keeps them there.
        clock: seconds, never going back.

    Attributes:
        num_takers: how many nodes may come for each chunk.
        room_bytes: how much may stand at once; a chunk larger than that stands alone.
    """

    def __init__(self, put: Callable[[bytes], Ref], *, clock: Callable[[], float] = time.monotonic) -> None:
        self.num_takers = 0
        self.room_bytes = ROOM_BYTES
        self._put = put
        self._clock = clock
        self._there: dict[int, _Standing[Ref]] = {}

    @property
    def kept_bytes(self) -> int:
        """Bytes that stand there now."""
        return sum(standing.num_bytes for standing in self._there.values())

    def give(self, wanted: Mapping[int, int], read: Callable[[int], bytes | None]) -> tuple[int, Ref] | None:
        """One of the chunks that a taker wants: rather another than the others take, so that all differ.

        Args:
            wanted: their numbers, and how many bytes each has.
            read: the bytes of one that does not stand there; None where they cannot be had now.
        """
        now_s = self._clock()
        standing = [index for index in wanted if index in self._there]
        for index in standing:
            self._there[index].wanted_s = now_s
        return (
            self._give_new(wanted, read, self.room_bytes - self.kept_bytes, now_s)
            or self._give_standing(standing, now_s)
            or self._give_new(wanted, read, self._room_with_idle(now_s), now_s)
        )

    def had(self, index: int) -> None:
        """A taker has the chunk; once all have it, it goes."""
        standing = self._there.get(index)
        if standing is None:
            return
        standing.num_had += 1
        del standing.given_s[:1]
        if standing.num_had >= self.num_takers:
            del self._there[index]

    def _give_standing(self, indices: Sequence[int], now_s: float) -> tuple[int, Ref] | None:
        free = [index for index in indices if self._there[index].num_out(now_s) <= self._there[index].num_had]
        if not free:
            return None
        return self._lease(min(free, key=lambda index: self._there[index].num_had), now_s)

    def _give_new(
        self, wanted: Mapping[int, int], read: Callable[[int], bytes | None], room_bytes: int, now_s: float
    ) -> tuple[int, Ref] | None:
        for index, num_bytes in wanted.items():
            if index in self._there or (num_bytes > room_bytes and self._there):
                continue
            data = read(index)
            if data is not None:
                self._make_room(num_bytes, now_s)
                self._there[index] = _Standing(ref=self._put(data), num_bytes=num_bytes, wanted_s=now_s)
                return self._lease(index, now_s)
        return None

    def _lease(self, index: int, now_s: float) -> tuple[int, Ref]:
        standing = self._there[index]
        standing.given_s.append(now_s)
        return index, standing.ref

    def _room_with_idle(self, now_s: float) -> int:
        busy = (standing for standing in self._there.values() if not standing.is_idle(now_s))
        return self.room_bytes - sum(standing.num_bytes for standing in busy)

    def _make_room(self, num_bytes: int, now_s: float) -> None:
        """Let the idle go, those first that were wanted longest ago, as far as needed."""
        idle = [index for index, standing in self._there.items() if standing.is_idle(now_s)]
        for index in sorted(idle, key=lambda index: self._there[index].wanted_s):
            if self.kept_bytes + num_bytes <= self.room_bytes:
                return
            del self._there[index]
