"""How the seeding of nodes is shown, and what the command ends with."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tests.support.fake_seed_cluster import Clock, make_node
from tests.support.launched import loaded_config, store_launch
from tests.support.stored import blob_path, overwrite
from warmrank.cache_store.fetching.progress import Progress
from warmrank.orchestrator.cli.main import app
from warmrank.orchestrator.seed.display import MAX_ROWS, SeedDisplay, seed_display
from warmrank.orchestrator.seed.events import Advanced, Away, Back, Began, Ended, Looked, SeedEvent
from warmrank.orchestrator.seed.outcome import NodeSeed, failed
from warmrank.orchestrator.seed.rates import SPAN_S, Rate
from warmrank.orchestrator.seed.table import render_seeds

ONE, TWO = make_node(1), make_node(2)


def state(done_bytes: int) -> Progress:
    return Progress(done_bytes=done_bytes, total_bytes=4 << 20, done_files=1, total_files=8)


def lines_of(*events: SeedEvent, clock: Clock | None = None, step_s: float = 0.0) -> list[str]:
    """What is printed where there is no terminal."""
    clock = clock or Clock()
    text = io.StringIO()
    display = SeedDisplay(Console(file=text, width=120), clock=clock)
    for event in events:
        clock.now_s += step_s
        display(event)
    return text.getvalue().splitlines()


def live(*events: SeedEvent, clock: Clock, step_s: float = 0.0) -> str:
    """What stands in the live part of a terminal."""
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, color_system=None, width=100)
    display = SeedDisplay(console, clock=clock)
    for event in events:
        clock.now_s += step_s
        display(event)
    text.truncate(0)
    text.seek(0)
    console.print(display.render())
    return text.getvalue()


def test_each_change_of_a_node_is_a_line():
    ended = NodeSeed(node=ONE, found=True, reason="", bytes_copied=2048, seconds=1.5)
    assert lines_of(
        Looked(nodes=(ONE,), joined=(ONE,)),
        Began(node=ONE, attempt=1),
        Ended(seed=ended),
        Looked(nodes=(), left=(ONE,)),
    ) == [
        "1 node found: host1",
        f"{ONE}: begun, from the store",
        f"{ONE}: seeded, 2.0 KiB copied, 1.50 s",
        f"{ONE}: left the cluster",
    ]


def test_failure_says_why_and_when_it_is_tried_again():
    (line,) = lines_of(Ended(seed=failed(ONE, "disk full"), retry_in_s=10.0))
    assert line == f"{ONE}: faults: disk full; tried again in 10 s"


def test_second_attempt_and_number_of_sources_are_named():
    (line,) = lines_of(Began(node=TWO, attempt=2, num_sources=3))
    assert line == f"{TWO}: begun, from the store and 3 other nodes, attempt 2"


def test_head_that_is_away_and_its_return_are_a_line_each():
    away, back = lines_of(Away(reason="no answer for 20 s"), Back(after_s=112.3))
    assert away == "the cluster is away, and asked again until it is back: no answer for 20 s"
    assert back == "the cluster is back after 112 s"


def test_long_seeding_says_now_and_then_how_far_it_is():
    events = [Advanced(progress={ONE.node_id: state(number << 17)}) for number in range(22)]
    lines = lines_of(Looked(nodes=(ONE, TWO)), Began(node=ONE, attempt=1), *events, step_s=1.0)
    assert len(lines) == 3
    assert lines[1] == "0 of 2 nodes seeded; 1.1 MiB of 4.0 MiB, 128.0 KiB/s"


def test_terminal_shows_a_row_for_each_running_node():
    shown = live(
        Looked(nodes=(ONE, TWO)),
        Began(node=ONE, attempt=1),
        Began(node=TWO, attempt=1),
        Advanced(progress={ONE.node_id: state(1 << 20)}),
        Advanced(progress={ONE.node_id: state(3 << 20)}),
        clock=Clock(),
        step_s=1.0,
    )
    assert "3.0 MiB of 4.0 MiB  2.0 MiB/s" in shown
    assert "starting" in shown
    assert "0 of 2 nodes seeded" in shown


def test_many_nodes_fold_into_a_number():
    nodes = tuple(make_node(number) for number in range(1, 60))
    shown = live(Looked(nodes=nodes), *(Began(node=node, attempt=1) for node in nodes), clock=Clock())
    assert shown.count("starting") == MAX_ROWS
    assert f"and {59 - MAX_ROWS} nodes more" in shown


def test_live_part_goes_away_at_the_end():
    text = io.StringIO()
    with seed_display(Console(file=text, force_terminal=True, width=100)) as tell:
        tell(Looked(nodes=(ONE,), joined=(ONE,)))
    assert "1 node found: host1" in text.getvalue()


def test_rate_is_that_of_the_last_seconds():
    rate = Rate()
    assert rate.bytes_per_s == 0.0
    for second in range(100):
        rate.note(float(second), 0 if second < 50 else (second - 50) * 1000)
    assert rate.bytes_per_s == pytest.approx(1000.0)
    assert SPAN_S < 50


def test_rate_begins_anew_with_a_new_attempt():
    rate = Rate()
    rate.note(0.0, 10_000)
    rate.note(1.0, 100)
    rate.note(2.0, 300)
    assert rate.bytes_per_s == 200.0


def test_table_says_where_the_bytes_came_from():
    seed = NodeSeed(
        node=ONE, found=True, reason="x", bytes_from_store=1024, bytes_from_nodes=2048, bytes_resumed=3
    )
    text = io.StringIO()
    Console(file=text, width=100).print(render_seeds([seed]))
    expected = (
        "read: 1.0 KiB from the store, 2.0 KiB from node to node, 3 B left by a preseed that did not end"
    )
    assert expected in text.getvalue()


def test_reason_of_many_nodes_names_a_few():
    text = io.StringIO()
    seeds = [failed(make_node(number), "no launch") for number in range(1, 30)]
    Console(file=text, width=200).print(render_seeds(seeds))
    (line,) = [line for line in text.getvalue().splitlines() if line.endswith(": no launch")]
    assert line == f"{', '.join(f'host{number}' for number in range(1, 9))} and 21 more: no launch"


def test_nodes_of_one_address_are_told_apart_by_their_ids():
    twin = replace(TWO, host=ONE.host, address=ONE.address)
    other = make_node(3)
    text = io.StringIO()
    seeds = [failed(ONE, "no launch"), failed(twin, "disk full"), failed(other, "gone")]
    Console(file=text, width=200).print(render_seeds(seeds))
    lines = text.getvalue().splitlines()
    first, second = f"host1 {ONE.node_id[:12]}", f"host1 {TWO.node_id[:12]}"
    names = (first, second, "host3")
    assert all(line.startswith(f"{name} ") for name, line in zip(names, lines[2:5], strict=True))
    assert {f"{first}: no launch", f"{second}: disk full", "host3: gone"} <= set(lines)
    nodes = (ONE, twin, other)
    assert lines_of(Looked(nodes=nodes, joined=nodes)) == [f"3 nodes found: {first}, {second}, host3"]


def command(project: Path, *options: str) -> Any:
    return CliRunner().invoke(app, ["preseed", str(project / "tiny.yaml"), *options])


def test_seeded_node_ends_with_zero(tmp_path: Path):
    store_launch(loaded_config(tmp_path), tmp_path / "work")
    done = command(tmp_path, "--here", "--json", "--limit", "1GB/s", "--verify")
    assert done.exit_code == 0
    (seed,) = json.loads(done.stdout)
    assert (seed["found"], seed["bytes_resumed"], seed["attempts"]) == (True, 0, 1)
    assert seed["bytes_from_store"] > 0


def test_launch_that_is_not_there_ends_with_three(tmp_path: Path):
    store_launch(loaded_config(tmp_path), tmp_path / "work", here={"torch": "2.12.0"})
    assert command(tmp_path, "--here").exit_code == 3


def test_fault_ends_with_four(tmp_path: Path):
    store_launch(loaded_config(tmp_path), tmp_path / "work", functions={"Llama.decode": b"right"})
    overwrite(blob_path(tmp_path / "store", b"right"), b"wrong")
    assert command(tmp_path, "--here").exit_code == 4


@pytest.mark.parametrize(
    "options",
    [
        ["--here", "--node", "one"],
        ["--here", "--watch"],
        ["--for", "3"],
        ["--until", "3"],
        ["--limit", "fast"],
        ["--fan-out", "sometimes"],
        ["--watch"],
    ],
    ids=" ".join,
)
def test_bad_options_end_with_two(tmp_path: Path, options: list[str], monkeypatch: pytest.MonkeyPatch):
    for name in ("RAY_ADDRESS", "RAY_JOB_CONFIG_JSON_ENV_VAR"):
        monkeypatch.delenv(name, raising=False)
    loaded_config(tmp_path)
    assert command(tmp_path, *options).exit_code == 2
