"""What a trace must keep so that Perfetto shows all of it; knows nothing of the code that makes traces.

The rules are those of the Trace Event Format, and of Perfetto's importer (``json`` and ``common`` below
src/trace_processor/importers in google/perfetto), which drops in silence what it cannot place.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

_KEYS = {
    "X": {"ph", "ts", "dur", "name", "cat", "pid", "tid", "args"},
    "i": {"ph", "ts", "s", "name", "cat", "pid", "tid", "args"},
    "M": {"ph", "ts", "name", "pid", "tid", "args"},
}
_NUMBERS = {"ts": 0, "dur": 0, "pid": 1, "tid": 1}
"""Numbers of an event, each with the least that it may be."""

_METADATA = {"process_name": "name", "thread_name": "name", "process_sort_index": "sort_index"}


def faults_of(text: str) -> list[str]:
    """What is wrong with a trace, in words; nothing where all of it is shown."""
    trace = json.loads(text)
    events: list[dict[str, Any]] = trace["traceEvents"]
    faults = [f"{fault}: {event}" for event in events for fault in _of_event(event)]
    if "displayTimeUnit" in trace:
        faults.append("displayTimeUnit is taken for the unit of the times")
    return faults or [*_of_names(events), *_of_nesting(events)]


def _of_event(event: dict[str, Any]) -> Iterator[str]:
    if event.keys() != _KEYS.get(event.get("ph", "")):
        yield "a phase that is not known, or keys that are missing or too many"
        return
    if list(event)[:2] != ["ph", "ts"]:
        yield "ph and ts do not come first"
    if not event["name"] or not isinstance(event["args"], dict):
        yield "no name, or args that are no object"
    for key, least in _NUMBERS.items():
        if key in event and not (type(event[key]) is int and event[key] >= least):
            yield f"{key} is no number from {least} on"
    if event["ph"] == "M" and not event["args"].get(_METADATA.get(event["name"], "")):
        yield "metadata that nobody knows, or without its value"


def _of_names(events: list[dict[str, Any]]) -> Iterator[str]:
    """Each process and thread is named once, and a thread belongs to one process."""
    owner: dict[int, int] = {}
    named: dict[str, list[int]] = {"process_name": [], "thread_name": []}
    for event in events:
        if owner.setdefault(event["tid"], event["pid"]) != event["pid"]:
            yield f"thread {event['tid']} is of processes {owner[event['tid']]} and {event['pid']}"
        if event["name"] in named and event["ph"] == "M":
            named[event["name"]].append(event["pid" if event["name"] == "process_name" else "tid"])
    for kind, ids in named.items():
        used = set(owner) if kind == "thread_name" else set(owner.values())
        if sorted(ids) != sorted(used):
            yield f"{kind} stands for {sorted(ids)}, used are {sorted(used)}"


def _of_nesting(events: list[dict[str, Any]]) -> Iterator[str]:
    """Play the importer: by time, then as they stand; a slice that outlasts the open one is dropped."""
    open_ends: dict[int, list[int]] = {}
    for event in sorted((each for each in events if each["ph"] == "X"), key=lambda each: each["ts"]):
        stack, end = open_ends.setdefault(event["tid"], []), event["ts"] + event["dur"]
        while stack and stack[-1] <= event["ts"]:
            stack.pop()
        if stack and end > stack[-1]:
            yield f"{event['name']} outlasts what is open on thread {event['tid']}"
        stack.append(end)
