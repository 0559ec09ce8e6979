"""Parts of the command line's tables: columns, styles, headings, lines cut short."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from warmrank.orchestrator.text import brief_ranks, count_text, first_lines, seconds_text

if TYPE_CHECKING:
    from warmrank.orchestrator.launch.events import AuditOutcome, AuditReport

KEY_CHARS = 12
MAX_LINES = 8
WIDE = 100
"""Columns of a terminal that has room for all that a table lists."""
STYLES = {
    "compiled": "yellow",
    "loaded": "green",
    "adopted": "cyan",
    "equal": "green",
    "differs": "bold red",
    "missing": "yellow",
    "failed": "yellow",
    "load": "bold green",
    "adopt": "bold cyan",
    "compile": "bold yellow",
    "ok": "green",
    "note": "cyan",
    "warning": "bold yellow",
    "error": "bold red",
}
"""Of outcomes and levels, wherever they are shown."""


def plain_table(title: str = "") -> Table:
    """A table to which columns are added: a line below its head, and one above a title."""
    return Table(
        title=title or None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=bool(title),
        padding=(0, 1, 0, 0),
    )


def table_of(*columns: str, title: str = "") -> Table:
    """A table with these columns: ``>`` before those of numbers, ``=`` before those that are never folded."""
    table = plain_table(title)
    for column in columns:
        name = column.lstrip(">=")
        table.add_column(
            name,
            justify="right" if column.startswith(">") else "left",
            no_wrap=name != column,
            min_width=len(name),
            overflow="fold",
        )
    return table


def pairs(rows: Iterable[tuple[str, str]], *, style: str = "dim") -> Table:
    """Names with their values."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(Text(f"  {name}", style=style), Text(value))
    return grid


def heading(text: str) -> Text:
    """The line above a part, at a distance from what is above it."""
    return Text(f"\n{text}", style="bold")


def problems(texts: Iterable[str]) -> list[Text]:
    """A line for each problem."""
    return [Text(f"problem: {text}", style="bold yellow") for text in texts]


def some(lines: Iterable[str], *, limit: int = MAX_LINES, style: str = "dim") -> list[Text]:
    """The first few lines, and the number of the others."""
    return [Text(line, style=style) for line in first_lines(lines, max_lines=limit)]


def audit_lines(audits: Sequence[AuditReport], compile_s: float) -> list[Text]:
    """The cost of audits beside compiles of so many seconds, and every difference."""
    if not audits:
        return []
    seen: dict[AuditOutcome, str] = {
        "guarded": "conditions say so",
        "apart": "and cannot have its artifact there",
        "differs": "no condition says so",
    }
    num_equal = sum(audit.outcome == "equal" for audit in audits)
    wall_s, cpu_s = sum(audit.seconds for audit in audits), sum(audit.cpu_s for audit in audits)
    cost = (
        f"audited: {num_equal} of {count_text(len(audits), 'comparison')} equal, in {seconds_text(wall_s)} "
        f"(CPU {seconds_text(cpu_s)}) beside {seconds_text(compile_s)} of traces and compiles"
    )
    differences = (
        f"{audit.function} is traced otherwise on {brief_ranks(audit.ranks)} than on rank {audit.leader} "
        f"({seen[audit.outcome]}): {audit.difference}"
        for audit in audits
        if audit.outcome != "equal"
    )
    return some([cost, *differences])
