"""The report of an offline build for people."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from warmrank.orchestrator.build.report import BuildReport
from warmrank.orchestrator.show.figures import count_text, seconds_text, size_text
from warmrank.orchestrator.show.plain_table import plain_table
from warmrank.orchestrator.show.report_table import audit_lines

_DIGEST_CHARS = 12


def render_build(report: BuildReport) -> RenderableType:
    """The classes as a table, with lines below."""
    return Group(
        _classes(report),
        _totals(report),
        Text(f"for: {report.environment_source}"),
        *audit_lines(report.audits, report.totals.compile_s),
        *(Text(f"not built: {item.what}: {item.reason}") for item in report.not_built),
        *(Text(f"assumed: {text}") for text in report.assumed),
        *(Text(f"problem: {text}", style="yellow") for text in report.problems),
    )


def _classes(report: BuildReport) -> Table:
    title = f"{report.name}: {count_text(report.world_size, 'rank')} of device kind {report.device}"
    table = plain_table(title)
    for name in ("function", "outcome", "artifact"):
        table.add_column(name, overflow="fold")
    for name in ("ranks", "leader", "size", "trace", "compile"):
        table.add_column(name, justify="right", no_wrap=True)
    for item in report.classes:
        outcome = Text("compiled", style="yellow") if item.outcome == "compiled" else Text("there before")
        table.add_row(
            Text(item.function),
            outcome,
            item.digest[:_DIGEST_CHARS],
            str(item.num_ranks),
            str(item.leader),
            size_text(item.size_bytes),
            seconds_text(item.trace_s),
            seconds_text(item.compile_s),
        )
    return table


def _totals(report: BuildReport) -> Text:
    totals = report.totals
    where = f"store {report.store}" if report.store else report.cache_dir
    return Text(
        f"{count_text(totals.num_classes, 'class')}, {totals.num_compiled} compiled in "
        f"{seconds_text(totals.compile_s)}; {count_text(totals.num_artifacts, 'artifact')} of "
        f"{size_text(totals.artifact_bytes)}; {count_text(totals.num_partitions_new, 'new partition')} in "
        f"{where}; {seconds_text(totals.wall_s)} in all, {totals.rank_ms:.1f} ms a rank beyond the compiles"
    )
