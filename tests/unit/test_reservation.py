"""How the resources of ranks are reserved and given back, without Ray: groups are made up here."""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from typing import Any

import pytest
import ray

from warmrank.orchestrator.config.reading import parse
from warmrank.orchestrator.errors import CannotStart, LacksDevice, LaunchFailed
from warmrank.orchestrator.gang import ray_launcher, reservation
from warmrank.orchestrator.gang.eligible import Eligible, nodes_of_ray
from warmrank.orchestrator.gang.ray_launcher import RayLauncher
from warmrank.orchestrator.gang.reservation import Reservation

BUNDLE = {"CPU": 1.0, "NPU": 1.0}
SHORTAGE = "64 ranks do not fit:\n  CPU: 8"


class Group:
    """A placement group that is there at the third look."""

    def __init__(self) -> None:
        self.looks = 0

    def wait(self, _timeout_s: float) -> bool:
        self.looks += 1
        return self.looks == 3


class Interrupted(Group):
    """A placement group that Ctrl-C comes before."""

    def wait(self, _timeout_s: float) -> bool:
        raise KeyboardInterrupt


class Head:
    """A head that is there."""

    loss = ""

    def is_there(self) -> bool:
        return True


class LostHead(Head):
    """A head that is lost."""

    loss = "the cluster's head has not answered for 15 s"


@pytest.fixture
def removed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The groups that were given back."""
    found: list[Any] = []
    monkeypatch.setattr(ray.util, "remove_placement_group", found.append)
    monkeypatch.setattr(Reservation, "_shortage", lambda _self: SHORTAGE)
    return found


def ray_gives(monkeypatch: pytest.MonkeyPatch, group: Any, total: Mapping[str, float]) -> None:
    groups = importlib.import_module("ray.util.placement_group")
    monkeypatch.setattr(groups, "placement_group", lambda *_arguments, **_options: group)
    node = {
        "NodeID": "a" * 56,
        "NodeManagerAddress": "10.0.0.1",
        "NodeManagerHostname": "n1",
        "Alive": True,
        "NodeManagerPort": 1,
    }
    monkeypatch.setattr(ray, "nodes", lambda: [{**node, "Resources": dict(total)}])
    monkeypatch.setattr(reservation, "available_on", lambda nodes: [node.resources for node in nodes])
    monkeypatch.setattr(ray_launcher, "silent_among", lambda _nodes: ())


def hold(*, is_own: bool, timeout_s: float = 60.0) -> list[str]:
    """What is said while two bundles are waited for."""
    said: list[str] = []
    there = Eligible(nodes=nodes_of_ray(), labels={})
    wanted = Reservation(BUNDLE, 2, placement="PACK", is_own=is_own, eligible=there)
    wanted.hold(time.monotonic() + timeout_s, check=lambda: None, on_wait=said.append)
    return said


def test_what_is_lacking_is_said_early_and_once_while_it_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, removed: list[Any]
) -> None:
    ray_gives(monkeypatch, Group(), {})
    monkeypatch.setattr(reservation, "_SAY_AFTER_S", 0.0)
    assert hold(is_own=False) == ["still waiting: 64 ranks do not fit: CPU: 8", ""]
    assert removed == []


@pytest.mark.parametrize(
    ("total", "error"), [({"CPU": 8.0, "NPU": 1.0}, LacksDevice), ({"CPU": 1.0, "NPU": 2.0}, CannotStart)]
)
def test_what_an_own_ray_lacks_is_not_waited_for_and_given_back(
    monkeypatch: pytest.MonkeyPatch, removed: list[Any], total: dict[str, float], error: type[CannotStart]
) -> None:
    group = Group()
    ray_gives(monkeypatch, group, total)
    with pytest.raises(CannotStart, match="64 ranks do not fit") as caught:
        hold(is_own=True)
    assert type(caught.value) is error
    assert (group.looks, removed) == (0, [group])


def test_what_is_not_there_in_time_is_given_back(monkeypatch: pytest.MonkeyPatch, removed: list[Any]) -> None:
    group = Group()
    ray_gives(monkeypatch, group, {})
    with pytest.raises(CannotStart, match="64 ranks do not fit"):
        hold(is_own=False, timeout_s=0.0)
    assert removed == [group]


def test_slow_ray_of_our_own_that_lacks_nothing_may_be_tried_again(monkeypatch, removed) -> None:
    group = Group()
    ray_gives(monkeypatch, group, {"CPU": 8.0, "NPU": 8.0})
    with pytest.raises(CannotStart, match="did not reserve") as caught:
        hold(is_own=True, timeout_s=0.0)
    assert caught.value.may_pass
    assert removed == [group]


def launcher() -> RayLauncher:
    return RayLauncher(parse({"workload": {"entrypoint": "a:b"}, "ranks": 1, "parallel": {"dp": 1}}))


def test_resources_that_ctrl_c_comes_before_are_known_and_so_given_back_once(
    monkeypatch: pytest.MonkeyPatch, removed: list[Any]
) -> None:
    group, interrupted = Interrupted(), launcher()
    ray_gives(monkeypatch, group, {})
    interrupted._head = Head()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        interrupted._reserve(1, time.monotonic() + 60)
    interrupted.release()
    interrupted.release()
    assert removed == [group]


def test_resources_of_a_cluster_whose_head_is_lost_are_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, removed: list[Any]
) -> None:
    group, waiting = Group(), launcher()
    ray_gives(monkeypatch, group, {})
    waiting._head = LostHead()  # type: ignore[assignment]
    with pytest.raises(LaunchFailed, match="has not answered for 15 s"):
        waiting._reserve(1, time.monotonic() + 60)
    assert (group.looks, removed) == (1, [])
