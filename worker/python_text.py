"""Values and remarks as Python source, whatever stands in them: quotes, newlines, control characters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

WIDTH = 100


def comment(text: str, indent: str = "") -> str:
    """One comment line; what cannot be printed is escaped, so the text cannot end the comment."""
    shown = "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
    return f"{indent}# {shown}".rstrip()


def comments(lines: Iterable[str]) -> str:
    """Comment lines."""
    return "\n".join(map(comment, lines))


def title(name: str) -> str:
    """A line that opens a section."""
    return f"# {f' {name} '.center(WIDTH - 2, '-')}"


def assigned(name: str, items: Iterable[tuple[str, Any]], brackets: str = "[]") -> str:
    """``name = [...]``, one item per line, each with a remark above it where it has a new one.

    Args:
        name: of the variable.
        items: remark (may be empty) and the item's source or value; pairs for ``{}``.
        brackets: of the literal.
    """
    lines = [f"{name} = {brackets[0]}"]
    said = ""
    for remark, item in items:
        if remark and remark != said:
            lines.append(comment(remark, "    "))
        said = remark
        text = f"{item[0]!r}: {item[1]!r}" if brackets == "{}" else repr(item)
        lines.append(f"    {text},")
    return "\n".join([*lines, brackets[1]]) if len(lines) > 1 else f"{name} = {brackets}"


def mapping(name: str, values: Mapping[str, Any]) -> str:
    """``name = {...}``, one item per line."""
    return assigned(name, (("", pair) for pair in values.items()), "{}")


def table(name: str, columns: Sequence[str], content: Iterable[Sequence[Any]]) -> str:
    """``name = [...]`` of tuples in aligned columns, with the columns' names in a comment above."""
    cells = [[f"{value!r}," for value in row] for row in content]
    if not cells:
        return f"{name} = []"
    heads = [f"{column}," for column in columns]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    head, *shown = (
        " ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (heads, *cells)
    )
    # A row of one column needs its comma to be a tuple; the comment's mark takes one column of the indent.
    rows = [f"    ({row if len(columns) == 1 else row.removesuffix(',')})," for row in shown]
    return "\n".join([f"{name} = [", comment(head.removesuffix(","), "   "), *rows, "]"])
