"""The report of a launch as one page for a browser, which needs no network and no other file.

The page is a template of jinja2 (`assets/report.html`); here its context is made, without markup. Invariants:
every text of the report is escaped where it enters, by the template's autoescape, and the page's own policy
lets no script run but the one it was made with; a launch of 1,024 ranks takes less than 2 MB; the number of
the timeline's rows has a bound that does not grow with the number of ranks. Every next step follows from a
field of the report, never from the wording of a message.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from importlib.resources import files
from statistics import median_low
from typing import Any, Literal, NamedTuple

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from warmrank.cache_store.text import (
    brief_names,
    brief_ranks,
    changed_components,
    count_text,
    defused,
    first_lines,
    grouped,
    runs_text,
    seconds_text,
    size_text,
)
from warmrank.orchestrator.errors import policy_of, ranks_text
from warmrank.orchestrator.launch.events import STAGES, Timeline
from warmrank.orchestrator.launch.report import (
    Failure,
    RankReport,
    Report,
    config_words,
    held_bytes,
)
from warmrank.orchestrator.signals import EXIT_HUNG_UP, EXIT_INTERRUPTED, EXIT_TERMINATED
from warmrank.orchestrator.ui.report_table import (
    AUDITED,
    STEPS,
    alike,
    audit_text,
    headline,
    publish_command,
    queued_text,
    slowest,
    verified_text,
)

MAX_TIMELINE_ROWS = 64

_GLOBALS = {
    "ranks": brief_ranks,
    "runs": runs_text,
    "names": brief_names,
    "count": count_text,
    "seconds": seconds_text,
    "size": size_text,
    "words": lambda stage: stage.replace("_", " "),
    "number": "{:,}".format,
    "percent": lambda part, whole: f"{100 * part / whole:.2f}",
    "slowest": lambda members: asdict(slowest(members)).values(),
    "outcomes_of": lambda functions: Counter(each.outcome for each in functions).items(),
    "spent": lambda functions: sum(getattr(each.seconds, step) for each in functions for step in STEPS),
    "audited": AUDITED,
    "known_stages": STAGES,
    "max_causes": 40,
    "max_open_rows": 32,  # longer tables are closed until they are asked for
    "max_problems": 200,
    "max_ranks": 2048,  # ranks of a larger launch are one by one in the JSON report only
    "max_rows": 1000,  # rows that a table may have; the JSON report has all
}
"""Functions and limits for the template."""


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
    is_text = isinstance(value, str) and not isinstance(value, Markup)
    return defused(str(value), instead="\ufffd") if is_text else value


def _context(report: Report) -> dict[str, Any]:
    totals, timeline, failure = report.totals, report.timeline, report.failure
    nodes = grouped((rank.node_rank, rank) for rank in report.ranks)
    functions = {
        (rank.rank, own.function): (rank.rank, own) for rank in report.ranks for own in rank.functions
    }
    outcomes = [(getattr(totals, f"num_{name}"), name) for name in ("compiled", "adopted", "loaded")]
    steps, held = next_steps(report), held_bytes(report)
    sections = (
        ("failure", "Why it failed", failure),
        ("next", "What to do next", steps),
        ("timeline", "Timeline", True),
        ("stages", "Stages and attempts", timeline.spans or report.stages),
        ("classes", "Classes of ranks", timeline.classes),
        ("lookups", "Hits and misses", functions),
        ("bytes", "Bytes", held or totals.fetched_bytes or totals.published_bytes),
        ("nodes", "Nodes", nodes),
        ("ranks", "Ranks", nodes),
        ("problems", "Problems", report.problems),
        ("facts", "What was launched", True),
    )
    tiers = "; ".join(f"{tier.location} ({tier.mode}, {tier.state})" for tier in report.tiers)
    facts = {
        "launch key": report.launch_key,
        "launch record": report.record or "none",
        "cache directory": report.cache_dir,
        "store": tiers or report.store or "none",
        "check": verified_text(report),
        "config": config_words(report) if report.config else "",
    }
    return {
        "report": report,
        "totals": totals,
        "sections": {key: title for key, title, is_shown in sections if is_shown},
        "headline": headline(report),
        "num_nodes": len(nodes),
        "num_failed": len({rank for cause in failure.causes for rank in cause.ranks}) if failure else 0,
        "held": held,
        "steps": steps,
        "rows": timeline_rows(timeline, report.ranks, max_rows=MAX_TIMELINE_ROWS),
        "end_s": max([totals.wall_s, *(span.end_s for span in timeline.spans)]),
        "spans": _spans(timeline, report.ranks),
        "classes": [
            (each, [functions[slot] for rank in each.ranks if (slot := (rank, each.function)) in functions])
            for each in timeline.classes
        ],
        "outcomes": outcomes,
        "lookups": list(alike(report.ranks, "function", "outcome", "reason").items()),
        "nodes": sorted(nodes.items()),
        "fetches": {node.node_rank: node for node in report.fetches},
        "publishes": {node.node_rank: node for node in report.publishes},
        "by_function": list(alike(report.ranks, "function", "outcome", "digest").items()),
        "facts": {name: text for name, text in facts.items() if text},
        "components": [
            ("Identity", report.identity),
            ("Environment of rank 0", report.environment),
            *((f"Environment of {ranks_text(o.ranks)}", o.environment) for o in report.other_environments),
        ],
    }


def _spans(timeline: Timeline, ranks: Sequence[RankReport]) -> list[tuple[Any, ...]]:
    """Every span of the timeline with its last rank, that one's host and seconds, and the median."""
    hosts, found = {rank.rank: rank.host for rank in ranks}, []
    for span in timeline.spans:
        if span.ranks:
            end_s, last = max(zip(span.rank_end_s, span.ranks, strict=True))
            median_s = median_low(span.rank_end_s) - span.start_s
            found.append((span, last, hosts.get(last, ""), end_s - span.start_s, median_s))
    return found


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


def timeline_rows(timeline: Timeline, ranks: Sequence[RankReport], *, max_rows: int) -> tuple[Row, ...]:
    """The timeline of a launch in at most ``max_rows`` rows, or a few more.

    A row is a rank; where these are too many, a node; where these are too many as well, nodes that did the
    same at nearly the same time, so that a straggler keeps a row of its own: what is near grows until rows
    are few enough.
    """
    ends = [dict(zip(span.ranks, span.rank_end_s, strict=True)) for span in timeline.spans]
    everyone = sorted({rank for end in ends for rank in end})
    nodes = grouped((rank.node_rank, rank.rank) for rank in ranks)
    units = [[rank] for rank in everyone]
    if len(units) > max_rows and len(nodes) > 1:
        units = [*nodes.values(), *([rank] for rank in set(everyone) - {rank.rank for rank in ranks})]
    # Of each unit the last answer in each stage.
    lasts = [[max((end.get(rank, -1.0) for rank in unit), default=-1.0) for end in ends] for unit in units]
    near_s = max((span.end_s for span in timeline.spans), default=0.0) / 200
    groups = units
    while len(groups) > max_rows and near_s > 0:
        alike = grouped(
            (tuple(round(at_s / near_s) for at_s in last), unit)
            for last, unit in zip(lasts, units, strict=True)
        )
        groups = [[rank for unit in same for rank in unit] for same in alike.values()]
        near_s *= 2
    hosts = {rank.rank: rank.host for rank in ranks}
    rows = []
    for members in map(sorted, groups):
        bars = []
        for span, end in zip(timeline.spans, ends, strict=True):
            if own := [(end[rank], rank) for rank in members if rank in end]:
                times = span.start_s, min(own)[0], *max(own)
                bars.append(Bar(span.attempt, span.stage, *times, len(own), span.ok))
        named = tuple(dict.fromkeys(hosts[rank] for rank in members if rank in hosts))
        rows.append(Row(tuple(members), named, tuple(bars)))
    return tuple(rows)


Level = Literal["do", "look", "good"]
_ORDER: tuple[Level, ...] = ("do", "look", "good")

MAX_REMEDIES = 6
_NO_RECORD = (
    "There is no record of this launch in the store. What was compiled stays on its nodes, so that another "
    "launch on them compiles only what is left."
)


class Step(NamedTuple):
    """One thing to do, to look at, or to be glad of."""

    level: Level  # wrong until it is done; worth a look; nothing to do
    title: str  # what it is about
    text: str  # why, and how
    command: str = ""  # to be run; empty for none


def next_steps(report: Report) -> tuple[Step, ...]:
    """The steps to take, the urgent first."""
    failed = _failed(report, report.failure) if report.failure else ()
    found = (*failed, *_store(report), *_traces(report), *_compiled(report))
    return tuple(sorted(found, key=lambda step: _ORDER.index(step.level)))


def _failed(report: Report, failure: Failure) -> Iterator[Step]:
    """A step for each remedy, with the log of a rank that failed; what has none tells the error itself."""
    if report.exit_code in {EXIT_HUNG_UP, EXIT_INTERRUPTED, EXIT_TERMINATED}:
        yield Step("look", "The launch was stopped", f"{failure.message}. {_NO_RECORD}")
        return
    if not failure.causes:
        title = re.sub(r"(?<=[a-z])[A-Z]", lambda found: f" {found[0].lower()}", failure.kind)
        yield Step("do", title, policy_of(failure.kind).remedy or failure.message)
    logs = {
        rank.rank: f"\nLog: {rank.log} of rank {rank.rank} on {rank.host}."
        for rank in report.ranks
        if rank.log
    }
    ranks = grouped(
        ((cause.kind, cause.remedy or f"{cause.message}\nCorrect what raised it, and launch again."), rank)
        for cause in failure.causes
        for rank in cause.ranks
    )
    for (kind, text), members in list(ranks.items())[:MAX_REMEDIES]:
        log = next((logs[rank] for rank in members if rank in logs), "")
        yield Step("do", f"{kind} on {brief_ranks(members)}", text + log)
    yield Step("look", "Nothing was committed", _NO_RECORD)


def _store(report: Report) -> Iterator[Step]:
    """Parts that the store lacks, and nodes that share nothing in it."""
    several = " --all-nodes" if len({rank.node_rank for rank in report.ranks}) > 1 else ""
    doctor = f"warmrank doctor {config_words(report)}{several}"
    if report.queued_on:
        where, command = publish_command(report)
        title = f"Not published yet: {queued_text(report)}"
        yield Step("do", title, f"The store was away. When it answers again, run this {where}.", command)
    for tier in report.tiers:
        if tier.state == "away":
            title = f"The store's place {tier.location} was away"
            yield Step("look", title, f"The launch went on without it: {tier.reason}", doctor)
    if report.unsigned:
        text = f"{report.unsigned}\nAn artifact is code: sign what is shared."
        title = "Artifacts are not signed, though signatures are asked for"
        yield Step("do", title, text, "warmrank keys list")
    others = [
        f"{brief_ranks(other.ranks)}: "
        + "; ".join(map(str, changed_components(report.environment, other.environment)))
        for other in report.other_environments
    ]
    if others:
        text = "Ranks in different environments share no artifacts, so each kind compiles its own:"
        yield Step("look", "Nodes differ in their environment", _joined([text, *others]), doctor)


def _traces(report: Report) -> Iterator[Step]:
    """Traces and compiles that came out differently where they should not."""
    differing = [audit_text(audit) for audit in report.timeline.audits if audit.outcome == "differs"]
    if differing:
        text = (
            f"{_joined(differing)}\nThese ranks compiled for themselves, so the launch is right; later "
            "launches find no artifact of these functions. Hand what differs from rank to rank to the "
            "function as an argument, or keep it as an attribute of the module; or report it as a bug of "
            "warmrank."
        )
        yield Step("do", "Traces differ from rank to rank behind all conditions", text)
    if report.nondeterministic:
        names = brief_names(
            f"{found.function} ({brief_ranks(found.ranks, max_runs=3)})" for found in report.nondeterministic
        )
        text = (
            f"{names}: compiled to other bytes than the store holds for the same request. The launch is "
            "right, but the store holds more than it needs. Look for what the trace takes from time, chance "
            "or the host."
        )
        yield Step("look", "Compiles that are not deterministic", text)


def _compiled(report: Report) -> Iterator[Step]:
    """Reasons why a warm launch compiled, and if the next one will."""
    if report.outcome != "warm":
        return
    again = f"warmrank launch {config_words(report)} --no-compile"
    reasons = grouped(
        (function.reason or "no reason given", function.function)
        for rank in report.ranks
        for function in rank.functions
        if function.outcome == "compiled"
    )
    text = _joined(f"{brief_names(names)}: {reason}" for reason, names in reasons.items())
    compiled = count_text(report.totals.num_compiled, "function")
    if not reasons:
        text = "With --no-compile a launch fails rather than compile, which guards that it stays so."
        yield Step("good", "Nothing was compiled", text, again)
    elif report.record:
        text = f"It was compiled because nothing stored fitted:\n{text}"
        yield Step("good", f"The next launch loads what was compiled now ({compiled})", text, again)
    elif report.store:
        yield Step("look", f"Why {compiled} had to be compiled", text)
    else:
        text += "\nWithout a store only these nodes load it again; `store:` in the config shares it with all."
        yield Step("look", f"{compiled} compiled, and kept on these nodes only", text)


def _joined(lines: Iterable[str]) -> str:
    return "\n".join(first_lines(lines, max_lines=5))
