"""Which nodes run a command, and what it is told of its place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmrank.orchestrator.errors import CannotStart
from warmrank.orchestrator.serve.places import Host, Place, choose_hosts, filled, places, variables


def host(name: str, **resources: float) -> Host:
    return Host(node_id=name, address=f"10.0.0.{len(name)}", host=name, resources=resources)


ONE, TWO, THREE = host("a", CPU=4), host("bb", CPU=4), host("ccc", CPU=2)
CPU = {"CPU": 1.0}
PLACE = Place(
    world=0,
    node_rank=1,
    num_nodes=2,
    num_ranks_here=4,
    num_ranks=8,
    master_addr="10.0.0.1",
    master_port=29500,
    cache_dir="/cache",
)


def chosen(num_ranks: int, *hosts: Host, **options: bool) -> tuple[Host, ...]:
    options = {"replicate": False, "named": False, **options}
    return choose_hosts(hosts, num_ranks=num_ranks, each=CPU, **options)


def test_fewest_nodes_that_hold_the_ranks_are_taken() -> None:
    assert chosen(4, ONE, TWO, THREE) == (ONE,)
    assert chosen(8, ONE, TWO, THREE) == (ONE, TWO)


def test_ranks_are_spread_evenly_or_not_at_all() -> None:
    assert chosen(6, ONE, TWO, THREE) == (ONE, TWO)
    with pytest.raises(CannotStart, match=r"10 ranks do not fit .* a \(10.0.0.1\) holds 4"):
        chosen(10, ONE, TWO, THREE)


def test_roomier_nodes_come_first_and_keep_the_order_of_the_cluster() -> None:
    assert chosen(8, THREE, TWO, ONE) == (TWO, ONE)


def test_named_nodes_are_all_taken() -> None:
    assert chosen(4, ONE, TWO, named=True) == (ONE, TWO)
    with pytest.raises(CannotStart, match="--node"):
        chosen(3, ONE, TWO, named=True)


def test_each_node_that_can_runs_a_world_of_its_own() -> None:
    assert chosen(4, ONE, TWO, THREE, replicate=True) == (ONE, TWO)
    with pytest.raises(CannotStart, match="a world of its own"):
        chosen(4, ONE, THREE, replicate=True, named=True)


def test_node_without_the_device_holds_no_rank() -> None:
    bare, able = host("bare", CPU=64), host("able", CPU=64, NPU=8)
    found = choose_hosts(
        (bare, able), num_ranks=8, each={"CPU": 1.0, "NPU": 1.0}, replicate=False, named=False
    )
    assert found == (able,)


def test_fractions_of_cpus_add_up() -> None:
    assert choose_hosts((host("x", CPU=0.3),), num_ranks=3, each={"CPU": 0.1}, replicate=False, named=False)


def test_nodes_of_one_world_share_the_master_of_the_first() -> None:
    found = places((ONE, TWO), num_ranks=8, ports=(1, 2), replicate=False, cache_dir="/c")
    assert [(place.node_rank, place.num_nodes, place.num_ranks_here) for place in found] == [
        (0, 2, 4),
        (1, 2, 4),
    ]
    assert {(place.world, place.master_addr, place.master_port) for place in found} == {(0, ONE.address, 1)}


def test_nodes_of_several_worlds_are_each_the_first_of_theirs() -> None:
    found = places((ONE, TWO), num_ranks=4, ports=(1, 2), replicate=True, cache_dir="/c")
    assert [(place.world, place.node_rank, place.num_nodes, place.num_ranks_here) for place in found] == [
        (0, 0, 1, 4),
        (1, 0, 1, 4),
    ]
    assert [place.master_port for place in found] == [1, 2]


def test_placeholders_are_replaced() -> None:
    text = "{node_rank}/{nnodes} {nproc} {ranks} {master_addr}:{master_port} {cache_dir}"
    assert filled(text, PLACE) == "1/2 4 8 10.0.0.1:29500 /cache"


@given(st.text("{} \"':nodeab"))
def test_braces_of_the_command_itself_stay(text: str) -> None:
    assert filled(text, PLACE) == text


def test_json_may_stand_beside_a_placeholder() -> None:
    assert filled('{"a": {"node": {node_rank}}}', PLACE) == '{"a": {"node": 1}}'


def test_variables_say_the_same_as_placeholders() -> None:
    found = variables(PLACE, journals="/cache/.journal/x", no_compile=False)
    assert found == {
        "WARMRANK_NODE_RANK": "1",
        "WARMRANK_NNODES": "2",
        "WARMRANK_NPROC": "4",
        "WARMRANK_RANKS": "8",
        "WARMRANK_MASTER_ADDR": "10.0.0.1",
        "WARMRANK_MASTER_PORT": "29500",
        "WARMRANK_CACHE_DIR": "/cache",
        "TORCHAIR_CACHE_HOME": "/cache",
        "WARMRANK_JOURNAL_DIR": "/cache/.journal/x",
    }


def test_command_is_told_that_it_must_not_compile() -> None:
    assert variables(PLACE, journals="", no_compile=True)["WARMRANK_NO_COMPILE"] == "1"
