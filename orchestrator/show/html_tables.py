"""Tables of the page of a launch, and long content behind its number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from warmrank.orchestrator.show.figures import count_text
from warmrank.orchestrator.show.markup import Html, tag

MAX_OPEN_ROWS = 32
"""Longer tables are closed until they are asked for."""

MAX_ROWS = 1000
"""Rows that a table may have; the JSON report has all."""


def table(
    heads: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    numbers: frozenset[int] = frozenset(),
    wide: int | None = None,
) -> Html:
    """A table; columns with an index in ``numbers`` stand to the right, column ``wide`` takes the room."""
    classes = ["n" if at in numbers else "wide" if at == wide else None for at in range(len(heads))]
    head = tag(
        "tr",
        [tag("th", name, class_=class_, scope="col") for name, class_ in zip(heads, classes, strict=True)],
    )
    every = list(rows)
    body = [
        tag("tr", [tag("td", cell, class_=class_) for cell, class_ in zip(row, classes, strict=True)])
        for row in every[:MAX_ROWS]
    ]
    more = len(every) - MAX_ROWS
    rest = tag("p", f"And {more:,} more, in the JSON report.", class_="sub") if more > 0 else None
    shown = tag("table", tag("thead", head), tag("tbody", body))
    return tag("div", shown, rest, class_="scroll", tabindex="0")


def closed(body: Html, num_rows: int, noun: str) -> Html:
    """Long content behind its number."""
    if num_rows <= MAX_OPEN_ROWS:
        return body
    return tag("details", tag("summary", f"Show {count_text(num_rows, noun)}"), body)
