"""The files that a launch leaves, and the command that makes them again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support.made_reports import made_report
from warmrank.orchestrator.cli.main import app
from warmrank.orchestrator.errors import BadArgument
from warmrank.orchestrator.launch.report import read_report, to_json
from warmrank.orchestrator.ui.outputs import STDOUT, Outputs


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
