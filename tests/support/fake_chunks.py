"""Nodes that serve chunks in this process, and what goes wrong with them."""

from __future__ import annotations

import threading
from collections.abc import Callable

from orchestrator.seed.chunks import Chunk
from orchestrator.seed.receiving import SourceGone
from orchestrator.seed.serving import Serving


class LocalSource:
    """A `ChunkSource` that asks a `Serving` of this process.

    Args:
        serving: whose chunks.
        damage: changes a chunk on its way.
        dies_after: chunks that it gives before it is gone; None for never.
    """

    def __init__(
        self,
        serving: Serving[bytes],
        *,
        damage: Callable[[int, bytes], bytes] = lambda _, data: data,
        dies_after: int | None = None,
    ) -> None:
        self.taken: list[int] = []
        self.most_at_once = 0
        self._serving = serving
        self._damage = damage
        self._dies_after = dies_after
        self._num_now = 0
        self._lock = threading.Lock()

    def plan(self) -> tuple[Chunk, ...]:
        return self._serving.plan()

    def take(self, index: int) -> bytes:
        with self._lock:
            if self._dies_after is not None and len(self.taken) >= self._dies_after:
                raise SourceGone("the node that serves others is gone")
            self.taken.append(index)
            self._num_now += 1
            self.most_at_once = max(self.most_at_once, self._num_now)
        data = self._damage(index, self._serving.chunk(index))
        self._serving.had(index)
        with self._lock:
            self._num_now -= 1
        return data
