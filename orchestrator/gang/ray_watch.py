"""The driver's side of watching nodes: one `NodeWatch` actor on each, asked again and again while ranks work.

Everything runs in the driver's own thread, between two answers of ranks: `refs` go into the same `ray.wait`,
`take` is told what became ready, `failures` says what follows. Only the head has a thread of its own, because
a connection to it may take its time to fail.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from orchestrator.causes import CLUSTER_LOST, WorkerFailure
from orchestrator.config.models import WatchConfig
from orchestrator.gang.launcher import Gang, Sight
from orchestrator.gang.node_watch import Charge, NodeWatch
from orchestrator.gang.watching import Limits, Watching

logger = logging.getLogger(__name__)

_CONNECT_S = 2.0
_HURRY_S = 0.1


class RayWatch:
    """Watches the nodes of one gang.

    Args:
        settings: how often, and what counts as lost.
        node_ids: Ray's id of every node that gets ranks; their watches start beside the ranks.
    """

    def __init__(self, settings: WatchConfig, node_ids: Iterable[str]) -> None:
        self._settings = settings
        self._started = {node_id: _actor(node_id) for node_id in node_ids}
        self._every_s = settings.every_s
        self._actors: dict[int, Any] = {}
        self._asked: dict[Any, int] = {}
        self._next_s: dict[int, float] = {}
        self._watching: Watching | None = None
        self._looked_s = 0.0
        self._fresh: dict[int, Sight] = {}

    def guard(self, gang: Gang, node_ids: Mapping[int, str], charges: Mapping[int, Charge]) -> list[Any]:
        """Take charge of all ranks; the references are to be awaited before ranks do anything.

        Args:
            gang: where ranks are.
            node_ids: Ray's id of every node, by node rank.
            charges: every rank.
        """
        self._actors = {node: self._started[node_id] for node, node_id in node_ids.items()}
        self._next_s = dict.fromkeys(node_ids, 0.0)
        nodes = {
            node: (seats[0].host, tuple(seat.rank for seat in seats))
            for node, seats in gang.by_node().items()
        }
        self._looked_s = time.monotonic()
        limits = Limits(node_silent_s=self._settings.node_silent_s, stopped_s=self._settings.stopped_s)
        self._watching = Watching(nodes, limits, self._looked_s)
        return [
            self._actors[node].guard.remote({rank: charges[rank] for rank in ranks}, self._settings.lease_s)
            for node, (_, ranks) in nodes.items()
        ]

    def hurry(self) -> None:
        """A rank died: look often from now on, to see whether its node is lost with it."""
        if self._every_s > _HURRY_S:
            self._every_s = _HURRY_S
            self._next_s = dict.fromkeys(self._next_s, 0.0)

    def refs(self) -> list[Any]:
        """Ask nodes whose turn it is; every question that is open."""
        now_s = time.monotonic()
        busy = set(self._asked.values())
        for node, actor in self._actors.items():
            if node not in busy and self._next_s[node] <= now_s:
                self._next_s[node] = now_s + self._every_s
                self._asked[actor.look.remote()] = node
        return list(self._asked)

    def take(self, ready: Collection[Any]) -> dict[int, Sight]:
        """Take in the answers among what is ready; what is seen of their ranks."""
        import ray

        assert self._watching is not None  # noqa: S101 - `guard` comes first
        now_s = time.monotonic()
        # A driver that was itself held up knows nothing of the time between.
        held_up_s = now_s - self._looked_s - self._settings.every_s
        if held_up_s > 1:
            self._watching.paused(held_up_s)
        self._looked_s = now_s
        seen: dict[int, Sight] = {}
        for ref in [ref for ref in ready if ref in self._asked]:
            node = self._asked.pop(ref)
            try:
                sights = ray.get(ref)
            except ray.exceptions.ActorDiedError:
                self._watching.ended(node)
                del self._actors[node]
                continue
            except ray.exceptions.RayError:
                continue  # the node is asked again, and silent until it answers
            self._watching.answered(node, sights, now_s)
            seen |= sights
        return seen

    def failures(self, stage: str) -> tuple[WorkerFailure, ...]:
        """Ranks that count as failed now."""
        return self._watching.failures(stage, time.monotonic()) if self._watching is not None else ()

    def release(self, timeout_s: float) -> None:
        """End all ranks and what they started, on every node that answers, and the watches themselves."""
        import ray

        refs = [actor.release.remote() for actor in self._started.values()]
        _, silent = ray.wait(refs, num_returns=len(refs), timeout=timeout_s)
        if silent:
            logger.warning(
                "%d nodes did not say in %g s that their ranks ended; their guardians end them within %g s",
                len(silent),
                timeout_s,
                self._settings.lease_s,
            )
        for actor in self._started.values():
            ray.kill(actor, no_restart=True)


class HeadWatch:
    """Tries to reach the cluster's head from a thread of its own; never stops the process from ending."""

    def __init__(self, address: str, settings: WatchConfig) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._settings = settings
        self._reached_s = time.monotonic()
        self._is_lost = False
        self._over = threading.Event()
        threading.Thread(target=self._run, name="head-watch", daemon=True).start()

    @property
    def loss(self) -> str:
        """What stands for a cluster without a head; empty while there is one. Once lost, it stays so."""
        silent_s = time.monotonic() - self._reached_s
        self._is_lost = self._is_lost or silent_s >= self._settings.node_silent_s
        where = f"{self._host}:{self._port}"
        return f"the cluster's head at {where} has not answered for {silent_s:.0f} s" if self._is_lost else ""

    def is_there(self) -> bool:
        """Whether the head answers right now; Ray would try for a minute, and then end this process."""
        self._is_lost = self._is_lost or not self._reaches()
        return not self._is_lost

    def failures(self, num_ranks: int, stage: str) -> tuple[WorkerFailure, ...]:
        """The failures of all ranks that stand for `loss`; none while there is a head."""
        loss = self.loss
        remedy = "start the cluster anew, then launch again: what was compiled is kept"
        return tuple(
            WorkerFailure(rank=rank, stage=stage, kind=CLUSTER_LOST, message=loss, remedy=remedy)
            for rank in range(num_ranks if loss else 0)
        )

    def stop(self) -> None:
        """Look no more."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(self._settings.every_s):
            self._reaches()

    def _reaches(self) -> bool:
        try:
            socket.create_connection((self._host.strip("[]"), self._port), timeout=_CONNECT_S).close()
        except OSError:
            return False
        self._reached_s = time.monotonic()
        return True


def _actor(node_id: str) -> Any:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return (
        ray.remote(NodeWatch)
        .options(
            num_cpus=0,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
        )
        .remote()
    )
