"""What a launch's table says of failures and attempts: lines, few whatever the number of ranks."""

from __future__ import annotations

from rich.text import Text

from warmrank.orchestrator.show.course import why_again
from warmrank.orchestrator.show.folding import brief_names, brief_ranks
from warmrank.orchestrator.show.report import Report

MAX_CAUSES_SHOWN = 8


def failure_lines(report: Report) -> list[Text]:
    """Why a launch failed, equal causes grouped, each with its remedy; nothing for a warm one."""
    found = report.failure
    if found is None:
        return []
    stage = f" in stage {found.stage}" if found.stage else ""
    lines = [Text(f"{report.name}: failed{stage}, exit status {report.exit_code}", style="bold red")]
    for cause in found.causes[:MAX_CAUSES_SHOWN]:
        what = f"{cause.kind} in {cause.function}" if cause.function else cause.kind
        on = f" ({brief_names(cause.hosts)})" if cause.hosts else ""
        lines.append(Text(f"  {brief_ranks(cause.ranks)}{on}: {what}: {cause.message}"))
        if cause.remedy:
            lines.append(Text(f"    remedy: {cause.remedy}"))
    if len(found.causes) > MAX_CAUSES_SHOWN:
        lines.append(Text(f"  and {len(found.causes) - MAX_CAUSES_SHOWN} more causes, in the JSON report"))
    if found.silent:
        lines.append(Text(f"  {brief_ranks(found.silent)}: had not answered when the launch was stopped"))
    return lines if found.causes else [*lines, *(Text(f"  {line}") for line in found.message.splitlines())]


def attempt_lines(report: Report) -> list[Text]:
    """Each attempt, where there were several."""
    attempts = report.course.attempts
    if len(attempts) < 2:
        return []
    return [
        Text(
            f"attempt {attempt.attempt}: {attempt.end_s - attempt.start_s:.1f} s, "
            + (f"failed in {attempt.failed_stage or 'no stage'}" if attempt.error else "every rank warm")
            + (f" ({why_again(attempt.attempt, attempt.reason)})" if attempt.reason else ""),
            style="dim",
        )
        for attempt in attempts
    ]
