"""The timeline as a trace: the keys that the Trace Event Format asks for, and what the events say."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.show.chrome_trace import trace_json
from tests.support.made_reports import made_report

_NEEDED = {
    "X": {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args"},
    "i": {"name", "cat", "ph", "ts", "s", "pid", "tid", "args"},
    "M": {"name", "ph", "pid", "tid", "args"},
}


def events_of(num_ranks: int, *, failed: bool = False) -> list[dict[str, Any]]:
    trace = json.loads(trace_json(made_report(num_ranks, failed=failed)))
    assert trace["displayTimeUnit"] in {"ms", "ns"}
    events: list[dict[str, Any]] = trace["traceEvents"]
    return events


@pytest.mark.parametrize("failed", [False, True])
def test_every_event_has_the_keys_and_types_of_its_phase(failed: bool) -> None:
    for event in events_of(16, failed=failed):
        assert event.keys() == _NEEDED[event["ph"]]
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] != "M":
            assert isinstance(event["ts"], int)
            assert event["ts"] >= 0
        if event["ph"] == "X":
            assert isinstance(event["dur"], int)
            assert event["dur"] >= 0


def test_processes_are_nodes_and_threads_are_ranks() -> None:
    names = {
        (event["name"], event["pid"], event["tid"]): event["args"].get("name")
        for event in events_of(16)
        if event["ph"] == "M"
    }
    assert names["process_name", 2, 0] == "node 1: node-1"
    assert names["thread_name", 2, 10] == "rank 9"
    assert names["process_name", 0, 0] == "llama-70b (driver)"


def test_stages_stand_once_for_the_driver_and_once_for_each_rank() -> None:
    builds = [event for event in events_of(16) if event["name"] == "build"]
    assert len(builds) == 17
    driver = next(event for event in builds if event["pid"] == 0)
    assert (driver["ts"], driver["dur"]) == (3_900_000, 5_200_000)


def test_functions_lie_inside_their_stage() -> None:
    events = events_of(8)
    own = [event for event in events if (event["pid"], event["tid"]) == (1, 1)]
    stage = next(event for event in own if event["name"] == "compile")
    steps = [event for event in own if event["name"].endswith("Llama.prefill")]
    assert [event["name"] for event in steps] == ["trace Llama.prefill", "compile Llama.prefill"]
    for event in steps:
        assert stage["ts"] <= event["ts"]
        assert event["ts"] + event["dur"] <= stage["ts"] + stage["dur"]


def test_events_of_a_thread_are_nested_or_apart() -> None:
    """What overlaps without being nested, Perfetto drops."""
    threads: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in events_of(32):
        if event["ph"] == "X":
            span = (event["ts"], event["ts"] + event["dur"])
            threads.setdefault((event["pid"], event["tid"]), []).append(span)
    for spans in threads.values():
        for begin, end in spans:
            for other_begin, other_end in spans:
                assert not begin < other_begin < end < other_end


def test_attempts_are_instant_events() -> None:
    names = [event["name"] for event in events_of(8, failed=True) if event["ph"] == "i"]
    assert names == ["attempt 1", "attempt 1 failed", "attempt 2", "attempt 2 failed"]
