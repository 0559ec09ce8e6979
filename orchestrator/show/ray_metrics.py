"""Tells Ray's metrics how a launch goes, while it goes; Prometheus sees them as ``ray_warmrank_*``.

Invariants: nothing is imported, and nothing happens, where the driver has no Ray; a metric is set a few times
a second at most, whatever the number of ranks.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, fields
from typing import Any

from warmrank.orchestrator.show import events
from warmrank.orchestrator.show.events import Event
from warmrank.orchestrator.show.metrics import FAMILIES, Sample
from warmrank.orchestrator.show.standing import Standing
from warmrank.worker.results import FunctionResult

SET_EVERY_S = 1.0
_ENDS = (
    events.Seated,
    events.StageFinished,
    events.StageStarted,
    events.AttemptFailed,
    events.AttemptStarted,
)


@dataclass(slots=True)
class Sums:
    """Sums over functions of all ranks, kept up to date by what is new.

    Attributes:
        functions: how many, by outcome.
        seconds: by step.
        held_bytes: of their artifacts, as if nothing were shared.
        digests: of distinct artifacts.
        sizes: of these and the files beside them, by digest.
        known: the last word on each function of each rank.
    """

    functions: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    held_bytes: int = 0
    digests: set[str] = field(default_factory=set)
    sizes: dict[str, int] = field(default_factory=dict)
    known: dict[tuple[int, str], FunctionResult] = field(default_factory=dict)

    def take(self, rank: int, result: FunctionResult) -> None:
        """Count a function's last word, and no longer the one before it."""
        if not result.ok:
            return
        before = self.known.get((rank, result.function))
        if before is not None:
            self._count(before, -1)
        self.known[rank, result.function] = result
        self._count(result, 1)
        if result.digest:
            self.digests.add(result.digest)
            self.sizes[result.digest] = result.size_bytes
        self.sizes.update(result.beside)

    def _count(self, result: FunctionResult, sign: int) -> None:
        self.functions[result.outcome] = self.functions.get(result.outcome, 0) + sign
        self.held_bytes += sign * (result.size_bytes + sum(size for _, size in result.beside))
        for step in fields(result.seconds):
            name = step.name.removesuffix("_s")
            spent = getattr(result.seconds, step.name)
            self.seconds[name] = self.seconds.get(name, 0.0) + sign * spent


class RayMetrics:
    """Hears a launch, and sets gauges of the Ray that its driver is connected to, if any.

    Args:
        name: of the launch; a label of every metric.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._standing = Standing(num_ranks=0)
        self._sums = Sums()
        self._gauges: dict[str, Any] = {}
        self._set_s = -SET_EVERY_S

    def __call__(self, event: Event) -> None:
        """Take an event in, and set what is due."""
        self._standing(event)
        match event:
            case events.AttemptStarted():
                self._sums = Sums()
            case events.FunctionFinished():
                self._sums.take(event.rank, event.result)
            case _:
                pass
        if isinstance(event, _ENDS) or event.at_s - self._set_s >= SET_EVERY_S:
            self._set_s = event.at_s
            for sample in going(self._standing, self._sums):
                self._set(sample)

    def _set(self, sample: Sample) -> None:
        ray = sys.modules.get("ray")
        if ray is None or not ray.is_initialized():
            return
        if sample.name not in self._gauges:
            from ray.util.metrics import Gauge

            keys = ("launch", *(name for name, _ in sample.labels))
            self._gauges[sample.name] = Gauge(sample.name, FAMILIES[sample.name], keys)
        self._gauges[sample.name].set(sample.value, tags={"launch": self._name, **dict(sample.labels)})


def going(standing: Standing, sums: Sums) -> tuple[Sample, ...]:
    """A launch that runs, in numbers."""
    plain = {
        "warmrank_launch_seconds": standing.now_s,
        "warmrank_launch_attempts": standing.attempt,
        "warmrank_failed_attempts": len(standing.failed),
        "warmrank_ranks": len(standing.seats),
        "warmrank_nodes": standing.num_nodes,
        "warmrank_problems": len(standing.problems),
        "warmrank_artifacts": len(sums.digests),
        "warmrank_artifact_bytes": sum(sums.sizes.values()),
        "warmrank_held_bytes": sums.held_bytes,
    }
    found = [Sample(name=name, value=float(value)) for name, value in plain.items()]
    for stage in standing.stages.values():
        labels = ("stage", stage.stage)
        seconds = stage.seconds_at(standing.now_s)
        found.append(Sample(name="warmrank_stage_seconds", value=seconds, labels=(labels,)))
        done = stage.num_done() if stage.is_running else len(stage.ranks)
        for state, number in (("done", done), ("running", len(stage.ranks) - done)):
            of_state = (labels, ("state", state))
            found.append(Sample(name="warmrank_stage_ranks", value=float(number), labels=of_state))
    for outcome, count in sums.functions.items():
        found.append(Sample(name="warmrank_functions", value=float(count), labels=(("outcome", outcome),)))
    for step, seconds in sums.seconds.items():
        found.append(Sample(name="warmrank_function_seconds", value=seconds, labels=(("step", step),)))
    return tuple(found)
