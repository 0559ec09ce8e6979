"""A launcher on Ray Core: one placement group, one actor for each rank, no restarts.

A restarted actor would have lost its process group, so a rank that dies ends the gang, and a new one is
another attempt. Ray's exceptions end here: callers see `WorkerFailure` or `CannotStart`.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.causes import DIED, NODE_LOST, WorkerFailure
from orchestrator.config.models import Config
from orchestrator.errors import CannotStart, LacksDevice, LaunchFailed
from orchestrator.gang import ray_session
from orchestrator.gang.actor import RankActor
from orchestrator.gang.guardian import MARK
from orchestrator.gang.head_watch import HeadWatch
from orchestrator.gang.launcher import NOBODY_WAITS, Gang, Process, Seat, logs_of, seat_ranks
from orchestrator.gang.node_watch import Charge
from orchestrator.gang.rank_host import MakeWorker
from orchestrator.gang.ray_trouble import describe_shortage, failure_of_ray, in_a_line
from orchestrator.gang.ray_watch import RayWatch
from orchestrator.gang.step_file import step_file
from orchestrator.gang.supply import lacks_devices, refuse_missing_devices, supply_of_cluster

logger = logging.getLogger(__name__)

GRACE_S = 1.0
"""How long other causes are collected after a first failure, before all ranks are ended."""

_STOP_TIMEOUT_S = 10.0
_TICK_S = 0.5
_SAY_AFTER_S = 5.0
_PAUSE_S = 0.05


class RayLauncher:
    """See `orchestrator.gang.launcher.Launcher`.

    Args:
        config: the launch.
        make_worker: makes each rank's worker; importable on the nodes. None for the real one.
    """

    def __init__(self, config: Config, make_worker: MakeWorker | None = None) -> None:
        self._config = config
        self._make_worker = make_worker
        self._session: ray_session.Session | None = None
        self._starts = 0
        self._has_lost_node = False
        self._group: Any = None
        self._actors: list[Any] = []
        self._watch: RayWatch | None = None
        self._head: HeadWatch | None = None
        self.on_wait: Callable[[str], None] = _say_nothing

    def start(self, num_ranks: int, *, timeout_s: float) -> Gang:
        """Reserve resources, start a process for each rank, and seat the ranks node by node."""
        deadline = time.monotonic() + timeout_s
        if self._is_own and self._has_lost_node:
            self._leave()  # an own Ray has no other node, and never gets one
        if self._session is None:
            self._has_lost_node = False
            if ray_session.way_in_now(self._config.ray) == "local":
                refuse_missing_devices(self._bundle, num_ranks, self._config.ray)
            self._session = ray_session.enter(self._config.ray)
            self._head = HeadWatch(ray_session.head_address(), self._config.watch)
        self._starts += 1
        self._reserve(num_ranks, deadline)
        environ = ray_session.runtime_env(self._session.way_in)
        marks = [f"{uuid.uuid4().hex}.{index}" for index in range(num_ranks)]
        # Before the watches: Ray has as many processes ready as there are CPUs, and ranks import torch first.
        self._actors = [self._actor(index, self._session, mark) for index, mark in enumerate(marks)]
        self._watch = RayWatch(self._config.watch, _nodes_of(self._group), environ)
        processes = self._collect([actor.process.remote() for actor in self._actors], deadline)
        order, seats = seat_ranks(processes)
        self._actors = [self._actors[index] for index in order]
        gang = self._gang(seats, processes[order[0]], deadline)
        nodes = {seat.node_rank: processes[order[seat.rank]].node_id for seat in seats}
        logs = {seat.rank: Path(gang.log_of(seat.rank)) for seat in seats}
        charges = {
            seat.rank: Charge(
                pid=seat.pid, mark=marks[order[seat.rank]], step_file=str(step_file(logs[seat.rank]))
            )
            for seat in seats
        }
        refs = [self._actors[rank].log_to.remote(rank, self._config.cache_dir, logs[rank]) for rank in logs]
        self._collect([*self._watch.guard(gang, nodes, charges), *refs], deadline)
        return gang

    def call(
        self, stage: str, method: str, arguments: Mapping[int, tuple[Any, ...]], *, timeout_s: float
    ) -> Iterator[tuple[int, Any]]:
        """Call all ranks named at once; see `orchestrator.gang.launcher.Launcher.call`."""
        assert self._watch is not None  # noqa: S101 - `start` comes first
        deadline = time.monotonic() + timeout_s
        pending = {
            self._actors[rank].call.remote(rank, stage, method, values): rank
            for rank, values in arguments.items()
        }
        failed: dict[int, str] = {}
        # A rank whose process ended may have been lost with its node, which is another budget's: wait to see.
        while (in_doubt := self._watch.is_in_doubt()) or (pending and _left(deadline) > 0):
            wait_s = _TICK_S if in_doubt else min(_left(deadline), _TICK_S)
            ready = _await_some([*pending, *self._watch.refs()], timeout_s=wait_s)
            answers = {pending.pop(ref): ref for ref in ready if ref in pending}
            found = [(rank, _get(ref, rank, stage)) for rank, ref in answers.items()]
            yield from self._watch.take(ready).items()
            found += [(seen.rank, seen) for seen in self._failures(stage) if seen.rank not in answers]
            for rank, answer in found:
                if not isinstance(answer, WorkerFailure):
                    yield rank, answer
                elif rank not in failed or (answer.kind, failed[rank]) == (NODE_LOST, DIED):
                    failed[rank] = answer.kind
                    self._has_lost_node |= answer.kind == NODE_LOST
                    if not (answer.store_fault and stage in NOBODY_WAITS):
                        deadline = min(deadline, time.monotonic() + GRACE_S)
                    if answer.kind == DIED:
                        self._watch.died(rank)
                    yield rank, self._watch.explained(answer)

    def _failures(self, stage: str) -> tuple[WorkerFailure, ...]:
        """What nodes and head make known of ranks, whether or not these are called."""
        assert self._watch is not None  # noqa: S101 - `start` comes first
        lost = self._head.failures(len(self._actors), stage) if self._head is not None else ()
        return lost or self._watch.failures(stage)

    def release(self) -> None:
        """Kill every actor and whatever it started, and free the resources."""
        actors, self._actors = self._actors, []
        group, self._group = self._group, None
        watch, self._watch = self._watch, None
        if self._head is None or not self._head.is_there():
            return  # without a head nothing can be told to anybody: the guardians' leases run out
        import ray

        try:
            for actor in actors:
                ray.kill(actor, no_restart=True)
            if watch is not None:
                watch.release(_STOP_TIMEOUT_S)
            if group is not None:
                ray.util.remove_placement_group(group)
        except ray.exceptions.RayError as error:
            logger.warning("Ray did not take the ranks down (%s); they end with this driver", error)

    def stop(self) -> None:
        """Release the ranks, and end an own Ray."""
        self.release()
        self._leave()

    def _leave(self) -> None:
        session, self._session = self._session, None
        head, self._head = self._head, None
        is_there = head is None or head.is_there()
        if head is not None:
            head.stop()
        if session is not None:
            (ray_session.leave if is_there else ray_session.abandon)(session)

    def _reserve(self, num_ranks: int, deadline: float) -> None:
        import ray
        from ray.util.placement_group import placement_group

        bundle = self._bundle
        group = self._group = placement_group([bundle] * num_ranks, strategy=self._config.ray.placement)
        total = ray.cluster_resources()  # type: ignore[no-untyped-call]
        # An own Ray never grows, so there what is missing now is missing for ever.
        lacking = any(num_ranks * need > total.get(name, 0) for name, need in bundle.items())
        shortage = partial(self._shortage, group, bundle, num_ranks)
        if not (self._is_own and lacking) and self._reserved(group, deadline, shortage):
            return
        text = shortage()
        lacks_device = self._is_own and lacks_devices(bundle, num_ranks, total)
        ray.util.remove_placement_group(group)
        self._group = None
        raise (LacksDevice if lacks_device else CannotStart)(text)

    def _reserved(self, group: Any, deadline: float, shortage: Callable[[], str]) -> bool:
        """Whether the resources are there in time; says early what is lacking, though a cluster may grow."""
        say_s = time.monotonic() + _SAY_AFTER_S
        while _left(deadline) > 0:
            if group.wait(min(_left(deadline), _TICK_S)):
                return True
            self._check_head()
            is_due = time.monotonic() >= say_s
            self.on_wait(f"still waiting: {in_a_line(shortage())}" if is_due else "")
            say_s = float("inf") if is_due else say_s
        return False

    def _shortage(self, group: Any, bundle: Mapping[str, float], num_ranks: int) -> str:
        from ray.util.placement_group import placement_group_table

        state = placement_group_table(group)["stats"]["scheduling_state"]
        return describe_shortage(bundle, num_ranks, supply_of_cluster(), state=state, own=self._is_own)

    def _check_head(self) -> None:
        if self._head is not None and self._head.loss:
            num_ranks = self._config.ranks
            raise LaunchFailed("start", self._head.failures(num_ranks, "start"), num_ranks=num_ranks)

    @property
    def _bundle(self) -> dict[str, float]:
        return ray_session.rank_resources(self._config.ray, self._config.device)

    @property
    def _is_own(self) -> bool:
        return self._session is not None and self._session.way_in == "local"

    def _actor(self, index: int, session: ray_session.Session, mark: str) -> Any:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        environ = ray_session.rank_environ(self._config.ray, self._config.device, session.way_in)
        strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)
        resources = self._bundle
        options = {
            "num_cpus": resources.pop("CPU"),
            "num_gpus": resources.pop("GPU", 0.0),
            "resources": resources,
            "scheduling_strategy": strategy,
            "max_restarts": 0,
            "max_task_retries": 0,
            "runtime_env": ray_session.runtime_env(session.way_in),
        }
        return ray.remote(RankActor).options(**options).remote({**environ, MARK: mark}, self._make_worker)

    def _gang(self, seats: tuple[Seat, ...], first: Process, deadline: float) -> Gang:
        # Within one node the loopback address works whatever its host name resolves to.
        address = "127.0.0.1" if len(seats) == seats[0].local_world_size else first.address
        (port,) = self._collect([self._actors[0].free_port.remote(address)], deadline)
        logs = logs_of(self._config.cache_dir, self._config.name, self._starts)
        return Gang(seats=seats, master_addr=address, master_port=port, logs=logs)

    def _collect(self, refs: Sequence[Any], deadline: float) -> list[Any]:
        """Results of actors that must all answer for the gang to exist.

        Raises:
            CannotStart: one of them failed, or has not answered by the deadline.
            LaunchFailed: the cluster's head is lost.
        """
        import ray

        ready, late = ray.wait(list(refs), num_returns=len(refs), timeout=_TICK_S)
        while late and _left(deadline) > 0:
            self._check_head()
            self.on_wait("")
            ready, late = ray.wait(list(refs), num_returns=len(refs), timeout=min(_left(deadline), _TICK_S))
        failures = [answer for ref in ready if isinstance(answer := _get(ref, 0, "start"), WorkerFailure)]
        if failures:
            first = failures[0]
            self._has_lost_node |= first.kind == NODE_LOST
            remedy = f"; {first.remedy}" if first.remedy else ""
            raise CannotStart(
                f"{len(failures)} of {len(refs)} rank processes did not start: {first.message}{remedy}",
                may_pass=first.kind in {DIED, NODE_LOST},
            )
        if late:
            raise CannotStart(
                f"{len(late)} of {len(refs)} rank processes did not start in time; "
                f"raise timeouts.start_s (now {self._config.timeouts.start_s:g}), or look into Ray's logs",
                may_pass=True,
            )
        return [ray.get(ref) for ref in refs]


def _say_nothing(_text: str) -> None:
    """Where nobody listens."""


def _nodes_of(group: Any) -> list[str]:
    """Ray's ids of the nodes that a placement group has its bundles on."""
    from ray.util.placement_group import placement_group_table

    return sorted(set(placement_group_table(group)["bundles_to_node_id"].values()))


def _await_some(refs: list[Any], *, timeout_s: float) -> list[Any]:
    """All that is ready once something is: taken one by one, ranks would cost the square of their number."""
    import ray

    if not refs:
        time.sleep(min(timeout_s, _PAUSE_S))  # until nodes are looked at again
        return []
    ready, _ = ray.wait(refs, timeout=timeout_s)
    return ray.wait(refs, num_returns=len(refs), timeout=0)[0] if ready else []


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def _get(ref: Any, rank: int, stage: str) -> Any:
    import ray

    try:
        return ray.get(ref)
    except ray.exceptions.RayError as error:
        return failure_of_ray(error, rank=rank, stage=stage)
