"""Why a launch failed, and its stages and attempts, as sections of its page."""

from __future__ import annotations

from warmrank.orchestrator.show.course import why_again
from warmrank.orchestrator.show.figures import seconds_text
from warmrank.orchestrator.show.folding import brief_names, brief_ranks
from warmrank.orchestrator.show.html_tables import table
from warmrank.orchestrator.show.markup import Html, join, tag
from warmrank.orchestrator.show.report import Report
from warmrank.orchestrator.show.slow_ranks import last_ranks

MAX_CAUSES = 40


def failure(report: Report) -> Html | None:
    """Causes grouped, each with its ranks, hosts, text and remedy; then the whole error."""
    found = report.failure
    if found is None:
        return None
    causes = [
        tag(
            "div",
            tag("b", f"{cause.kind}{f' in {cause.function}' if cause.function else ''}"),
            f" on {brief_ranks(cause.ranks)}",
            tag("span", f" ({brief_names(cause.hosts)})", class_="soft") if cause.hosts else None,
            tag("p", f"Remedy: {cause.remedy}", class_="remedy") if cause.remedy else None,
            tag("pre", cause.message),
            tag("details", tag("summary", f"Traceback of rank {cause.ranks[0]}"), tag("pre", cause.traceback))
            if cause.traceback
            else None,
            class_="cause",
        )
        for cause in found.causes[:MAX_CAUSES]
    ]
    if len(found.causes) > MAX_CAUSES:
        more = f"And {len(found.causes) - MAX_CAUSES:,} more causes, in the JSON report."
        causes.append(tag("p", more, class_="sub"))
    silent = (
        tag("p", f"{brief_ranks(found.silent)} had not answered when the launch was stopped.", class_="soft")
        if found.silent
        else None
    )
    whole = tag("pre", found.message)
    return join(
        [causes, silent, tag("details", tag("summary", "The whole error"), whole) if causes else whole]
    )


def stages(report: Report) -> Html | None:
    """Attempts, where there were several, and every stage with its last rank."""
    attempts = report.course.attempts
    shown: list[Html] = []
    if len(attempts) > 1 or report.failure:
        shown.append(tag("h3", "Attempts"))
        rows = [
            (
                str(attempt.attempt),
                f"{attempt.end_s - attempt.start_s:.1f} s",
                why_again(attempt.attempt, attempt.reason) if attempt.reason else "the first",
                f"failed in {attempt.failed_stage or 'no stage'}" if attempt.error else "every rank warm",
                tag("pre", attempt.error) if attempt.error else "",
            )
            for attempt in attempts
        ]
        shown.append(table(("attempt", "took", "why", "ended", "error"), rows, numbers=frozenset({1})))
        shown.append(tag("h3", "Stages"))
    shown.append(_stage_table(report))
    return join(shown) if report.course.timeline or report.stages else None


def _stage_table(report: Report) -> Html:
    spans = report.course.timeline
    if not spans:
        return table(
            ("stage", "seconds"),
            [(stage.stage, f"{stage.seconds:.2f}") for stage in report.stages],
            numbers=frozenset({1}),
        )
    rows = [
        (
            last.stage.replace("_", " "),
            str(last.attempt),
            f"{span.start_s:.2f} s",
            seconds_text(span.end_s - span.start_s),
            f"{last.num_ranks:,}",
            seconds_text(last.median_s),
            seconds_text(last.seconds) if last.ok else "failed",
            f"{last.rank}{f' on {last.host}' if last.host else ''}",
        )
        for last, span in zip(
            last_ranks(report.course, report.ranks), (span for span in spans if span.ranks), strict=True
        )
    ]
    heads = ("stage", "attempt", "began at", "took", "ranks", "half after", "last after", "last rank")
    return table(heads, rows, numbers=frozenset({1, 2, 3, 4, 5, 6}))
