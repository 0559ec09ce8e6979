"""What a trace must keep so that Perfetto shows all of it; knows nothing of the code that makes traces.

The rules are those of the Trace Event Format, and of Perfetto's importer (``json`` and ``common`` below
src/trace_processor/importers in google/perfetto), which drops in silence what it cannot place.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, NoReturn

_KEYS = {
    "X": {"ph", "ts", "dur", "name", "cat", "pid", "tid", "args"},
    "i": {"ph", "ts", "s", "name", "cat", "pid", "tid", "args"},
    "M": {"ph", "ts", "name", "pid", "tid", "args"},
}
_METADATA = {
    "process_name": ("name", str),
    "thread_name": ("name", str),
    "process_sort_index": ("sort_index", int),
    "thread_sort_index": ("sort_index", int),
}
_MAX_ID = 2**32 - 1
_MAX_US = 2**53  # what a double holds exactly, and longer than any launch


def faults_of(text: str) -> list[str]:
    """What is wrong with a trace, in words; nothing where all of it is shown."""
    trace = json.loads(text, parse_constant=_refuse, object_pairs_hook=_distinct)
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        return ["no object with a list traceEvents"]
    events: list[dict[str, Any]] = trace["traceEvents"]
    faults = [f"{fault}: {event}" for event in events for fault in _of_event(event)]
    if "displayTimeUnit" in trace:
        faults.append("displayTimeUnit is taken for the unit of the times")
    return faults or [*_of_names(events), *_of_nesting(events)]


def _refuse(constant: str) -> NoReturn:
    msg = f"{constant} is no number in JSON"
    raise ValueError(msg)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        msg = f"a key stands twice in {pairs}"
        raise ValueError(msg)
    return found


def _of_event(event: Any) -> Iterator[str]:
    phase = event.get("ph") if isinstance(event, dict) else None
    if phase not in _KEYS:
        yield "an event of no known phase"
        return
    if event.keys() != _KEYS[phase]:
        yield f"keys that are missing or too many: {sorted(event.keys() ^ _KEYS[phase])}"
        return
    if list(event)[:2] != ["ph", "ts"]:
        yield "ph and ts do not come first"
    if not (isinstance(event["name"], str) and event["name"]):
        yield "no name"
    if not isinstance(event["args"], dict):
        yield "args that are no object"
    yield from (f"{key} is no id" for key in ("pid", "tid") if not _is_number(event[key], 1, _MAX_ID, int))
    yield from (
        f"{key} is no number of microseconds"
        for key in ("ts", "dur")
        if key in event and not _is_number(event[key], 0, _MAX_US, int | float)
    )
    if phase == "i" and event["s"] not in {"g", "p", "t"}:
        yield "an instant without a scope"
    if phase == "M":
        yield from _of_metadata(event)


def _is_number(value: Any, least: int, most: int, kind: Any) -> bool:
    is_one = isinstance(value, kind) and not isinstance(value, bool)
    return is_one and math.isfinite(value) and least <= value <= most


def _of_metadata(event: dict[str, Any]) -> Iterator[str]:
    key, kind = _METADATA.get(event["name"], ("", object))
    if not key:
        yield "metadata that nobody knows"
    elif not isinstance(event["args"].get(key), kind) or event["args"][key] == "":
        yield f"metadata without {key}"


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
    slices = sorted((event for event in events if event["ph"] == "X"), key=lambda event: event["ts"])
    open_ones: dict[int, list[dict[str, Any]]] = {}
    for event in slices:
        stack = open_ones.setdefault(event["tid"], [])
        while stack and _end(stack[-1]) <= event["ts"]:
            stack.pop()
        if stack and _end(event) > _end(stack[-1]):
            yield f"{event['name']} outlasts {stack[-1]['name']} on thread {event['tid']}"
        stack.append(event)


def _end(event: dict[str, Any]) -> float:
    end: float = event["ts"] + event["dur"]
    return end
