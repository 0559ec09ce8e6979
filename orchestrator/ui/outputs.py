"""Where a launch leaves what it has to tell: files in four formats, each written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warmrank.orchestrator.errors import BadArgument
from warmrank.orchestrator.launch.report import RankReport, Report, spelled_out, to_json
from warmrank.orchestrator.whole_file import make_way, write_whole

STDOUT = Path("-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """The files that were asked for; None for none."""

    json: Path | None = None  # the report as JSON; `STDOUT` is the caller's business
    html: Path | None = None  # the report as one page
    trace: Path | None = None  # the timeline for Perfetto
    metrics: Path | None = None  # the totals for Prometheus

    @property
    def json_to_stdout(self) -> bool:
        """Stdout is for the report, and nothing else."""
        return self.json == STDOUT

    def prepare(self) -> None:
        """Make way for the files before anything is done that they tell of.

        Metrics stay: a collector reads them at any time, and keeps the last launch's until the next ones.

        Raises:
            ConfigError: one of them cannot be written.
            BadArgument: two of them are the same file.
        """
        named = {"--json": self.json, "--report": self.html, "--trace": self.trace, "--metrics": self.metrics}
        files = {option: path for option, path in named.items() if path is not None and path != STDOUT}
        seen: dict[Path, str] = {}
        for option, path in files.items():
            earlier = seen.setdefault(path.resolve(), option)
            if earlier != option:
                raise BadArgument(f"{earlier} and {option}: expected a file for each, found {path} for both")
        for option, path in files.items():
            if option != "--metrics":
                make_way(path, option=option)

    def write(self, report: Report) -> tuple[tuple[str, Path], ...]:
        """Write every file; returns what each is, and where."""
        written: list[tuple[str, Path]] = []

        def put(what: str, path: Path, text: str) -> None:
            write_whole(path, text)
            written.append((what, path))

        if self.json is not None and not self.json_to_stdout:
            put("report", self.json, to_json(report))
        if self.html is not None:
            from warmrank.orchestrator.ui.page import render_html

            put("report", self.html, render_html(report))
        if self.trace is not None:
            put("trace", self.trace, trace_json(report))
        if self.metrics is not None:
            from warmrank.orchestrator.ui.metrics import exposition

            put("metrics", self.metrics, exposition(report))
        return tuple(written)


_US = 1_000_000
_STEPS = {"compile": ("trace", "compile"), "load": ("load",)}
"""Steps of a function whose seconds are known, by the stage that they belong to."""

Place = tuple[int, int]
"""Process and thread."""

_DRIVER: Place = (1, 1)
"""Of what concerns all ranks; nodes and ranks follow."""


def trace_json(report: Report) -> str:
    """The timeline in the Trace Event Format ("JSON Object Format"), for Perfetto and chrome://tracing.

    https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
    A process is a node, a thread a rank; complete events (``X``) are stages and functions, instant events
    (``i``) attempts, metadata events (``M``) names. Times are microseconds since the launch began. Perfetto's
    importer asks for more: events of a thread that overlap without being nested are dropped; a thread's name
    goes by its ``tid`` alone, so no two processes have the same one, and 0 is for idle processes; older ones
    take ``displayTimeUnit`` for the unit of times, and read no numeric escapes in the keys before ``ph`` and
    ``ts``: the first is left out, these two come first, and text is not escaped to ASCII.
    """
    trace = {
        "otherData": {"launch": report.name, "outcome": report.outcome, "started": report.started},
        "traceEvents": [*_names(report), *_attempts(report), *_stages(report), *_functions(report)],
    }
    return spelled_out(json.dumps(trace, separators=(",", ":"), ensure_ascii=False, allow_nan=False)) + "\n"


def _names(report: Report) -> Iterator[dict[str, Any]]:
    yield _event("M", "process_name", _DRIVER, {"name": f"{report.name} (driver)"})
    yield _event("M", "thread_name", _DRIVER, {"name": "attempts and stages"})
    for rank in {rank.node_rank: rank for rank in reversed(report.ranks)}.values():
        place = _place_of(rank)
        yield _event("M", "process_name", place, {"name": f"node {rank.node_rank}: {rank.host}"})
        yield _event("M", "process_sort_index", place, {"sort_index": place[0]})
    for number, place in _places(report).items():
        yield _event("M", "thread_name", place, {"name": f"rank {number}"})


def _place_of(rank: RankReport) -> Place:
    return rank.node_rank + 2, rank.rank + 2


def _places(report: Report) -> dict[int, Place]:
    """Process and thread of every rank; of one that no node is known of, in the driver's process."""
    taking_part = {rank for span in report.course.timeline for rank in span.ranks}
    unknown = {rank: (_DRIVER[0], rank + 2) for rank in sorted(taking_part)}
    return unknown | {rank.rank: _place_of(rank) for rank in report.ranks}


def _attempts(report: Report) -> Iterator[dict[str, Any]]:
    for attempt in report.course.attempts:
        marks = [("", attempt.start_s, {"reason": attempt.reason})]
        if attempt.error:
            marks.append((" failed", attempt.end_s, {"stage": attempt.failed_stage, "error": attempt.error}))
        for what, at_s, about in marks:
            name = f"attempt {attempt.attempt}{what}"
            yield _event("i", name, _DRIVER, about, at_s=at_s, s="g", cat="attempt")


def _stages(report: Report) -> Iterator[dict[str, Any]]:
    """Every stage once for the driver, and once for each rank that took part."""
    places = _places(report)
    for span in report.course.timeline:
        about = {"attempt": span.attempt, "ok": span.ok, "ranks": len(span.ranks)}
        yield _slice(span.stage, _DRIVER, (span.start_s, span.end_s), about)
        for rank, end_s in zip(span.ranks, span.rank_end_s, strict=True):
            yield _slice(span.stage, places[rank], (span.start_s, end_s), {"attempt": span.attempt})


def _functions(report: Report) -> Iterator[dict[str, Any]]:
    """The seconds of functions' steps, inside their stage, one function after the other."""
    last = report.course.attempts[-1].attempt if report.course.attempts else 0
    begins: dict[tuple[str, int], tuple[float, float]] = {}
    for span in report.course.timeline:
        if span.attempt == last:
            for rank, end_s in zip(span.ranks, span.rank_end_s, strict=True):
                begins.setdefault((span.stage, rank), (span.start_s, end_s))
    for each in report.ranks:
        for stage in _STEPS:
            if (stage, each.rank) in begins:
                yield from _inside(each, stage, *begins[stage, each.rank])


def _inside(rank: RankReport, stage: str, start_s: float, end_s: float) -> Iterator[dict[str, Any]]:
    for function in rank.functions:
        about = {"outcome": function.outcome, "reason": function.reason, "digest": function.digest[:12]}
        for step in _STEPS[stage]:
            seconds = getattr(function.seconds, f"{step}_s")
            if seconds and start_s < end_s:
                stop_s = min(start_s + seconds, end_s)
                yield _slice(f"{step} {function.function}", _place_of(rank), (start_s, stop_s), about)
                start_s = stop_s


def _slice(name: str, place: Place, between_s: tuple[float, float], about: dict[str, Any]) -> dict[str, Any]:
    start_s, end_s = between_s
    duration = max(round(end_s * _US) - round(start_s * _US), 0)
    return _event("X", name, place, about, at_s=start_s, dur=duration, cat="launch")


def _event(
    phase: str, name: str, place: Place, about: dict[str, Any], *, at_s: float = 0.0, **more: object
) -> dict[str, Any]:
    common = {"ph": phase, "ts": round(at_s * _US), "name": name, "pid": place[0], "tid": place[1]}
    return {**common, "args": about, **more}
