"""A launcher on Ray Core: one placement group, one actor for each rank, no restarts.

A restarted actor would have lost its process group, so a rank that dies ends the gang, and a new one is
another attempt. Ray's exceptions end here: callers see `WorkerFailure` or `CannotStart`.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from warmrank.orchestrator.config.models import Config, packed_ranks
from warmrank.orchestrator.errors import (
    CLUSTER_LOST,
    DIED,
    NODE_LOST,
    CannotStart,
    LaunchFailed,
    WorkerFailure,
)
from warmrank.orchestrator.gang import ray_session
from warmrank.orchestrator.gang.launcher import NOBODY_WAITS, Process, Shared, logs_of, place_ranks
from warmrank.orchestrator.gang.liveness import HeadWatch, NodesUp, silent_among
from warmrank.orchestrator.gang.node_group import TICK_S, answer_of, await_some, left_s
from warmrank.orchestrator.gang.node_watch import Charge
from warmrank.orchestrator.gang.placement import GivenGroup, Reservation, eligible, nodes_of_ray
from warmrank.orchestrator.gang.rank_files import launch_directory
from warmrank.orchestrator.gang.rank_host import MakeWorker, RankActor
from warmrank.orchestrator.gang.ray_session import Beginning, TookTooLong
from warmrank.orchestrator.gang.ray_watch import RayWatch, all_lost, failures_on
from warmrank.orchestrator.nodes import Gang, RankPlacement
from warmrank.orchestrator.reaper import MARK
from warmrank.orchestrator.signals import say_stopping

logger = logging.getLogger(__name__)

GRACE_S = 1.0  # time for collecting other causes after a first failure, before all ranks are ended

_STOP_TIMEOUT_S = 10.0
_GIVE_UP_S = 3.0  # several times as long as it takes until what is given up looks


class RayLauncher:
    """See `orchestrator.gang.launcher.Launcher`; ``make_worker`` has to be importable on the nodes."""

    def __init__(self, config: Config, make_worker: MakeWorker | None = None) -> None:
        self._config = config
        self._make_worker = make_worker
        self._session: ray_session.Session | None = None
        self._launch = launch_directory()
        self._starts = 0
        self._node_of: dict[int, int] = {}
        self._has_lost_node = False
        self._reservation: Reservation | GivenGroup | None = None
        self._actors: list[Any] = []
        self._watch: RayWatch | None = None
        self._head: HeadWatch | None = None
        self._nodes: NodesUp | None = None
        self._is_abandoned = False
        self._gives_up = threading.Event()
        self.on_wait: Callable[[str], None] = lambda _text: None

    def start(self, num_ranks: int, *, timeout_s: float) -> Gang:
        """Reserve resources, start a process for each rank, and place the ranks node by node."""
        deadline = time.monotonic() + timeout_s
        session = self._enter(deadline)
        self._starts += 1
        return self._watched(lambda: self._start(session, num_ranks, deadline))

    def _start(self, session: ray_session.Session, num_ranks: int, deadline: float) -> Gang:
        reservation = self._reserve(num_ranks, deadline)
        marks = [f"{uuid.uuid4().hex}.{index}" for index in range(num_ranks)]
        # Before the watches: Ray has as many processes ready as there are CPUs, and ranks import torch first.
        self._actors = self._rank_actors(marks, reservation, session.way_in)
        environ = ray_session.runtime_env(self._config.ray, session.way_in)
        node_ids = reservation.node_ids()
        self._nodes = NodesUp(
            [known for known in nodes_of_ray() if known.node.node_id in node_ids], self._config.watch
        )
        self._watch = RayWatch(self._config.watch, node_ids, environ)
        processes = self._collect([actor.process.remote() for actor in self._actors], deadline)
        order, placements = place_ranks(processes, group_size=packed_ranks(self._config))
        self._actors = [self._actors[index] for index in order]
        gang = self._gang(placements, processes[order[0]], deadline)
        self._take_charge(gang, [marks[index] for index in order], deadline)
        return gang

    def call(
        self, stage: str, method: str, arguments: Mapping[int, tuple[Any, ...]], *, timeout_s: float
    ) -> Iterator[tuple[int, Any]]:
        """Call all ranks named at once; see `orchestrator.gang.launcher.Launcher.call`."""
        assert self._watch is not None  # noqa: S101 - `start` comes first
        deadline = time.monotonic() + timeout_s
        pending = set(arguments)
        self._watch.call(stage, method, self._by_node(arguments))
        failed: dict[int, str] = {}
        # A rank may have failed because a node was lost, which is another budget's: wait to see.
        while (in_doubt := self._watch.is_in_doubt(others_wait=bool(pending - failed.keys()))) or (
            pending and left_s(deadline) > 0
        ):
            wait_s = TICK_S if in_doubt else min(left_s(deadline), TICK_S)
            found, statuses = self._watch.take(await_some(self._watch.refs(), timeout_s=wait_s))
            pending -= found.keys()
            yield from statuses.items()
            failures = self._lost(len(self._actors), stage) or self._watch.failures(stage)
            for rank, answer in ({seen.rank: seen for seen in failures} | found).items():
                if not isinstance(answer, WorkerFailure):
                    yield rank, answer
                elif rank not in failed or (answer.kind == NODE_LOST != failed[rank]):
                    failed[rank] = answer.kind
                    self._has_lost_node |= answer.kind == NODE_LOST
                    if not (answer.store_fault and stage in NOBODY_WAITS):
                        deadline = min(deadline, time.monotonic() + GRACE_S)
                        self._watch.failed(rank, died=answer.kind == DIED)
                    yield rank, self._watch.explained(answer)

    def _by_node(self, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, dict[int, tuple[Any, ...]]]:
        """The arguments of each node's ranks, large values as references."""
        put: dict[int, Any] = {}  # by identity
        sent: dict[int, tuple[Any, ...]] = {}
        by_node: dict[int, dict[int, tuple[Any, ...]]] = {}
        for rank, values in arguments.items():
            if id(values) not in sent:
                sent[id(values)] = _sent(values, put)
            by_node.setdefault(self._node_of[rank], {})[rank] = sent[id(values)]
        return by_node

    def stacks(self, ranks: Collection[int]) -> dict[int, str]:
        """The stacks of ranks that do not answer."""
        return self._watch.stacks(ranks) if self._watch is not None else {}

    def _lost(self, num_ranks: int, stage: str) -> tuple[WorkerFailure, ...]:
        """The failures of all ranks that stand for a cluster, or an own Ray, that is gone."""
        loss = self._head.loss if self._head is not None else ""
        if not self._is_own:
            return tuple(failures_on(range(num_ranks), stage, CLUSTER_LOST, loss)) if loss else ()
        assert self._session is not None  # noqa: S101 - whose own Ray it is
        ended = ray_session.ended(self._session) or (loss and f"its head does not answer: {loss}")
        return all_lost(num_ranks, stage, ended) if ended else ()

    def release(self) -> None:
        """Kill every actor and whatever it started, and free the resources."""
        actors, self._actors = self._actors, []
        reservation, self._reservation = self._reservation, None
        watch, self._watch = self._watch, None
        nodes, self._nodes = self._nodes, None
        if not self._serves():
            return  # without a head nothing can be told to anybody: the reapers' leases run out
        silent = frozenset(node.node_id for node in nodes.silent()) if nodes is not None else frozenset()

        def take_down() -> None:
            import ray

            try:
                for actor in actors:
                    ray.kill(actor, no_restart=True)
                if watch is not None:
                    watch.release(_STOP_TIMEOUT_S, without=silent)
                if reservation is not None:
                    reservation.release()
            except ray.exceptions.RayError as error:
                logger.warning("Ray did not take the ranks down (%s); they end with this driver", error)

        # Given up with the head, which Ray would wait for, and then end this process.
        _has_ended(take_down, lambda: not self._lost(1, "stop"))

    def stop(self) -> None:
        """Release the ranks, and end an own Ray."""
        self.release()
        self._leave()

    def _leave(self) -> None:
        session, self._session = self._session, None
        head, self._head = self._head, None
        if session is None or head is None:
            return
        if session.way_in == "local":
            has_left = ray_session.ends_in_time(session, is_silent=bool(head.loss))
        else:
            has_left = head.is_there() and _has_ended(
                lambda: ray_session.leave(session), lambda: not head.loss
            )
        if not has_left:
            ray_session.abandon(session)
            self._is_abandoned = True
        head.stop()

    def _serves(self) -> bool:
        """True if Ray can be told anything; waits for a head that may be lost until that is known."""
        if self._session is not None and ray_session.ended(self._session):
            return False
        return self._head is not None and self._head.is_there()

    def _watched(self, call: Callable[[], Gang]) -> Gang:
        """Result of a call, given up with the head: Ray would wait for it, then end this process.

        It goes on in its thread until it looks next whether it may.
        """
        found: list[Gang] = []
        self._gives_up.clear()
        beginning = Beginning(lambda: found.append(call()))
        try:
            while not beginning.has_ended(TICK_S):
                self._check_head()
        except BaseException as error:
            say_stopping(error)
            self._gives_up.set()
            with suppress(Exception):
                beginning.wait(_GIVE_UP_S)
            raise
        finally:
            beginning.end()
        return found[0]

    def _enter(self, deadline: float) -> ray_session.Session:
        """Get onto Ray, unless this launcher is on one that still serves."""
        if self._is_own and (self._has_lost_node or not self._serves()):
            self._leave()  # an own Ray has no other node, and never gets one
        if self._is_abandoned:
            raise CannotStart("this process could not get off a Ray that had ended", is_lost=True)
        if self._session is None:
            self._has_lost_node = False
            self._session = ray_session.enter(self._config.ray, timeout_s=left_s(deadline))
            self._head = HeadWatch(ray_session.head_address(), self._config.watch)
        return self._session

    def _reserve(self, num_ranks: int, deadline: float) -> Reservation | GivenGroup:
        if self._config.ray.placement_group is not None:
            self._reservation = GivenGroup(self._config.ray.placement_group, self._need, num_ranks)
            return self._reservation
        known = nodes_of_ray()
        silent = () if self._is_own else silent_among(known)
        self._reservation = reservation = Reservation(
            self._need,
            num_ranks,
            group_size=packed_ranks(self._config),
            placement=self._config.ray.placement,
            is_own=self._is_own,
            eligible=eligible(self._config.ray, known, silent, strict=self._starts <= 1),
        )
        reservation.hold(deadline, check=self._check, on_wait=self.on_wait)
        return reservation

    def _check_head(self) -> None:
        num_ranks = self._config.ranks
        if lost := self._lost(num_ranks, "start"):
            self._has_lost_node |= self._is_own
            raise LaunchFailed("start", lost, num_ranks=num_ranks)

    def _check(self) -> None:
        """Raise what ends the start."""
        if self._gives_up.is_set():
            raise TookTooLong
        self._check_head()

    def _wait_on(self) -> None:
        self._check()
        if self._nodes is not None and (lost := self._nodes.lost()):
            self._has_lost_node = True
            where = ", ".join(f"{node}" for node in lost)
            raise CannotStart(f"Ray on {where} does not answer any more", budget="node")
        self.on_wait("")

    @property
    def _need(self) -> dict[str, float]:
        return ray_session.rank_resources(self._config.ray, self._config.device)

    @property
    def _is_own(self) -> bool:
        return self._session is not None and self._session.way_in == "local"

    def _rank_actors(
        self, marks: Sequence[str], reservation: Reservation | GivenGroup, way_in: ray_session.WayIn
    ) -> list[Any]:
        import ray

        environ = ray_session.rank_environ(self._config.ray, self._config.device, way_in)
        environ |= self._config.env
        resources = self._need
        options = {
            "num_cpus": resources.pop("CPU"),
            "num_gpus": resources.pop("GPU", 0.0),
            "resources": resources,
            "max_restarts": 0,
            "max_task_retries": 0,
            "runtime_env": ray_session.runtime_env(self._config.ray, way_in),
        }
        exported = ray.remote(RankActor)  # once for all: each time costs 8 ms
        return [
            exported.options(**options, scheduling_strategy=reservation.place(index)).remote(
                {**environ, MARK: mark}, self._make_worker
            )
            for index, mark in enumerate(marks)
        ]

    def _gang(self, placements: tuple[RankPlacement, ...], first: Process, deadline: float) -> Gang:
        # Within one node the loopback address works whatever its host name resolves to.
        address = "127.0.0.1" if len(placements) == placements[0].local_world_size else first.address
        (port,) = self._collect([self._actors[0].free_port.remote(address)], deadline)
        logs = logs_of(self._config.cache_dir, self._config.name, self._launch, self._starts)
        return Gang(placements=placements, master_addr=address, master_port=port, logs=logs)

    def _take_charge(self, gang: Gang, marks: Sequence[str], deadline: float) -> None:
        """Let each node's watch know its ranks; marks are by rank."""
        assert self._watch is not None  # noqa: S101 - `start` made it
        self._node_of = {placement.rank: placement.node_rank for placement in gang.placements}
        charges = {
            placement.rank: Charge(
                pid=placement.pid, mark=marks[placement.rank], log=Path(gang.log_of(placement.rank))
            )
            for placement in gang.placements
        }
        self._collect(self._watch.guard(gang, charges, self._actors, self._config.cache_dir), deadline)

    def _collect(self, refs: Sequence[Any], deadline: float) -> list[Any]:
        """Results of actors that must all answer for the gang to exist; `CannotStart` if one does not."""
        import ray

        ready, late = ray.wait(list(refs), num_returns=len(refs), timeout=TICK_S)
        while late and left_s(deadline) > 0:
            self._wait_on()
            ready, late = ray.wait(list(refs), num_returns=len(refs), timeout=min(left_s(deadline), TICK_S))
        answers = [answer_of(ref, 0, "start") for ref in ready]
        if failures := [answer for answer in answers if isinstance(answer, WorkerFailure)]:
            first = failures[0]
            self._has_lost_node |= first.kind == NODE_LOST
            remedy = f"; {advice}" if (advice := first.advice()) else ""
            raise CannotStart(
                f"{len(failures)} of {len(refs)} rank processes did not start: {first.message}{remedy}",
                budget="node" if first.kind == NODE_LOST else "start" if first.kind == DIED else None,
            )
        if late:
            raise CannotStart(
                f"{len(late)} of {len(refs)} rank processes did not start in time; "
                f"raise timeouts.start_s (now {self._config.timeouts.start_s:g}), or look whether the "
                f"{'machine is' if self._is_own else 'nodes are'} overloaded or out of memory",
                budget="start",
            )
        return [ray.get(ref) for ref in refs]  # in order


def _sent(values: tuple[Any, ...], put: dict[int, Any]) -> tuple[Any, ...]:
    """Arguments of a call, large ones as references to one copy for all."""
    import ray

    for value in values:
        if isinstance(value, Shared) and id(value) not in put:
            put[id(value)] = ray.put(value)
    return tuple(put.get(id(value), value) if isinstance(value, Shared) else value for value in values)


def _has_ended(call: Callable[[], object], may_go_on: Callable[[], bool]) -> bool:
    """True if a call, in a thread, ended as long as it might go on."""
    beginning = Beginning(call)
    while not beginning.has_ended(TICK_S):
        if not may_go_on():
            return False
    beginning.end()
    return True
