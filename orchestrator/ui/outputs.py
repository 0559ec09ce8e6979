"""Outputs of a launch: files in four formats, and gauges of Ray while it runs.

Every metric is a gauge of the last launch, labelled with its name: what counts over launches is for the
server that scrapes them. Ray exports them as ``ray_warmrank_*``. Invariants: nothing is imported, and nothing
happens, where the driver has no Ray; a metric is set a few times a second at most, at any number of ranks.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from warmrank.orchestrator.errors import BadArgument
from warmrank.orchestrator.launch import events
from warmrank.orchestrator.launch.events import Event, LaunchState
from warmrank.orchestrator.launch.report import (
    FunctionReport,
    Report,
    make_way,
    spelled_out,
    sum_seconds,
    to_json,
    write_whole,
)
from warmrank.worker.results import FunctionResult

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
            ConfigError: one of them cannot be written, or is a file of another kind.
            BadArgument: two of them are the same file.
        """
        named = {"--json": self.json, "--report": self.html, "--trace": self.trace, "--metrics": self.metrics}
        files = {option: path for option, path in named.items() if path is not None and path != STDOUT}
        seen: dict[str, str] = {}
        for option, path in files.items():
            earlier = seen.setdefault(os.path.realpath(path), option)
            if earlier != option:
                raise BadArgument(f"{earlier} and {option}: expected a file for each, found {path} for both")
        make_way(files, kept=("--metrics",))

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
        written = [(what, path, text_of) for what, path, text_of in writers if path is not None]
        for _, path, text_of in written:
            write_whole(path, text_of(report))
        return tuple((what, path) for what, path, _ in written)


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
    timeline = _Timeline(report)
    trace = {
        "otherData": {"launch": report.name, "outcome": report.outcome, "started": report.started},
        "traceEvents": [*timeline.names(), *timeline.stages(), *timeline.functions()],
    }
    return spelled_out(json.dumps(trace, separators=(",", ":"), ensure_ascii=False, allow_nan=False)) + "\n"


_US = 1_000_000
_STEPS = {"compile": ("trace", "compile"), "load": ("load",)}
"""Steps of a function whose seconds are known, by the stage that they belong to."""

_DRIVER = -1
"""In place of a rank, for what concerns all of them; its process and thread are 1, the first."""


class _Timeline:
    """The events of a launch; a rank that no node is known of belongs to the driver's process."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._nodes = {rank: 1 for span in report.timeline.spans for rank in span.ranks}
        self._nodes |= {_DRIVER: 1} | {rank.rank: rank.node_rank + 2 for rank in report.ranks}

    def names(self) -> Iterator[dict[str, Any]]:
        """Names of processes and threads."""
        report = self._report
        yield self._event("M", "process_name", _DRIVER, {"name": f"{report.name} (driver)"})
        for first in {rank.node_rank: rank for rank in reversed(report.ranks)}.values():
            name = {"name": f"node {first.node_rank}: {first.host}"}
            yield self._event("M", "process_name", first.rank, name)
        for number in sorted(self._nodes):
            name = {"name": "attempts and stages" if number == _DRIVER else f"rank {number}"}
            yield self._event("M", "thread_name", number, name)

    def stages(self) -> Iterator[dict[str, Any]]:
        """Attempts; then every stage once for the driver, and once for each rank that took part."""
        for attempt in self._report.timeline.attempts:
            name = f"attempt {attempt.attempt}"
            marks = [(name, attempt.start_s, {"reason": attempt.reason})]
            if attempt.error:
                about = {"stage": attempt.failed_stage, "error": attempt.error}
                marks.append((f"{name} failed", attempt.end_s, about))
            for text, at_s, about in marks:
                yield self._event("i", text, _DRIVER, about, at_s=at_s, s="g", cat="attempt")
        for span in self._report.timeline.spans:
            facts = {"attempt": span.attempt, "ok": span.ok, "ranks": len(span.ranks)}
            yield self._slice(span.stage, _DRIVER, span.start_s, span.end_s, facts)
            for rank, end_s in zip(span.ranks, span.rank_end_s, strict=True):
                yield self._slice(span.stage, rank, span.start_s, end_s, {"attempt": span.attempt})

    def functions(self) -> Iterator[dict[str, Any]]:
        """The seconds of functions' steps, inside their stage, one function after the other."""
        timeline = self._report.timeline
        spans: dict[tuple[str, int], tuple[float, float]] = {}
        for span in timeline.spans:
            if span.attempt == timeline.attempts[-1].attempt:
                for rank, end_s in zip(span.ranks, span.rank_end_s, strict=True):
                    spans.setdefault((span.stage, rank), (span.start_s, end_s))
        for each in self._report.ranks:
            for stage, steps in _STEPS.items():
                at_s, end_s = spans.get((stage, each.rank), (0.0, 0.0))
                for function in each.functions:
                    digest = function.digest[:12]
                    about = {"outcome": function.outcome, "reason": function.reason, "digest": digest}
                    for step in steps:
                        stop_s = min(at_s + getattr(function.seconds, f"{step}_s"), end_s)
                        if at_s < stop_s:
                            yield self._slice(f"{step} {function.function}", each.rank, at_s, stop_s, about)
                            at_s = stop_s

    def _slice(
        self, name: str, rank: int, start_s: float, end_s: float, about: dict[str, Any]
    ) -> dict[str, Any]:
        duration = max(round(end_s * _US) - round(start_s * _US), 0)
        return self._event("X", name, rank, about, at_s=start_s, dur=duration, cat="launch")

    def _event(
        self, phase: str, name: str, rank: int, about: dict[str, Any], *, at_s: float = 0.0, **more: object
    ) -> dict[str, Any]:
        where = {"pid": self._nodes[rank], "tid": rank + 2}
        return {"ph": phase, "ts": round(at_s * _US), "name": name, **where, "args": about, **more}


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
    totals, attempts = report.totals, report.timeline.attempts
    yield from _plain(
        launch_warm=report.outcome == "warm",
        launch_exit_code=report.exit_code,
        launch_seconds=totals.wall_s,
        launch_attempts=len(attempts),
        failed_attempts=sum(bool(attempt.error) for attempt in attempts),
        ranks=report.world_size,
        nodes=len({rank.node_rank for rank in report.ranks}),
        problems=len(report.problems),
        fetched_bytes=totals.fetched_bytes,
        published_bytes=totals.published_bytes,
        queued_partitions=totals.num_queued,
        nondeterministic_functions=totals.num_nondeterministic,
    )
    yield from _each("stage_seconds", "stage", {stage.stage: stage.seconds for stage in report.stages})
    yield from _functions([each for rank in report.ranks for each in rank.functions])
    yield from _each("audits", "outcome", Counter(audit.outcome for audit in report.timeline.audits))
    causes = report.failure.causes if report.failure else ()
    failed = Counter(kind for kind, _ in {(cause.kind, rank) for cause in causes for rank in cause.ranks})
    yield from _each("failed_ranks", "kind", failed)


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


def _functions(results: Iterable[FunctionReport | FunctionResult]) -> Samples:
    """Outcomes of functions, over all ranks."""
    every = tuple(results)
    artifacts = {each.digest: each.size_bytes for each in every if each.digest}
    files = artifacts | {sha256: size for each in every for sha256, size in each.beside}
    yield from _plain(
        artifacts=len(artifacts),
        artifact_bytes=sum(files.values()),
        held_bytes=sum(each.size_bytes + sum(size for _, size in each.beside) for each in every),
    )
    outcomes = Counter[str](each.outcome for each in every)
    yield from _each("functions", "outcome", {each: outcomes[each] for each in OUTCOMES})
    seconds = asdict(sum_seconds(each.seconds for each in every))
    yield from _each(
        "function_seconds", "step", {name.removesuffix("_s"): value for name, value in seconds.items()}
    )


OUTCOMES = ("compiled", "loaded", "adopted")
SET_EVERY_S = 1.0
_ENDS = (
    events.Placed,
    events.StageFinished,
    events.StageStarted,
    events.AttemptFailed,
    events.AttemptStarted,
)


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
            if is_end:  # costs as much as there are results
                self._set(_functions(result for result in state.results.values() if result.ok))

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
