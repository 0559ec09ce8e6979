"""A launch in numbers for Prometheus: one that is over as text for a collector, one that runs through Ray.

Every metric is a gauge of the last launch, labelled with its name: what counts over launches is for the
server that scrapes them. Ray exports them as ``ray_warmrank_*``. Invariants: nothing is imported, and nothing
happens, where the driver has no Ray; a metric is set a few times a second at most, at any number of ranks.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any

from warmrank.orchestrator.launch import events
from warmrank.orchestrator.launch.events import Event
from warmrank.orchestrator.launch.report import Report, sum_seconds
from warmrank.orchestrator.launch.state import LaunchState
from warmrank.worker.results import Outcome, StageSeconds

FAMILIES: dict[str, str] = {
    "warmrank_launch_warm": "1 where every rank of the last launch is warm, 0 where it failed.",
    "warmrank_launch_exit_code": "Exit status of the last launch.",
    "warmrank_launch_seconds": "Wall seconds of the last launch, from start to commit.",
    "warmrank_launch_attempts": "Attempts of the last launch.",
    "warmrank_ranks": "Ranks of the launch.",
    "warmrank_nodes": "Nodes that the ranks had places on.",
    "warmrank_stage_seconds": "Wall seconds of a stage, summed over its rounds.",
    "warmrank_stage_ranks": "Ranks that take part in the running stage, by whether they are through.",
    "warmrank_function_seconds": "Seconds of a step, summed over ranks and functions.",
    "warmrank_functions": "Cached functions of all ranks, by how they got their artifact.",
    "warmrank_audits": "Comparisons of a rank's trace with a leader's, by what they showed.",
    "warmrank_artifacts": "Distinct artifacts.",
    "warmrank_artifact_bytes": "Bytes of distinct artifacts and the files beside them.",
    "warmrank_held_bytes": "The same, summed over ranks, as if nothing were shared.",
    "warmrank_fetched_bytes": "Bytes copied from the store, over all nodes.",
    "warmrank_published_bytes": "Bytes new to the store, over all nodes.",
    "warmrank_queued_partitions": "Partitions that wait on nodes' disks to be published.",
    "warmrank_nondeterministic_functions": "Functions that compiled to other bytes than the store holds.",
    "warmrank_failed_ranks": "Ranks that the launch failed on, by kind of failure.",
    "warmrank_failed_attempts": "Attempts that failed.",
    "warmrank_problems": "Problems that did not stop the launch.",
}
"""Every metric and its help text."""

OUTCOMES: tuple[Outcome, ...] = ("compiled", "loaded", "adopted")
SET_EVERY_S = 1.0
_ENDS = (
    events.Seated,
    events.StageFinished,
    events.StageStarted,
    events.AttemptFailed,
    events.AttemptStarted,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One value of a metric."""

    name: str  # one of `FAMILIES`
    value: float  # its value
    labels: tuple[tuple[str, str], ...] = ()  # name -> value, without the launch's own


def exposition(report: Report) -> str:
    """The numbers of a report as the text that a collector reads."""
    from prometheus_client import CollectorRegistry, Gauge, generate_latest

    registry = CollectorRegistry()
    gauges: dict[str, Gauge] = {}
    for sample in samples(report):
        if sample.name not in gauges:
            names = ("launch", *(name for name, _ in sample.labels))
            gauges[sample.name] = Gauge(sample.name, FAMILIES[sample.name], names, registry=registry)
        gauges[sample.name].labels(report.name, *(value for _, value in sample.labels)).set(sample.value)
    return generate_latest(registry).decode()


def samples(report: Report) -> Iterator[Sample]:
    """All that a report says in numbers."""
    totals = report.totals
    yield from _plain(
        launch_warm=report.outcome == "warm",
        launch_exit_code=report.exit_code,
        launch_seconds=totals.wall_s,
        launch_attempts=len(report.course.attempts),
        failed_attempts=sum(bool(attempt.error) for attempt in report.course.attempts),
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
    yield from (_sample("stage_seconds", stage.seconds, stage=stage.stage) for stage in report.stages)
    yield from _steps(totals.function_seconds)
    yield from (_sample("functions", getattr(totals, f"num_{each}"), outcome=each) for each in OUTCOMES)
    for shown, count in Counter(audit.outcome for audit in report.course.audits).items():
        yield _sample("audits", count, outcome=shown)
    failed: dict[str, set[int]] = {}
    for cause in report.failure.causes if report.failure else ():
        failed.setdefault(cause.kind, set()).update(cause.ranks)
    yield from (_sample("failed_ranks", len(ranks), kind=kind) for kind, ranks in failed.items())


def held_bytes(report: Report) -> int:
    """Bytes of artifacts and files beside them, as if every rank had its own."""
    return sum(
        function.size_bytes + sum(size for _, size in function.beside)
        for rank in report.ranks
        for function in rank.functions
    )


def progress_samples(state: LaunchState) -> Iterator[Sample]:
    """Progress of a running launch."""
    yield from _plain(
        launch_seconds=state.now_s,
        launch_attempts=state.attempt,
        failed_attempts=len(state.failed()),
        ranks=len(state.seats),
        nodes=state.num_nodes,
        problems=len(state.problems),
    )
    for stage in state.stages.values():
        yield _sample("stage_seconds", stage.seconds_at(state.now_s), stage=stage.stage)
        done = stage.num_done() if stage.is_running else len(stage.ranks)
        for name, number in (("done", done), ("running", len(stage.ranks) - done)):
            yield _sample("stage_ranks", number, stage=stage.stage, state=name)


def result_samples(state: LaunchState) -> Iterator[Sample]:
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
    yield from (_sample("functions", outcomes[each], outcome=each) for each in OUTCOMES)
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

    def _set(self, found: Iterable[Sample]) -> None:
        from ray.util.metrics import Gauge

        for sample in found:
            if sample.name not in self._gauges:
                keys = ("launch", *(name for name, _ in sample.labels))
                self._gauges[sample.name] = Gauge(sample.name, FAMILIES[sample.name], keys)
            tags = {"launch": self._name, **dict(sample.labels)}
            self._gauges[sample.name].set(sample.value, tags=tags)


def _plain(**values: float) -> Iterator[Sample]:
    return (_sample(name, value) for name, value in values.items())


def _steps(seconds: StageSeconds) -> Iterator[Sample]:
    for step in fields(StageSeconds):
        yield _sample("function_seconds", getattr(seconds, step.name), step=step.name.removesuffix("_s"))


def _sample(name: str, value: float, **labels: str) -> Sample:
    return Sample(name=f"warmrank_{name}", value=float(value), labels=tuple(labels.items()))
