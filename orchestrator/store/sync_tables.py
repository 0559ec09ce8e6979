"""Renders what ``warmrank sync`` did, for people; fits 100 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from warmrank.cache_store.errors import NotInStore
from warmrank.cache_store.sync.pull import PullReport
from warmrank.cache_store.sync.push import PushReport
from warmrank.orchestrator.show.figures import count_text, size_text, time_text

_SHOWN = 10


def render_pushes(reports: Sequence[PushReport]) -> RenderableType:
    """What each push stored."""
    parts: list[RenderableType] = []
    for report in reports:
        what = "pushed" if report.created else "unchanged"
        parts.append(Text.assemble((what, "bold green"), f" {report.directory}"))
        files, blobs = count_text(report.num_files, "file"), count_text(report.num_blobs_new, "blob")
        parts.append(
            Text(
                f"  {files}, {size_text(report.size_bytes)}; new in the store: "
                f"{blobs}, {size_text(report.bytes_new)}; key {report.key[:12]}"
            )
        )
        parts += _lines("left out", report.left_out)
    return Group(*parts)


def render_pulls(reports: Sequence[PullReport], misses: Sequence[NotInStore]) -> RenderableType:
    """What each pull restored, and why the others did not."""
    parts: list[RenderableType] = []
    for report in reports:
        parts.append(Text.assemble(("pulled", "bold green"), f" {report.directory}"))
        rewritten = f", {report.num_rewritten} changed to name it" if report.num_rewritten else ""
        removed = f", {report.num_removed} removed" if report.num_removed else ""
        parts.append(
            Text(
                f"  {count_text(report.num_new, 'file')} new, {report.num_replaced} replaced{removed} "
                f"({size_text(report.bytes_copied)}{rewritten}), {report.num_kept} there before; "
                f"pushed {time_text(report.pushed)}; key {report.key[:12]}"
            )
        )
        parts += _lines("note", report.problems)
    parts += [Text.assemble(("miss", "bold yellow"), f" {miss}") for miss in misses]
    return Group(*parts)


def _lines(label: str, lines: Sequence[str]) -> list[RenderableType]:
    more = [f"and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return [Text(f"  {label}: {line}", style="yellow") for line in (*lines[:_SHOWN], *more)]
