"""The timeline as a trace: whether Perfetto shows all of it, and what the events say."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_rank import FUNCTIONS, FakeWorld
from tests.support.made_reports import made_report
from tests.support.node_launcher import NodeLauncher
from tests.support.trace_rules import faults_of
from warmrank.orchestrator.causes import DIED, WorkerFailure
from warmrank.orchestrator.config.reading import parse
from warmrank.orchestrator.errors import CannotStart, LaunchFailed
from warmrank.orchestrator.launch.driver import Launch
from warmrank.orchestrator.launch.report import Report
from warmrank.orchestrator.seats import Gang
from warmrank.orchestrator.ui.trace import trace_json


def events_of(num_ranks: int, *, failed: bool = False) -> list[dict[str, Any]]:
    text = trace_json(made_report(num_ranks, failed=failed))
    assert faults_of(text) == []
    events: list[dict[str, Any]] = json.loads(text)["traceEvents"]
    return events


def launched(root: Path, launcher: type[NodeLauncher], world: FakeWorld) -> Report:
    """The report of a launch of four ranks on two nodes, warm or failed."""
    config = parse({"workload": {"entrypoint": "a:b"}, "ranks": 4, "parallel": {"dp": 4}})
    run = Launch(config, launcher=launcher("aabb", root, world.make_worker))
    try:
        return run.run()
    except (LaunchFailed, CannotStart) as error:
        return run.failed(error, exit_code=1)


class Unlucky(NodeLauncher):
    """A rank dies, once, while ranks compile."""

    has_died = False

    def call(
        self, stage: str, method: str, arguments: Mapping[int, tuple[Any, ...]], *, timeout_s: float
    ) -> Iterator[tuple[int, Any]]:
        if method == "compile" and not self.has_died:
            self.has_died = True
            yield 0, WorkerFailure(rank=0, stage=stage, kind=DIED, message="its process ended")
            return
        yield from super().call(stage, method, arguments, timeout_s=timeout_s)


class Nowhere(NodeLauncher):
    """No rank ever starts."""

    def start(self, num_ranks: int, *, timeout_s: float) -> Gang:
        raise CannotStart("there is no room")


@pytest.mark.parametrize(
    ("launcher", "broken", "num_attempts"),
    [
        (NodeLauncher, {}, 1),
        (Unlucky, {}, 2),
        (NodeLauncher, {FUNCTIONS[0]: 'GraphBreak: "\u00e9\u6f22\x1b[0m\n\\'}, 1),
        (Nowhere, {}, 1),
    ],
)
def test_course_of_a_launch_is_shown_whole(
    launcher: type[NodeLauncher], broken: dict[str, str], num_attempts: int, tmp_path: Path
) -> None:
    report = replace(launched(tmp_path, launcher, FakeWorld(broken=broken)), name='caf\u00e9 "\\')
    assert len(report.course.attempts) == num_attempts
    text = trace_json(report)
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


def test_functions_lie_one_after_the_other_inside_their_stage() -> None:
    own = [event for event in events_of(8) if (event["pid"], event["tid"]) == (2, 2)]
    stage = next(event for event in own if event["name"] == "compile")
    trace, compile_ = (event for event in own if event["name"].endswith("Llama.prefill"))
    assert (trace["name"], compile_["name"]) == ("trace Llama.prefill", "compile Llama.prefill")
    assert stage["ts"] == trace["ts"]
    assert trace["ts"] + trace["dur"] == compile_["ts"]


def test_attempts_are_instant_events() -> None:
    names = [event["name"] for event in events_of(32, failed=True) if event["ph"] == "i"]
    assert names == ["attempt 1", "attempt 1 failed", "attempt 2", "attempt 2 failed"]
