"""How a call to all ranks ends, without Ray: answers come as the test deals them out."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from warmrank.orchestrator.causes import CLUSTER_LOST, DIED, NODE_LOST, WorkerFailure
from warmrank.orchestrator.cli.console import ExitCode, exit_code_of
from warmrank.orchestrator.config.models import RayConfig, WatchConfig
from warmrank.orchestrator.config.reading import parse
from warmrank.orchestrator.errors import LacksDevice, LaunchFailed
from warmrank.orchestrator.gang import ray_launcher, reservation
from warmrank.orchestrator.gang.launcher import Process, ProcessStatus, seat_ranks
from warmrank.orchestrator.gang.node_group import NodeGroup
from warmrank.orchestrator.gang.node_watch import Batches, Charge
from warmrank.orchestrator.gang.ray_launcher import RayLauncher
from warmrank.orchestrator.gang.ray_watch import RayWatch
from warmrank.orchestrator.seats import Gang

LATER_S = 0.2
NEVER_S = 600.0


@dataclass(frozen=True)
class Answer:
    """What stands for a reference: an answer, and when it is there."""

    value: Any
    ready_s: float


@dataclass
class Actor:
    """A rank that answers at once, or later."""

    value: Any
    after_s: float = 0.0

    @property
    def call(self) -> Actor:
        return self

    def remote(self, _call: int, _stage: str, _method: str, batches: Batches) -> Answer:
        answers = tuple((self.value, ranks) for _, ranks in batches)
        return Answer((answers, True), time.monotonic() + self.after_s)


@dataclass
class Watch:
    """Sees nothing wrong; is in doubt for as long as it takes to see that a rank's node was lost with it."""

    lost_after: dict[int, int] = field(default_factory=dict)
    nodes: dict[int, Actor] = field(default_factory=dict)
    _died: list[int] = field(default_factory=list)
    _looks: int = 0

    def refs(self) -> list[Any]:
        return []

    def take(self, _ready: Collection[Any]) -> dict[int, ProcessStatus]:
        return {}

    def failures(self, stage: str) -> tuple[WorkerFailure, ...]:
        self._looks += bool(self._died)
        return tuple(
            WorkerFailure(rank=rank, stage=stage, kind=NODE_LOST, message="gone with it")
            for rank, looks in self.lost_after.items()
            if rank in self._died and self._looks >= looks
        )

    def failed(self, rank: int, *, died: bool) -> None:
        if died:
            self._died.append(rank)

    def is_in_doubt(self, *, others_wait: bool) -> bool:
        return any(self._looks < looks for rank, looks in self.lost_after.items() if rank in self._died)

    def explained(self, failure: WorkerFailure) -> WorkerFailure:
        return failure


def _ready(refs: list[Answer], *, timeout_s: float) -> list[Answer]:
    """Those that are there; waits for the first one as long as it may."""
    ends_s = min([time.monotonic() + timeout_s, *(ref.ready_s for ref in refs)])
    while time.monotonic() < ends_s:
        time.sleep(0.01)
    return [ref for ref in refs if ref.ready_s <= time.monotonic()]


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_launcher, "await_some", _ready)
    monkeypatch.setattr(ray_launcher, "answers_of", lambda ref: ref.value)
    monkeypatch.setattr(ray_launcher, "GRACE_S", LATER_S / 10)


def launcher_of(*actors: Actor) -> RayLauncher:
    data = {"workload": {"entrypoint": "a:b"}, "ranks": len(actors), "parallel": {"dp": len(actors)}}
    launcher = RayLauncher(parse(data))
    launcher._actors = list(actors)
    launcher._watch = Watch(nodes=dict(enumerate(actors)))  # type: ignore[assignment]
    launcher._node_of = {rank: rank for rank in range(len(actors))}
    return launcher


def answers(stage: str, *actors: Actor) -> dict[int, Any]:
    launcher = launcher_of(*actors)
    arguments: dict[int, tuple[Any, ...]] = dict.fromkeys(range(len(actors)), ())
    return dict(launcher.call(stage, stage, arguments, timeout_s=60))


def failure(kind: str, *, store_fault: bool = False) -> WorkerFailure:
    return WorkerFailure(rank=0, stage="any", kind=kind, message="text", store_fault=store_fault)


@pytest.mark.parametrize("stage", ["fetch", "commit"])
def test_store_that_fails_one_rank_leaves_the_others_their_time(stage: str) -> None:
    fault = failure("StoreUnavailable", store_fault=True)
    assert answers(stage, Actor(fault), Actor("done", LATER_S)) == {0: fault, 1: "done"}


@pytest.mark.parametrize("stage", ["fetch", "build"])
def test_rank_that_died_ends_the_call_soon(stage: str) -> None:
    died = failure(DIED)
    assert answers(stage, Actor(died), Actor("done", NEVER_S)) == {0: died}


def test_call_goes_on_until_it_is_known_whether_the_node_of_a_dead_rank_lives() -> None:
    launcher = launcher_of(Actor(failure(DIED)), Actor("done"))
    launcher._watch.lost_after[0] = 3  # type: ignore[union-attr]
    found = [
        kind.kind for rank, kind in launcher.call("build", "build", {0: (), 1: ()}, timeout_s=60) if rank == 0
    ]
    assert found == [DIED, NODE_LOST]


class LostHead:
    """A head that is lost."""

    loss = "the cluster's head has not answered for 15 s"

    def failures(self, num_ranks: int, stage: str) -> tuple[WorkerFailure, ...]:
        return tuple(
            WorkerFailure(rank=rank, stage=stage, kind=CLUSTER_LOST, message=self.loss)
            for rank in range(num_ranks)
        )


def test_head_that_is_lost_while_ranks_start_is_a_lost_cluster_and_no_wrong_config() -> None:
    launcher = launcher_of(Actor(None), Actor(None))
    launcher._head = LostHead()  # type: ignore[assignment]
    with pytest.raises(LaunchFailed) as caught:
        launcher._check_head()
    assert [(cause.kind, cause.ranks) for cause in caught.value.causes] == [(CLUSTER_LOST, (0, 1))]
    assert exit_code_of(caught.value) == ExitCode.LOST


def test_devices_that_are_not_here_are_refused_before_an_own_ray_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reservation, "_num_here", lambda _resource: 1)
    monkeypatch.delenv("RAY_OVERRIDE_RESOURCES", raising=False)
    bundle, config = {"CPU": 1.0, "NPU": 1.0}, RayConfig()
    reservation.refuse_missing_devices(bundle, 1, config)
    reservation.refuse_missing_devices({"CPU": 1e6}, 1, config)
    with pytest.raises(LacksDevice, match="NPU: 2 x 1 = 2 wanted, 1 there, 1 too few") as caught:
        reservation.refuse_missing_devices(bundle, 2, config)
    assert exit_code_of(caught.value) == ExitCode.BAD_INPUT


class WatchActor:
    """Takes charge of ranks."""

    @property
    def guard(self) -> WatchActor:
        return self

    def remote(self, charges: Mapping[int, Charge], _lease_s: float) -> tuple[int, ...]:
        return tuple(charges)


def test_node_that_ray_placed_ranks_on_after_another_was_lost_gets_a_watch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(NodeGroup, "start", lambda self, id_: self.actors.update({id_: WatchActor()}))
    first, second = (
        Process(node_id=node_id, host=node_id, address="", pid=pid)
        for node_id, pid in (("kept", 1), ("new", 2))
    )
    _, seats = seat_ranks([first, second])
    charges = {seat.rank: Charge(pid=seat.pid, mark="", log=Path("/none/launch/rank0.log")) for seat in seats}
    watch = RayWatch(WatchConfig(), ["kept", "lost"], {})
    gang = Gang(seats=seats, master_addr="", master_port=0)
    assert watch.guard(gang, {0: "kept", 1: "new"}, charges) == [(0,), (1,)]
