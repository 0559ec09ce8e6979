"""What follows from what nodes see of their ranks: pure rules over looks, told the time.

A rank without a process has died. One that a signal or a debugger holds for `Limits.stopped_s` is stopped.
A node is lost, with all its ranks, when Ray says that its watch has ended, as it does with Ray on that node;
and when the watch has not answered for `Limits.node_silent_s`: it is down, or the network to it is. Its
guardian ends its ranks when the lease runs out, so that they cannot live on beside those of another attempt.
Native code that does not end cannot be told from a long compile: the stage's own time-out finds it, and what
the rank was seen to do last stands in the error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.causes import DIED, NODE_LOST, STOPPED, WorkerFailure
from orchestrator.gang.launcher import Sight


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds until silence or a stop counts as a failure."""

    node_silent_s: float
    stopped_s: float


class Watching:
    """What was seen when.

    Args:
        nodes: the ranks of each node, and its host name.
        limits: when a failure is one.
        now_s: the present, in any seconds that only rise.
    """

    def __init__(
        self, nodes: Mapping[int, tuple[str, tuple[int, ...]]], limits: Limits, now_s: float
    ) -> None:
        self._nodes = dict(nodes)
        self._limits = limits
        self._answered_s = dict.fromkeys(nodes, now_s)
        self._stopped_since_s: dict[int, float] = {}
        self._sights: dict[int, Sight] = {}
        self._ended: set[int] = set()

    def answered(self, node: int, sights: Mapping[int, Sight], now_s: float) -> None:
        """A node's watch answered."""
        self._answered_s[node] = now_s
        self._sights.update(sights)
        for rank, sight in sights.items():
            if sight.is_stopped:
                self._stopped_since_s.setdefault(rank, now_s)
            else:
                self._stopped_since_s.pop(rank, None)

    def ended(self, node: int) -> None:
        """A node's watch has ended, as it does when Ray on this node does; it never answers again."""
        self._ended.add(node)

    def paused(self, seconds: float) -> None:
        """Nobody looked for so long: silence in that time is nobody's fault."""
        self._answered_s = {node: at_s + seconds for node, at_s in self._answered_s.items()}

    def failures(self, stage: str, now_s: float) -> tuple[WorkerFailure, ...]:
        """Every rank that counts as failed now, in order."""
        found = [*self._lost(stage, now_s), *self._died(stage), *self._stopped(stage, now_s)]
        return tuple(sorted(found, key=lambda failure: failure.rank))

    def _lost(self, stage: str, now_s: float) -> list[WorkerFailure]:
        found = []
        for node, (host, ranks) in self._nodes.items():
            silent_s = now_s - self._answered_s[node]
            if node in self._ended:
                message = f"the watch of node {host} has ended, as it does with Ray there"
                remedy = _ENDED_REMEDY
            elif silent_s >= self._limits.node_silent_s:
                message = f"node {host} has not answered for {silent_s:.0f} s: it is down, or out of reach"
                remedy = _LOST_REMEDY
            else:
                continue
            found += [_failure(rank, stage, NODE_LOST, message, remedy) for rank in ranks]
        return found

    def _died(self, stage: str) -> list[WorkerFailure]:
        gone = [rank for rank, sight in self._sights.items() if sight.is_gone]
        return [_failure(rank, stage, DIED, "its process is gone", _DIED_REMEDY) for rank in gone]

    def _stopped(self, stage: str, now_s: float) -> list[WorkerFailure]:
        return [
            _failure(rank, stage, STOPPED, _STOPPED_MESSAGE, _STOPPED_REMEDY)
            for rank, since_s in self._stopped_since_s.items()
            if now_s - since_s >= self._limits.stopped_s
        ]


def _failure(rank: int, stage: str, kind: str, message: str, remedy: str) -> WorkerFailure:
    return WorkerFailure(rank=rank, stage=stage, kind=kind, message=message, remedy=remedy)


_DIED_REMEDY = "its log holds the last words; a kill by the system leaves none (see dmesg)"
_LOST_REMEDY = "look at the node and its network; watch.node_silent_s says how long silence is borne"
_ENDED_REMEDY = "look into Ray's logs there (raylet.out); a kill by the system leaves none (see dmesg)"
_STOPPED_MESSAGE = "its process is held by a signal (SIGSTOP) or a debugger"
_STOPPED_REMEDY = "whoever stopped it can let it go on (SIGCONT); watch.stopped_s says how long that is borne"
