"""Which nodes get which ranks: nodes that answer, are named and labelled so, and groups that stay whole."""

from __future__ import annotations

from typing import Any

import pytest

from warmrank.orchestrator.config.models import Config, RayConfig
from warmrank.orchestrator.config.reading import parse
from warmrank.orchestrator.errors import BadArgument, CannotStart, ConfigError
from warmrank.orchestrator.gang.eligible import Eligible, RayNode, eligible
from warmrank.orchestrator.gang.launcher import Process, seat_ranks
from warmrank.orchestrator.gang.reservation import (
    bundle_sizes,
)
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


def process(host: str) -> Process:
    return Process(node_id=f"id of {host}", host=host, address="10.0.0.1", pid=1)


def test_node_without_a_whole_number_of_groups_comes_last_and_breaks_one_group_only() -> None:
    found = [process(host) for host in ("n1", "n1", "n1", "n2", "n2", "n2", "n2", "n3")]
    _, seats = seat_ranks(found, group_size=2)
    assert [seat.host for seat in seats] == ["n2"] * 4 + ["n1"] * 3 + ["n3"]


def config(**parallel: Any) -> Config:
    pack = parallel.pop("pack", "tp")
    ranks = parallel.pop("ranks")
    data = {"workload": {"entrypoint": "a:b"}, "ranks": ranks, "parallel": parallel, "ray": {"pack": pack}}
    return parse(data)


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


@pytest.mark.parametrize("name", ["RANK", "OMP_NUM_THREADS", "RAY_ADDRESS", "a b"])
def test_variable_that_a_launch_sets_itself_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="env"):
        parse({"workload": {"entrypoint": "a:b"}, "ranks": 1, "env": {name: "1"}})
