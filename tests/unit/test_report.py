"""Reports: totals, tables, page, trace, metrics, advice."""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from typer.testing import CliRunner

from tests.support.made_reports import MIB, faults_of, made_report, whole
from warmrank.cache_store.backends.deadline import TierState
from warmrank.cache_store.records.manifest import RankEnvironment
from warmrank.orchestrator.cli.main import app
from warmrank.orchestrator.errors import BadArgument
from warmrank.orchestrator.launch.events import AuditReport, Course, LaunchState
from warmrank.orchestrator.launch.report import (
    Committed,
    FunctionReport,
    Nondeterministic,
    RankReport,
    Report,
    from_json,
    read_report,
    report_schema,
    to_json,
    totals,
)
from warmrank.orchestrator.nodes import Node
from warmrank.orchestrator.seed.seeding import NodeSeed
from warmrank.orchestrator.ui.advice import Step, next_steps
from warmrank.orchestrator.ui.outputs import STDOUT, Outputs, RayMetrics, exposition, trace_json
from warmrank.orchestrator.ui.page import render_html
from warmrank.orchestrator.ui.report_table import render
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


def node(host: str, **changes: object) -> NodeSeed:
    values: dict[str, object] = {"found": True, "reason": "launch ab", "num_partitions": 2, **changes}
    return NodeSeed(node=Node(node_id="", address="10.0.0.1", host=host), **values)  # type: ignore[arg-type]


class Page(HTMLParser):
    """Counts what a page is made of, and checks that every element is closed where it should be."""

    void = frozenset({"meta", "input", "br"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: dict[str, int] = {}
        self.attributes: list[tuple[str, str, str | None]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, name: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[name] = self.tags.get(name, 0) + 1
        self.attributes += [(name, key, value) for key, value in attrs]
        if name not in self.void:
            self.open.append(name)

    def handle_endtag(self, name: str) -> None:
        assert self.open.pop() == name

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def test_page_of_a_warm_launch_says_what_was_done_and_what_is_next() -> None:
    html = render_html(made_report(1024))
    text = Page(html).text
    assert "All 1,024 ranks are warm after 34.7 s: 8 compiled, 2,040 adopted." in text
    assert "The next launch loads what was compiled now (8 functions)" in text
    assert "torch 2.13.0 -> 2.13.1; source of model.py:Block.forward changed" in text
    assert "held by ranks 256 times" in text
    assert "build 5.20 s, from 3.90 s on; first of 8 after" in html


def test_page_of_a_failed_launch_says_why_and_how_to_mend_it() -> None:
    text = Page(render_html(made_report(1024, failed=True))).text
    assert "Failed after 40.5 s in stage compile: node lost on ranks 0-7 (node-0)." in text
    assert "Remedy: look whether node-0 is up and reachable, and launch again" in text
    assert "rank 1023 had not answered when the launch was stopped." in text
    assert "node node-0 was lost" in text


@pytest.mark.parametrize("failed", [False, True])
def test_page_needs_no_network_and_its_links_lead_to_its_sections(failed: bool) -> None:
    page = Page(render_html(made_report(8, failed=failed)))
    assert not {"link", "img", "iframe", "object", "base", "form"} & page.tags.keys()
    links = {str(value) for _, key, value in page.attributes if key in {"src", "href", "action"}}
    ids = [f"#{value}" for _, key, value in page.attributes if key == "id"]
    assert links
    assert links <= set(ids)
    assert len(ids) == len(set(ids))
    (policy,) = (str(value) for _, key, value in page.attributes if "default-src" in str(value))
    assert re.fullmatch(
        r"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-[A-Za-z0-9+/]{43}='", policy
    )


CHOSEN = {"outcome", "action", "mode", "state"}
"""Keys of a report whose texts are ours."""


def spoilt(value: Any, text: str) -> Any:
    """A report's JSON with this text in place of every text that comes from elsewhere."""
    if isinstance(value, dict):
        return {key: each if key in CHOSEN else spoilt(each, text) for key, each in value.items()}
    if isinstance(value, list):
        return [spoilt(each, text) for each in value]
    return text if isinstance(value, str) else value


@settings(deadline=None, max_examples=10)
@example("</script><img src=x onerror=alert(1)>", True)
@example('"\' onload="x\0\u202e', False)
@given(st.text() | st.text(alphabet="<>\"'&/= abonscript\n\0\u202e"), st.booleans())
def test_no_text_of_a_report_becomes_markup(text: str, failed: bool) -> None:
    data = spoilt(json.loads(to_json(made_report(2, failed=failed))), text)
    hostile = from_json(json.dumps({**data, "identity": {text: text}, "parallel": {text: 2}}))
    page = Page(render_html(hostile))
    assert page.tags["script"] == 1
    assert not {"img", "iframe", "svg"} & page.tags.keys()
    assert not [key for _, key, _ in page.attributes if key.startswith("on")]
    assert all(char.isprintable() or char.isspace() for char in page.text)


@pytest.mark.parametrize(
    "report",
    [
        made_report(32),
        made_report(32, failed=True),
        replace(made_report(8, failed=True), ranks=()),
        replace(made_report(2, failed=True), course=Course(), ranks=()),
    ],
    ids=["warm", "failed", "no rank had a place", "no stage began"],
)
def test_report_is_shown_whole(report: Report) -> None:
    attempts = tuple(
        replace(each, error='GraphBreak: "\u00e9\u6f22\x1b[0m\n\\') for each in report.course.attempts
    )
    odd = replace(report, name='caf\u00e9 "\\', course=replace(report.course, attempts=attempts))
    text = trace_json(odd)
    assert faults_of(text) == []
    assert "caf\u00e9" in text
    slices = {event["name"] for event in json.loads(text)["traceEvents"] if event["ph"] == "X"}
    assert {span.stage for span in report.course.timeline} <= slices


@pytest.mark.parametrize(
    ("failed", "expected"),
    [
        (
            False,
            {
                ("launch_warm",): 1,
                ("ranks",): 1024,
                ("nodes",): 128,
                ("functions", "outcome", "compiled"): 8,
                ("functions", "outcome", "adopted"): 2040,
                ("artifact_bytes",): 8 * 3 * MIB,
                ("held_bytes",): 2048 * 3 * MIB,
                ("stage_seconds", "stage", "build"): 5.2,
                ("function_seconds", "step", "compile"): 8 * 7.9,
            },
        ),
        (
            True,
            {
                ("launch_warm",): 0,
                ("launch_exit_code",): 1,
                ("launch_attempts",): 2,
                ("failed_attempts",): 2,
                ("failed_ranks", "kind", "node lost"): 8,
            },
        ),
    ],
)
def test_text_says_what_the_report_says(failed: bool, expected: dict[tuple[str, ...], float]) -> None:
    found = {
        (family.name.removeprefix("warmrank_"), *(word for pair in labels for word in pair)): sample.value
        for family in text_string_to_metric_families(exposition(made_report(1024, failed=failed)))
        for sample in family.samples
        for labels in [[pair for pair in sample.labels.items() if pair != ("launch", "llama-70b")]]
    }
    assert {key: found[key] for key in expected} == pytest.approx(expected)


def test_without_ray_nothing_is_set_and_ray_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    listener, state = RayMetrics("tiny"), LaunchState(num_ranks=4)
    for event in whole(4):
        state.apply(event)
        listener(state, event)
    assert "ray" not in sys.modules


def calm(**changes: object) -> Report:
    """A warm launch of two ranks that compiled nothing, about which there is nothing to say."""
    report = made_report(2)
    ranks = tuple(
        replace(rank, functions=tuple(replace(each, outcome="loaded") for each in rank.functions))
        for rank in report.ranks
    )
    loaded = replace(report.totals, num_compiled=0, num_loaded=4, num_queued=3)
    return replace(report, ranks=ranks, totals=loaded, **changes)  # type: ignore[arg-type]


def step_of(report: Report, part: str) -> Step:
    (found,) = [step for step in next_steps(report) if part in step.title]
    return found


OTHERS = RankEnvironment(ranks=tuple(range(8, 16)), environment={"torch": "2.12.0"})
AUDIT = AuditReport(
    round=0, function="f", leader=0, ranks=(1,), outcome="differs", difference="a / b", seconds=0.1, cpu_s=0.1
)
AWAY = TierState(location="s3://bucket", mode="rw", state="away", reason="no answer in 5 s")


@pytest.mark.parametrize(
    ("report", "level", "title", "text"),
    [
        (calm(), "good", "Nothing was compiled", "--no-compile"),
        (calm(tiers=(AWAY,)), "look", "place s3://bucket was away", "no answer in 5 s"),
        (calm(other_environments=(OTHERS,)), "look", "Nodes differ", "ranks 8-15: "),
        (calm(unsigned="no key is set"), "do", "not signed", "no key is set"),
        (
            calm(nondeterministic=(Nondeterministic(function="f", ranks=(0, 1)),)),
            "look",
            "not deterministic",
            "f (ranks 0-1)",
        ),
        (calm(course=Course(audits=(AUDIT,))), "do", "Traces differ", "f on rank 1, unlike rank 0: a / b"),
        (
            made_report(8),
            "good",
            "The next launch loads what was compiled now (8 functions)",
            "Llama.prefill, Llama.decode: torch 2.13.0 -> 2.13.1",
        ),
        (replace(made_report(8), record=""), "look", "Why 8 functions had to be compiled", "torch"),
        (replace(made_report(8), store="", record=""), "look", "kept on these nodes only", "`store:` in"),
    ],
)
def test_step_follows_from_a_field_of_the_report(report: Report, level: str, title: str, text: str) -> None:
    step = step_of(report, title)
    assert step.level == level
    assert text in step.text


@pytest.fixture
def report_file(tmp_path: Path) -> Path:
    path = tmp_path / "report.json"
    path.write_text(to_json(made_report(8, failed=True)))
    return path


def run(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["report", *map(str, arguments)], env={"COLUMNS": "200"})
    return result.exit_code, result.output


def test_every_file_that_is_asked_for_is_written_whole(tmp_path: Path) -> None:
    outputs = Outputs(
        json=tmp_path / "a.json",
        html=tmp_path / "new" / "b.html",
        trace=tmp_path / "c.json",
        metrics=tmp_path / "d.prom",
    )
    outputs.prepare()
    written = outputs.write(made_report(2))
    assert [what for what, _ in written] == ["report", "report", "trace", "metrics"]
    assert (tmp_path / "new" / "b.html").read_text().startswith("<!DOCTYPE html>")
    assert json.loads((tmp_path / "c.json").read_text())["traceEvents"]
    assert (tmp_path / "d.prom").read_text().startswith("# HELP warmrank_")
    assert read_report(tmp_path / "a.json") == made_report(2)
    assert not list(tmp_path.rglob("*.tmp"))


def test_older_files_do_not_stand_for_a_launch_that_is_killed(tmp_path: Path) -> None:
    html, metrics = tmp_path / "report.html", tmp_path / "last.prom"
    html.write_text("old")
    metrics.write_text("of the last launch")
    outputs = Outputs(json=STDOUT, html=html, metrics=metrics)
    outputs.prepare()
    assert not html.exists()
    assert metrics.read_text() == "of the last launch"
    assert [path for _, path in outputs.write(made_report(2))] == [html, metrics]  # stdout is the caller's


def test_two_outputs_in_one_file_are_refused_before_anything_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "report"
    path.write_text("old")
    with pytest.raises(BadArgument, match="--json and --report: expected a file for each"):
        Outputs(json=path, html=tmp_path / "new" / ".." / "report").prepare()
    assert path.read_text() == "old"


def test_report_command_makes_page_trace_and_metrics(tmp_path: Path, report_file: Path) -> None:
    html, trace, prom = tmp_path / "r.html", tmp_path / "t.json", tmp_path / "m.prom"
    code, output = run(report_file, "-o", html, "--trace", trace, "--metrics", prom)
    assert code == 0
    assert output.splitlines() == [f"report: {html}", f"trace: {trace}", f"metrics: {prom}"]
    assert "node lost" in html.read_text()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("{", "Invalid JSON"),
        ("{}", "Field required at schema_version"),
        (b"\xff\xfe", "no text"),
        (to_json(replace(made_report(2), schema_version=99)), "schema version 99"),
        (None, "No such file"),
    ],
)
def test_file_that_is_no_report_is_bad_input(tmp_path: Path, text: str | bytes | None, found: str) -> None:
    path = tmp_path / "report.json"
    if text is not None:
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    code, output = run(path)
    assert code == 2
    assert "the report cannot be used" in output
    assert found in output
