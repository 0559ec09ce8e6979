"""Calls of all ranks of one node, made there: the driver sends each node one message, not one for each rank.

Ranks of one class are sent and answer the same: equal arguments cross once a node, and so do equal answers.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from warmrank.orchestrator.gang.ray_answers import answer_of

Batches = tuple[tuple[tuple[Any, ...], tuple[int, ...]], ...]
"""Arguments, and the ranks that are called with them."""

Answers = tuple[tuple[Any, tuple[int, ...]], ...]
"""An answer, or a `WorkerFailure`, and the ranks that gave it."""

_WAIT_S = 1.0
_TICK_S = 0.2
_MOST_COMPARED = 4


def batches_of(arguments: Mapping[int, tuple[Any, ...]]) -> Batches:
    """Ranks that are called with one and the same object together."""
    alike: dict[int, tuple[tuple[Any, ...], list[int]]] = {}
    for rank, values in arguments.items():
        alike.setdefault(id(values), (values, []))[1].append(rank)
    return tuple((values, tuple(ranks)) for values, ranks in alike.values())


def folded(answers: Sequence[tuple[int, Any]]) -> Answers:
    """Equal answers together, as long as few differ."""
    found: list[tuple[Any, list[int]]] = []
    for rank, answer in answers:
        same = next((ranks for value, ranks in found[:_MOST_COMPARED] if value == answer), None)
        if same is None:
            found.append((answer, [rank]))
        else:
            same.append(rank)
    return tuple((value, tuple(ranks)) for value, ranks in found)


class NodeCalls:
    """Calls ranks of this node.

    Args:
        actors: by rank.
    """

    def __init__(self, actors: Mapping[int, Any]) -> None:
        self._actors = dict(actors)
        self._open: dict[int, dict[Any, int]] = {}

    def begin(self, call: int, stage: str, method: str, batches: Batches) -> tuple[Answers, bool]:
        """Call ranks; see `more`.

        Args:
            call: number of this call; what an earlier one left open is dropped.
            stage: of the launch.
            method: of the `RankHost`.
            batches: whom to call with what.
        """
        self._open = {
            call: {
                self._actors[rank].call.remote(rank, stage, method, *values): rank
                for values, ranks in batches
                for rank in ranks
            }
        }
        return self.more(call, stage)

    def more(self, call: int, stage: str) -> tuple[Answers, bool]:
        """Wait a while for the ranks that have not answered; what came, and whether that is all.

        Returns soon after the first answer: it may be a failure, or come in the last moment.
        """
        import ray

        pending = self._open.get(call, {})
        found: list[tuple[int, Any]] = []
        deadline = time.monotonic() + _WAIT_S
        while pending and time.monotonic() < deadline:
            ready, _ = ray.wait(list(pending), num_returns=len(pending), timeout=_TICK_S)
            found = [(rank, answer_of(ref, rank, stage)) for ref in ready for rank in (pending.pop(ref),)]
            if found:
                break
        return folded(found), not pending
