"""The report of a launch for people: one table, totals, and why anything was compiled."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import fields

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from warmrank.orchestrator.show.course import AuditReport
from warmrank.orchestrator.show.events import AuditOutcome
from warmrank.orchestrator.show.failure_lines import attempt_lines, failure_lines
from warmrank.orchestrator.show.figures import count_text, seconds_text, size_text
from warmrank.orchestrator.show.folding import brief_ranks, runs_text
from warmrank.orchestrator.show.plain_table import plain_table
from warmrank.orchestrator.show.report import FunctionReport, Report, config_words, verified_text
from warmrank.orchestrator.show.store_report import NodeArtifacts
from warmrank.worker.results import StageSeconds
from warmrank.worker.runtime_state import in_words

MAX_RANKS_SHOWN = 16
"""A launch of more ranks shows one row for all ranks that did the same."""

MAX_ROWS_SHOWN = 60
"""And of these rows at most so many."""

MAX_NAMES_SHOWN = 8

_STEPS = tuple(field.name for field in fields(StageSeconds) if field.name != "audit_s")
"""Those that have a column; audits have lines of their own."""

_STYLES = {"compiled": "yellow", "loaded": "green", "adopted": "cyan"}


def render(report: Report) -> RenderableType:
    """The report as a table with lines below; fits 80 columns for usual function names."""
    spent = report.totals.function_seconds
    lines = [
        *failure_lines(report),
        _totals(report),
        *attempt_lines(report),
        *_reasons(report),
        *audit_lines(report.course.audits, spent.trace_s + spent.compile_s),
        *_runtime_state(report),
        *_verification(report),
        *_store(report),
        *_node_artifacts(report),
        *_nondeterministic(report),
        *_problems(report),
        *_queued(report),
    ]
    return Group(*([_table(report)] if any(rank.functions for rank in report.ranks) else []), *lines)


def node_artifacts_text(found: NodeArtifacts) -> tuple[str, ...]:
    """What became of the artifacts of one node, in words; nothing where it has none."""
    if found == NodeArtifacts():
        return ()
    came = f"{found.num_fetched} fetched ({size_text(found.bytes_fetched)}), {found.num_placed} put in place"
    own = f"{count_text(found.num_files, 'file')} of {size_text(found.size_bytes)}, {found.num_new} new"
    return (
        f"node artifacts: {own}; {came}, {found.num_there} were there",
        *(f"node artifact skipped: {reason}" for reason in found.skipped),
    )


def _node_artifacts(report: Report) -> list[Text]:
    """What became of node artifacts, equal lines of several nodes together."""
    hosts: dict[str, list[str]] = {}
    for node in report.node_artifacts:
        for line in node_artifacts_text(node.artifacts):
            hosts.setdefault(line, []).append(node.host)
    return [Text(f"{line} ({_names(found)})", style="dim") for line, found in hosts.items()]


def _table(report: Report) -> Table:
    title = f"{report.name}: {count_text(report.world_size, 'rank')}"
    table = plain_table(title)
    for name in ("rank", "function", "outcome"):
        table.add_column(name, overflow="fold")
    for name in ("trace", "compile", "load", "capture", "first"):
        table.add_column(name, justify="right", no_wrap=True)
    rows = list(_rows(report))
    most = MAX_ROWS_SHOWN if report.world_size > MAX_RANKS_SHOWN else len(rows)
    for ranks, function, seconds in rows[:most]:
        times = [seconds_text(getattr(seconds, step)) for step in _STEPS]
        outcome = Text(function.outcome, style=_STYLES[function.outcome])
        table.add_row(ranks, Text(function.function), outcome, *times)
    if len(rows) > most:
        table.caption = f"and {len(rows) - most:,} rows more, in the JSON report"
    return table


def _rows(report: Report) -> Iterable[tuple[str, FunctionReport, StageSeconds]]:
    pairs = [(rank.rank, function) for rank in report.ranks for function in rank.functions]
    if report.world_size <= MAX_RANKS_SHOWN:
        return [(str(rank), function, function.seconds) for rank, function in pairs]
    alike: dict[tuple[str, str, str], list[tuple[int, FunctionReport]]] = {}
    for rank, function in pairs:
        alike.setdefault((function.function, function.outcome, function.digest), []).append((rank, function))
    return [
        (
            runs_text(rank for rank, _ in members),
            members[0][1],
            _slowest(function.seconds for _, function in members),
        )
        for members in alike.values()
    ]


def _slowest(parts: Iterable[StageSeconds]) -> StageSeconds:
    """The most seconds that any rank spent in each stage."""
    every = list(parts)
    names = [field.name for field in fields(StageSeconds)]
    return StageSeconds(**{name: max(getattr(part, name) for part in every) for name in names})


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


def _reasons(report: Report) -> list[Text]:
    """Why functions were compiled, equal reasons together."""
    ranks: dict[tuple[str, str], list[int]] = {}
    for rank in report.ranks:
        for function in rank.functions:
            if function.outcome == "compiled":
                ranks.setdefault((function.function, function.reason), []).append(rank.rank)
    return _some(
        f"compiled {name} on {brief_ranks(members)}: {reason or 'no reason given'}"
        for (name, reason), members in ranks.items()
    )


def audit_lines(audits: Sequence[AuditReport], compile_s: float) -> list[Text]:
    """What audits cost beside compiles of so many seconds, and every difference."""
    if not audits:
        return []
    num_equal = sum(audit.outcome == "equal" for audit in audits)
    wall_s, cpu_s = (sum(getattr(audit, name) for audit in audits) for name in ("seconds", "cpu_s"))
    cost = (
        f"audited: {num_equal} of {count_text(len(audits), 'comparison')} equal, in {seconds_text(wall_s)} "
        f"(CPU {seconds_text(cpu_s)}) beside {seconds_text(compile_s)} of traces and compiles"
    )
    return _some([cost, *(_audit_text(audit) for audit in audits if audit.outcome != "equal")])


_SEEN: dict[AuditOutcome, str] = {
    "guarded": "conditions say so",
    "apart": "and cannot have its artifact there",
    "differs": "no condition says so",
}


def _audit_text(audit: AuditReport) -> str:
    seen = _SEEN[audit.outcome]
    return (
        f"{audit.function} is traced otherwise on {brief_ranks(audit.ranks)} than on rank {audit.leader} "
        f"({seen}): {audit.difference}"
    )


def _some(lines: Iterable[str]) -> list[Text]:
    """The first few lines, and how many there are more."""
    every = list(lines)
    more = len(every) - MAX_NAMES_SHOWN
    shown = [*every[:MAX_NAMES_SHOWN], *([f"and {more} more, in the JSON report"] if more > 0 else [])]
    return [Text(line, style="dim") for line in shown]


def _runtime_state(report: Report) -> list[Text]:
    """What was declared, functions and ranks of equal state together."""
    ranks: dict[tuple[str, str], list[int]] = {}
    for rank in report.ranks:
        for function in rank.functions:
            if function.runtime_state:
                ranks.setdefault((in_words(function.runtime_state), function.function), []).append(rank.rank)
    functions: dict[tuple[str, str], list[str]] = {}
    for (state, function_name), members in ranks.items():
        functions.setdefault((state, brief_ranks(members)), []).append(function_name)
    return _some(
        f"runtime state of {_names(names)} on {where}: {state}" for (state, where), names in functions.items()
    )


def _names(names: Iterable[str]) -> str:
    every = list(names)
    more = len(every) - MAX_NAMES_SHOWN
    return ", ".join(every[:MAX_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _verification(report: Report) -> list[Text]:
    text = verified_text(report)
    return [Text(text, style="" if text.startswith("verified") else "yellow")] if text else []


def _store(report: Report) -> list[Text]:
    """Places of the store and their state, where there are several; what each of several nodes moved."""
    lines = []
    if len(report.tiers) > 1:
        tiers = (
            f"{tier.location} ({tier.mode}{', away' if tier.state == 'away' else ''})"
            for tier in report.tiers
        )
        lines.append(Text(f"store: {', '.join(tiers)}", style="dim"))
    if len({rank.node_rank for rank in report.ranks}) > 1:
        lines += [Text(line, style="dim") for line in _nodes(report)]
    return lines


def _nodes(report: Report) -> Iterable[str]:
    fetched = {node.node_rank: node.bytes_copied for node in report.fetches}
    published = {node.node_rank: node.bytes_new for node in report.publishes}
    hosts = {rank.node_rank: rank.host for rank in report.ranks}
    moved = [node for node in sorted(hosts) if fetched.get(node) or published.get(node)]
    for node in moved[:MAX_RANKS_SHOWN]:
        yield (
            f"node {node} ({hosts[node]}): {size_text(fetched.get(node, 0))} fetched, "
            f"{size_text(published.get(node, 0))} published"
        )
    if len(moved) > MAX_RANKS_SHOWN:
        yield f"and {len(moved) - MAX_RANKS_SHOWN} nodes more, in the JSON report"


def _nondeterministic(report: Report) -> list[Text]:
    count = report.totals.num_nondeterministic
    if not count:
        return []
    names = ", ".join(
        f"{found.function} ({brief_ranks(found.ranks)})"
        for found in report.nondeterministic[:MAX_NAMES_SHOWN]
    )
    more = f" and {count - MAX_NAMES_SHOWN} more" if count > MAX_NAMES_SHOWN else ""
    return [Text(f"nondeterministic compiles: {count}: {names}{more}", style="bold yellow")]


def _queued(report: Report) -> list[Text]:
    """The last lines: what is to be done once the store answers again."""
    if not report.queued_on:
        return []
    *others, last = report.queued_on
    named = others[:MAX_NAMES_SHOWN] + (
        [f"{len(others) - MAX_NAMES_SHOWN} more hosts"] if others[MAX_NAMES_SHOWN:] else []
    )
    where = f"on {', '.join(named)}, and then on {last}" if named else f"on {last}"
    waiting = count_text(report.totals.num_queued, "partition")
    return [
        Text(
            f"queued for the store: {waiting}. When it answers again, "
            f"run {where}: warmrank publish {config_words(report)} "
            f"--set {shlex.quote(f'cache_dir={report.cache_dir}')}",
            style="bold yellow",
        )
    ]


def _problems(report: Report) -> list[Text]:
    return [Text(f"problem: {problem}", style="bold yellow") for problem in report.problems]
