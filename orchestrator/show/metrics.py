"""A launch in numbers for Prometheus: what is counted, under which names, and the text of a collector.

Layout of the text: https://prometheus.io/docs/instrumenting/exposition_formats/ (text format 0.0.4). Every
metric is a gauge of the last launch: what counts over launches is for the server that scrapes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields

from warmrank.orchestrator.show.report import Report

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One value of a metric.

    Attributes:
        name: one of `FAMILIES`.
        value: its value.
        labels: name -> value, without the launch's own.
    """

    name: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()


def samples(report: Report) -> tuple[Sample, ...]:
    """All that a report says in numbers, each labelled with the launch's name."""
    totals = report.totals
    plain = {
        "warmrank_launch_warm": report.outcome == "warm",
        "warmrank_launch_exit_code": report.exit_code,
        "warmrank_launch_seconds": totals.wall_s,
        "warmrank_launch_attempts": len(report.course.attempts),
        "warmrank_failed_attempts": sum(bool(attempt.error) for attempt in report.course.attempts),
        "warmrank_ranks": report.world_size,
        "warmrank_nodes": len({rank.node_rank for rank in report.ranks}),
        "warmrank_artifacts": totals.num_artifacts,
        "warmrank_artifact_bytes": totals.artifact_bytes,
        "warmrank_held_bytes": held_bytes(report),
        "warmrank_fetched_bytes": totals.fetched_bytes,
        "warmrank_published_bytes": totals.published_bytes,
        "warmrank_queued_partitions": totals.num_queued,
        "warmrank_nondeterministic_functions": totals.num_nondeterministic,
        "warmrank_problems": len(report.problems),
    }
    found = [Sample(name=name, value=float(value)) for name, value in plain.items()]
    found += [_sample("stage_seconds", stage.seconds, stage=stage.stage) for stage in report.stages]
    for step in fields(totals.function_seconds):
        seconds = getattr(totals.function_seconds, step.name)
        found.append(_sample("function_seconds", seconds, step=step.name.removesuffix("_s")))
    for outcome in ("compiled", "loaded", "adopted"):
        found.append(_sample("functions", getattr(totals, f"num_{outcome}"), outcome=outcome))
    for shown, count in Counter(audit.outcome for audit in report.course.audits).items():
        found.append(_sample("audits", count, outcome=shown))
    for kind, ranks in _failed(report).items():
        found.append(_sample("failed_ranks", len(ranks), kind=kind))
    named = ("launch", report.name)
    return tuple(
        Sample(name=sample.name, value=sample.value, labels=(named, *sample.labels)) for sample in found
    )


def held_bytes(report: Report) -> int:
    """Bytes of artifacts and files beside them, as if every rank had its own."""
    return sum(
        function.size_bytes + sum(size for _, size in function.beside)
        for rank in report.ranks
        for function in rank.functions
    )


def exposition(found: Iterable[Sample]) -> str:
    """The samples as text, all of a metric together after its help and type."""
    by_name: dict[str, list[Sample]] = {}
    for sample in found:
        by_name.setdefault(sample.name, []).append(sample)
    lines = []
    for name, members in by_name.items():
        lines += [f"# HELP {name} {FAMILIES[name]}", f"# TYPE {name} gauge"]
        lines += [f"{name}{_labels(sample)} {sample.value:.10g}" for sample in members]
    return "\n".join(lines) + "\n"


def _labels(sample: Sample) -> str:
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in sample.labels)
    return f"{{{pairs}}}" if pairs else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _sample(name: str, value: float, **labels: str) -> Sample:
    return Sample(name=f"warmrank_{name}", value=float(value), labels=tuple(labels.items()))


def _failed(report: Report) -> dict[str, set[int]]:
    """Ranks by the kind of their failure."""
    ranks: dict[str, set[int]] = {}
    for cause in report.failure.causes if report.failure else ():
        ranks.setdefault(cause.kind, set()).update(cause.ranks)
    return ranks
