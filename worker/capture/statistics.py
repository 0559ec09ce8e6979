"""Counters of the capture runtime, handed out as a frozen value that prints readably."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from warmrank.worker.values import Value

if TYPE_CHECKING:
    from warmrank.worker.devices import PoolHandle
    from warmrank.worker.runtime.runner import GraphRunner

Counts = tuple[tuple[str, int], ...]
"""Causes and how often each was met, the most frequent first."""


class PoolStatistics(Value):
    """One pool.

    Attributes:
        handle: of a pool that was given (``use_custom_pool``); None for a function's own.
        num_graphs: graphs captured into it, those of other functions included.
        saved_bytes: how many more its graphs would hold without sharing.
    """

    handle: PoolHandle | None
    num_graphs: int
    size_bytes: int
    saved_bytes: int


class CaptureStatistics(Value):
    """Counters of one function since it was loaded.

    Attributes:
        captures: graphs captured, recaptures included.
        replays: calls that replayed a captured graph.
        warm_up_runs: first calls of a shape, which run the graph as it is; the next call captures it.
    """

    captures: int = 0
    recapture_causes: Counts = ()
    replays: int = 0
    warm_up_runs: int = 0
    eager_causes: Counts = ()
    pools: tuple[PoolStatistics, ...] = ()

    @property
    def recaptures(self) -> int:
        """Graphs that were captured again."""
        return sum(number for _, number in self.recapture_causes)

    @property
    def eager_calls(self) -> int:
        """Calls that ran without a captured graph, warm-up runs apart."""
        return sum(number for _, number in self.eager_causes)

    @property
    def pool_bytes(self) -> int:
        """Bytes of all pools."""
        return sum(pool.size_bytes for pool in self.pools)

    @property
    def saved_bytes(self) -> int:
        """Bytes that sharing pools saves."""
        return sum(pool.saved_bytes for pool in self.pools)

    def __str__(self) -> str:
        lines = [
            f"captures: {self.captures}, of them again: {self.recaptures}",
            f"replays: {self.replays}, warm-up runs: {self.warm_up_runs}, not captured: {self.eager_calls}",
            *(f"  captured again {number} x: {cause}" for cause, number in self.recapture_causes),
            *(f"  not captured {number} x: {cause}" for cause, number in self.eager_causes),
            *(
                f"  pool{'' if pool.handle is None else f' {pool.handle}'}: {pool.size_bytes:,} bytes, "
                f"graphs: {pool.num_graphs}; sharing saves {pool.saved_bytes:,} bytes"
                for pool in self.pools
            ),
        ]
        return "\n".join(lines)


def total(runners: Iterable[GraphRunner]) -> CaptureStatistics:
    """Counters of several runners together; a pool that they share counts once."""
    recaptured, eager, sums = Counter[str](), Counter[str](), Counter[str]()
    pools: dict[object, PoolStatistics] = {}
    for runner in runners:
        with runner.lock:  # a call in another thread counts as well
            tally = runner.tally
            sums.update(captures=tally.captures, replays=tally.replays, warm_up_runs=tally.warm_up_runs)
            recaptured.update(tally.recaptured)
            eager.update(tally.eager)
            for pool in runner.pools():
                pools[id(pool) if pool.handle is None else pool.handle] = pool
    return CaptureStatistics(
        recapture_causes=tuple(recaptured.most_common()),
        eager_causes=tuple(eager.most_common()),
        pools=tuple(sorted(pools.values(), key=lambda pool: pool.handle is None)),
        **sums,
    )
