"""What follows from what nodes see of their ranks: pure rules over looks, told the time.

A rank without a process has died. Ray knows more of how it died, and has `UNTOLD_S` to say it. Whether the
node went with it is in doubt until its watch answers what it was asked `SETTLE_S` after the death: when Ray
on a node ends, its processes notice one by one, each when it next looks, once a second. An error that a rank
reports puts all nodes in doubt while other ranks have not answered: who lost a peer hears of it first.

A rank that a signal or a debugger holds for `Limits.stopped_s` is stopped.
A node is lost, with all its ranks, when Ray says that its watch has ended, as it does with Ray on that node;
and when the watch has not answered for `Limits.node_silent_s`: it is down, or the network to it is. Its
guardian ends its ranks and its watch when the lease runs out: nothing lives on beside another attempt.
When it ran out because the driver itself did not look, the node is not lost: its ranks were ended.
Native code that does not end cannot be told from a long compile: the stage's own time-out finds it, and what
the rank was seen to do last stands in the error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from warmrank.orchestrator.causes import DIED, NODE_LOST, STOPPED, WorkerFailure
from warmrank.orchestrator.gang.launcher import Sight

UNTOLD_S = 3.0
"""Seconds that a rank may be without a process before it counts as dead though Ray said nothing."""

SETTLE_S = 1.5
"""Seconds after a failure from which on an answer of the node shows that it lives."""

DOUBT_S = 6.0
"""Seconds after a failure until a node that neither answered nor ended is no longer waited for."""

SILENT_S = 5.0
"""Seconds after a death from which on a node that has not shown that it lives is lost with the rank."""


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
        self._node_of = {rank: node for node, (_, ranks) in nodes.items() for rank in ranks}
        self._answered_s = dict.fromkeys(nodes, now_s)
        self._asked_s = dict.fromkeys(nodes, now_s)
        self._gone_since_s: dict[int, float] = {}
        self._told: set[int] = set()
        self._of_deaths: dict[int, float] = {}  # the first of each node
        self._error_s: float | None = None  # the first, of any rank
        self._stopped_since_s: dict[int, float] = {}
        self._ended: set[int] = set()
        self._unavailable: set[int] = set()
        self._let_go: set[int] = set()

    def answered(self, node: int, sights: Mapping[int, Sight], *, asked_s: float, now_s: float) -> None:
        """A node's watch answered now what it was asked then."""
        self._answered_s[node], self._asked_s[node] = now_s, asked_s
        self._unavailable.discard(node)
        for rank, sight in sights.items():
            if sight.is_gone:
                self._gone_since_s.setdefault(rank, now_s)
            if sight.is_stopped:
                self._stopped_since_s.setdefault(rank, now_s)
            else:
                self._stopped_since_s.pop(rank, None)

    def ended(self, node: int) -> None:
        """A node's watch has ended, as it does when Ray on this node does; it never answers again."""
        self._ended.add(node)

    def unavailable(self, node: int) -> None:
        """Ray cannot reach a node's watch now; with a rank of it dead, the node is lost."""
        self._unavailable.add(node)

    def let_go(self, node: int) -> None:
        """A node's watch has ended with the ranks, because this driver had not looked for too long."""
        self._let_go.add(node)

    def unseen_s(self, now_s: float) -> float:
        """Since when some node has not been seen: seconds since the last look that it answered was asked."""
        return now_s - min(self._asked_s.values())

    def is_whole(self) -> bool:
        """Whether every rank was there when its node was seen last."""
        return not (self._gone_since_s or self._ended or self._let_go)

    def failed(self, rank: int, now_s: float, *, died: bool) -> None:
        """A rank's failure became known: its process ended, or it reported an error."""
        self._told.add(rank)
        if died:
            self._of_deaths.setdefault(self._node_of[rank], now_s)
        elif self._error_s is None:
            self._error_s = now_s

    def is_in_doubt(self, now_s: float, *, others_wait: bool) -> bool:
        """Whether nodes may yet turn out to be lost, or ranks to have died, with those that failed.

        Args:
            now_s: the present.
            others_wait: ranks have not answered that did not fail.
        """
        if any(self._is_open(node, since_s, now_s) for node, since_s in self._of_deaths.items()):
            return True
        since_s = self._error_s
        if not others_wait or since_s is None or now_s >= since_s + DOUBT_S:
            return False
        return any(self._is_open(node, since_s, now_s) or self._has_untold(node) for node in self._nodes)

    def _is_open(self, node: int, since_s: float, now_s: float) -> bool:
        is_known = node in self._ended or node in self._let_go or self._is_lost_with_a_rank(node, now_s)
        return not is_known and self._asked_s[node] < since_s + SETTLE_S and now_s < since_s + DOUBT_S

    def _is_lost_with_a_rank(self, node: int, now_s: float) -> bool:
        """Whether a rank of a node died, and the node has not shown in time that it lives on."""
        died_s = self._of_deaths.get(node)
        if died_s is None or self._asked_s[node] >= died_s + SETTLE_S:
            return False
        return node in self._unavailable or now_s >= died_s + SILENT_S

    def _has_untold(self, node: int) -> bool:
        """Whether a rank of a node has no process, and did not fail as far as is known."""
        return any(rank in self._gone_since_s and rank not in self._told for rank in self._nodes[node][1])

    def paused(self, seconds: float) -> None:
        """Nobody looked for so long: silence in that time is nobody's fault."""
        self._answered_s = {node: at_s + seconds for node, at_s in self._answered_s.items()}

    def failures(self, stage: str, now_s: float) -> tuple[WorkerFailure, ...]:
        """Every rank that counts as failed now, in order."""
        found = [*self._lost(stage, now_s), *self._died(stage, now_s), *self._stopped(stage, now_s)]
        return tuple(sorted(found, key=lambda failure: failure.rank))

    def _lost(self, stage: str, now_s: float) -> list[WorkerFailure]:
        found = []
        for node, (host, ranks) in self._nodes.items():
            silent_s = now_s - self._answered_s[node]
            if node in self._let_go:
                continue
            if node in self._ended:
                message = f"the watch of node {host} has ended, as it does with Ray there"
                remedy = _ENDED_REMEDY
            elif self._is_lost_with_a_rank(node, now_s):
                message = f"a rank of node {host} has ended, and the node's watch cannot be reached"
                remedy = _ENDED_REMEDY
            elif silent_s >= self._limits.node_silent_s:
                message = f"node {host} has not answered for {silent_s:.0f} s: it is down, or out of reach"
                remedy = _LOST_REMEDY
            else:
                continue
            found += [_failure(rank, stage, NODE_LOST, message, remedy) for rank in ranks]
        return found

    def _died(self, stage: str, now_s: float) -> list[WorkerFailure]:
        gone = {rank for rank, since_s in self._gone_since_s.items() if now_s - since_s >= UNTOLD_S}
        gone.update(*(self._nodes[node][1] for node in self._let_go))
        return [_failure(rank, stage, DIED, "its process is gone", _DIED_REMEDY) for rank in sorted(gone)]

    def _stopped(self, stage: str, now_s: float) -> list[WorkerFailure]:
        return [
            _failure(rank, stage, STOPPED, _STOPPED_MESSAGE, _STOPPED_REMEDY)
            for rank, since_s in self._stopped_since_s.items()
            if now_s - since_s >= self._limits.stopped_s
        ]


def all_lost(num_ranks: int, stage: str, ended: str) -> tuple[WorkerFailure, ...]:
    """The failures of all ranks that stand for the end of the launch's own Ray, which is their node."""
    message = f"the launch's own Ray has ended: {ended}"
    return tuple(_failure(rank, stage, NODE_LOST, message, _OWN_ENDED_REMEDY) for rank in range(num_ranks))


def _failure(rank: int, stage: str, kind: str, message: str, remedy: str) -> WorkerFailure:
    return WorkerFailure(rank=rank, stage=stage, kind=kind, message=message, remedy=remedy)


_DIED_REMEDY = "its log holds the last words; a kill by the system leaves none (see dmesg)"
_LOST_REMEDY = "look at the node and its network; watch.node_silent_s says how long silence is borne"
_ENDED_REMEDY = "look into Ray's logs there (raylet.out); a kill by the system leaves none (see dmesg)"
_OWN_ENDED_REMEDY = "look whether the system killed it for want of memory (dmesg), then launch again"
_STOPPED_MESSAGE = "its process is held by a signal (SIGSTOP) or a debugger"
_STOPPED_REMEDY = "whoever stopped it can let it go on (SIGCONT); watch.stopped_s says how long that is borne"
