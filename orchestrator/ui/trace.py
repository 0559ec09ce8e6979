"""The timeline of a launch in the Trace Event Format, which Perfetto and chrome://tracing open.

Format, "JSON Object Format" in https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
A process is a node, a thread a rank; complete events (``X``) are stages and functions, instant events (``i``)
attempts, metadata events (``M``) names. Times are microseconds since the launch began.

What Perfetto's importer makes of it (src/trace_processor/importers/json in google/perfetto) asks for more:

- events of a thread that overlap without being nested are dropped;
- a thread's name goes by its ``tid`` alone, so no two processes have the same one; 0 is for idle processes;
- older ones take ``displayTimeUnit`` for the unit of times, and read no numeric escapes in the keys before
  ``ph`` and ``ts``: the first is left out, these two come first, and text is not escaped to ASCII.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from warmrank.orchestrator.launch.report import FunctionReport, RankReport, Report, spelled_out

_DRIVER = 1
"""The process of what concerns all ranks, and its thread; nodes and ranks follow."""

Place = tuple[int, int]
"""Process and thread."""

_US = 1_000_000
_STEPS = (("trace", "compile"), ("compile", "compile"), ("load", "load"))
"""Steps of a function whose seconds are known, each with the stage that it belongs to."""


def trace_json(report: Report) -> str:
    """The trace as JSON text."""
    trace = {
        "otherData": {"launch": report.name, "outcome": report.outcome, "started": report.started},
        "traceEvents": [*_names(report), *_attempts(report), *_stages(report), *_functions(report)],
    }
    return spelled_out(json.dumps(trace, separators=(",", ":"), ensure_ascii=False, allow_nan=False)) + "\n"


def _names(report: Report) -> Iterator[dict[str, Any]]:
    yield _meta("process_name", (_DRIVER, _DRIVER), name=f"{report.name} (driver)")
    yield _meta("thread_name", (_DRIVER, _DRIVER), name="attempts and stages")
    seen: set[int] = set()
    for rank in report.ranks:
        place = _place_of(rank)
        if rank.node_rank not in seen:
            seen.add(rank.node_rank)
            yield _meta("process_name", place, name=f"node {rank.node_rank}: {rank.host}")
            yield _meta("process_sort_index", place, sort_index=place[0])
    for number, place in _places(report).items():
        yield _meta("thread_name", place, name=f"rank {number}")
        yield _meta("thread_sort_index", place, sort_index=number)


def _place_of(rank: RankReport) -> Place:
    return rank.node_rank + _DRIVER + 1, rank.rank + _DRIVER + 1


def _places(report: Report) -> dict[int, Place]:
    """Process and thread of every rank; of one that no node is known of, in the driver's process."""
    taking_part = {rank for span in report.course.timeline for rank in span.ranks}
    unknown = {rank: (_DRIVER, rank + _DRIVER + 1) for rank in sorted(taking_part)}
    return unknown | {rank.rank: _place_of(rank) for rank in report.ranks}


def _attempts(report: Report) -> Iterator[dict[str, Any]]:
    for attempt in report.course.attempts:
        yield _instant(f"attempt {attempt.attempt}", attempt.start_s, {"reason": attempt.reason})
        if attempt.error:
            found = {"stage": attempt.failed_stage, "error": attempt.error}
            yield _instant(f"attempt {attempt.attempt} failed", attempt.end_s, found)


def _stages(report: Report) -> Iterator[dict[str, Any]]:
    """Every stage once for the driver, and once for each rank that took part."""
    places = _places(report)
    for span in report.course.timeline:
        about = {"attempt": span.attempt, "ok": span.ok, "ranks": len(span.ranks)}
        yield _complete(span.stage, (_DRIVER, _DRIVER), (span.start_s, span.end_s), about)
        for rank, end_s in zip(span.ranks, span.rank_end_s, strict=True):
            yield _complete(span.stage, places[rank], (span.start_s, end_s), {"attempt": span.attempt})


def _functions(report: Report) -> Iterator[dict[str, Any]]:
    """What is known of functions: how long each step took; inside its stage, one function after the other."""
    last = report.course.attempts[-1].attempt if report.course.attempts else 0
    begins: dict[tuple[str, int], tuple[float, float]] = {}
    for span in report.course.timeline:
        if span.attempt == last:
            for rank, end_s in zip(span.ranks, span.rank_end_s, strict=True):
                begins.setdefault((span.stage, rank), (span.start_s, end_s))
    for each in report.ranks:
        for stage in ("compile", "load"):
            if (stage, each.rank) in begins:
                yield from _inside(each, stage, *begins[stage, each.rank])


def _inside(rank: RankReport, stage: str, start_s: float, end_s: float) -> Iterator[dict[str, Any]]:
    for function in rank.functions:
        for step, its_stage in _STEPS:
            seconds = getattr(function.seconds, f"{step}_s")
            if its_stage == stage and seconds and start_s < end_s:
                stop_s = min(start_s + seconds, end_s)
                name = f"{step} {function.function}"
                yield _complete(name, _place_of(rank), (start_s, stop_s), _about(function))
                start_s = stop_s


def _about(function: FunctionReport) -> dict[str, Any]:
    return {"outcome": function.outcome, "reason": function.reason, "digest": function.digest[:12]}


def _complete(
    name: str, place: Place, between_s: tuple[float, float], about: dict[str, Any]
) -> dict[str, Any]:
    start_s, end_s = between_s
    return {
        "ph": "X",
        "ts": round(start_s * _US),
        "name": name,
        "cat": "launch",
        "dur": max(round(end_s * _US) - round(start_s * _US), 0),
        "pid": place[0],
        "tid": place[1],
        "args": about,
    }


def _instant(name: str, at_s: float, about: dict[str, Any]) -> dict[str, Any]:
    return {
        "ph": "i",
        "ts": round(at_s * _US),
        "name": name,
        "cat": "attempt",
        "s": "g",
        "pid": _DRIVER,
        "tid": _DRIVER,
        "args": about,
    }


def _meta(kind: str, place: Place, **about: object) -> dict[str, Any]:
    return {"ph": "M", "ts": 0, "name": kind, "pid": place[0], "tid": place[1], "args": about}
