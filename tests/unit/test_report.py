"""The report as JSON and as text."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from rich.console import Console, RenderableType

from tests.support.launching import loaded_config, store_launch
from tests.support.made_reports import made_report
from tests.support.stored import open_store
from warmrank.cache_store.backends.places import TierState
from warmrank.orchestrator.config.reading import Config
from warmrank.orchestrator.launch.report import (
    Committed,
    FunctionReport,
    Nondeterministic,
    RankReport,
    Report,
    from_json,
    report_schema,
    to_json,
    totals,
)
from warmrank.orchestrator.look.store_contents import list_store
from warmrank.orchestrator.nodes import Node
from warmrank.orchestrator.seed.here import NodeSeed
from warmrank.orchestrator.ui.report_table import render
from warmrank.orchestrator.ui.table import render_listing
from warmrank.worker.results import Outcome, StageSeconds


def function(name: str = "Model.decode", outcome: Outcome = "loaded", **changes: Any) -> FunctionReport:
    values: dict[str, Any] = {
        "reason": "",
        "request_key": "ab",
        "digest": name * 2,
        "size_bytes": 2048,
        "path": "/cache/decode/compiled_module",
        "seconds": StageSeconds(load_s=0.012),
        **changes,
    }
    return FunctionReport(function=name, outcome=outcome, **values)


def rank(number: int, *functions: FunctionReport, node: int = 0) -> RankReport:
    (made, _) = made_report(2).ranks
    return replace(
        made, rank=number, host=f"node-{node}", node_rank=node, functions=functions or (function(),)
    )


def report(*ranks: RankReport, **changes: Any) -> Report:
    """A warm launch whose store was away at the end: something waits, and something is nondeterministic."""
    ranks = ranks or (rank(0), rank(1))
    made = made_report(2)
    committed = Committed(
        publishes=tuple(replace(node, bytes_new=1 << 20, num_queued=1) for node in made.publishes),
        nondeterministic=(Nondeterministic(function="Model.decode", ranks=(0, 1)),),
    )
    whole = replace(
        made,
        ranks=ranks,
        world_size=len(ranks),
        publishes=committed.publishes,
        nondeterministic=committed.nondeterministic,
        queued_on=("node-0",),
        cache_dir="/cache",
        totals=totals(ranks, made.fetches, committed, 12.0),
        problems=(),
    )
    return replace(whole, **changes)


def text_of(shown: Report, width: int = 80) -> str:
    console = Console(width=width, file=io.StringIO())
    console.print(render(shown))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("made", [report(), made_report(16), made_report(16, failed=True)])
def test_report_matches_its_schema_and_comes_back(made: Report) -> None:
    jsonschema.validate(json.loads(to_json(made)), report_schema())
    assert from_json(to_json(made)) == made


def test_totals_count_outcomes_and_each_file_once_and_sum_seconds() -> None:
    beside = (("c", 100), ("d", 10))
    ranks = (
        rank(0, function(outcome="compiled", digest="a"), function(digest="b", beside=beside)),
        rank(1, function(outcome="adopted", digest="a"), function(digest="b", beside=beside)),
    )
    found = totals(ranks, (), Committed(), 1.0)
    assert (found.num_compiled, found.num_loaded, found.num_adopted) == (1, 2, 1)
    assert (found.num_artifacts, found.num_files, found.artifact_bytes) == (2, 4, 2 * 2048 + 110)
    assert found.function_seconds.load_s == pytest.approx(0.048)
    assert "2 distinct artifacts in 4 files of 4.1 KiB;" in text_of(report(*ranks, totals=found))


def test_table_of_many_ranks_that_all_did_something_else_is_bounded() -> None:
    ranks = [
        rank(number, function("f", "compiled", digest=str(number), reason=str(number)))
        for number in range(500)
    ]
    lines = text_of(report(*ranks), 120).splitlines()
    assert len(lines) < 100
    assert any("and 440 rows more, in the JSON report" in line for line in lines)


COMPILED = function(outcome="compiled", reason="torch 2.12 -> 2.13")
TIERS = (
    TierState(location="/near", mode="rw", state="used"),
    TierState(location="s3://far", mode="required", state="away", reason="no answer"),
)
HOSTS = tuple(f"h{number}" for number in range(100))


@pytest.mark.parametrize(
    ("shown", "line"),
    [
        (
            report(rank(0, COMPILED), rank(1, COMPILED)),
            "compiled Model.decode on ranks 0-1: torch 2.12 -> 2.13",
        ),
        (report(), "logits with eager; largest difference 1e-06, allowed 0.0001"),
        (report(replace(rank(0), verification=None)), "nothing was verified: no check"),
        (report(), "nondeterministic compiles: 1: Model.decode (ranks 0-1)"),
        (report(problems=("the store was away",)), "problem: the store was away"),
        (report(tiers=TIERS), "store: /near (rw), s3://far (required, away)"),
        (report(rank(0), rank(1, node=1)), "node 0 (node-0): 0 B fetched, 1.0 MiB published"),
        (
            report(queued_on=("b", "c", "a"), cache_dir="/my cache"),
            "run on b, c, and then on a: warmrank store publish CONFIG --set 'cache_dir=/my cache'",
        ),
        (
            report(queued_on=HOSTS),
            "run on h0, h1, h2, h3 and 95 more, and then on h99: warmrank store publish",
        ),
    ],
)
def test_lines_below_the_table_say(shown: Report, line: str) -> None:
    assert text_of(shown, 400).count(line) == 1


def text_of_table(renderable: RenderableType, width: int = 100) -> str:
    file = StringIO()
    Console(file=file, width=width).print(renderable)
    return file.getvalue()


def node(host: str, **changes: object) -> NodeSeed:
    values: dict[str, object] = {"found": True, "reason": "launch ab", "num_partitions": 2, **changes}
    return NodeSeed(node=Node(node_id="", address="10.0.0.1", host=host), **values)  # type: ignore[arg-type]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    config = loaded_config(tmp_path)
    store_launch(config, tmp_path / "work")
    return config


def test_listing_marks_pins_and_names_the_day_of_the_last_use(config: Config, tmp_path: Path):
    store = open_store(tmp_path / "store")
    (stored,) = store.stored_launches()
    assert "12:00 UTC  -  " in text_of_table(render_listing(list_store(store)))
    store.pin(stored.record.launch_key)
    store.mark_used(stored.name)
    text = text_of_table(render_listing(list_store(store, config)))
    (used,) = store.last_uses().values()
    assert f"12:00 UTC  {used.date().isoformat()}  " in text
    assert text.splitlines()[3].startswith("*P ")
    assert "P pinned: no evict takes it" in text
