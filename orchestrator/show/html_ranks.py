"""The table of ranks of a launch's page: ranks that did the same together, then each by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from warmrank.orchestrator.show.figures import count_text, seconds_text
from warmrank.orchestrator.show.folding import runs_text
from warmrank.orchestrator.show.html_tables import MAX_ROWS
from warmrank.orchestrator.show.markup import Html, join, tag
from warmrank.orchestrator.show.report import RankReport, Report
from warmrank.worker.results import StageSeconds

MAX_RANKS_SHOWN = 2048
"""A larger launch has its ranks one by one in the JSON report only, which keeps the page small."""

_STEPS = tuple(field.name for field in fields(StageSeconds))
_HEADS = ("trace", "compile", "load", "capture", "first call", "audit")


def ranks(report: Report) -> Html | None:
    """What ranks did, function by function, slowest times; and where each rank ran."""
    if not report.ranks:
        return None
    return join([_by_function(report), _by_rank(report)])


def _by_function(report: Report) -> Html | None:
    alike: dict[tuple[str, str, str], list[tuple[int, StageSeconds]]] = {}
    for rank in report.ranks:
        for function in rank.functions:
            key = (function.function, function.outcome, function.digest)
            alike.setdefault(key, []).append((rank.rank, function.seconds))
    if not alike:
        return None
    rows = [
        [
            tag("td", name),
            tag("td", tag("span", outcome, class_=f"tagged {outcome}")),
            tag("td", f"{len(members):,}", class_="n"),
            tag("td", runs_text(rank for rank, _ in members)),
            [
                tag("td", seconds_text(max(getattr(seconds, step) for _, seconds in members)), class_="n")
                for step in _STEPS
            ],
        ]
        for (name, outcome, _), members in list(alike.items())[:MAX_ROWS]
    ]
    heads = [
        *(tag("th", head, scope="col") for head in ("function", "outcome")),
        tag("th", "ranks", scope="col", class_="n"),
        tag("th", "which", scope="col"),
        *(
            tag("th", f"slowest {head}" if head == "trace" else head, scope="col", class_="n")
            for head in _HEADS
        ),
    ]
    return _table(heads, rows, None)


def _by_rank(report: Report) -> Html:
    if len(report.ranks) > MAX_RANKS_SHOWN:
        text = f"{count_text(len(report.ranks), 'rank')}: one by one they stand in the JSON report."
        return tag("p", text, class_="sub")
    heads = [
        tag("th", head, scope="col")
        for head in ("rank", "host", "node", "local", "pid", "functions", "seconds", "log")
    ]
    rows = [_rank_cells(rank) for rank in report.ranks]
    hint = tag(
        "input",
        type="search",
        placeholder="filter: host, rank, outcome",
        data_filter="each-rank",
        aria_label="Filter ranks",
        hidden=True,
    )
    summary = tag("summary", f"Each of {count_text(len(report.ranks), 'rank')}")
    return tag("details", summary, hint, _table(heads, rows, "each-rank"))


def _rank_cells(rank: RankReport) -> list[Html]:
    outcomes: dict[str, int] = {}
    seconds = 0.0
    for function in rank.functions:
        outcomes[function.outcome] = outcomes.get(function.outcome, 0) + 1
        seconds += sum(getattr(function.seconds, step) for step in _STEPS)
    words = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items()) or "none"
    texts = (str(rank.rank), rank.host, str(rank.node_rank), str(rank.local_rank), str(rank.pid), words)
    return [tag("td", text) for text in (*texts, seconds_text(seconds), rank.log or "-")]


def _table(heads: list[Html], rows: Sequence[Sequence[object]], key: str | None) -> Html:
    body = tag("tbody", [tag("tr", row) for row in rows])
    return tag(
        "div", tag("table", tag("thead", tag("tr", heads)), body, id=key), class_="scroll", tabindex="0"
    )
