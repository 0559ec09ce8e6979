"""The driver's side of all nodes: calls their ranks, asks what is seen of them, and decides what that means.

What a node answers to a call says that it lives, and how its ranks are; it is looked at between calls, and
after a failure, when every second counts.

A rank without a process has died. Ray knows more of how it died, and has `UNTOLD_S` to say it. Whether the
node went with it is in doubt until its watch answers what it was asked `SETTLE_S` after the death: when Ray
on a node ends, its processes notice one by one, each when it next looks, once a second. A watch that gives no
such answer within `DOUBT_S` is lost with the rank. An error that a rank reports puts all nodes in doubt while
other ranks have not answered: who lost a peer hears of it first.

A rank that a signal or a debugger holds for ``watch.stopped_s`` is stopped. A node is lost, with all its
ranks, when Ray says that its watch has ended, as it does with Ray on that node; and when the watch has not
answered for ``watch.node_silent_s``: it is down, or the network to it is. Its reaper ends its ranks and its
watch when the lease runs out: nothing lives on beside another attempt. When it ran out because the driver
itself did not look, the node is not lost: its ranks were ended. Native code that does not end cannot be told
from a long compile: the stage's own time-out finds it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from warmrank.cache_store.text import grouped
from warmrank.orchestrator.config.models import WatchConfig
from warmrank.orchestrator.errors import DIED, NODE_LOST, STOPPED, FailureKind, WorkerFailure
from warmrank.orchestrator.gang.launcher import ProcessStatus, Shared
from warmrank.orchestrator.gang.node_group import NodeGroup
from warmrank.orchestrator.gang.node_watch import Charge, NodeWatch, Said
from warmrank.orchestrator.gang.rank_files import crash_in
from warmrank.orchestrator.nodes import Gang

logger = logging.getLogger(__name__)

UNTOLD_S = 3.0
SETTLE_S = 1.5
DOUBT_S = 5.0

_HURRY_S = 0.2
_THREADS = 4  # A node is looked at, and its ranks asked for stacks, while it waits for their answers
_LOOKS_A_SECOND = 400  # more would take the driver's CPU from the launch: each is some 0.3 ms
_STACKS_S = 5.0
_MOST_STACKS = 16  # of more ranks than that, people look at no tracebacks
_ENDED_REMEDY = "look into Ray's logs there (raylet.out); a kill by the system leaves none (see dmesg)"
_GONE_MESSAGE = "its process is gone"
_STOPPED_MESSAGE = "its process is held by a signal (SIGSTOP) or a debugger"


@dataclass(slots=True)
class _Node:
    """The last that is known of a node."""

    host: str
    ranks: tuple[int, ...]
    answered_s: float
    asked_s: float  # when it was asked what it has answered
    died_s: float | None = None  # the first death of a rank
    state: Literal["", "ended", "let go"] = ""  # of its watch: ended with Ray there, or with its lease


class Watching:
    """Times at which nodes, with their host name and ranks, were seen; seconds are any that only rise."""

    def __init__(
        self, nodes: Mapping[int, tuple[str, tuple[int, ...]]], settings: WatchConfig, now_s: float
    ) -> None:
        self._nodes = {node: _Node(host, ranks, now_s, now_s) for node, (host, ranks) in nodes.items()}
        self._settings = settings
        self._node_of = {rank: each for each in self._nodes.values() for rank in each.ranks}
        self._gone_since_s: dict[int, float] = {}
        self._stopped_since_s: dict[int, float] = {}
        self._told: set[int] = set()
        self._error_s: float | None = None  # the first, of any rank

    def answered(
        self, node: int, statuses: Mapping[int, ProcessStatus], *, asked_s: float, now_s: float
    ) -> None:
        """A node's watch answered now what it was asked then."""
        seen = self._nodes[node]
        seen.answered_s, seen.asked_s = now_s, max(seen.asked_s, asked_s)  # answers may overtake each other
        for rank, status in statuses.items():
            if status.is_gone:
                self._gone_since_s.setdefault(rank, now_s)
            if status.is_stopped:
                self._stopped_since_s.setdefault(rank, now_s)
            else:
                self._stopped_since_s.pop(rank, None)

    def ended(self, node: int, *, let_go: bool = False) -> None:
        """A node's watch has ended; ``let_go``: with the ranks, because this driver had not looked."""
        self._nodes[node].state = "let go" if let_go else "ended"

    def is_whole_since(self, since_s: float) -> bool:
        """True if every node was asked since then, and all ranks were there."""
        nodes = self._nodes.values()
        return not self._gone_since_s and all(node.asked_s >= since_s and not node.state for node in nodes)

    def unseen_s(self, now_s: float) -> float:
        """Seconds since the oldest of the looks that nodes answered last was asked for."""
        return now_s - min((node.asked_s for node in self._nodes.values()), default=now_s)

    def failed(self, rank: int, now_s: float, *, died: bool) -> None:
        """A rank's failure became known: its process ended, or it reported an error."""
        self._told.add(rank)
        node = self._node_of[rank]
        if died and node.died_s is None:
            node.died_s = now_s
        elif not died and self._error_s is None:
            self._error_s = now_s

    def is_in_doubt(self, now_s: float, *, others_wait: bool) -> bool:
        """True while nodes may turn out to be lost, or ranks to have died, with those that failed.

        ``others_wait``: ranks have not answered that did not fail.
        """
        nodes, since_s = self._nodes.values(), self._error_s
        if any(_is_open(node, node.died_s, now_s) for node in nodes):
            return True
        if not others_wait or since_s is None or now_s >= since_s + DOUBT_S:
            return False
        is_told = self._gone_since_s.keys() <= self._told
        return not is_told or any(_is_open(node, since_s, now_s) for node in nodes)

    def paused(self, seconds: float) -> None:
        """Nobody looked for so long: silence in that time is nobody's fault."""
        for node in self._nodes.values():
            node.answered_s += seconds

    def failures(self, stage: str, now_s: float) -> tuple[WorkerFailure, ...]:
        """Every rank that counts as failed now, in order; a lost node counts before all else."""
        found: list[WorkerFailure] = []
        for node in self._nodes.values():
            silent_s, remedy = now_s - node.answered_s, _ENDED_REMEDY
            if node.state == "let go":
                found += failures_on(node.ranks, stage, DIED, _GONE_MESSAGE)
                continue
            if node.state:
                message = f"the watch of node {node.host} has ended, as it does with Ray there"
            elif node.died_s is not None and node.asked_s - SETTLE_S < node.died_s <= now_s - DOUBT_S:
                message = f"a rank of node {node.host} has ended, and the node's watch cannot be reached"
            elif silent_s >= self._settings.node_silent_s:
                remedy = ""
                message = (
                    f"node {node.host} has not answered for {silent_s:.0f} s: it is down, or out of reach"
                )
            else:
                continue
            found += failures_on(node.ranks, stage, NODE_LOST, message, remedy)
        gone = [rank for rank, since_s in self._gone_since_s.items() if now_s - since_s >= UNTOLD_S]
        found += failures_on(gone, stage, DIED, _GONE_MESSAGE)
        stopped_s = self._settings.stopped_s
        held = [rank for rank, since_s in self._stopped_since_s.items() if now_s - since_s >= stopped_s]
        found += failures_on(held, stage, STOPPED, _STOPPED_MESSAGE)
        first = {failure.rank: failure for failure in reversed(found)}
        return tuple(first[rank] for rank in sorted(first))


def _is_open(node: _Node, since_s: float | None, now_s: float) -> bool:
    """True while it is not known how a node is after what happened then."""
    if since_s is None or node.state:
        return False
    # A moment longer than until the node counts as lost: the failures after that are to be asked for, too.
    return node.asked_s < since_s + SETTLE_S and now_s < since_s + DOUBT_S + _HURRY_S


def failures_on(
    ranks: Iterable[int], stage: str, kind: FailureKind, message: str, remedy: str = ""
) -> tuple[WorkerFailure, ...]:
    """The same failure of some ranks."""
    return tuple(
        WorkerFailure(rank=rank, stage=stage, kind=kind, message=message, remedy=remedy) for rank in ranks
    )


class _Question(NamedTuple):
    """A question to a node: for the states of its ranks, or, with a call's number, for ranks' answers."""

    node: int
    asked_s: float
    call: int | None


class RayWatch:
    """Watches the nodes of one gang, by Ray's ids; their watches start beside the ranks."""

    def __init__(
        self, settings: WatchConfig, node_ids: Iterable[str], runtime_env: Mapping[str, Any]
    ) -> None:
        self._settings = settings
        self._group = NodeGroup(NodeWatch, runtime_env, num_calls=_THREADS)
        for node_id in node_ids:
            self._group.start(node_id)
        self._every_s, self._is_hurried = settings.every_s, False
        self._num_calls = 0
        self._asked: dict[Any, _Question] = {}
        self._next_s: dict[int, float] = {}
        self._gang = Gang(placements=(), master_addr="", master_port=0)
        self._watching = Watching({}, settings, 0.0)
        self._num_crashes = 0
        self._looked_s = 0.0
        # This driver's own silence, as long as reapers may have ended ranks for it, and when it was over.
        self._own_silence_s = self._silence_over_s = 0.0
        self.nodes: dict[int, Any] = {}  # the watch of every node, by node rank, but for those that ended

    def guard(self, gang: Gang, charges: Mapping[int, Charge], cache_dir: Path = Path()) -> list[Any]:
        """Take charge of all ranks; the references are to be awaited first."""
        self._gang, by_node = gang, gang.by_node()
        # Less often where there are many, but often enough to miss nothing.
        most_s = min(self._settings.node_silent_s, self._settings.lease_s) / 3
        self._every_s = max(self._every_s, min(len(by_node) / _LOOKS_A_SECOND, most_s))
        self._next_s = dict.fromkeys(by_node, 0.0)
        self._looked_s = time.monotonic()
        named = {node: (own[0].host, tuple(each.rank for each in own)) for node, own in by_node.items()}
        self._watching = Watching(named, self._settings, self._looked_s)
        limits, refs = (self._settings.lease_s, self._every_s), []
        for node, placements in by_node.items():
            node_id = placements[0].node_id
            if node_id not in self._group.actors:  # a node was lost meanwhile, and Ray placed its ranks anew
                self._group.start(node_id)
            self.nodes[node] = self._group.actors[node_id]
            own = {placement.rank: charges[placement.rank] for placement in placements}
            refs.append(self.nodes[node].guard.remote(own, *limits, cache_dir))
        return refs

    def call(self, stage: str, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> None:
        """Call a method of ranks' `RankHost`; what an earlier call left open is dropped."""
        import ray

        self._asked = {ref: asked for ref, asked in self._asked.items() if asked.call is None}
        self._num_calls += 1
        shared: dict[int, Any] = {}  # references to large values, by identity
        sent: dict[int, tuple[Any, ...]] = {}  # likewise: of equal arguments, a node is sent one
        for values in arguments.values():
            for value in values:
                if isinstance(value, Shared) and id(value) not in shared:
                    shared[id(value)] = ray.put(value)
            if id(values) not in sent:
                sent[id(values)] = tuple(shared.get(id(value), value) for value in values)
        ranks = grouped((self._gang.placements[rank].node_rank, rank) for rank in arguments)
        for node in ranks.keys() & self.nodes.keys():
            own = {rank: sent[id(arguments[rank])] for rank in ranks[node]}
            ref = self.nodes[node].call.remote(self._num_calls, stage, method, own)
            self._ask(node, ref, self._num_calls)

    def _ask(self, node: int, ref: Any, call: int | None = None) -> None:
        now_s = time.monotonic()
        self._asked[ref], self._next_s[node] = _Question(node, now_s, call), now_s + self._every_s

    def failed(self, rank: int, *, died: bool) -> None:
        """A rank failed: look often from now on, to see whether a node or another rank is lost with it."""
        self._watching.failed(rank, time.monotonic(), died=died)
        if not self._is_hurried:
            self._is_hurried = True
            self._every_s = min(self._every_s, max(_HURRY_S, len(self.nodes) / _LOOKS_A_SECOND / 4))
            self._next_s = dict.fromkeys(self._next_s, 0.0)

    def is_in_doubt(self, *, others_wait: bool) -> bool:
        """True while losses beside ranks that failed may show; see `Watching.is_in_doubt`."""
        return self._watching.is_in_doubt(time.monotonic(), others_wait=others_wait)

    def refs(self) -> list[Any]:
        """Ask nodes whose turn it is to look at their ranks; every question that is open.

        A node that is at a call looks by itself.
        """
        now_s = time.monotonic()
        busy = {asked.node for asked in self._asked.values() if asked.call is None or not self._is_hurried}
        for node, actor in self.nodes.items():
            if node not in busy and self._next_s[node] <= now_s:
                self._ask(node, actor.look.remote())
        return list(self._asked)

    def take(self, ready: Collection[Any]) -> tuple[dict[int, Any], dict[int, ProcessStatus]]:
        """Take in what is ready of `refs`; what ranks answered, and what is seen of them.

        A node that has ranks to wait for is asked again.
        """
        import ray

        now_s = time.monotonic()
        self._note_silence(now_s)
        answers: dict[int, Any] = {}
        seen: dict[int, ProcessStatus] = {}
        for ref in ready:
            node, asked_s, call = self._asked.pop(ref)
            try:
                found = ray.get(ref)
            except ray.exceptions.ActorDiedError:
                self.nodes.pop(node, None)
                self._watching.ended(node, let_go=self._own_silence_s > 0)
            except ray.exceptions.RayError as error:
                if call is not None and isinstance(error, ray.exceptions.RayTaskError):
                    raise  # a defect: of ranks, failures come as values
            else:  # of others, a node is looked at, and silent until it answers
                statuses = found if call is None else self._take_answers(node, found, answers)
                self._watching.answered(node, statuses, asked_s=asked_s, now_s=now_s)
                seen |= statuses
        if self._own_silence_s and self._watching.is_whole_since(self._silence_over_s):
            self._own_silence_s = 0.0  # reapers stood still as well
        return answers, seen

    def _note_silence(self, now_s: float) -> None:
        """Note that this driver was itself held up, by a stop or a slow machine; it knows nothing of then."""
        held_up_s = now_s - self._looked_s - self._settings.every_s
        self._looked_s = now_s
        if held_up_s > 1:
            self._watching.paused(held_up_s)
        # A lease begins with the last look, which may be a while before the driver was held up.
        unseen_s, lease_s = self._watching.unseen_s(now_s), self._settings.lease_s
        if held_up_s >= lease_s / 2 and unseen_s >= lease_s:
            self._own_silence_s, self._silence_over_s = unseen_s, now_s

    def _take_answers(self, node: int, said: Said, answers: dict[int, Any]) -> dict[int, ProcessStatus]:
        answers |= said.answers
        if not said.is_all and node in self.nodes:
            self._ask(node, self.nodes[node].more.remote(self._num_calls), self._num_calls)
        return said.statuses

    def failures(self, stage: str) -> tuple[WorkerFailure, ...]:
        """Ranks that count as failed now."""
        return self._watching.failures(stage, time.monotonic())

    def explained(self, failure: WorkerFailure) -> WorkerFailure:
        """A death that comes of this driver's own silence says so, and a crash which one it is and where."""
        if failure.kind != DIED:
            return failure
        if silent_s := self._own_silence_s:
            message = f"its node ended it, because this driver had not looked for {silent_s:.0f} s"
            remedy = "do not stop or suspend the driver; watch.lease_s says how long its silence is borne"
            return replace(failure, message=message, remedy=remedy)
        if self._num_crashes >= _MOST_STACKS:
            return failure
        self._num_crashes += 1
        said = self.stacks([failure.rank]).get(failure.rank, "")
        if not (crash := crash_in(said)):
            return failure
        remedy = "native code crashed: the traceback says where it was called"
        return replace(failure, message=f"its process crashed: {crash}", remedy=remedy, traceback=said)

    def stacks(self, ranks: Collection[int]) -> dict[int, str]:
        """Stacks of the threads of some of these ranks; of those whose nodes answer in time."""
        import ray

        asked = grouped(
            (self._gang.placements[rank].node_rank, rank) for rank in sorted(ranks)[:_MOST_STACKS]
        )
        refs = [self.nodes[node].stacks.remote(own) for node, own in asked.items() if node in self.nodes]
        ready = ray.wait(refs, num_returns=len(refs), timeout=_STACKS_S)[0] if refs else []
        found: dict[int, str] = {}
        for ref in ready:
            with suppress(ray.exceptions.RayError):
                found |= ray.get(ref)
        return found

    def release(self, timeout_s: float, *, without: Collection[str] = ()) -> None:
        """End all ranks and what they started, on every node that answers, and the watches themselves.

        ``without`` are Ray's ids of nodes that do not answer.
        """
        if num_silent := self._group.end(NodeWatch.release, timeout_s=timeout_s, without=without):
            text = "%d nodes did not say that their ranks ended; their reapers end them within %g s"
            logger.warning(text, num_silent, self._settings.lease_s)
