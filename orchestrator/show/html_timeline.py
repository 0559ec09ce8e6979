"""The timeline of a launch as HTML: a row for each rank, node or group of nodes, a bar for each stage.

Bars are placed in percent, so that the page may have any width. A bar is solid until the first of its row's
ranks had answered, and pale from there to the last one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from warmrank.orchestrator.show.course import Course
from warmrank.orchestrator.show.events import STAGES
from warmrank.orchestrator.show.figures import count_text
from warmrank.orchestrator.show.folding import Bar, Row, brief_names, brief_ranks, runs_text, timeline_rows
from warmrank.orchestrator.show.markup import Html, join, tag
from warmrank.orchestrator.show.report import Report

MAX_ROWS = 64
_DENSE_ROWS = 24
_LABEL_PERCENT = 7.0
_MAX_TICKS = 9


def timeline(report: Report) -> Html:
    """Legend, axis and rows; a sentence where nothing was timed."""
    course = report.course
    rows = timeline_rows(course, report.ranks, max_rows=MAX_ROWS)
    end_s = max([report.totals.wall_s, *(span.end_s for span in course.timeline)])
    if not rows or end_s <= 0:
        return tag("p", "No stage began.", class_="soft")
    lines: list[Html] = [tag("span"), _axis(end_s)]
    for row in rows:
        name = _name(row)
        lines.append(tag("span", name, class_="name", title=_where(row)))
        bars = [_bar(bar, row, end_s) for bar in row.bars]
        label = f"{_where(row)}: " + "; ".join(_words(bar) for bar in row.bars)
        lines.append(
            tag("div", bars, _ends(course, end_s), class_="track", role="img", aria_label=label[:2000])
        )
    dense = " dense" if len(rows) > _DENSE_ROWS else ""
    return join([_legend(rows), _folded(report, rows), tag("div", lines, class_=f"tl{dense}")])


def _legend(rows: Sequence[Row]) -> Html:
    seen = {bar.stage for row in rows for bar in row.bars}
    names = [stage for stage in STAGES if stage in seen]
    items = [tag("li", tag("i", class_=name), name.replace("_", " ")) for name in names]
    if any(not bar.ok for row in rows for bar in row.bars):
        items.append(tag("li", "striped: the attempt ended in it"))
    return tag("ul", items, class_="legend")


def _folded(report: Report, rows: Sequence[Row]) -> Html | None:
    """What a row stands for, where it is not a rank."""
    if all(len(row.ranks) == 1 for row in rows):
        return None
    num_nodes = len({rank.node_rank for rank in report.ranks})
    what = "a node" if len(rows) == num_nodes else "nodes or ranks that did the same at the same time"
    text = (
        f"A row is {what}; a bar is solid until the first of its ranks was through, and pale until the last."
    )
    return tag("p", text, class_="sub")


def _axis(end_s: float) -> Html:
    step = _step(end_s)
    ticks = [index * step for index in range(int(end_s / step * (1 - 1e-9)) + 1)]
    ticks = [tick for tick in ticks if end_s - tick > max(step / 2, end_s / 8)]
    marks = [tag("span", f"{tick:g}", style=f"left:{100 * tick / end_s:.2f}%") for tick in ticks]
    return tag("div", marks, tag("span", f"{end_s:.1f} s", style="left:100%"), class_="axis")


def _step(end_s: float) -> float:
    """The smallest of 1, 2, 5, 10 ... seconds, or parts of it, that leaves few ticks."""
    power = 10.0 ** math.floor(math.log10(end_s / _MAX_TICKS))
    return next(factor * power for factor in (1, 2, 5, 10, 20) if end_s / (factor * power) <= _MAX_TICKS)


def _bar(bar: Bar, row: Row, end_s: float) -> Html:
    left, width = 100 * bar.start_s / end_s, 100 * (bar.last_s - bar.start_s) / end_s
    spread = (bar.first_s - bar.start_s) / (bar.last_s - bar.start_s) if bar.last_s > bar.start_s else 1.0
    solid = f";--f:{100 * spread:.0f}%" if spread < 0.995 and len(row.ranks) > 1 else ""
    return tag(
        "i",
        bar.stage.replace("_", " ") if width > _LABEL_PERCENT else "",
        class_=f"b {bar.stage if bar.stage in STAGES else ''}{'' if bar.ok else ' x'}",
        style=f"left:{left:.2f}%;width:{width:.2f}%{solid}",
        title=f"{_where(row)}\n{_words(bar)}",
    )


def _words(bar: Bar) -> str:
    seconds = bar.last_s - bar.start_s
    text = f"{bar.stage.replace('_', ' ')} {seconds:.2f} s, from {bar.start_s:.2f} s on"
    if bar.attempt > 1:
        text += f", attempt {bar.attempt}"
    if bar.num_ranks > 1 and bar.first_s < bar.last_s:
        first = bar.first_s - bar.start_s
        text += f"; first of {bar.num_ranks:,} after {first:.2f} s, last was rank {bar.last_rank}"
    return text if bar.ok else f"{text}; the attempt ended here"


def _ends(course: Course, end_s: float) -> list[Html]:
    """Where an attempt failed and another began."""
    return [
        tag("span", class_="at", style=f"left:{100 * attempt.end_s / end_s:.2f}%")
        for attempt in course.attempts[:-1]
    ]


def _name(row: Row) -> str:
    if len(row.ranks) == 1:
        return f"rank {row.ranks[0]}" + (f" · {row.hosts[0]}" if row.hosts else "")
    if len(row.hosts) == 1:
        return f"{row.hosts[0]} · {runs_text(row.ranks, max_runs=1)}"
    return count_text(len(row.hosts), "node") if row.hosts else count_text(len(row.ranks), "rank")


def _where(row: Row) -> str:
    on = f" on {brief_names(row.hosts)}" if row.hosts else ""
    return f"{brief_ranks(row.ranks)}{on}"
