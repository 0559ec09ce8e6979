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

from tests.support.command_line import run
from tests.support.made_reports import MIB, faults_of, made_report, whole
from warmrank.cache_store.backends.deadline import TierState
from warmrank.cache_store.records.manifest import RankEnvironment
from warmrank.orchestrator.errors import BadArgument
from warmrank.orchestrator.launch.events import AuditReport, LaunchState, Timeline
from warmrank.orchestrator.launch.report import (
    Nondeterministic,
    Report,
    from_json,
    report_schema,
    to_json,
    totals,
)
from warmrank.orchestrator.ui.outputs import STDOUT, Outputs, RayMetrics, exposition, trace_json
from warmrank.orchestrator.ui.page import next_steps, render_html
from warmrank.orchestrator.ui.report_table import render
from warmrank.worker.results import Outcome


@pytest.mark.parametrize("made", [made_report(2), made_report(16), made_report(16, failed=True)])
def test_report_matches_its_schema_and_comes_back(made: Report) -> None:
    jsonschema.validate(json.loads(to_json(made)), report_schema())
    assert from_json(to_json(made)) == made


def test_totals_count_outcomes_and_each_file_once_and_sum_seconds() -> None:
    made = made_report(2)
    outcomes: tuple[Outcome, ...] = ("adopted", "loaded")
    beside = (("c", 100), ("d", 10))
    ranks = tuple(
        replace(
            rank,
            functions=tuple(
                replace(each, digest=each.function, outcome=outcome, beside=beside)
                for each, outcome in zip(rank.functions, outcomes, strict=True)
            ),
        )
        for rank in made.ranks
    )
    found = totals(ranks, wall_s=1.0)
    assert (found.num_compiled, found.num_loaded, found.num_adopted) == (0, 2, 2)
    assert (found.num_artifacts, found.num_files, found.artifact_bytes) == (2, 4, 2 * 3 * MIB + 110)
    assert found.function_seconds.trace_s == pytest.approx(4 * 4.1)
    console = Console(width=80, file=io.StringIO())
    console.print(render(replace(made, ranks=ranks, totals=found)))
    assert "2 distinct artifacts in 4 files of 6.0 MiB;" in console.file.getvalue()  # type: ignore[attr-defined]


class Page(HTMLParser):
    """Counts what a page is made of, and checks that every element is closed where it should be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, name: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(name)
        self.attributes += [(key, str(value)) for key, value in attrs]
        if name not in {"meta", "input", "br"}:
            self.open.append(name)

    def handle_endtag(self, name: str) -> None:
        assert self.open.pop() == name

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.words.append(data)


@pytest.mark.parametrize(
    ("failed", "said"),
    [
        (
            False,
            (
                "All 1,024 ranks are warm after 34.7 s: 8 compiled, 2,040 adopted.",
                "The next launch loads what was compiled now (8 functions)",
                "torch 2.13.0 -> 2.13.1; source of model.py:Block.forward changed",
                "held by ranks 256 times",
            ),
        ),
        (
            True,
            (
                "Failed after 40.5 s in stage compile: node lost on ranks 0-7 (node-0).",
                "Remedy: look whether node-0 is up and reachable, and launch again",
                "rank 1023 had not answered when the launch was stopped.",
                "node node-0 was lost",
            ),
        ),
    ],
)
def test_page_says_what_was_done_or_why_not_and_needs_no_network(failed: bool, said: tuple[str, ...]) -> None:
    html = render_html(made_report(1024, failed=failed))
    page = Page(html)
    assert [text for text in said if text not in page.text] == []
    assert "build 5.20 s, from 3.90 s on; first of 8 after" in html
    assert not {"link", "img", "iframe", "object", "base", "form"} & page.tags
    links = {value for key, value in page.attributes if key in {"src", "href", "action"}}
    ids = [f"#{value}" for key, value in page.attributes if key == "id"]
    assert links
    assert links <= set(ids)
    assert len(ids) == len(set(ids))
    (policy,) = (value for _, value in page.attributes if "default-src" in value)
    script = r"script-src 'sha256-[A-Za-z0-9+/]{43}='"
    assert re.fullmatch(rf"default-src 'none'; style-src 'unsafe-inline'; {script}", policy)


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
    html = render_html(hostile)
    page = Page(html)
    assert html.count("<script") == 1
    assert not {"img", "iframe", "svg"} & page.tags
    assert not [key for key, _ in page.attributes if key.startswith("on")]
    assert all(char.isprintable() or char.isspace() for char in page.text)


@pytest.mark.parametrize(
    "report",
    [
        made_report(32),
        made_report(32, failed=True),
        replace(made_report(8, failed=True), ranks=()),
        replace(made_report(2, failed=True), timeline=Timeline(), ranks=()),
    ],
    ids=["warm", "failed", "no rank had a place", "no stage began"],
)
def test_trace_has_every_stage_and_can_be_shown(report: Report) -> None:
    attempts = tuple(
        replace(each, error='GraphBreak: "\u00e9\u6f22\x1b[0m\n\\') for each in report.timeline.attempts
    )
    odd = replace(report, name='caf\u00e9 "\\', timeline=replace(report.timeline, attempts=attempts))
    text = trace_json(odd)
    assert faults_of(text) == []
    assert "caf\u00e9" in text
    slices = {event["name"] for event in json.loads(text)["traceEvents"] if event["ph"] == "X"}
    assert {span.stage for span in report.timeline.spans} <= slices


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
def test_metrics_say_what_the_report_says(failed: bool, expected: dict[tuple[str, ...], float]) -> None:
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


OTHERS = RankEnvironment(ranks=tuple(range(8, 16)), environment={"torch": "2.12.0"})
AUDIT = AuditReport(
    round=0, function="f", leader=0, ranks=(1,), outcome="differs", difference="a / b", seconds=0.1, cpu_s=0.1
)
AWAY = TierState(location="s3://bucket", mode="rw", state="away", reason="no answer in 5 s")
TWICE = Nondeterministic(function="f", ranks=(0, 1))


@pytest.mark.parametrize(
    ("report", "level", "title", "text"),
    [
        (calm(), "good", "Nothing was compiled", "--no-compile"),
        (calm(queued_on=("n1", "n2")), "do", "Not published yet: 3 partitions", "on n1, and then on n2"),
        (
            replace(calm(queued_on=("n1",)), totals=made_report(2).totals),
            "do",
            "Not published yet: the launch record",
            "on n1",
        ),
        (calm(tiers=(AWAY,)), "look", "place s3://bucket was away", "no answer in 5 s"),
        (calm(other_environments=(OTHERS,)), "look", "Nodes differ", "ranks 8-15: "),
        (calm(unsigned="no key is set"), "do", "not signed", "no key is set"),
        (calm(nondeterministic=(TWICE,)), "look", "not deterministic", "f (ranks 0-1)"),
        (
            calm(timeline=Timeline(audits=(AUDIT,))),
            "do",
            "Traces differ",
            "f audited on rank 1 beside rank 0: differs",
        ),
        (
            made_report(8),
            "good",
            "The next launch loads what was compiled now",
            "Llama.prefill, Llama.decode: t",
        ),
        (replace(made_report(8), record=""), "look", "Why 8 functions had to be compiled", "torch"),
        (replace(made_report(8), store="", record=""), "look", "kept on these nodes only", "`store:` in"),
        (made_report(8, failed=True), "do", "node lost on ranks 0-7", "rank-0.log of rank 0 on node-0"),
    ],
)
def test_step_follows_from_a_field_of_the_report(report: Report, level: str, title: str, text: str) -> None:
    (step,) = [step for step in next_steps(report) if title in step.title]
    assert step.level == level
    assert text in step.text


def test_report_command_makes_page_trace_and_metrics(tmp_path: Path) -> None:
    written = tmp_path / "report.json"
    outputs = Outputs(json=written)
    outputs.prepare()
    outputs.write(made_report(8, failed=True))
    html, trace, prom = tmp_path / "new" / "r.html", tmp_path / "t.json", tmp_path / "m.prom"
    done = run("report", written, "-o", html, "--trace", trace, "--metrics", prom)
    assert done.exit_code == 0
    assert done.output.splitlines() == [f"report: {html}", f"trace: {trace}", f"metrics: {prom}"]
    assert html.read_text().startswith("<!DOCTYPE html>")
    assert json.loads(trace.read_text())["traceEvents"]
    assert prom.read_text().startswith("# HELP warmrank_")
    assert not list(tmp_path.rglob("*.tmp"))


def test_older_files_do_not_stand_for_a_launch_that_is_killed(tmp_path: Path) -> None:
    html, metrics = tmp_path / "report.html", tmp_path / "last.prom"
    html.write_text(old := '<meta name="generator" content="warmrank">')
    metrics.write_text(last := "# HELP warmrank_launch_warm of the last launch")
    outputs = Outputs(json=STDOUT, html=html, metrics=metrics)
    outputs.prepare()
    assert not html.exists()
    assert metrics.read_text() == last
    assert [path for _, path in outputs.write(made_report(2))] == [html, metrics]  # stdout is the caller's
    html.write_text(old)
    with pytest.raises(BadArgument, match="--json and --report: expected a file for each"):
        Outputs(json=html, html=tmp_path / "new" / ".." / "report.html").prepare()
    assert html.read_text() == old


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
    done = run("report", path)
    assert done.exit_code == 2
    assert "the report cannot be used" in done.output
    assert found in done.output
