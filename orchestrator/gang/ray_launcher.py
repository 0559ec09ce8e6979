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
from warmrank.orchestrator.gang.launcher import Launcher, Process, place_ranks
from warmrank.orchestrator.gang.node_group import TICK_S, answer_of, await_some, left_s
from warmrank.orchestrator.gang.node_watch import Charge
from warmrank.orchestrator.gang.placement import (
    Bundles,
    GivenGroup,
    Liveness,
    RayNode,
    Reservation,
    eligible,
    nodes_of_ray,
)
from warmrank.orchestrator.gang.rank_files import launch_directory, logs_of
from warmrank.orchestrator.gang.rank_host import MakeWorker, RankActor
from warmrank.orchestrator.gang.ray_session import Beginning, TookTooLong
from warmrank.orchestrator.gang.ray_watch import RayWatch, failures_on
from warmrank.orchestrator.nodes import Gang
from warmrank.orchestrator.reaper import MARK
from warmrank.orchestrator.signals import say_stopping

logger = logging.getLogger(__name__)

GRACE_S = 1.0  # time for collecting other causes after a first failure, before all ranks are ended

_NOBODY_WAITS = frozenset({"fetch", "commit"})
"""Stages in which each rank is alone with the store: that it fails one is no reason to stop the others."""
_STOP_TIMEOUT_S = 10.0
_GIVE_UP_S = 3.0  # several times as long as it takes until what is given up looks
_OWN_REMEDY = "look whether the system killed it for want of memory (dmesg), then launch again"


class RayLauncher(Launcher):
    """See `orchestrator.gang.launcher.Launcher`; ``make_worker`` has to be importable on the nodes."""

    def __init__(self, config: Config, make_worker: MakeWorker | None = None) -> None:
        self._config = config
        self._make_worker = make_worker
        self._session: ray_session.Session | None = None
        self._head: Liveness | None = None  # with the session
        self._launch = launch_directory()
        self._starts = 0
        self._has_lost_node = False
        self._reservation: Bundles | None = None
        self._actors: list[Any] = []
        self._watch: RayWatch | None = None
        self._nodes: dict[tuple[str, int], RayNode] = {}  # of the ranks, by where Ray listens there
        self._nodes_up: Liveness | None = None
        self._is_abandoned = False
        self._gives_up = threading.Event()

    def start(self, num_ranks: int, *, timeout_s: float) -> Gang:
        """Reserve resources, start a process for each rank, and place the ranks node by node."""
        deadline = time.monotonic() + timeout_s
        session = self._enter(deadline)
        self._starts += 1
        return self._watched(lambda: self._start(session, num_ranks, deadline))

    def _start(self, session: ray_session.Session, num_ranks: int, deadline: float) -> Gang:
        config = self._config
        reservation = self._reserve(num_ranks, deadline)
        marks = [f"{uuid.uuid4().hex}.{index}" for index in range(num_ranks)]
        # Before the watches: Ray has as many processes ready as there are CPUs, and ranks import torch first.
        self._actors = self._rank_actors(marks, reservation, session.way_in)
        node_ids = reservation.node_ids()
        self._nodes = {known.place: known for known in nodes_of_ray() if known.node.node_id in node_ids}
        self._nodes_up = Liveness(self._nodes, config.watch)
        self._nodes_up.begin()
        self._watch = RayWatch(config.watch, node_ids, ray_session.runtime_env(config.ray, session.way_in))
        processes: list[Process] = self._collect([actor.process.remote() for actor in self._actors], deadline)
        order, placements = place_ranks(processes, group_size=packed_ranks(config))
        self._actors = [self._actors[index] for index in order]
        # Within one node the loopback address works whatever its host name resolves to.
        is_one = num_ranks == placements[0].local_world_size
        address = "127.0.0.1" if is_one else processes[order[0]].address
        (port,) = self._collect([self._actors[0].free_port.remote(address)], deadline)
        logs = logs_of(config.cache_dir, config.name, self._launch, self._starts)
        gang = Gang(placements=placements, master_addr=address, master_port=port, logs=logs)
        charges = {
            each.rank: Charge(pid=each.pid, mark=marks[index], log=Path(gang.log_of(each.rank)), actor=actor)
            for each, index, actor in zip(placements, order, self._actors, strict=True)
        }
        self._collect(self._watch.guard(gang, charges, config.cache_dir), deadline)
        self._nodes_up.stop()
        return gang

    def call(
        self, stage: str, method: str, arguments: Mapping[int, tuple[Any, ...]], *, timeout_s: float
    ) -> Iterator[tuple[int, Any]]:
        """Call all ranks named at once; see `orchestrator.gang.launcher.Launcher.call`.

        A fault of the store, in a stage in which nobody waits for others, cuts nothing short.
        """
        assert self._watch is not None  # noqa: S101 - `start` comes first
        deadline = time.monotonic() + timeout_s
        pending = set(arguments)
        self._watch.call(stage, method, arguments)
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
                    if not (answer.store_fault and stage in _NOBODY_WAITS):
                        deadline = min(deadline, time.monotonic() + GRACE_S)
                        self._watch.failed(rank, died=answer.kind == DIED)
                    yield rank, self._watch.explained(answer)

    def stacks(self, ranks: Collection[int]) -> dict[int, str]:
        """The stacks of ranks that do not answer."""
        return self._watch.stacks(ranks) if self._watch is not None else {}

    def _lost(self, num_ranks: int, stage: str) -> tuple[WorkerFailure, ...]:
        """The failures of all ranks that stand for a cluster, or an own Ray, that is gone."""
        where, loss = "", ""
        for host, port in self._head.lost if self._head is not None else ():
            where = f"{host}:{port} has not answered for {self._config.watch.node_silent_s:g} s"
        if self._session is not None and self._is_own:
            loss = ray_session.ended(self._session) or (where and f"its head at {where}")
            message = f"the launch's own Ray has ended: {loss}"
            return failures_on(range(num_ranks), stage, NODE_LOST, message, _OWN_REMEDY) if loss else ()
        message = f"the cluster's head at {where}"
        return failures_on(range(num_ranks), stage, CLUSTER_LOST, message) if where else ()

    def release(self) -> None:
        """Kill every actor and whatever it started, and free the resources."""
        actors, self._actors = self._actors, []
        reservation, self._reservation = self._reservation, None
        watch, self._watch = self._watch, None
        nodes_up, self._nodes_up = self._nodes_up, None
        if nodes_up is not None:
            nodes_up.stop()
        if not self._serves():
            return  # without a head nothing can be told to anybody: the reapers' leases run out
        silent = nodes_up.look() if nodes_up is not None else ()
        silent_ids = {self._nodes[place].node.node_id for place in silent}

        def take_down() -> None:
            import ray

            try:
                for actor in actors:
                    ray.kill(actor, no_restart=True)
                if watch is not None:
                    watch.release(_STOP_TIMEOUT_S, without=silent_ids)
                if reservation is not None:
                    reservation.release()
            except ray.exceptions.RayError as error:
                logger.warning("Ray did not take the ranks down (%s); they end with this driver", error)

        # Given up with the head, which Ray would wait for, and then end this process.
        ray_session.has_ended(take_down, lambda: not self._lost(1, "stop"))

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
            has_left = ray_session.ends_in_time(session, is_silent=bool(head.lost))
        else:
            has_left = head.is_there() and ray_session.has_ended(
                lambda: ray_session.leave(session), lambda: not head.lost
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
                beginning.has_ended(_GIVE_UP_S)
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
            self._head = Liveness([ray_session.head_place()], self._config.watch)
            self._head.begin()
        return self._session

    def _reserve(self, num_ranks: int, deadline: float) -> Bundles:
        ray_config = self._config.ray
        if ray_config.placement_group is not None:
            self._reservation = GivenGroup(ray_config.placement_group, self._need, num_ranks)
            return self._reservation
        known = nodes_of_ray()
        places = () if self._is_own else (each.place for each in known)
        silent = Liveness(places, self._config.watch).look()
        self._reservation = reservation = Reservation(
            self._need,
            num_ranks,
            group_size=packed_ranks(self._config),
            placement=ray_config.placement,
            is_own=self._is_own,
            eligible=eligible(ray_config, known, silent, strict=self._starts <= 1),
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
        if self._nodes_up is not None and (lost := self._nodes_up.lost):
            self._has_lost_node = True
            where = ", ".join(str(self._nodes[place].node) for place in lost)
            raise CannotStart(f"Ray on {where} does not answer any more", budget="node")

    @property
    def _need(self) -> dict[str, float]:
        return ray_session.rank_resources(self._config.ray, self._config.device)

    @property
    def _is_own(self) -> bool:
        return self._session is not None and self._session.way_in == "local"

    def _rank_actors(
        self, marks: Sequence[str], reservation: Bundles, way_in: ray_session.WayIn
    ) -> list[Any]:
        import ray

        config, resources = self._config, self._need
        environ = ray_session.rank_environ(config.ray, config.device, way_in) | config.env
        exported: Any = ray.remote(  # once for all: each time costs 8 ms
            num_cpus=resources.pop("CPU"),
            num_gpus=resources.pop("GPU", 0.0),
            resources=resources,
            max_restarts=0,
            max_task_retries=0,
            runtime_env=ray_session.runtime_env(config.ray, way_in),
        )(RankActor)
        return [
            exported.options(scheduling_strategy=reservation.place(index)).remote(
                {**environ, MARK: mark}, self._make_worker
            )
            for index, mark in enumerate(marks)
        ]

    def _collect(self, refs: Sequence[Any], deadline: float) -> list[Any]:
        """Results of actors that must all answer for the gang to exist; `CannotStart` if one does not."""
        import ray

        ready, late = ray.wait(list(refs), num_returns=len(refs), timeout=TICK_S)
        while late and left_s(deadline) > 0:
            self._check()
            self.on_wait("")
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
