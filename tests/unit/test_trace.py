"""The timeline as a trace: whether Perfetto shows all of it, and what the events say."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.support.made_reports import faults_of, made_report
from warmrank.orchestrator.launch.report import Report
from warmrank.orchestrator.launch.state import Course
from warmrank.orchestrator.ui.outputs import trace_json


def events_of(num_ranks: int, *, failed: bool = False) -> list[dict[str, Any]]:
    text = trace_json(made_report(num_ranks, failed=failed))
    assert faults_of(text) == []
    events: list[dict[str, Any]] = json.loads(text)["traceEvents"]
    return events


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


def change(events: list[dict[str, Any]], phase: str, **values: Any) -> None:
    next(event for event in events if event["ph"] == phase).update(values)


def shorten(events: list[dict[str, Any]]) -> None:
    """A stage ends before a function inside it."""
    next(event for event in events if (event["name"], event["tid"]) == ("compile", 2))["dur"] = 1


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda events: change(events, "X", dur=-1), "dur is no number"),
        (lambda events: change(events, "X", tid=99), "thread_name stands for"),
        (lambda events: events.append(dict(reversed(events[0].items()))), "do not come first"),
        (shorten, "outlasts what is open"),
    ],
)
def test_faults_of_traces_are_found(spoil: Callable[[list[dict[str, Any]]], None], fault: str) -> None:
    events = events_of(8)
    spoil(events)
    assert fault in "; ".join(faults_of(json.dumps({"traceEvents": events})))


def test_processes_are_nodes_threads_are_ranks_and_stages_stand_for_each() -> None:
    events = events_of(16)
    names = {
        (event["name"], event["pid"], event["tid"]): event["args"].get("name")
        for event in events
        if event["ph"] == "M"
    }
    assert names["process_name", 3, 10] == "node 1: node-1"
    assert names["thread_name", 3, 11] == "rank 9"
    assert names["process_name", 1, 1] == "llama-70b (driver)"
    builds = [event for event in events if event["name"] == "build"]
    assert len(builds) == 17
    driver = next(event for event in builds if event["pid"] == 1)
    assert (driver["ts"], driver["dur"]) == (3_900_000, 5_200_000)
