"""One launch by warmrank, watched from the driver: seconds of each stage, CPU seconds of all ranks in it."""

from __future__ import annotations

from pathlib import Path
from time import process_time
from typing import Any

from benchmarks.launch_parts.model import cpu_s

_COLUMNS = ("seconds", "ranks_cpu_s", "driver_cpu_s", "workers")
_AT_WORK_S = 0.5  # a rank that waits spends less


def config_of(work: Path, cache: str, *, ranks: int, layers: int, audit: str = "one") -> Any:
    """The launch: equal ranks on a Ray of its own, a store in a directory."""
    from warmrank.orchestrator.config.reading import parse

    return parse(
        {
            "name": "benchmark",
            "workload": {
                "entrypoint": "benchmarks.launch_parts.model:workload",
                "arguments": {"layers": layers},
            },
            "ranks": ranks,
            "parallel": {"dp": ranks},
            "cache_dir": str(work / cache),
            "audit": audit,
            "store": {"path": str(work / "store"), "trust": {"policy": "off"}},
            "ray": {"num_cpus": ranks},
        }
    )


class Watch:
    """A listener that notes CPU seconds of all ranks at the borders of stages."""

    def __init__(self) -> None:
        self.stages: dict[str, dict[str, float]] = {}
        self.ranks_cpu_s = 0.0
        self._pids: tuple[int, ...] = ()
        self._ranks_s: list[float] = []
        self._driver_s = 0.0

    def __call__(self, _state: Any, event: Any) -> None:
        """Take one event."""
        kind = type(event).__name__
        if kind == "Placed":
            self._pids = tuple(placement.pid for placement in event.placements)
            self._ranks_s = [0.0] * len(self._pids)
        elif kind == "StageStarted":
            self._ranks_s, self._driver_s = [cpu_s(pid) for pid in self._pids], process_time()
        elif kind == "StageFinished":
            ranks_s, driver_s = [cpu_s(pid) for pid in self._pids], process_time()
            self.ranks_cpu_s = sum(ranks_s)
            spent_s = [now - then for now, then in zip(ranks_s, self._ranks_s, strict=True)]
            known = self.stages.setdefault(event.stage, dict.fromkeys(_COLUMNS, 0.0))
            known["seconds"] += event.seconds
            known["ranks_cpu_s"] += sum(spent_s)
            known["workers"] += sum(seconds > _AT_WORK_S for seconds in spent_s)
            known["driver_cpu_s"] += driver_s - self._driver_s


def run(work: Path, cache: str, *, ranks: int, layers: int, audit: str) -> dict[str, Any]:
    """One launch; what came of it, and what it took.

    Raises:
        RuntimeError: it had problems, so its figures say nothing.
    """
    from warmrank.orchestrator.launch.driver import launch

    watch = Watch()
    config = config_of(work, cache, ranks=ranks, layers=layers, audit=audit)
    report = launch(config, listener=watch)
    if report.problems:
        raise RuntimeError(f"the launch had problems: {report.problems}")
    outcomes = [function.outcome for rank in report.ranks for function in rank.functions]
    return {
        "outcomes": {outcome: outcomes.count(outcome) for outcome in sorted(set(outcomes))},
        "distinct": len({function.digest for rank in report.ranks for function in rank.functions}),
        "stages": watch.stages,
        "audits": {
            "number": len(report.timeline.audits),
            "seconds": sum(audited.seconds for audited in report.timeline.audits),
            "cpu_s": sum(audited.cpu_s for audited in report.timeline.audits),
        },
        "launch_s": report.totals.wall_s,
        "ranks_cpu_s": watch.ranks_cpu_s,
        "driver_cpu_s": process_time(),
    }
