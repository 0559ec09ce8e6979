"""What to do after a launch follows from its report."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.made_reports import made_report
from warmrank.cache_store.backends.places import TierState
from warmrank.cache_store.records.manifest import RankEnvironment
from warmrank.orchestrator.causes import Cause, policy_of
from warmrank.orchestrator.launch.events import AuditReport
from warmrank.orchestrator.launch.report import Failure, Nondeterministic, Report
from warmrank.orchestrator.launch.state import Course
from warmrank.orchestrator.ui.advice import Step, next_steps


def calm(**changes: object) -> Report:
    """A warm launch of two ranks that compiled nothing, about which there is nothing to say."""
    report = made_report(2)
    ranks = tuple(
        replace(rank, functions=tuple(replace(each, outcome="loaded") for each in rank.functions))
        for rank in report.ranks
    )
    loaded = replace(report.totals, num_compiled=0, num_loaded=4, num_queued=3)
    return replace(report, ranks=ranks, totals=loaded, **changes)  # type: ignore[arg-type]


def step_of(report: Report, part: str) -> Step:
    (found,) = [step for step in next_steps(report) if part in step.title]
    return found


OTHERS = RankEnvironment(ranks=tuple(range(8, 16)), environment={"torch": "2.12.0"})
AUDIT = AuditReport(
    round=0, function="f", leader=0, ranks=(1,), outcome="differs", difference="a / b", seconds=0.1, cpu_s=0.1
)
AWAY = TierState(location="s3://bucket", mode="rw", state="away", reason="no answer in 5 s")


@pytest.mark.parametrize(
    ("report", "level", "title", "text"),
    [
        (calm(), "good", "Nothing was compiled", "--no-compile"),
        (calm(tiers=(AWAY,)), "look", "place s3://bucket was away", "no answer in 5 s"),
        (calm(other_environments=(OTHERS,)), "look", "Nodes differ", "ranks 8-15: "),
        (calm(unsigned="no key is set"), "do", "not signed", "no key is set"),
        (
            calm(nondeterministic=(Nondeterministic(function="f", ranks=(0, 1)),)),
            "look",
            "not deterministic",
            "f (ranks 0-1)",
        ),
        (calm(course=Course(audits=(AUDIT,))), "do", "Traces differ", "f on rank 1, unlike rank 0: a / b"),
        (
            made_report(8),
            "good",
            "The next launch loads what was compiled now (8 functions)",
            "Llama.prefill, Llama.decode: torch 2.13.0 -> 2.13.1",
        ),
        (replace(made_report(8), record=""), "look", "Why 8 functions had to be compiled", "torch"),
        (replace(made_report(8), store="", record=""), "look", "kept on these nodes only", "`store:` in"),
    ],
)
def test_step_follows_from_a_field_of_the_report(report: Report, level: str, title: str, text: str) -> None:
    step = step_of(report, title)
    assert step.level == level
    assert text in step.text


@pytest.mark.parametrize(
    ("kind", "message", "title", "text"),
    [
        ("CannotStart", "no NPU is free", "Cannot start", "no NPU is free"),
        ("CompileForbidden", "2 functions missed", "Compile forbidden", policy_of("CompileForbidden").remedy),
    ],
)
def test_failed_launch_without_causes_is_advised_by_its_kind(
    kind: str, message: str, title: str, text: str
) -> None:
    report = replace(made_report(8, failed=True), failure=Failure(kind=kind, message=message))
    first = next_steps(report)[0]
    assert (first.title, first.text) == (title, text)


def raised_on(rank: int, **changes: object) -> Report:
    """A launch of two ranks, of which one raised in build, so that nothing was compiled."""
    report = made_report(2, failed=True)
    assert report.failure is not None
    cause = Cause(ranks=(rank,), kind="RuntimeError", function="", message="no weights", remedy="")
    built = [span for span in report.course.timeline if span.stage in {"start", "fetch", "build"}]
    values: dict[str, object] = {"stage": "build", "causes": (cause,), "silent": (), **changes}
    return replace(
        report,
        failure=replace(report.failure, **values),  # type: ignore[arg-type]
        course=replace(report.course, timeline=tuple(built)),
    )


def test_failure_without_a_remedy_names_the_log_of_the_rank_that_failed() -> None:
    report = raised_on(1)
    first = next_steps(report)[0]
    log = f"{report.ranks[1].log} of rank 1 on node-0"
    assert first.title == "Correct RuntimeError on rank 1"
    assert first.text == f"no weights\nRead {log}. Correct what raised it, and launch again."
    assert "rank-0.log" not in "".join(step.text for step in next_steps(report))
