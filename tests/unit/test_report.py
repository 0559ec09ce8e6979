"""The report as JSON and as text."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from warmrank.cache_store.backends.tier import TierState
from warmrank.orchestrator.show.course import Course
from warmrank.orchestrator.show.report import (
    SCHEMA_VERSION,
    FunctionReport,
    RankReport,
    Report,
    StageReport,
    from_json,
    report_schema,
    to_json,
    totals,
)
from warmrank.orchestrator.show.report_table import render
from warmrank.orchestrator.show.store_report import Committed, NodeFetch, NodePublish, Nondeterministic
from warmrank.orchestrator.show.whole_file import write_whole
from warmrank.worker.results import Outcome, StageSeconds, Verification


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


def rank(number: int, *functions: FunctionReport) -> RankReport:
    return RankReport(
        rank=number,
        host="node",
        node_rank=0,
        local_rank=number,
        pid=100 + number,
        log="",
        functions=functions or (function("Model.prefill"), function("Model.decode")),
        verification=Verification(ok=True, max_error=1e-6, tolerance=1e-4, compared="logits with eager"),
    )


def report(*ranks: RankReport, **changes: Any) -> Report:
    ranks = ranks or (rank(0), rank(1))
    fetch = NodeFetch(
        node_rank=0, host="node", found=True, reason="", num_partitions=2, bytes_copied=512, seconds=0.1
    )
    committed = Committed(
        record="ef",
        publishes=(
            NodePublish(
                node_rank=0, host="node", num_partitions=1, num_blobs_new=2, bytes_new=1 << 20, num_queued=1
            ),
        ),
        nondeterministic=(Nondeterministic(function="Model.decode", ranks=(0, 1)),),
        queued_on=("node",),
    )
    whole = Report(
        schema_version=SCHEMA_VERSION,
        outcome="warm",
        exit_code=0,
        failure=None,
        course=Course(),
        name="tiny",
        launch_key="cd",
        identity={"entrypoint": "a:b"},
        environment={"python": "3.11"},
        other_environments=(),
        world_size=len(ranks),
        parallel={"tp": len(ranks), "pp": 1, "dp": 1},
        started="2026-01-31T12:00:00+00:00",
        cache_dir="/cache",
        store="/store",
        record="ef",
        tiers=(TierState(location="/store", mode="rw", state="used", reason=""),),
        ranks=ranks,
        fetches=(fetch,),
        publishes=committed.publishes,
        nondeterministic=committed.nondeterministic,
        queued_on=committed.queued_on,
        stages=(StageReport(stage="start", seconds=1.0),),
        totals=totals(ranks, (fetch,), committed, 12.0),
        problems=(),
    )
    return replace(whole, **changes)


def text_of(shown: Report, width: int = 80) -> str:
    console = Console(width=width, file=io.StringIO())
    console.print(render(shown))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_report_matches_its_schema() -> None:
    jsonschema.validate(json.loads(to_json(report())), report_schema())


def test_schema_is_itself_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(report_schema())


@pytest.mark.parametrize(
    "change",
    [{"schema_version": SCHEMA_VERSION + 1}, {"ranks": "none"}, {"totals": {}}, {"world_size": "2"}],
    ids=str,
)
def test_schema_refuses_another_document(change: dict[str, Any]) -> None:
    data = {**json.loads(to_json(report())), **change}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, report_schema())


def test_schema_has_its_version() -> None:
    assert report_schema()["properties"]["schema_version"]["const"] == SCHEMA_VERSION


finite = st.floats(0, 1e6)
outcomes = st.sampled_from(["compiled", "loaded", "adopted"])
function_reports = st.builds(
    FunctionReport,
    function=st.text(),
    outcome=outcomes,
    reason=st.text(),
    request_key=st.text(),
    digest=st.text(),
    size_bytes=st.integers(0),
    path=st.text(),
    seconds=st.builds(StageSeconds, trace_s=finite, compile_s=finite, load_s=finite),
)


@given(st.lists(function_reports), st.lists(st.text()))
def test_report_round_trips_through_json(functions: list[FunctionReport], problems: list[str]) -> None:
    written = report(rank(0, *functions), problems=tuple(problems))
    assert from_json(to_json(written)) == written


def test_totals_count_outcomes_and_each_artifact_once() -> None:
    ranks = (
        rank(0, function(outcome="compiled", digest="a"), function(outcome="loaded", digest="b")),
        rank(1, function(outcome="adopted", digest="a"), function(outcome="loaded", digest="b")),
    )
    found = totals(ranks, (), Committed(), 1.0)
    assert (found.num_compiled, found.num_loaded, found.num_adopted) == (1, 2, 1)
    assert (found.num_artifacts, found.artifact_bytes) == (2, 4096)


def test_totals_count_files_beside_artifacts_once_and_with_their_sizes() -> None:
    beside = (("c", 100), ("d", 10))
    ranks = tuple(rank(number, function(digest="a", beside=beside)) for number in range(2))
    found = totals(ranks, (), Committed(), 1.0)
    assert (found.num_artifacts, found.num_files, found.artifact_bytes) == (1, 3, 2048 + 110)
    assert "1 distinct artifact in 3 files of 2.1 KiB;" in text_of(report(*ranks, totals=found))


def test_totals_sum_seconds_over_ranks_and_functions() -> None:
    found = totals((rank(0), rank(1)), (), Committed(), 1.0).function_seconds
    assert found.load_s == pytest.approx(0.048)
    assert found.compile_s == 0


def test_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "out" / "report.json"
    write_whole(path, to_json(report(name="old")))
    write_whole(path, to_json(report(name="new")))
    assert from_json(path.read_text()).name == "new"
    assert [entry.name for entry in path.parent.iterdir()] == ["report.json"]


@pytest.mark.parametrize("width", [80, 120])
def test_table_keeps_names_and_numbers_in_one_line(width: int) -> None:
    seconds = StageSeconds(trace_s=12.3, compile_s=45.6, load_s=0.01, capture_s=1.5, first_call_s=0.2)
    shown = report(
        rank(0, function("Llama.prefill", "compiled", reason="nothing lies there", seconds=seconds))
    )
    (line,) = [line for line in text_of(shown, width).splitlines() if line.strip().startswith("0")]
    assert " ".join(line.split()) == "0 Llama.prefill compiled 12.30 s 45.60 s 10 ms 1.50 s 0.20 s"


def test_each_rank_has_its_rows() -> None:
    rows = [
        line.split()[:2] for line in text_of(report()).splitlines() if "loaded " in line and " ms" in line
    ]
    assert rows == [
        ["0", "Model.prefill"],
        ["0", "Model.decode"],
        ["1", "Model.prefill"],
        ["1", "Model.decode"],
    ]


def test_many_ranks_that_did_the_same_share_a_row_with_the_slowest_time() -> None:
    slow = function("f", digest="d", seconds=StageSeconds(load_s=3.0))
    ranks = [rank(number, function("f", digest="d")) for number in range(31)]
    text = text_of(report(*ranks, rank(31, slow)))
    assert "0-31" in text
    assert "3.00 s" in text
    assert text.count(" f ") == 1


def test_table_of_many_ranks_that_all_did_something_else_is_bounded() -> None:
    ranks = [
        rank(number, function("f", "compiled", digest=str(number), reason=str(number)))
        for number in range(500)
    ]
    lines = text_of(report(*ranks), 120).splitlines()
    assert len(lines) < 100
    assert any("and 440 rows more, in the JSON report" in line for line in lines)


def test_reason_of_a_compile_is_told_once_for_all_its_ranks() -> None:
    compiled = function(outcome="compiled", reason="torch 2.12 -> 2.13")
    text = text_of(report(rank(0, compiled), rank(1, compiled)), 200)
    assert text.count("compiled Model.decode on ranks 0-1: torch 2.12 -> 2.13") == 1


def test_worst_verification_is_shown() -> None:
    assert "logits with eager; largest difference 1e-06, allowed 0.0001" in text_of(report(), 200)


def test_launch_without_a_check_says_that_nothing_was_verified() -> None:
    unchecked = replace(rank(0), verification=None)
    assert "nothing was verified: no check" in text_of(report(unchecked), 200)


def test_nondeterministic_compiles_are_counted_and_named() -> None:
    assert "nondeterministic compiles: 1: Model.decode (ranks 0-1)" in text_of(report(), 200)


def test_what_waits_is_the_last_line_with_hosts_in_order_and_the_command() -> None:
    text = text_of(report(queued_on=("b", "c", "a")), 200)
    assert text.splitlines()[-1] == (
        "queued for the store: 1 partition. When it answers again, run on b, c, and then on a: "
        "warmrank publish CONFIG --set cache_dir=/cache"
    )


def test_cache_directory_of_the_command_is_quoted_for_the_shell() -> None:
    text = text_of(report(cache_dir="/my cache"), 200)
    assert text.rstrip().endswith("warmrank publish CONFIG --set 'cache_dir=/my cache'")


def test_many_hosts_with_something_waiting_are_not_all_named() -> None:
    text = text_of(report(queued_on=tuple(f"h{number}" for number in range(100))), 400)
    assert "h7, 91 more hosts, and then on h99" in text


def test_nothing_is_said_of_a_queue_that_is_empty() -> None:
    assert "queued" not in text_of(report(queued_on=()), 200)


def test_several_places_of_the_store_are_shown_with_their_state() -> None:
    tiers = (
        TierState(location="/near", mode="rw", state="used"),
        TierState(location="s3://far", mode="required", state="away", reason="no answer"),
    )
    assert "store: /near (rw), s3://far (required, away)" in text_of(report(tiers=tiers), 200)


def test_several_nodes_are_shown_with_what_they_moved() -> None:
    other = replace(rank(1), node_rank=1, host="other")
    text = text_of(report(rank(0), other), 200)
    assert "node 0 (node): 512 B fetched, 1.0 MiB published" in text
    assert "node 1" not in text


def test_totals_say_what_was_fetched_and_published() -> None:
    assert "512 B fetched, 1.0 MiB published" in text_of(report(), 200)


def test_problems_are_shown() -> None:
    assert "problem: the store was away" in text_of(report(problems=("the store was away",)))
