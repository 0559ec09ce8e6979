"""Outputs of a launch: files in four formats, and gauges of Ray while it runs.

Every metric is a gauge of the last launch, labelled with its name: what counts over launches is for the
server that scrapes them. Ray exports them as ``ray_warmrank_*``. Invariants: nothing is imported, and nothing
happens, where the driver has no Ray; a metric is set a few times a second at most, at any number of ranks.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from warmrank.orchestrator.errors import BadArgument
from warmrank.orchestrator.launch import events
from warmrank.orchestrator.launch.events import Event, LaunchState
from warmrank.orchestrator.launch.report import (
    Report,
    held_bytes,
    make_way,
    spelled_out,
    sum_seconds,
    to_json,
    write_whole,
)
from warmrank.worker.results import Outcome, StageSeconds

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

        def render(found: Report) -> str:
            from warmrank.orchestrator.ui.page import render_html  # jinja2, which takes its time

            return render_html(found)

        writers = (
            ("report", None if self.json_to_stdout else self.json, to_json),
            ("report", self.html, render),
            ("trace", self.trace, trace_json),
            ("metrics", self.metrics, exposition),
        )
        written = []
        for what, path, text_of in writers:
            if path is not None:
                write_whole(path, text_of(report))
                written.append((what, path))
        return tuple(written)


_US = 1_000_000
_STEPS = {"compile": ("trace", "compile"), "load": ("load",)}
"""Steps of a function whose seconds are known, by the stage that they belong to."""

_DRIVER = (1, 1)  # process and thread of what concerns all ranks; those of nodes and ranks follow


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
        "traceEvents": [*_names(report), *_stages(report), *_functions(report)],
    }
    return spelled_out(json.dumps(trace, separators=(",", ":"), ensure_ascii=False, allow_nan=False)) + "\n"


def _names(report: Report) -> Iterator[dict[str, Any]]:
    yield _event("M", "process_name", _DRIVER, {"name": f"{report.name} (driver)"})
    yield _event("M", "thread_name", _DRIVER, {"name": "attempts and stages"})
    places = _places(report)
    for rank in {rank.node_rank: rank for rank in reversed(report.ranks)}.values():
        place = places[rank.rank]
        yield _event("M", "process_name", place, {"name": f"node {rank.node_rank}: {rank.host}"})
        yield _event("M", "process_sort_index", place, {"sort_index": place[0]})
    for number, place in places.items():
        yield _event("M", "thread_name", place, {"name": f"rank {number}"})


def _places(report: Report) -> dict[int, tuple[int, int]]:
    """Process and thread of every rank; of one that no node is known of, in the driver's process."""
    taking_part = sorted({rank for span in report.course.timeline for rank in span.ranks})
    known = {rank.rank: (rank.node_rank + 2, rank.rank + 2) for rank in report.ranks}
    return {rank: (_DRIVER[0], rank + 2) for rank in taking_part} | known


def _stages(report: Report) -> Iterator[dict[str, Any]]:
    """Attempts; then every stage once for the driver, and once for each rank that took part."""
    for attempt in report.course.attempts:
        name = f"attempt {attempt.attempt}"
        yield _mark(name, attempt.start_s, {"reason": attempt.reason})
        if attempt.error:
            about = {"stage": attempt.failed_stage, "error": attempt.error}
            yield _mark(f"{name} failed", attempt.end_s, about)
    places = _places(report)
    for span in report.course.timeline:
        facts = {"attempt": span.attempt, "ok": span.ok, "ranks": len(span.ranks)}
        yield _slice(span.stage, _DRIVER, span.start_s, span.end_s, facts)
        for rank, end_s in zip(span.ranks, span.rank_end_s, strict=True):
            yield _slice(span.stage, places[rank], span.start_s, end_s, {"attempt": span.attempt})


def _functions(report: Report) -> Iterator[dict[str, Any]]:
    """The seconds of functions' steps, inside their stage, one function after the other."""
    last = report.course.attempts[-1].attempt if report.course.attempts else 0
    spans: dict[tuple[str, int], tuple[float, float]] = {}
    for span in report.course.timeline:
        if span.attempt == last:
            for rank, end_s in zip(span.ranks, span.rank_end_s, strict=True):
                spans.setdefault((span.stage, rank), (span.start_s, end_s))
    places = _places(report)
    for each in report.ranks:
        for stage, steps in _STEPS.items():
            at_s, end_s = spans.get((stage, each.rank), (0.0, 0.0))
            for function in each.functions:
                about = {
                    "outcome": function.outcome,
                    "reason": function.reason,
                    "digest": function.digest[:12],
                }
                for step in steps:
                    stop_s = min(at_s + getattr(function.seconds, f"{step}_s"), end_s)
                    if at_s < stop_s:
                        yield _slice(f"{step} {function.function}", places[each.rank], at_s, stop_s, about)
                        at_s = stop_s


def _mark(name: str, at_s: float, about: dict[str, Any]) -> dict[str, Any]:
    return _event("i", name, _DRIVER, about, at_s=at_s, s="g", cat="attempt")


def _slice(
    name: str, place: tuple[int, int], start_s: float, end_s: float, about: dict[str, Any]
) -> dict[str, Any]:
    duration = max(round(end_s * _US) - round(start_s * _US), 0)
    return _event("X", name, place, about, at_s=start_s, dur=duration, cat="launch")


def _event(
    phase: str, name: str, place: tuple[int, int], about: dict[str, Any], *, at_s: float = 0.0, **more: object
) -> dict[str, Any]:
    common = {"ph": phase, "ts": round(at_s * _US), "name": name, "pid": place[0], "tid": place[1]}
    return {**common, "args": about, **more}


OUTCOMES: tuple[Outcome, ...] = ("compiled", "loaded", "adopted")
SET_EVERY_S = 1.0
_ENDS = (
    events.Placed,
    events.StageFinished,
    events.StageStarted,
    events.AttemptFailed,
    events.AttemptStarted,
)

Samples = Iterator[tuple[str, float, dict[str, str]]]
"""Metrics by name with value, and labels without the launch's own; `docs/launch.md` says what each is."""


def exposition(report: Report) -> str:
    """The numbers of a report as the text that a collector reads."""
    from prometheus_client import CollectorRegistry, Gauge, generate_latest

    registry = CollectorRegistry()
    gauges: dict[str, Gauge] = {}
    for name, value, labels in report_samples(report):
        if name not in gauges:
            gauges[name] = Gauge(name, _about(name), ("launch", *labels), registry=registry)
        gauges[name].labels(report.name, *labels.values()).set(value)
    return generate_latest(registry).decode()


def report_samples(report: Report) -> Samples:
    """Numbers of a report."""
    totals, attempts = report.totals, report.course.attempts
    yield from _plain(
        launch_warm=report.outcome == "warm",
        launch_exit_code=report.exit_code,
        launch_seconds=totals.wall_s,
        launch_attempts=len(attempts),
        failed_attempts=sum(bool(attempt.error) for attempt in attempts),
        ranks=report.world_size,
        nodes=len({rank.node_rank for rank in report.ranks}),
        artifacts=totals.num_artifacts,
        artifact_bytes=totals.artifact_bytes,
        held_bytes=held_bytes(report),
        fetched_bytes=totals.fetched_bytes,
        published_bytes=totals.published_bytes,
        queued_partitions=totals.num_queued,
        nondeterministic_functions=totals.num_nondeterministic,
        problems=len(report.problems),
    )
    yield from _each("stage_seconds", "stage", {stage.stage: stage.seconds for stage in report.stages})
    yield from _steps(totals.function_seconds)
    yield from _each("functions", "outcome", {each: getattr(totals, f"num_{each}") for each in OUTCOMES})
    yield from _each("audits", "outcome", Counter(audit.outcome for audit in report.course.audits))
    failed: dict[str, set[int]] = {}
    for cause in report.failure.causes if report.failure else ():
        failed.setdefault(cause.kind, set()).update(cause.ranks)
    yield from _each("failed_ranks", "kind", {kind: len(ranks) for kind, ranks in failed.items()})


def progress_samples(state: LaunchState) -> Samples:
    """Progress of a running launch."""
    yield from _plain(
        launch_seconds=state.now_s,
        launch_attempts=state.attempt,
        failed_attempts=len(state.failed()),
        ranks=len(state.placements),
        nodes=state.num_nodes,
        problems=len(state.problems),
    )
    for stage in state.stages.values():
        yield from _each("stage_seconds", "stage", {stage.stage: stage.seconds_at(state.now_s)})
        done = stage.num_done() if stage.is_running else len(stage.ranks)
        for name, number in (("done", done), ("running", len(stage.ranks) - done)):
            yield "warmrank_stage_ranks", number, {"stage": stage.stage, "state": name}


def result_samples(state: LaunchState) -> Samples:
    """Outcomes of functions so far, over all ranks; costs as much as there are of them."""
    results = [result for result in state.results.values() if result.ok]
    sizes = {result.digest: result.size_bytes for result in results if result.digest}
    files = sizes | {sha256: size for result in results for sha256, size in result.beside}
    yield from _plain(
        artifacts=len(sizes),
        artifact_bytes=sum(files.values()),
        held_bytes=sum(result.size_bytes + sum(size for _, size in result.beside) for result in results),
    )
    outcomes = Counter(result.outcome for result in results)
    yield from _each("functions", "outcome", {each: outcomes[each] for each in OUTCOMES})
    yield from _steps(sum_seconds(result.seconds for result in results))


class RayMetrics:
    """Hears a launch of that name, and sets gauges of the Ray that its driver is connected to, if any."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._gauges: dict[str, Any] = {}
        self._set_s = -SET_EVERY_S

    def __call__(self, state: LaunchState, event: Event) -> None:
        """Set what is due: functions when a stage ends, the rest once in `SET_EVERY_S` as well."""
        is_end = isinstance(event, _ENDS)
        if not is_end and event.at_s - self._set_s < SET_EVERY_S:
            return
        self._set_s = event.at_s
        ray = sys.modules.get("ray")
        if ray is not None and ray.is_initialized():
            self._set(progress_samples(state))
            if is_end:
                self._set(result_samples(state))

    def _set(self, found: Samples) -> None:
        from ray.util.metrics import Gauge

        for name, value, labels in found:
            if name not in self._gauges:
                self._gauges[name] = Gauge(name, _about(name), ("launch", *labels))
            self._gauges[name].set(value, tags={"launch": self._name, **labels})


def _about(name: str) -> str:
    return f"{name.removeprefix('warmrank_').replace('_', ' ').capitalize()} of the last launch."


def _plain(**values: float) -> Samples:
    return ((f"warmrank_{name}", value, {}) for name, value in values.items())


def _each(name: str, label: str, values: Mapping[str, float]) -> Samples:
    return ((f"warmrank_{name}", value, {label: key}) for key, value in values.items())


def _steps(seconds: StageSeconds) -> Samples:
    by_step = {name.removesuffix("_s"): value for name, value in asdict(seconds).items()}
    return _each("function_seconds", "step", by_step)
