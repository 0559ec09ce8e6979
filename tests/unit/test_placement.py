"""Which nodes get which ranks: nodes that answer, are named and labelled so, and groups that stay whole."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

from tests.support.ray_cluster import free_ports
from warmrank.orchestrator.config.models import Config, RayConfig, groups, packed_ranks, positions
from warmrank.orchestrator.config.reading import parse
from warmrank.orchestrator.errors import BadArgument, CannotStart, ConfigError, UnknownNode
from warmrank.orchestrator.gang.eligible import Eligible, RayNode, eligible, knock
from warmrank.orchestrator.gang.launcher import Process, seat_ranks
from warmrank.orchestrator.gang.reservation import (
    bundle_sizes,
    describe_shortage,
    slots,
    times,
)
from warmrank.orchestrator.nodes import Node, alive

NODES = tuple(
    RayNode(
        node=Node(node_id=f"{number}" * 56, address=f"10.0.0.{number}", host=f"n{number}"),
        labels={"zone": zone},
    )
    for number, zone in ((1, "a"), (2, "a"), (3, "b"))
)


def of(*, silent: tuple[Node, ...] = (), strict: bool = True, **config: Any) -> Eligible:
    return eligible(RayConfig(**config), NODES, silent, strict=strict)


def hosts(found: Eligible) -> list[str]:
    return [known.node.host for known in found.nodes]


def test_places_are_told_apart_by_what_answers_there() -> None:
    def greet(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"\0")

    greeting, connecting = (socket.create_server(("127.0.0.1", 0)) for _ in range(2))
    refusing = ("127.0.0.1", free_ports(1)[0])
    with greeting, connecting:
        threading.Thread(target=greet, args=(greeting,)).start()
        places = {
            "greets": greeting.getsockname(),
            "connects": connecting.getsockname(),
            "refuses": refusing,
        }
        found = knock(places.values(), timeout_s=1.0)
        assert {name: found[place] for name, place in places.items()} == {name: name for name in places}


def test_nodes_that_do_not_answer_get_no_ranks_and_nodes_that_join_later_may() -> None:
    found = of(silent=(NODES[1].node,))
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


def test_name_of_no_node_is_an_error_until_an_attempt_may_have_lost_it() -> None:
    with pytest.raises(UnknownNode, match="no alive node is called 'n4'"):
        of(nodes=("n1", "n4"))
    assert hosts(of(nodes=("n1", "n4"), strict=False)) == ["n1"]


@pytest.mark.parametrize(
    ("config", "silent", "strict", "error", "said"),
    [
        ({"nodes": ("n2",), "exclude_nodes": ("10.0.0.2",)}, (), True, BadArgument, "leaves no node"),
        ({"exclude_nodes": ("n1", "n2", "n3")}, (), True, BadArgument, "leaves no node"),
        ({"nodes": ("n2",)}, (NODES[1].node,), True, CannotStart, "do not answer: n2 "),
        ({"nodes": ("n4",)}, (), False, CannotStart, "are not there any more: n4"),
    ],
)
def test_config_that_leaves_no_node_is_refused(
    config: dict[str, Any], silent: tuple[Node, ...], strict: bool, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        of(silent=silent, strict=strict, **config)


def test_labels_that_no_node_meets_are_named_with_those_that_nodes_have() -> None:
    found = of(labels={"zone": "c", "kind": "!b"})
    text = describe_shortage({"CPU": 1.0}, 4, found, {}, state="PENDING", own=False)
    assert "because ray.labels asks for zone=c, kind=!b: n1 and 1 more have zone=a; n3 has zone=b" in text
    assert "remedy: correct ray.labels" in text


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


def test_room_is_counted_in_ranks_by_what_is_scarcest() -> None:
    assert slots({"CPU": 0.3, "NPU": 8.0}, {"CPU": 0.1, "NPU": 1.0}, 64) == 3
    assert slots({"CPU": 4.0}, {"CPU": 1.0, "NPU": 1.0}, 64) == 0
    assert slots({}, {"CPU": 0.0}, 64) == 64
    assert times({"CPU": 0.1, "NPU": 1.0}, 3) == {"CPU": 0.3, "NPU": 3.0}


def process(host: str) -> Process:
    return Process(node_id=f"id of {host}", host=host, address="10.0.0.1", pid=1)


def test_ranks_are_seated_in_the_order_of_host_names_whatever_order_nodes_are_found_in() -> None:
    order, seats = seat_ranks([process(host) for host in ("n10", "n2", "n10", "n1")])
    assert [seat.host for seat in seats] == ["n1", "n2", "n10", "n10"]
    assert order == (3, 1, 0, 2)


def test_node_without_a_whole_number_of_groups_comes_last_and_breaks_one_group_only() -> None:
    found = [process(host) for host in ("n1", "n1", "n1", "n2", "n2", "n2", "n2", "n3")]
    _, seats = seat_ranks(found, group_size=2)
    assert [seat.host for seat in seats] == ["n2"] * 4 + ["n1"] * 3 + ["n3"]


def config(**parallel: Any) -> Config:
    pack = parallel.pop("pack", "tp")
    ranks = parallel.pop("ranks")
    data = {"workload": {"entrypoint": "a:b"}, "ranks": ranks, "parallel": parallel, "ray": {"pack": pack}}
    return parse(data)


def test_axes_of_any_name_have_groups_between_tensor_and_pipeline_parallel_ones() -> None:
    found = config(tp=2, ep=2, axes={"sp": 2}, dp=2, ranks=16)
    assert list(groups(found)) == ["world", "tp", "ep", "sp", "pp", "dp"]
    assert groups(found)["ep"][:2] == ((0, 2), (1, 3))
    assert groups(found)["sp"][0] == (0, 4)
    assert groups(found)["dp"][-1] == (7, 15)
    assert positions(found)[13] == (1, 0, 1, 0, 1)


@pytest.mark.parametrize(("pack", "size"), [("tp", 2), ("ep", 4), ("dp", 8), ("none", 1)])
def test_axis_says_how_many_ranks_stay_together(pack: str, size: int) -> None:
    assert packed_ranks(config(tp=2, ep=2, dp=2, ranks=8, pack=pack)) == size


@pytest.mark.parametrize(
    ("parallel", "said"),
    [
        ({"tp": 2, "ranks": 2, "pack": "ep"}, "ray.pack is ep"),
        ({"axes": {"tp": 2}, "ranks": 2}, "stands for something else"),
        ({"axes": {"Sp": 2}, "ranks": 2}, "axes"),
        ({"ep": 2, "ranks": 4}, "ep 2"),
    ],
)
def test_axis_that_cannot_be_is_refused(parallel: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        config(**parallel)


def test_nodes_of_ray_are_those_that_it_lists_as_alive_by_host() -> None:
    def node(host: str, *, is_alive: bool = True) -> dict[str, Any]:
        place = {"NodeManagerAddress": "10.0.0.1", "NodeManagerHostname": host, "NodeManagerPort": 1}
        return {"NodeID": host, "Alive": is_alive, **place}

    found = alive([node("n10"), node("n9", is_alive=False), node("n2")])
    assert [node.host for node in found] == ["n2", "n10"]


@pytest.mark.parametrize("name", ["RANK", "OMP_NUM_THREADS", "RAY_ADDRESS", "a b"])
def test_variable_that_a_launch_sets_itself_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="env"):
        parse({"workload": {"entrypoint": "a:b"}, "ranks": 1, "env": {name: "1"}})
