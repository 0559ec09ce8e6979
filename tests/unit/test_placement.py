"""Where ranks go: eligible nodes, resources reserved and given back, places; groups of Ray are made up."""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from warmrank.orchestrator.cli.console import ExitCode, exit_code_of
from warmrank.orchestrator.config.models import RayConfig
from warmrank.orchestrator.config.reading import parse
from warmrank.orchestrator.errors import CannotStart, LacksDevice, LaunchFailed
from warmrank.orchestrator.gang import placement
from warmrank.orchestrator.gang.launcher import Process, place_ranks
from warmrank.orchestrator.gang.placement import (
    Eligible,
    Liveness,
    RayNode,
    Reservation,
    bundle_sizes,
    eligible,
    nodes_of_ray,
    slots,
)
from warmrank.orchestrator.gang.ray_launcher import RayLauncher
from warmrank.orchestrator.nodes import Node

BUNDLE = {"CPU": 1.0, "NPU": 1.0}
HEAD, LOST_HEAD = SimpleNamespace(lost=set(), is_there=lambda: True), SimpleNamespace(lost={("head", 1)})


class Group:
    """A placement group that is there at the third look, unless what it is told to raise comes before."""

    def __init__(self, raises: BaseException | None = None) -> None:
        self.looks, self._raises = 0, raises

    def wait(self, _timeout_s: float) -> bool:
        if self._raises is not None:
            raise self._raises
        self.looks += 1
        return self.looks == 3


class FakeRay:
    """A Ray of one node; ``removed`` are the groups that were given back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.removed: list[Group] = []
        monkeypatch.setattr(ray.util, "remove_placement_group", self.removed.append)
        monkeypatch.setattr(Eligible, "free", lambda supply: [node.resources for node in supply.nodes])
        monkeypatch.setattr(Liveness, "look", lambda _places: set())

    def gives(self, total: Mapping[str, float], raises: BaseException | None = None) -> Group:
        group = Group(raises)
        groups = importlib.import_module("ray.util.placement_group")
        self._monkeypatch.setattr(groups, "placement_group", lambda *_arguments, **_options: group)
        names = {"NodeID": "a" * 56, "NodeManagerAddress": "10.0.0.1", "NodeManagerHostname": "n1"}
        node = {**names, "Alive": True, "NodeManagerPort": 1, "Resources": dict(total)}
        self._monkeypatch.setattr(ray, "nodes", lambda: [node])
        return group


@pytest.fixture
def fake_ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    return FakeRay(monkeypatch)


def hold(*, is_own: bool, timeout_s: float = 60.0) -> list[str]:
    """What is said while bundles for two ranks are waited for."""
    said: list[str] = []
    there = Eligible(nodes=nodes_of_ray(), labels={})
    wanted = Reservation(BUNDLE, 2, placement="PACK", is_own=is_own, eligible=there)
    wanted.hold(time.monotonic() + timeout_s, check=lambda: None, on_wait=said.append)
    return said


def test_what_is_lacking_is_said_early_and_once_while_it_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, fake_ray: FakeRay
) -> None:
    fake_ray.gives({"CPU": 1.0})
    monkeypatch.setattr(placement, "_SAY_AFTER_S", 0.0)
    first, second = hold(is_own=False)
    assert first.startswith(
        "still waiting: 2 ranks do not fit on the Ray cluster: CPU: 2 x 1 = 2 wanted, 1 there"
    )
    assert (second, fake_ray.removed) == ("", [])


@pytest.mark.parametrize(
    ("total", "is_own", "error", "text", "looks", "code"),
    [
        # What an own Ray lacks is not waited for.
        ({"CPU": 8.0, "NPU": 1.0}, True, LacksDevice, "NPU: 2 x 1 = 2 wanted, 1 there, 1 too few", 0, 2),
        ({"CPU": 1.0, "NPU": 2.0}, True, CannotStart, "lower ranks or ray.num_cpus_per_rank", 0, 1),
        ({"CPU": 8.0, "NPU": 8.0}, True, CannotStart, "did not reserve", 1, 5),  # may be tried again
        ({"CPU": 8.0}, False, CannotStart, "add nodes with NPUs that Ray sees", 1, 1),
        ({"CPU": 8.0, "NPU": 8.0}, False, CannotStart, "other work holds them", 1, 1),
    ],
)
def test_what_is_not_there_in_time_is_named_and_given_back(
    fake_ray: FakeRay,
    total: dict[str, float],
    error: type[CannotStart],
    text: str,
    looks: int,
    code: ExitCode,
    *,
    is_own: bool,
) -> None:
    group = fake_ray.gives(total)
    with pytest.raises(CannotStart, match=text) as caught:
        hold(is_own=is_own, timeout_s=0.0)
    assert (type(caught.value), exit_code_of(caught.value)) == (error, code)
    assert (group.looks, fake_ray.removed) == (looks, [group])


def test_labels_that_nodes_lack_are_named() -> None:
    supply = eligible(RayConfig(labels={"zone": "z"}), NODES, (), strict=True)
    text = placement.describe_shortage(BUNDLE, 2, supply, [], is_own=False)
    assert "because ray.labels asks for zone=z" in text


@pytest.mark.parametrize(
    ("head", "raises", "error"),
    [(HEAD, KeyboardInterrupt(), KeyboardInterrupt), (LOST_HEAD, None, LaunchFailed)],
)
def test_resources_that_ctrl_c_or_the_loss_of_the_head_comes_before_are_given_back_once(
    fake_ray: FakeRay, head: Any, raises: BaseException | None, error: type[BaseException]
) -> None:
    launcher = RayLauncher(parse({"workload": {"entrypoint": "a:b"}, "ranks": 1, "parallel": {"dp": 1}}))
    group = fake_ray.gives({}, raises)
    launcher._head = head
    with pytest.raises(error):
        launcher._reserve(1, time.monotonic() + 60)
    launcher._head = HEAD  # type: ignore[assignment]
    launcher.release()
    launcher.release()
    assert fake_ray.removed == [group]


NODES = tuple(
    RayNode(
        node=Node(node_id=f"{number}" * 56, address=f"10.0.0.{number}", host=f"n{number}"),
        labels={"zone": zone},
    )
    for number, zone in ((1, "a"), (2, "a"), (3, "b"))
)


def of(*, silent: tuple[tuple[str, int], ...] = (), strict: bool = True, **config: Any) -> Eligible:
    return eligible(RayConfig(**config), NODES, silent, strict=strict)


def hosts(found: Eligible) -> list[str]:
    return [known.node.host for known in found.nodes]


def test_nodes_that_do_not_answer_get_no_ranks_and_nodes_that_join_later_may() -> None:
    found = of(silent=(NODES[1].place,))
    assert hosts(found) == ["n1", "n3"]
    assert found.labels == {"ray.io/node-id": f"!in({'2' * 56})"}
    assert found.silent == (NODES[1].node,)


@pytest.mark.parametrize(
    ("config", "left"),
    [
        ({}, ["n1", "n2", "n3"]),
        ({"nodes": ("n1", "10.0.0.3")}, ["n1", "n3"]),
        ({"exclude_nodes": ("333333",)}, ["n1", "n2"]),
        ({"nodes": ("n1", "n2"), "exclude_nodes": ("n2",)}, ["n1"]),
        ({"labels": {"zone": "a"}}, ["n1", "n2"]),
        ({"labels": {"zone": "!a"}}, ["n3"]),
        ({"labels": {"zone": "in(b, c)"}}, ["n3"]),
        ({"labels": {"zone": "!in(b, c)"}}, ["n1", "n2"]),
        ({"labels": {"other": "a"}}, []),
    ],
)
def test_ranks_go_to_nodes_that_are_named_and_labelled_so(config: dict[str, Any], left: list[str]) -> None:
    assert hosts(of(**config)) == left


@pytest.mark.parametrize(
    ("room", "ranks", "size", "bundles"),
    [
        ((3, 3, 3), 6, 2, (2, 2, 2)),
        ((3, 3), 6, 2, (2, 2, 1, 1)),
        ((1, 1), 2, 2, (1, 1)),
        ((4,), 4, 1, (1, 1, 1, 1)),
        ((8, 8), 16, 8, (8, 8)),
    ],
)
def test_each_group_is_one_bundle_as_long_as_nodes_have_room_for_whole_ones(
    room: tuple[int, ...], ranks: int, size: int, bundles: tuple[int, ...]
) -> None:
    assert bundle_sizes(room, ranks, size) == bundles


@pytest.mark.parametrize(
    ("resources", "each", "num_ranks"),
    [
        ({"CPU": 64}, {"CPU": 1.0, "NPU": 1.0}, 0),
        ({"CPU": 64, "NPU": 8}, {"CPU": 1.0, "NPU": 1.0}, 8),
        ({"CPU": 0.3}, {"CPU": 0.1}, 3),
    ],
)
def test_node_holds_as_many_ranks_as_its_scarcest_resource(
    resources: dict[str, float], each: dict[str, float], num_ranks: int
) -> None:
    assert slots(resources, each) == num_ranks


def test_ranks_of_one_node_follow_each_other() -> None:
    order, placements = place_ranks(
        [Process(node_id=node, host=f"host-{node}", address="10.0.0.1", pid=100) for node in "abab"]
    )
    assert order == (0, 2, 1, 3)
    found = [(each.rank, each.node_rank, each.local_rank, each.host) for each in placements]
    assert found == [(0, 0, 0, "host-a"), (1, 0, 1, "host-a"), (2, 1, 0, "host-b"), (3, 1, 1, "host-b")]
