"""What one receiving node knows of one that serves: what is left to take, when to ask again, when to give up.

Pure state, moved by what the other one says; `receiving` asks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import islice
from typing import Any

from warmrank.orchestrator.seed.chunks import Chunk, Segment
from warmrank.orchestrator.seed.serving import Answer

PATIENCE_S = 60.0
"""A node that answers and gets no further for so long is left; a low limit moves some bytes each second."""
BEGIN_S = 20.0
"""A node that answers and has no plan for so long is left: it may wait for another one with its directory."""
FIRST_WAIT_S = 0.01
LONGEST_WAIT_S = 0.5
ASK_AT_MOST = 256
"""Chunks that are named in one question: 2 GiB, far more than stand in memory anywhere."""


class Peer:
    """What is to come from one node.

    Args:
        mine: sha256 of the blobs that are to come from it.
        now_s: the time.
        lacks: whether bytes have yet to come.

    Attributes:
        mine: those.
        chunks: as much of its plan as is known.
        due_s: not to be asked before.
        is_asked: a question is on its way.
        num_taken: chunks of it that are on their way.
        problem: why no more comes from it, where something went wrong.
    """

    def __init__(
        self, mine: Collection[str], now_s: float, *, lacks: Callable[[Segment], bool] = lambda _: True
    ) -> None:
        self._lacks = lacks
        self.mine = frozenset(mine)
        self.chunks: list[Chunk] = []
        self.due_s = now_s
        self.is_asked = False
        self.num_taken = 0
        self.problem = ""
        self._unplanned = set(mine)
        self._left: dict[int, None] = {}
        self._is_closed = False
        self._wait_s = FIRST_WAIT_S
        self._moves = -1
        self._moved_s = now_s

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to be asked of it."""
        return bool(self.problem) or (not self._left and (self._is_closed or not self._unplanned))

    def wanted(self) -> list[int]:
        """Which chunks to ask for; none while its plan is not known."""
        return list(islice(self._left, ASK_AT_MOST))

    def hear(self, answer: Answer[Any], now_s: float) -> None:
        """Take note of what it said."""
        for chunk in answer.news:
            if any(segment.sha256 in self.mine and self._lacks(segment) for segment in chunk):
                self._left[len(self.chunks)] = None
            self._unplanned.difference_update(segment.sha256 for segment in chunk)
            self.chunks.append(chunk)
        for index in (*answer.lost, answer.index):
            self._left.pop(-1 if index is None else index, None)
        self._is_closed = answer.is_closed
        if answer.news or answer.lost or answer.index is not None:
            self._wait_s = FIRST_WAIT_S
            self._moved_s = self.due_s = now_s
            return
        if answer.moves != self._moves:
            self._moves, self._moved_s = answer.moves, now_s
        patience_s = PATIENCE_S if self.chunks else BEGIN_S
        if now_s - self._moved_s >= patience_s:
            self.problem = f"a node that serves others got no further for {patience_s:g} s"
        self.due_s = now_s + self._wait_s
        self._wait_s = min(2 * self._wait_s, LONGEST_WAIT_S)
