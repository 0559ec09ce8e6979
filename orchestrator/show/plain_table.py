"""The look of a table in a terminal: no lines but one below its head."""

from __future__ import annotations

from rich import box
from rich.table import Table


def plain_table(title: str = "") -> Table:
    """A table to which columns are added; what follows one with a title keeps a line's distance."""
    return Table(
        title=title or None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=bool(title),
        padding=(0, 1, 0, 0),
    )
