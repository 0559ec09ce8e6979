"""The driver's side of watching nodes: whose silence it was that ended a watch."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from warmrank.orchestrator.causes import DIED, NODE_LOST, WorkerFailure
from warmrank.orchestrator.config.models import WatchConfig
from warmrank.orchestrator.gang import ray_watch
from warmrank.orchestrator.gang.launcher import Process, ProcessStatus, seat_ranks
from warmrank.orchestrator.gang.node_group import NodeGroup
from warmrank.orchestrator.gang.node_watch import Charge
from warmrank.orchestrator.gang.ray_watch import RayWatch
from warmrank.orchestrator.seats import Gang

SETTINGS = WatchConfig(every_s=1, node_silent_s=15, lease_s=30)
AT_WORK = {0: ProcessStatus(state="R")}


class Node:
    """A watch whose looks are answered when a test says so."""

    def __init__(self) -> None:
        self.asked: list[object] = []
        self.look = self.guard = self

    def options(self, **_options: Any) -> Node:
        return self

    def remote(self, *_arguments: Any) -> object:
        self.asked.append(object())
        return self.asked[-1]


class Time:
    """The driver's clock, and its one node."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        self.answer: Any = AT_WORK
        monkeypatch.setattr(ray_watch, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        monkeypatch.setattr(NodeGroup, "start", lambda self, id_: self.actors.update({id_: Node()}))
        monkeypatch.setattr(ray, "get", self._get)
        self.watch = RayWatch(SETTINGS, ["node"], {})
        _, seats = seat_ranks([Process(node_id="node", host="n1", address="", pid=1)])
        gang = Gang(seats=seats, master_addr="", master_port=0)
        self.watch.guard(gang, {0: "node"}, {0: Charge(pid=1, mark="", log=Path("/none/launch/rank0.log"))})

    def _get(self, _ref: object) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def look(self) -> None:
        self.watch.take(self.watch.refs())

    def passes(self, seconds: float) -> None:
        """The driver works: it looks again and again."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += 1
            self.look()

    def stands_still(self, seconds: float) -> None:
        self.watch.refs()
        self.now_s += seconds

    def failure(self) -> WorkerFailure:
        (found,) = self.watch.failures("build")
        return self.watch.explained(found)


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    return Time(monkeypatch)


DEATH = ray.exceptions.ActorDiedError()


def test_watch_that_ended_while_its_driver_stood_still_is_the_driver_s_silence(time: Time) -> None:
    time.passes(5)
    time.stands_still(45)
    time.answer = DEATH
    time.look()
    failure = time.failure()
    assert failure.kind == DIED
    assert "because this driver had not looked for 4" in failure.message
    assert "watch.lease_s" in failure.remedy


def test_watch_that_ends_while_its_driver_looks_is_a_lost_node(time: Time) -> None:
    time.passes(5)
    time.answer = DEATH
    time.passes(1)
    assert time.failure().kind == NODE_LOST
