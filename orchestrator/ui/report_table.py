"""The report of a launch for people: a table, totals, why it failed, and why anything was compiled.

Invariant: the number of lines has a bound that does not grow with the number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from warmrank.orchestrator.launch.report import FunctionReport, RankReport, Report
from warmrank.orchestrator.text import (
    brief_names,
    brief_ranks,
    count_text,
    first_lines,
    grouped,
    runs_text,
    seconds_text,
    size_text,
)
from warmrank.orchestrator.ui.advice import publish_command
from warmrank.orchestrator.ui.table import MAX_LINES, STYLES, audit_lines, problems, some, table_of
from warmrank.worker.results import StageSeconds
from warmrank.worker.runtime.runtime_state import in_words

MAX_RANKS_SHOWN = 16  # A launch of more ranks shows one row for all ranks that did the same

MAX_ROWS_SHOWN = 60  # and of these rows at most so many

STEPS = tuple(field.name for field in fields(StageSeconds))
_COLUMNS = (">trace", ">compile", ">load", ">capture", ">first")
"""Steps that have a column, the first of `STEPS`; audits have lines of their own."""

Alike = dict[tuple[str, ...], list[tuple[int, FunctionReport]]]


def render(report: Report) -> RenderableType:
    """The report as a table with lines below; fits 80 columns for usual function names."""
    spent = report.totals.function_seconds
    verified = verified_text(report)
    lines = [
        *_failure(report),
        _totals(report),
        *_attempts(report),
        *_reasons(report),
        *audit_lines(report.course.audits, spent.trace_s + spent.compile_s),
        *_runtime_state(report),
        *([Text(verified, style="" if verified.startswith("verified") else "yellow")] if verified else []),
        *_store(report),
        *_node_artifacts(report),
        *_nondeterministic(report),
        *problems(report.problems),
        *_queued(report),
    ]
    return Group(*([_table(report)] if any(rank.functions for rank in report.ranks) else []), *lines)


def headline(report: Report) -> str:
    """The outcome of a launch in a sentence."""
    totals, failure = report.totals, report.failure
    if failure is not None:
        head = f"Failed after {totals.wall_s:.1f} s"
        head += f" in stage {failure.stage.replace('_', ' ')}" if failure.stage else ""
        if not failure.causes:
            first = failure.message.splitlines()[0] if failure.message else failure.kind
            return f"{head}: {first.rstrip(':')}."
        cause, more = failure.causes[0], len(failure.causes) - 1
        on = f" ({brief_names(cause.hosts)})" if cause.hosts else ""
        others = f", and {count_text(more, 'other cause')}" if more else ""
        return f"{head}: {cause.kind} on {brief_ranks(cause.ranks)}{on}{others}."
    everyone = "The one rank is" if report.world_size == 1 else f"All {report.world_size:,} ranks are"
    counts = {
        "compiled": totals.num_compiled,
        "adopted": totals.num_adopted,
        "loaded": totals.num_loaded,
    }
    done = [f"{count:,} {what}" for what, count in counts.items() if count]
    if done and not totals.num_compiled:
        done.insert(0, "nothing compiled")
    how = f"{everyone} warm after {totals.wall_s:.1f} s"
    return f"{how}: {', '.join(done)}." if done else f"{how}."


def verified_text(report: Report) -> str:
    """Describe the comparison with a reference that held; or that nothing was compared, and how to."""
    checks = [rank.verification for rank in report.ranks if rank.verification and rank.verification.compared]
    if checks:
        worst = max(checks, key=lambda check: check.max_error)
        return (
            f"verified on {count_text(len(checks), 'rank')}: {worst.compared}; "
            f"largest difference {worst.max_error:.3g}, allowed {worst.tolerance:.3g}"
        )
    if report.outcome != "warm":
        return ""
    how = "" if "script" in report.identity else "; an entrypoint may return warmrank.Workload(check=...)"
    return f"nothing was verified: no check compares the warm model with a reference{how}"


def alike(ranks: Iterable[RankReport], *by: str) -> Alike:
    """Functions of all ranks, those together whose fields ``by`` are equal."""
    return grouped(
        (tuple(getattr(function, name) for name in by), (rank.rank, function))
        for rank in ranks
        for function in rank.functions
    )


def slowest(members: Iterable[tuple[int, FunctionReport]]) -> StageSeconds:
    """The most seconds that any rank spent in each step."""
    every = [function.seconds for _, function in members]
    return StageSeconds(**{name: max(getattr(part, name) for part in every) for name in STEPS})


def _table(report: Report) -> Table:
    title = f"{report.name}: {count_text(report.world_size, 'rank')}"
    table = table_of("rank", "function", "outcome", *_COLUMNS, title=title)
    rows = list(_rows(report))
    most = MAX_ROWS_SHOWN if report.world_size > MAX_RANKS_SHOWN else len(rows)
    for ranks, function, seconds in rows[:most]:
        times = [seconds_text(getattr(seconds, step)) for step in STEPS[: len(_COLUMNS)]]
        outcome = Text(function.outcome, style=STYLES[function.outcome])
        table.add_row(ranks, Text(function.function), outcome, *times)
    if len(rows) > most:
        table.caption = f"and {len(rows) - most:,} more, in the JSON report"
    return table


def _rows(report: Report) -> Iterator[tuple[str, FunctionReport, StageSeconds]]:
    if report.world_size <= MAX_RANKS_SHOWN:
        for rank in report.ranks:
            for function in rank.functions:
                yield str(rank.rank), function, function.seconds
        return
    for members in alike(report.ranks, "function", "outcome", "digest").values():
        yield runs_text(rank for rank, _ in members), members[0][1], slowest(members)


def _failure(report: Report) -> list[Text]:
    """The error, which names its causes with their remedies; nothing for a warm launch."""
    found = report.failure
    if found is None:
        return []
    stage = f" in stage {found.stage}" if found.stage else ""
    head = Text(f"{report.name}: failed{stage}, exit status {report.exit_code}", style="bold red")
    told = first_lines(found.message.splitlines(), max_lines=3 * MAX_LINES)
    return [head, *(Text(f"  {line}") for line in told)]


def _totals(report: Report) -> Text:
    totals = report.totals
    artifacts = count_text(totals.num_artifacts, "distinct artifact")
    if totals.num_files != totals.num_artifacts:
        artifacts += f" in {count_text(totals.num_files, 'file')}"
    return Text(
        f"{totals.num_compiled} compiled, {totals.num_loaded} loaded, {totals.num_adopted} adopted; "
        f"{artifacts} of {size_text(totals.artifact_bytes)}; "
        f"{size_text(totals.fetched_bytes)} fetched, {size_text(totals.published_bytes)} published; "
        f"{totals.wall_s:.1f} s in all"
    )


def _attempts(report: Report) -> list[Text]:
    """Each attempt, where there were several."""
    attempts = report.course.attempts
    if len(attempts) < 2:
        return []
    return [
        Text(
            f"attempt {attempt.attempt}: {attempt.end_s - attempt.start_s:.1f} s, "
            + (f"failed in {attempt.failed_stage or 'no stage'}" if attempt.error else "every rank warm")
            + (f" ({attempt.why_again})" if attempt.reason else ""),
            style="dim",
        )
        for attempt in attempts
    ]


def _reasons(report: Report) -> list[Text]:
    """Reasons for compiles, equal ones together."""
    return some(
        f"compiled {name} on {brief_ranks(rank for rank, _ in members)}: {reason or 'no reason given'}"
        for (name, outcome, reason), members in alike(report.ranks, "function", "outcome", "reason").items()
        if outcome == "compiled"
    )


def _runtime_state(report: Report) -> list[Text]:
    """Declared runtime state, functions and ranks of equal state together."""
    ranks = grouped(
        ((in_words(function.runtime_state), function.function), rank.rank)
        for rank in report.ranks
        for function in rank.functions
        if function.runtime_state
    )
    functions = grouped(((state, brief_ranks(members)), name) for (state, name), members in ranks.items())
    return some(
        f"runtime state of {_names(names)} on {where}: {state}" for (state, where), names in functions.items()
    )


def _store(report: Report) -> list[Text]:
    """Places of the store and their state, where there are several; what each of several nodes moved."""
    lines = []
    if len(report.tiers) > 1:
        tiers = (
            f"{tier.location} ({tier.mode}{', away' if tier.state == 'away' else ''})"
            for tier in report.tiers
        )
        lines.append(Text(f"store: {', '.join(tiers)}", style="dim"))
    hosts = {rank.node_rank: rank.host for rank in report.ranks}
    if len(hosts) < 2:
        return lines
    fetched = {node.node_rank: node.bytes_copied for node in report.fetches}
    published = {node.node_rank: node.bytes_new for node in report.publishes}
    moved = (
        f"node {node} ({hosts[node]}): {size_text(fetched.get(node, 0))} fetched, "
        f"{size_text(published.get(node, 0))} published"
        for node in sorted(hosts)
        if fetched.get(node) or published.get(node)
    )
    return [*lines, *some(moved, limit=MAX_RANKS_SHOWN)]


def _node_artifacts(report: Report) -> list[Text]:
    """Node artifacts kept and left out, equal lines of several nodes together."""
    hosts = grouped((line, node.host) for node in report.node_artifacts for line in node.artifacts.words())
    return [Text(f"{line} ({_names(found)})", style="dim") for line, found in hosts.items()]


def _nondeterministic(report: Report) -> list[Text]:
    if not report.nondeterministic:
        return []
    names = _names(f"{found.function} ({brief_ranks(found.ranks)})" for found in report.nondeterministic)
    count = report.totals.num_nondeterministic
    return [Text(f"nondeterministic compiles: {count}: {names}", style="bold yellow")]


def _queued(report: Report) -> list[Text]:
    """The last line: what is to be done once the store answers again."""
    if not report.queued_on:
        return []
    waiting = count_text(report.totals.num_queued, "partition")
    where, command = publish_command(report)
    text = f"queued for the store: {waiting}. When it answers again, run {where}: {command}"
    return [Text(text, style="bold yellow")]


def _names(names: Iterable[str]) -> str:
    return brief_names(names, max_names=MAX_LINES)
