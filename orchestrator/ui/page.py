"""The report of a launch as one page for a browser, which needs no network and no other file.

The page is a template of jinja2 (`assets/report.html`); here its context is made: texts and rows, no markup.
Invariants: every text of the report is escaped where it enters, by the template's autoescape, and the page's
own policy lets no script run but the one it was made with; a launch of 1,024 ranks takes less than 2 MB; the
number of the timeline's rows has a bound that does not grow with the number of ranks.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from statistics import median_low
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from warmrank.orchestrator.errors import ranks_text
from warmrank.orchestrator.launch.events import STAGES, Course, RankClass
from warmrank.orchestrator.launch.report import FunctionReport, RankReport, Report, config_words, held_bytes
from warmrank.orchestrator.text import (
    brief_names,
    brief_ranks,
    count_text,
    grouped,
    runs_text,
    seconds_text,
    size_text,
)
from warmrank.orchestrator.ui.advice import next_steps
from warmrank.orchestrator.ui.report_table import STEPS, alike, headline, slowest, verified_text

MAX_RANKS_SHOWN = 2048
"""A larger launch has its ranks one by one in the JSON report only, which keeps the page small."""

MAX_TIMELINE_ROWS = 64
MAX_OPEN_ROWS = 32  # longer tables are closed until they are asked for

MAX_ROWS = 1000  # rows that a table may have; the JSON report has all

MAX_CAUSES = 40
MAX_PROBLEMS = 200
_DENSE_ROWS = 24
_LABEL_PERCENT = 7.0
_MAX_TICKS = 9
_AUDITED = {
    "equal": "equal",
    "guarded": "differs, as conditions say",
    "apart": "differs, on nodes that cannot have it",
    "differs": "differs behind all conditions",
}
_TITLES = {
    "failure": "Why it failed",
    "next": "What to do next",
    "timeline": "Timeline",
    "stages": "Stages and attempts",
    "classes": "Classes of ranks",
    "lookups": "Hits and misses",
    "bytes": "Bytes",
    "nodes": "Nodes",
    "ranks": "Ranks",
    "problems": "Problems",
    "facts": "What was launched",
}


def render_html(report: Report) -> str:
    """The page."""
    css, script = _asset("report.css"), _asset("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment = Environment(
        autoescape=True,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    environment.globals |= _GLOBALS
    return environment.from_string(_asset("report.html")).render(
        css=Markup(css),  # noqa: S704 - ours
        script=Markup(script),  # noqa: S704 - ours
        policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        **_context(report),
    )


def _asset(name: str) -> str:
    return files("warmrank.orchestrator.ui").joinpath("assets", name).read_text(encoding="utf-8")


def _printable(value: object) -> object:
    """A text with a replacement for each character that is not printable."""
    if not isinstance(value, str) or isinstance(value, Markup) or value.isprintable():
        return value
    return "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in value)


def _words(stage: str) -> str:
    return stage.replace("_", " ")


def _context(report: Report) -> dict[str, Any]:
    num_nodes = len({rank.node_rank for rank in report.ranks})
    about = (
        count_text(report.world_size, "rank") + (f" on {count_text(num_nodes, 'node')}" if num_nodes else ""),
        " x ".join(f"{name} {size}" for name, size in report.parallel.items() if size > 1),
        f"started {report.started[:19].replace('T', ' ')} UTC",
    )
    totals, course = report.totals, report.course
    counts = (
        (totals.num_compiled, "compiled"),
        (totals.num_adopted, "adopted"),
        (totals.num_loaded, "loaded"),
    )
    functions = {(rank.rank, each.function): each for rank in report.ranks for each in rank.functions}
    steps, moved, num_outcomes = next_steps(report), _moved(report), sum(count for count, _ in counts)
    shown = {
        "failure": report.failure,
        "next": steps,
        "stages": course.timeline or report.stages,
        "classes": course.classes,
        "lookups": num_outcomes,
        "bytes": moved,
        "nodes": report.ranks,
        "ranks": report.ranks,
        "problems": report.problems,
    }
    spans = [span for span in course.timeline if span.ranks]
    return {
        "report": report,
        "sections": {key: title for key, title in _TITLES.items() if shown.get(key, True)},
        "headline": headline(report),
        "about": " · ".join(text for text in about if text),
        "cards": _cards(report),
        "steps": steps,
        "timeline": _timeline(report),
        "spans": list(zip(last_ranks(course, report.ranks), spans, strict=True)),
        "classes": [_class(each, functions) for each in course.classes],
        "outcomes": counts,
        "outcome_words": ", ".join(f"{count:,} {name}" for count, name in counts),
        "num_outcomes": num_outcomes,
        "lookups": list(alike(report.ranks, "function", "outcome", "reason").items()),
        "moved": moved,
        "most_moved": max((size for _, size, _ in moved), default=1) or 1,
        "nodes": _nodes(report),
        "by_function": list(alike(report.ranks, "function", "outcome", "digest").items()),
        "facts": _facts(report),
        "components": [
            ("Identity", report.identity),
            ("Environment of rank 0", report.environment),
            *((f"Environment of {ranks_text(o.ranks)}", o.environment) for o in report.other_environments),
        ],
    }


def _cards(report: Report) -> list[tuple[str, str, str]]:
    totals, held, failure = report.totals, held_bytes(report), report.failure
    distinct = totals.artifact_bytes
    shared = f", held by ranks {held / distinct:.0f} times" if distinct and held >= 1.5 * distinct else ""
    cards = [
        ("Wall time", f"{totals.wall_s:.1f} s", count_text(max(len(report.course.attempts), 1), "attempt"))
    ]
    if failure is not None and failure.stage:
        num_failed = len({rank for cause in failure.causes for rank in cause.ranks})
        on = f"{num_failed:,} of {count_text(report.world_size, 'rank')}" if num_failed else ""
        cards.append(("Failed in", _words(failure.stage), on))
    return [
        *cards,
        ("Compiled", f"{totals.num_compiled:,}", "functions, summed over ranks"),
        ("Loaded", f"{totals.num_loaded:,}", "from the ranks' own partitions"),
        ("Adopted", f"{totals.num_adopted:,}", "made by another rank or world"),
        ("Artifacts", f"{totals.num_artifacts:,}", f"{size_text(distinct)}{shared}"),
        ("Store", size_text(totals.fetched_bytes), f"fetched, {size_text(totals.published_bytes)} published"),
    ]


def _timeline(report: Report) -> dict[str, Any] | None:
    """A row for each rank, node or group of nodes, and in it a bar for each stage, placed in percent."""
    course = report.course
    rows = timeline_rows(course, report.ranks, max_rows=MAX_TIMELINE_ROWS)
    end_s = max([report.totals.wall_s, *(span.end_s for span in course.timeline)])
    if not rows or end_s <= 0:
        return None
    bars = [bar for row in rows for bar in row.bars]
    num_nodes = len({rank.node_rank for rank in report.ranks})
    unit = "a node" if len(rows) == num_nodes else "nodes or ranks that did the same at the same time"
    step = _tick(end_s)
    ticks = [index * step for index in range(int(end_s / step * (1 - 1e-9)) + 1)]
    ticks = [tick for tick in ticks if end_s - tick > max(step / 2, end_s / 8)]
    return {
        "rows": [_timeline_row(row, end_s) for row in rows],
        "stages": [stage for stage in STAGES if any(bar.stage == stage for bar in bars)],
        "failed": not all(bar.ok for bar in bars),
        "folded": "" if all(len(row.ranks) == 1 for row in rows) else unit,
        "dense": len(rows) > _DENSE_ROWS,
        "ticks": [
            *((f"{100 * tick / end_s:.2f}", f"{tick:g}") for tick in ticks),
            ("100", f"{end_s:.1f} s"),
        ],
        "failures": [f"{100 * attempt.end_s / end_s:.2f}" for attempt in course.attempts[:-1]],
    }


def _tick(end_s: float) -> float:
    """The smallest of 1, 2, 5, 10 ... seconds, or parts of it, that leaves few ticks."""
    power = 10.0 ** math.floor(math.log10(end_s / _MAX_TICKS))
    return next(factor * power for factor in (1, 2, 5, 10, 20) if end_s / (factor * power) <= _MAX_TICKS)


def _timeline_row(row: Row, end_s: float) -> dict[str, Any]:
    where = brief_ranks(row.ranks) + (f" on {brief_names(row.hosts)}" if row.hosts else "")
    if len(row.ranks) == 1:
        name = f"rank {row.ranks[0]}" + (f" · {row.hosts[0]}" if row.hosts else "")
    elif len(row.hosts) == 1:
        name = f"{row.hosts[0]} · {runs_text(row.ranks, max_runs=1)}"
    else:
        name = count_text(len(row.hosts), "node") if row.hosts else count_text(len(row.ranks), "rank")
    label = f"{where}: " + "; ".join(_bar_words(bar) for bar in row.bars)
    bars = [_bar(bar, row, where, end_s) for bar in row.bars]
    return {"name": name, "where": where, "label": label[:2000], "bars": bars}


def _bar(bar: Bar, row: Row, where: str, end_s: float) -> dict[str, str]:
    """A bar, solid until the first of its row's ranks had answered, and pale from there to the last one."""
    left, width = 100 * bar.start_s / end_s, 100 * (bar.last_s - bar.start_s) / end_s
    spread = (bar.first_s - bar.start_s) / (bar.last_s - bar.start_s) if bar.last_s > bar.start_s else 1.0
    solid = f";--f:{100 * spread:.0f}%" if spread < 0.995 and len(row.ranks) > 1 else ""
    return {
        "text": _words(bar.stage) if width > _LABEL_PERCENT else "",
        "kind": f"{bar.stage if bar.stage in STAGES else ''}{'' if bar.ok else ' x'}",
        "style": f"left:{left:.2f}%;width:{width:.2f}%{solid}",
        "title": f"{where}\n{_bar_words(bar)}",
    }


def _bar_words(bar: Bar) -> str:
    text = f"{_words(bar.stage)} {bar.last_s - bar.start_s:.2f} s, from {bar.start_s:.2f} s on"
    if bar.attempt > 1:
        text += f", attempt {bar.attempt}"
    if bar.num_ranks > 1 and bar.first_s < bar.last_s:
        first = bar.first_s - bar.start_s
        text += f"; first of {bar.num_ranks:,} after {first:.2f} s, last was rank {bar.last_rank}"
    return text if bar.ok else f"{text}; the attempt ended here"


def _class(found: RankClass, outcomes: Mapping[tuple[int, str], FunctionReport]) -> tuple[Any, ...]:
    """A class, how many of its ranks got the function how, and the slowest compile and load."""
    results = [outcomes[rank, found.function] for rank in found.ranks if (rank, found.function) in outcomes]
    seconds = [result.seconds for result in results]
    made_s = max((part.trace_s + part.compile_s for part in seconds), default=0.0)
    load_s = max((part.load_s for part in seconds), default=0.0)
    return found, Counter(result.outcome for result in results), made_s, load_s


def _moved(report: Report) -> list[tuple[str, int, str]]:
    """Bytes fetched, published, and shared."""
    totals, held = report.totals, held_bytes(report)
    fetched, published = (count_text(len(nodes), "node") for nodes in (report.fetches, report.publishes))
    if not held and not totals.fetched_bytes and not totals.published_bytes:
        return []
    rows = [
        ("Held by ranks, each its own", held, "summed over ranks and functions"),
        ("Distinct, as the store keeps them", totals.artifact_bytes, count_text(totals.num_files, "file")),
        ("Saved by sharing", held - totals.artifact_bytes, ""),
        ("Fetched from the store", totals.fetched_bytes, f"by {fetched}"),
        ("Published, new to the store", totals.published_bytes, f"by {published}"),
    ]
    return [row for row in rows if row[1] >= 0]


def _nodes(report: Report) -> list[tuple[Any, ...]]:
    """Every node: its last rank, its ranks, and what it moved."""
    members = grouped((rank.node_rank, rank) for rank in report.ranks)
    fetched = {node.node_rank: node for node in report.fetches}
    published = {node.node_rank: node for node in report.publishes}
    return [
        (ranks[-1], [rank.rank for rank in ranks], fetched.get(node), published.get(node))
        for node, ranks in sorted(members.items())
    ]


def _outcomes_of(rank: RankReport) -> str:
    counts = Counter(function.outcome for function in rank.functions)
    return ", ".join(f"{count} {outcome}" for outcome, count in counts.items()) or "none"


def _spent(rank: RankReport) -> float:
    return float(sum(getattr(each.seconds, step) for each in rank.functions for step in STEPS))


def _facts(report: Report) -> dict[str, str]:
    """Facts of the launch: keys, places, config."""
    tiers = "; ".join(f"{tier.location} ({tier.mode}, {tier.state})" for tier in report.tiers)
    found = {
        "launch key": report.launch_key,
        "launch record": report.record or "none",
        "cache directory": report.cache_dir,
        "store": tiers or report.store or "none",
        "check": verified_text(report),
        "config": config_words(report) if report.config else "",
    }
    return {name: text for name, text in found.items() if text or name not in {"check", "config"}}


_GLOBALS = {
    "ranks": brief_ranks,
    "runs": runs_text,
    "names": brief_names,
    "count": count_text,
    "seconds": seconds_text,
    "size": size_text,
    "words": _words,
    "number": "{:,}".format,
    "percent": lambda part, whole: f"{100 * part / whole:.2f}",
    "slowest": lambda members: asdict(slowest(members)).values(),
    "outcomes_of": _outcomes_of,
    "spent": _spent,
    "audited": _AUDITED,
    "max_causes": MAX_CAUSES,
    "max_open_rows": MAX_OPEN_ROWS,
    "max_problems": MAX_PROBLEMS,
    "max_ranks": MAX_RANKS_SHOWN,
    "max_rows": MAX_ROWS,
}
"""Functions and limits for the template."""


class Bar(NamedTuple):
    """Part of some ranks in one stage of one attempt; times in seconds since the launch began."""

    attempt: int
    stage: str
    start_s: float
    first_s: float  # the first answer
    last_s: float
    last_rank: int
    num_ranks: int
    ok: bool  # false: the attempt ended in this stage


class Row(NamedTuple):
    """Ranks that a timeline shows in one row, and their hosts, as far as they had places, in order."""

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    bars: tuple[Bar, ...]


class LastRank(NamedTuple):
    """The last rank of a stage: what it took, and what half of the ranks took at most."""

    stage: str
    attempt: int
    rank: int
    host: str
    seconds: float
    median_s: float
    num_ranks: int
    ok: bool  # false: the attempt ended in this stage, in which ranks may not have answered at all


def last_ranks(course: Course, ranks: Sequence[RankReport]) -> tuple[LastRank, ...]:
    """The last rank of every span of the timeline, in order of time."""
    hosts = {rank.rank: rank.host for rank in ranks}
    found = []
    for span in course.timeline:
        if span.ranks:
            end_s, rank = max(zip(span.rank_end_s, span.ranks, strict=True))
            seconds, median_s = end_s - span.start_s, median_low(span.rank_end_s) - span.start_s
            host, num_ranks = hosts.get(rank, ""), len(span.ranks)
            found.append(
                LastRank(span.stage, span.attempt, rank, host, seconds, median_s, num_ranks, span.ok)
            )
    return tuple(found)


def timeline_rows(course: Course, ranks: Sequence[RankReport], *, max_rows: int) -> tuple[Row, ...]:
    """The timeline of a launch in at most ``max_rows`` rows, or a few more.

    A row is a rank; where these are too many, a node; where these are too many as well, nodes that did the
    same at nearly the same time, so that a straggler keeps a row of its own: what is near grows until rows
    are few enough.
    """
    hosts = {rank.rank: rank.host for rank in ranks}
    ends = [dict(zip(span.ranks, span.rank_end_s, strict=True)) for span in course.timeline]
    units = _units(course, ranks, max_rows)
    wall_s = max((span.end_s for span in course.timeline), default=0.0)
    groups = [[unit] for unit in units]
    part = 1 / 200
    while len(groups) > max_rows and part <= 1:
        quantum_s = max(wall_s * part, 1e-6)
        alike: dict[tuple[int | None, ...], list[tuple[int, ...]]] = {}
        # Alike are those whose last ranks answered at nearly the same time, stage by stage.
        for unit in units:
            owns = [[end[rank] for rank in unit if rank in end] for end in ends]
            signature = tuple(round(max(own) / quantum_s) if own else None for own in owns)
            alike.setdefault(signature, []).append(unit)
        groups, part = list(alike.values()), part * 2
    return tuple(
        _row(sorted(rank for unit in group for rank in unit), course, ends, hosts) for group in groups
    )


def _units(course: Course, ranks: Sequence[RankReport], max_rows: int) -> list[tuple[int, ...]]:
    """Units of rows, in order: ranks, or nodes where there are too many ranks."""
    everyone = sorted({rank for span in course.timeline for rank in span.ranks})
    nodes = grouped((rank.node_rank, rank.rank) for rank in ranks)
    if len(everyone) <= max_rows or len(nodes) < 2:
        return [(rank,) for rank in everyone]
    seated = {rank.rank for rank in ranks}
    return [*map(tuple, nodes.values()), *((rank,) for rank in everyone if rank not in seated)]


def _row(
    ranks: Sequence[int], course: Course, ends: Sequence[Mapping[int, float]], hosts: Mapping[int, str]
) -> Row:
    bars = []
    for span, end in zip(course.timeline, ends, strict=True):
        if own := [(end[rank], rank) for rank in ranks if rank in end]:
            first_s, (last_s, last_rank) = min(own)[0], max(own)
            times = span.start_s, first_s, last_s
            bars.append(Bar(span.attempt, span.stage, *times, last_rank, len(own), span.ok))
    named = tuple(dict.fromkeys(hosts[rank] for rank in ranks if rank in hosts))
    return Row(tuple(ranks), named, tuple(bars))
