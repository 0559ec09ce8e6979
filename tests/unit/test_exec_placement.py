"""Which nodes run a command, what it is told of its place, and when it counts as ready."""

from __future__ import annotations

import pytest

from warmrank.orchestrator.errors import CannotStart
from warmrank.orchestrator.exec.placement import (
    Placement,
    When,
    choose_nodes,
    num_fitting,
    parse_when,
)
from warmrank.orchestrator.nodes import Node

NAMES = ("a", "bb", "ccc")
ONE, TWO, THREE = (Node(node_id=name, address=f"10.0.0.{len(name)}", host=name) for name in NAMES)
ROOMS = {THREE: 2, ONE: 4, TWO: 4}
PLACEMENT = Placement(
    node_rank=1, nnodes=2, nproc=4, ranks=8, master_addr="10.0.0.1", master_port=29500, cache_dir="/cache"
)


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
