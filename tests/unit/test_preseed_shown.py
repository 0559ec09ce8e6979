"""How the seeding of nodes is shown."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from tests.support.ray_cluster import Clock, make_node, seeded
from warmrank.cache_store.progress import Progress
from warmrank.orchestrator.nodes import Node
from warmrank.orchestrator.seed.here import NodeSeed, failed
from warmrank.orchestrator.seed.seeding import NodeState
from warmrank.orchestrator.seed.show import SeedLines, render_seeds, seed_lines

ONE, TWO = make_node(1), make_node(2)


def running(node: Node, done_bytes: int | None = None) -> NodeState:
    progress = Progress(done_bytes=done_bytes or 0, total_bytes=4 << 20, done_files=1, total_files=8)
    return NodeState(
        node=node, phase="running", attempts=1, progress=None if done_bytes is None else progress
    )


def lines_of(*shown: list[NodeState], step_s: float = 0.0) -> list[str]:
    """What is printed where there is no terminal."""
    clock, text = Clock(), io.StringIO()
    lines = SeedLines(Console(file=text, width=120), clock=clock)
    for states in shown:
        clock.now_s += step_s
        lines.show(states)
    return text.getvalue().splitlines()


def test_each_change_of_a_node_is_a_line():
    state = running(ONE)
    ended = replace(seeded(ONE), bytes_copied=2048, seconds=1.5)
    assert lines_of(
        [NodeState(node=ONE)], [state], [state], [replace(state, phase="ended", seed=ended)], []
    ) == [
        "1 node found: host1",
        f"{ONE}: begun, from the store",
        f"{ONE}: seeded, 2.0 KiB copied, 1.50 s",
        f"{ONE}: left the cluster",
    ]


def test_long_seeding_says_now_and_then_how_far_it_is():
    lines = lines_of(*([running(ONE, number << 17), NodeState(node=TWO)] for number in range(22)), step_s=1.0)
    assert len(lines) == 4
    assert lines[2] == "0 of 2 nodes seeded; 1.2 MiB of 4.0 MiB"


def test_terminal_shows_how_far_all_are():
    text = io.StringIO()
    told: list[str] = []
    lines = SeedLines(Console(file=text), status=told.append)
    lines.show([running(ONE, 1 << 20), replace(running(TWO), phase="ended", seed=failed(TWO, "x"))])
    assert told == ["0 of 2 nodes seeded; 1 with faults; 1.0 MiB of 4.0 MiB"]
    with seed_lines(Console(file=text, force_terminal=True, width=100)) as live:
        live.show([NodeState(node=ONE)])
    assert "1 node found: host1" in text.getvalue()


def test_each_outcome_is_told_once():
    ended: list[NodeSeed] = []
    lines = SeedLines(Console(file=io.StringIO()), ended=ended.append)
    state = replace(running(ONE), phase="waiting", seed=failed(ONE, "disk full"))
    again = replace(state, attempts=2, seed=replace(failed(ONE, "disk full"), attempts=2))
    for shown in (state, state, again, again):
        lines.show([shown])
    assert [seed.attempts for seed in ended] == [1, 2]
    assert lines.outcomes() == (again.seed,)


def table_of(*seeds: NodeSeed) -> list[str]:
    text = io.StringIO()
    Console(file=text, width=200).print(render_seeds(seeds))
    return text.getvalue().splitlines()


def test_table_says_where_the_bytes_came_from():
    seed = seeded(ONE, from_store=1024, from_nodes=2048)
    assert "read: 1.0 KiB from the store, 2.0 KiB from node to node" in table_of(seed)


def test_nodes_of_one_address_are_told_apart_by_their_ids():
    twin, other = replace(TWO, host=ONE.host, address=ONE.address), make_node(3)
    lines = table_of(failed(ONE, "no launch"), failed(twin, "disk full"), failed(other, "gone"))
    first, second = f"host1 {ONE.node_id[:12]}", f"host1 {TWO.node_id[:12]}"
    names = (first, second, "host3")
    assert all(line.startswith(f"{name} ") for name, line in zip(names, lines[2:5], strict=True))
    assert {f"{first}: no launch", f"{second}: disk full", "host3: gone"} <= set(lines)
    (found,) = lines_of([NodeState(node=node) for node in (ONE, twin, other)])
    assert found == f"3 nodes found: {first}, {second}, host3"
