"""The driver's side of watching nodes: one `NodeWatch` actor on each, asked again and again while ranks work.

Everything runs in the driver's own thread, between two answers of ranks: `refs` go into the same `ray.wait`,
`take` is told what became ready, `failures` says what follows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from warmrank.orchestrator.causes import DIED, WorkerFailure
from warmrank.orchestrator.config.models import WatchConfig
from warmrank.orchestrator.gang.last_words import crash_in
from warmrank.orchestrator.gang.launcher import Sight
from warmrank.orchestrator.gang.node_watch import Charge, NodeWatch
from warmrank.orchestrator.gang.on_node import options_on
from warmrank.orchestrator.gang.watching import Limits, Watching
from warmrank.orchestrator.seats import Gang

logger = logging.getLogger(__name__)

_HURRY_S = 0.2
_THREADS = 4
"""A node is looked at, and its ranks asked for stacks, while it waits for their answers."""
_LOOKS_A_SECOND = 400
"""More would take the driver's CPU from the launch: each is some 0.3 ms."""
_STACKS_S = 5.0
_MOST_STACKS = 16
"""Of more ranks than that, people look at no tracebacks."""


class RayWatch:
    """Watches the nodes of one gang.

    Args:
        settings: how often, and what counts as lost.
        node_ids: Ray's id of every node that gets ranks; their watches start beside the ranks.
        runtime_env: what Ray must set up before a watch can import this package, as for ranks.
    """

    def __init__(
        self, settings: WatchConfig, node_ids: Iterable[str], runtime_env: Mapping[str, Any]
    ) -> None:
        import ray

        self._settings = settings
        self._exported = ray.remote(NodeWatch)
        self._runtime_env = dict(runtime_env)
        self._started = {node_id: self._actor(node_id) for node_id in node_ids}
        self._every_s = settings.every_s
        self._hurry_s = _HURRY_S
        self._actors: dict[int, Any] = {}
        self._asked: dict[Any, tuple[int, float]] = {}
        self._next_s: dict[int, float] = {}
        self._watching: Watching | None = None
        self._ranks: dict[int, frozenset[int]] = {}
        self._num_crashes = 0
        self._looked_s = 0.0
        self._silence = _Silence(settings.lease_s)

    def guard(self, gang: Gang, node_ids: Mapping[int, str], charges: Mapping[int, Charge]) -> list[Any]:
        """Take charge of all ranks; the references are to be awaited before ranks do anything.

        Args:
            gang: where ranks are.
            node_ids: Ray's id of every node, by node rank.
            charges: every rank.
        """
        for node_id in set(node_ids.values()) - self._started.keys():
            # A node was lost before all ranks were up, and Ray placed them anew.
            self._started[node_id] = self._actor(node_id)
        self._actors = {node: self._started[node_id] for node, node_id in node_ids.items()}
        self._next_s = dict.fromkeys(node_ids, 0.0)
        nodes = {
            node: (seats[0].host, tuple(seat.rank for seat in seats))
            for node, seats in gang.by_node().items()
        }
        self._every_s = look_every_s(self._settings, len(nodes))
        self._hurry_s = max(_HURRY_S, len(nodes) / _LOOKS_A_SECOND / 4)
        self._ranks = {node: frozenset(ranks) for node, (_, ranks) in nodes.items()}
        self._looked_s = time.monotonic()
        limits = Limits(node_silent_s=self._settings.node_silent_s, stopped_s=self._settings.stopped_s)
        self._watching = Watching(nodes, limits, self._looked_s)
        return [
            self._actors[node].guard.remote({rank: charges[rank] for rank in ranks}, self._settings.lease_s)
            for node, (_, ranks) in nodes.items()
        ]

    @property
    def nodes(self) -> Mapping[int, Any]:
        """The watch of every node, by node rank, but for those that have ended."""
        return self._actors

    def failed(self, rank: int, *, died: bool) -> None:
        """A rank failed: look often from now on, to see whether a node or another rank is lost with it."""
        assert self._watching is not None  # noqa: S101 - `guard` comes first
        self._watching.failed(rank, time.monotonic(), died=died)
        if self._every_s > self._hurry_s:
            self._every_s = self._hurry_s
            self._next_s = dict.fromkeys(self._next_s, 0.0)

    def is_in_doubt(self, *, others_wait: bool) -> bool:
        """Whether it is still to be seen what was lost with ranks that failed; see `Watching.is_in_doubt`."""
        watching = self._watching
        return watching is not None and watching.is_in_doubt(time.monotonic(), others_wait=others_wait)

    def refs(self) -> list[Any]:
        """Ask nodes whose turn it is; every question that is open."""
        now_s = time.monotonic()
        busy = {node for node, _ in self._asked.values()}
        for node, actor in self._actors.items():
            if node not in busy and self._next_s[node] <= now_s:
                self._next_s[node] = now_s + self._every_s
                self._asked[actor.look.remote()] = node, now_s
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
        ended: list[int] = []
        unavailable: list[int] = []
        for ref in [ref for ref in ready if ref in self._asked]:
            node, asked_s = self._asked.pop(ref)
            try:
                sights = ray.get(ref)
            except ray.exceptions.ActorDiedError:
                ended.append(node)
                del self._actors[node]
                continue
            except ray.exceptions.RayError:
                unavailable.append(node)  # it is asked again, and silent until it answers
                continue
            self._watching.answered(node, sights, asked_s=asked_s, now_s=now_s)
            seen |= sights
        self._silence.note(held_up_s, self._watching.unseen_s(now_s), now_s)
        if self._watching.is_whole() and not ended:
            self._silence.was_borne(now_s - self._watching.unseen_s(now_s))
        for node in [] if self._silence.is_too_long else unavailable:
            self._watching.unavailable(node)
        for node in ended:
            (self._watching.let_go if self._silence.is_too_long else self._watching.ended)(node)
        return seen

    def failures(self, stage: str) -> tuple[WorkerFailure, ...]:
        """Ranks that count as failed now."""
        return self._watching.failures(stage, time.monotonic()) if self._watching is not None else ()

    def explained(self, failure: WorkerFailure) -> WorkerFailure:
        """A death that comes of this driver's own silence says so, and a crash which one it is and where."""
        if failure.kind != DIED:
            return failure
        if not self._silence.is_too_long:
            return self._with_crash(failure)
        message = f"its node ended it, because this driver had not looked for {self._silence.seconds:.0f} s"
        remedy = "do not stop or suspend the driver; watch.lease_s says how long its silence is borne"
        return replace(failure, message=message, remedy=remedy)

    def _with_crash(self, failure: WorkerFailure) -> WorkerFailure:
        if self._num_crashes >= _MOST_STACKS:
            return failure
        self._num_crashes += 1
        said = self.stacks([failure.rank]).get(failure.rank, "")
        if not (crash := crash_in(said)):
            return failure
        remedy = "native code crashed: the traceback says where it was called"
        return replace(failure, message=f"its process crashed: {crash}", remedy=remedy, traceback=said)

    def stacks(self, ranks: Collection[int]) -> dict[int, str]:
        """Where the threads of some of these ranks stand; of those whose nodes say so in time."""
        import ray

        asked = sorted(ranks)[:_MOST_STACKS]
        nodes = {node: [rank for rank in asked if rank in own] for node, own in self._ranks.items()}
        there = {self._actors[node]: own for node, own in nodes.items() if own and node in self._actors}
        refs = [actor.stacks.remote(own) for actor, own in there.items()]
        ready = ray.wait(refs, num_returns=len(refs), timeout=_STACKS_S)[0] if refs else []
        found: dict[int, str] = {}
        for ref in ready:
            with suppress(ray.exceptions.RayError):
                found |= ray.get(ref)
        return found

    def release(self, timeout_s: float, *, without: Collection[str] = ()) -> None:
        """End all ranks and what they started, on every node that answers, and the watches themselves.

        Args:
            timeout_s: how long that may take.
            without: Ray's ids of nodes that do not answer.
        """
        import ray

        there = [actor for node_id, actor in self._started.items() if node_id not in without]
        refs = [actor.release.remote() for actor in there]
        silent = ray.wait(refs, num_returns=len(refs), timeout=timeout_s)[1] if refs else []
        if num_silent := len(silent) + len(self._started) - len(there):
            logger.warning(
                "%d nodes did not say in %g s that their ranks ended; their guardians end them within %g s",
                num_silent,
                timeout_s,
                self._settings.lease_s,
            )
        for actor in self._started.values():
            ray.kill(actor, no_restart=True)

    def _actor(self, node_id: str) -> Any:
        return self._exported.options(
            **options_on(node_id, self._runtime_env),
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=_THREADS,
        ).remote()


def look_every_s(settings: WatchConfig, num_nodes: int) -> float:
    """Seconds between two looks at a node: more where there are many, but often enough to miss nothing."""
    longest_s = min(settings.node_silent_s, settings.lease_s) / 3
    return max(settings.every_s, min(num_nodes / _LOOKS_A_SECOND, longest_s))


class _Silence:
    """The driver's own silence, if its guardians may have ended ranks for it.

    Args:
        lease_s: how long they bear it.
    """

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._over_s = 0.0
        self.seconds = 0.0

    @property
    def is_too_long(self) -> bool:
        """Whether ranks may have been ended for it."""
        return self.seconds >= self._lease_s

    def note(self, held_up_s: float, unseen_s: float, now_s: float) -> None:
        """Some node was not seen for so long, and this driver was held up for so much of it."""
        # A lease begins with the last look, which may be a while before the driver was held up.
        if held_up_s >= self._lease_s / 2 and unseen_s > self.seconds:
            self.seconds, self._over_s = unseen_s, now_s

    def was_borne(self, asked_s: float) -> None:
        """All ranks were there when nodes were asked, then at the earliest: guardians stood still as well."""
        if asked_s >= self._over_s:
            self.seconds = 0.0
