"""Reports of launches, offline builds and audits for people: a table, and lines below it.

Invariant: the number of lines has a bound that does not grow with the number of ranks.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from warmrank.cache_store.text import (
    brief_names,
    brief_ranks,
    count_text,
    first_lines,
    grouped,
    runs_text,
    seconds_text,
    size_text,
)
from warmrank.orchestrator.launch.events import AuditOutcome, AuditReport
from warmrank.orchestrator.launch.report import FunctionReport, RankReport, Report, config_words
from warmrank.orchestrator.ui.table import KEY_CHARS, MAX_LINES, problems, some, table_of, word
from warmrank.worker.results import StageSeconds
from warmrank.worker.runtime.runtime_state import in_words

if TYPE_CHECKING:
    from warmrank.orchestrator.build.plan import BuildReport, CacheAudit

MAX_RANKS_SHOWN = 16  # A launch of more ranks shows one row for all ranks that did the same
MAX_ROWS_SHOWN = 60  # and of these rows at most so many

STEPS = tuple(field.name for field in fields(StageSeconds))
_COLUMNS = (">trace", ">compile", ">load", ">capture", ">first")
"""Steps that have a column, the first of `STEPS`; audits have lines of their own."""

Alike = dict[tuple[str, ...], list[tuple[int, FunctionReport]]]


def render(report: Report) -> RenderableType:
    """The report as a table with lines below; fits 80 columns for usual function names."""
    parts: list[RenderableType] = []
    rows = list(_rows(report))
    if rows:
        most = MAX_ROWS_SHOWN if report.world_size > MAX_RANKS_SHOWN else len(rows)
        title = f"{report.name}: {count_text(report.world_size, 'rank')}"
        table = table_of("rank", "function", "outcome", *_COLUMNS, rows=rows[:most], title=title)
        if len(rows) > most:
            table.caption = f"and {len(rows) - most:,} more, in the JSON report"
        parts.append(table)
    spent, verified = report.totals.function_seconds, verified_text(report)
    parts += [*_failure(report), _totals(report), *_attempts(report), *_reasons(report)]
    parts += [*audit_lines(report.timeline.audits, spent.trace_s + spent.compile_s), *_runtime_state(report)]
    if verified:
        parts.append(Text(verified, style="" if verified.startswith("verified") else "yellow"))
    return Group(*parts, *_store(report), *problems(report.problems), *_last(report))


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
    counts = {name: getattr(totals, f"num_{name}") for name in ("compiled", "adopted", "loaded")}
    done = [f"{count:,} {what}" for what, count in counts.items() if count]
    if done and not totals.num_compiled:
        done.insert(0, "nothing compiled")
    everyone = "The one rank is" if report.world_size == 1 else f"All {report.world_size:,} ranks are"
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


def queued_text(report: Report) -> str:
    """Describe what waits for the store; the launch record waits in any case."""
    num_queued = report.totals.num_queued
    return count_text(num_queued, "partition") if num_queued else "the launch record"


def publish_command(report: Report) -> tuple[str, str]:
    """On which hosts what waits is to be published, in which order, and by which command."""
    *others, last = report.queued_on
    where = f"on {brief_names(others)}, and then on {last}" if others else f"on {last}"
    place = shlex.quote(f"cache_dir={report.cache_dir}")
    return where, f"warmrank store publish {config_words(report)} --set {place}"


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
    return StageSeconds(**{name: max((getattr(part, name) for part in every), default=0.0) for name in STEPS})


def _rows(report: Report) -> Iterator[tuple[str | Text, ...]]:
    if report.world_size <= MAX_RANKS_SHOWN:
        members = [(str(rank.rank), [(rank.rank, each)]) for rank in report.ranks for each in rank.functions]
    else:
        same = alike(report.ranks, "function", "outcome", "digest").values()
        members = [(runs_text(rank for rank, _ in each), each) for each in same]
    for ranks, each in members:
        function, spent = each[0][1], slowest(each)
        times = (seconds_text(getattr(spent, step)) for step in STEPS[: len(_COLUMNS)])
        yield ranks, function.function, word(function.outcome), *times


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
    known = "known of the last attempt: " if report.failure is not None else ""
    return Text(
        f"{known}{totals.num_compiled} compiled, {totals.num_loaded} loaded, {totals.num_adopted} adopted; "
        f"{artifacts} of {size_text(totals.artifact_bytes)}; "
        f"{size_text(totals.fetched_bytes)} copied from the store, "
        f"{size_text(totals.published_bytes)} published; "
        f"{totals.wall_s:.1f} s in all"
    )


def _attempts(report: Report) -> list[Text]:
    """Each attempt, where there were several."""
    attempts = report.timeline.attempts if len(report.timeline.attempts) > 1 else ()
    lines = []
    for each in attempts:
        ended = f"failed in {each.failed_stage or 'no stage'}" if each.error else "every rank warm"
        why = f" ({each.why_again})" if each.reason else ""
        lines.append(f"attempt {each.attempt}: {each.end_s - each.start_s:.1f} s, {ended}{why}")
    return [Text(line, style="dim") for line in lines]


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
    """Places of the store, where there are several; node artifacts kept and left out."""
    lines = []
    if len(report.tiers) > 1:
        away = {tier.location: ", away" if tier.state == "away" else "" for tier in report.tiers}
        tiers = (f"{tier.location} ({tier.mode}{away[tier.location]})" for tier in report.tiers)
        lines.append(f"store: {', '.join(tiers)}")
    kept = grouped((line, node.host) for node in report.node_artifacts for line in node.artifacts.words())
    lines += (f"{line} ({_names(found)})" for line, found in kept.items())
    return [Text(line, style="dim") for line in lines]


def _last(report: Report) -> list[Text]:
    """Compiles that came out differently; then what is to be done once the store answers again."""
    lines = []
    if report.nondeterministic:
        names = _names(f"{found.function} ({brief_ranks(found.ranks)})" for found in report.nondeterministic)
        lines.append(f"nondeterministic compiles: {report.totals.num_nondeterministic}: {names}")
    if report.queued_on:
        where, command = publish_command(report)
        lines.append(
            f"queued for the store: {queued_text(report)}. When it answers again, run {where}: {command}"
        )
    return [Text(line, style="bold yellow") for line in lines]


def _names(names: Iterable[str]) -> str:
    return brief_names(names, max_names=MAX_LINES)


AUDITED: dict[AuditOutcome, str] = {
    "equal": "equal",
    "guarded": "differs, as conditions say",
    "apart": "differs, on nodes that cannot have it",
    "differs": "differs behind all conditions",
}
"""Outcomes of audits, in words."""


def audit_text(audit: AuditReport) -> str:
    """The outcome of an audit in a line, with the first difference."""
    difference = f": {audit.difference}" if audit.difference else ""
    unlike = f"{brief_ranks(audit.ranks)} beside rank {audit.leader}"
    return f"{audit.function} audited on {unlike}: {AUDITED[audit.outcome]}{difference}"


def audit_lines(audits: Sequence[AuditReport], compile_s: float) -> list[Text]:
    """The cost of audits beside compiles of so many seconds, and every difference."""
    if not audits:
        return []
    num_equal = sum(audit.outcome == "equal" for audit in audits)
    wall_s, cpu_s = sum(audit.seconds for audit in audits), sum(audit.cpu_s for audit in audits)
    cost = (
        f"audited: {num_equal} of {count_text(len(audits), 'comparison')} equal, in {seconds_text(wall_s)} "
        f"(CPU {seconds_text(cpu_s)}) beside {seconds_text(compile_s)} of traces and compiles"
    )
    return some([cost, *(audit_text(audit) for audit in audits if audit.outcome != "equal")])


def render_build(report: BuildReport) -> RenderableType:
    """The classes of an offline build, with lines below."""
    totals = report.totals
    rows = [
        (
            item.function,
            word("compiled") if item.outcome == "compiled" else "there before",
            item.digest[:KEY_CHARS],
            str(item.num_ranks),
            str(item.leader),
            size_text(item.size_bytes),
            seconds_text(item.trace_s),
            seconds_text(item.compile_s),
        )
        for item in report.classes
    ]
    names = ("function", "outcome", "artifact", ">ranks", ">leader", ">size", ">trace", ">compile")
    title = f"{report.name}: {count_text(report.world_size, 'rank')} of device kind {report.device}"
    where = f"store {report.store}" if report.store else report.cache_dir
    duration = f" in {seconds_text(totals.compile_s)}" if totals.num_compiled else ""
    summary = (
        f"{count_text(totals.num_classes, 'class')}, {totals.num_compiled} compiled{duration}; "
        f"{count_text(totals.num_artifacts, 'artifact')} of {size_text(totals.artifact_bytes)}; "
        f"{count_text(totals.num_partitions_new, 'new partition')} in "
        f"{where}; {seconds_text(totals.wall_s)} in all, {totals.rank_ms:.1f} ms a rank beyond the compiles"
    )
    return Group(
        table_of(*names, rows=rows, title=title),
        Text(summary),
        Text(f"for: {report.environment_source}"),
        *audit_lines(report.audits, totals.compile_s),
        *(Text(f"not built: {what}: {reason}") for what, reason in report.not_built.items()),
        *(Text(f"assumed: {text}") for text in report.assumed),
        *problems(report.problems),
    )


_FRESHNESS = {
    "fresh": "fresh: every artifact is what would be traced now",
    "stale": "stale: something differs",
    "incomplete": "incomplete: something is not stored, or could not be compared; what was compared is equal",
}


def render_audit(found: CacheAudit) -> RenderableType:
    """The audit of a store or cache: a row for each artifact, and lines below."""
    rows, lines = [], []
    for item in found.functions:
        digest, times = item.digest[:KEY_CHARS] or "-", (seconds_text(item.seconds), seconds_text(item.cpu_s))
        rows.append((item.function, digest, runs_text(item.ranks), word(item.outcome), *times))
        if item.outcome != "equal":
            lines.append(f"{item.function} {item.outcome} on {brief_ranks(item.ranks)}: {item.reason}")
    for other in found.not_compared:
        whose = f"{other.function} {other.digest[:KEY_CHARS]} ({brief_ranks(other.ranks)})"
        lines.append(f"not compared: {whose}: {other.reason}")
    title = f"{found.name}: {count_text(found.world_size, 'rank')}, {found.source}"
    traced = count_text(found.num_retraced_ranks, "rank")
    summary = f"{_FRESHNESS[found.outcome]}; {traced} traced, in {seconds_text(found.wall_s)}"
    return Group(
        table_of("function", "artifact", "ranks", "trace", ">took", ">CPU", rows=rows, title=title),
        *map(Text, lines),
        *problems(found.problems),
        Text(f"for: {found.environment_source}"),
        Text(summary, style="bold"),
    )
