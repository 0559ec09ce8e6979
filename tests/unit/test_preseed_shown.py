"""How the seeding of nodes is shown."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from tests.support.ray_cluster import Clock, make_node
from warmrank.orchestrator.seed.here import NodeSeed, failed
from warmrank.orchestrator.seed.seeding import NodeState
from warmrank.orchestrator.seed.show import SeedLines, render_seeds

ONE, TWO = make_node(1), make_node(2)


def lines_of(*shown: list[NodeState], step_s: float = 0.0) -> list[str]:
    """What is printed where there is no terminal."""
    clock, text = Clock(), io.StringIO()
    lines = SeedLines(Console(file=text, width=120), clock=clock)
    for states in shown:
        clock.now_s += step_s
        lines.show(states)
    return text.getvalue().splitlines()


def table_of(*seeds: NodeSeed) -> list[str]:
    text = io.StringIO()
    Console(file=text, width=200).print(render_seeds(seeds))
    return text.getvalue().splitlines()


def test_nodes_of_one_address_are_told_apart_by_their_ids():
    twin, other = replace(TWO, host=ONE.host, address=ONE.address), make_node(3)
    lines = table_of(failed(ONE, "no launch"), failed(twin, "disk full"), failed(other, "gone"))
    first, second = f"host1 {ONE.node_id[:12]}", f"host1 {TWO.node_id[:12]}"
    names = (first, second, "host3")
    assert all(line.startswith(f"{name} ") for name, line in zip(names, lines[2:5], strict=True))
    assert {f"{first}: no launch", f"{second}: disk full", "host3: gone"} <= set(lines)
    (found,) = lines_of([NodeState(node=node) for node in (ONE, twin, other)])
    assert found == f"3 nodes found: {first}, {second}, host3"
