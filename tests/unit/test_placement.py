"""Where ranks go."""

from __future__ import annotations

from typing import Any

import pytest

from warmrank.orchestrator.config.models import Config, RayConfig
from warmrank.orchestrator.config.reading import parse
from warmrank.orchestrator.errors import CannotStart
from warmrank.orchestrator.exec.placement import Placement, When, choose_nodes, num_fitting, parse_when
from warmrank.orchestrator.gang.eligible import Eligible, RayNode, eligible
from warmrank.orchestrator.gang.launcher import Process, seat_ranks
from warmrank.orchestrator.gang.reservation import bundle_sizes
from warmrank.orchestrator.nodes import Node

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


def config(**parallel: Any) -> Config:
    pack = parallel.pop("pack", "tp")
    ranks = parallel.pop("ranks")
    data = {"workload": {"entrypoint": "a:b"}, "ranks": ranks, "parallel": parallel, "ray": {"pack": pack}}
    return parse(data)


NAMES = ("a", "bb", "ccc")
ONE, TWO, THREE = (Node(node_id=name, address=f"10.0.0.{len(name)}", host=name) for name in NAMES)
ROOMS = {THREE: 2, ONE: 4, TWO: 4}


@pytest.mark.parametrize(
    ("num_ranks", "named", "nodes"),
    [
        (4, False, (ONE,)),  # the fewest
        (8, False, (ONE, TWO)),  # the roomier, in the order of the cluster
        (6, False, (ONE, TWO)),  # as many on each
        (6, True, (THREE, ONE, TWO)),  # all that were named
    ],
)
def test_fewest_nodes_that_hold_as_many_ranks_each_are_taken(
    num_ranks: int, named: bool, nodes: tuple[Node, ...]
) -> None:
    assert choose_nodes(ROOMS, num_ranks, named=named) == nodes


@pytest.mark.parametrize(("num_ranks", "named"), [(10, False), (4, True), (9, True)])
def test_ranks_that_do_not_fit_are_refused(num_ranks: int, named: bool) -> None:
    with pytest.raises(CannotStart, match=rf"{num_ranks} ranks do not fit .* a \(10.0.0.1\) holds 4.*--node"):
        choose_nodes(ROOMS, num_ranks, named=named)


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
    assert num_fitting(resources, each) == num_ranks


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("exit", When(kind="exit")),
        ("none", When(kind="none")),
        ("8000", When(kind="port", port=8000)),
        ("node7:8000", When(kind="port", host="node7", port=8000)),
        ("[::1]:8000", When(kind="port", host="::1", port=8000)),
        ("/run/ready", When(kind="file", path="/run/ready")),
        ("./8000", When(kind="file", path="./8000")),
        ("C:/x:1/y", When(kind="file", path="C:/x:1/y")),
    ],
)
def test_condition_is_read(text: str, expected: When) -> None:
    assert parse_when(text) == expected


PLACEMENT = Placement(
    node_rank=1, nnodes=2, nproc=4, ranks=8, master_addr="10.0.0.1", master_port=29500, cache_dir="/cache"
)


def test_variables_say_the_same_as_placeholders() -> None:
    assert PLACEMENT.variables() == {
        "WARMRANK_NODE_RANK": "1",
        "WARMRANK_NNODES": "2",
        "WARMRANK_NPROC": "4",
        "WARMRANK_RANKS": "8",
        "WARMRANK_MASTER_ADDR": "10.0.0.1",
        "WARMRANK_MASTER_PORT": "29500",
        "WARMRANK_CACHE_DIR": "/cache",
        "TORCHAIR_CACHE_HOME": "/cache",
    }


def processes(nodes: list[str]) -> list[Process]:
    return [
        Process(node_id=node, host=f"host-{node}", address="10.0.0.1", pid=100 + index)
        for index, node in enumerate(nodes)
    ]


def test_ranks_of_one_node_follow_each_other() -> None:
    order, seats = seat_ranks(processes(["a", "b", "a", "b"]))
    assert order == (0, 2, 1, 3)
    assert [(seat.rank, seat.node_rank, seat.local_rank, seat.host) for seat in seats] == [
        (0, 0, 0, "host-a"),
        (1, 0, 1, "host-a"),
        (2, 1, 0, "host-b"),
        (3, 1, 1, "host-b"),
    ]
