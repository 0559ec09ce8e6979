"""The timeline of a launch in the Trace Event Format, which Perfetto and chrome://tracing open.

Format, "JSON Object Format" in https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
A process is a node, a thread a rank; complete events (``X``) are stages and functions, instant events (``i``)
attempts, metadata events (``M``) names. Times are microseconds since the launch began.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from orchestrator.show.report import FunctionReport, RankReport, Report

_DRIVER = 0
"""The process of what concerns all ranks; nodes follow from 1."""

_US = 1_000_000
_STEPS = (("trace", "compile"), ("compile", "compile"), ("load", "load"))
"""Steps of a function whose seconds are known, each with the stage that it belongs to."""


def trace_json(report: Report) -> str:
    """The trace as JSON text."""
    trace = {
        "displayTimeUnit": "ms",
        "otherData": {"launch": report.name, "outcome": report.outcome, "started": report.started},
        "traceEvents": [*_names(report), *_attempts(report), *_stages(report), *_functions(report)],
    }
    return json.dumps(trace, separators=(",", ":")) + "\n"


def _names(report: Report) -> Iterator[dict[str, Any]]:
    yield _meta("process_name", _DRIVER, 0, name=f"{report.name} (driver)")
    yield _meta("thread_name", _DRIVER, 0, name="attempts and stages")
    seen: set[int] = set()
    for rank in report.ranks:
        pid = rank.node_rank + 1
        if pid not in seen:
            seen.add(pid)
            yield _meta("process_name", pid, 0, name=f"node {rank.node_rank}: {rank.host}")
            yield _meta("process_sort_index", pid, 0, sort_index=pid)
        yield _meta("thread_name", pid, rank.rank + 1, name=f"rank {rank.rank}")
        yield _meta("thread_sort_index", pid, rank.rank + 1, sort_index=rank.rank)


def _attempts(report: Report) -> Iterator[dict[str, Any]]:
    for attempt in report.course.attempts:
        yield _instant(f"attempt {attempt.attempt}", attempt.start_s, {"reason": attempt.reason})
        if attempt.error:
            found = {"stage": attempt.failed_stage, "error": attempt.error}
            yield _instant(f"attempt {attempt.attempt} failed", attempt.end_s, found)


def _stages(report: Report) -> Iterator[dict[str, Any]]:
    """Every stage once for the driver, and once for each rank that took part."""
    places = {rank.rank: rank.node_rank + 1 for rank in report.ranks}
    for span in report.course.timeline:
        about = {"attempt": span.attempt, "ok": span.ok, "ranks": len(span.ranks)}
        yield _complete(span.stage, (_DRIVER, 0), (span.start_s, span.end_s), about)
        for rank, end_s in zip(span.ranks, span.rank_end_s, strict=True):
            place = (places.get(rank, _DRIVER), rank + 1)
            yield _complete(span.stage, place, (span.start_s, end_s), {"attempt": span.attempt})


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
                name, place = f"{step} {function.function}", (rank.node_rank + 1, rank.rank + 1)
                yield _complete(name, place, (start_s, stop_s), _about(function))
                start_s = stop_s


def _about(function: FunctionReport) -> dict[str, Any]:
    return {"outcome": function.outcome, "reason": function.reason, "digest": function.digest[:12]}


def _complete(
    name: str, place: tuple[int, int], between_s: tuple[float, float], about: dict[str, Any]
) -> dict[str, Any]:
    start_s, end_s = between_s
    return {
        "name": name,
        "cat": "launch",
        "ph": "X",
        "ts": round(start_s * _US),
        "dur": max(round(end_s * _US) - round(start_s * _US), 0),
        "pid": place[0],
        "tid": place[1],
        "args": about,
    }


def _instant(name: str, at_s: float, about: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "cat": "attempt",
        "ph": "i",
        "s": "g",
        "ts": round(at_s * _US),
        "pid": _DRIVER,
        "tid": 0,
        "args": about,
    }


def _meta(kind: str, pid: int, tid: int, **about: object) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": about}
