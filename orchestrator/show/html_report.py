"""The report of a launch as one page for a browser, which needs no network and no other file.

Invariants: every text of the report is escaped (`markup`), and the page's own policy lets no script run but
the one it was made with; a launch of 1,024 ranks takes less than 2 MB.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

from warmrank.orchestrator.show.advice import next_steps
from warmrank.orchestrator.show.advice_failed import Step
from warmrank.orchestrator.show.figures import count_text, size_text
from warmrank.orchestrator.show.headline import headline, parallel_text
from warmrank.orchestrator.show.html_artifacts import bytes_moved, classes, held_text, lookups
from warmrank.orchestrator.show.html_course import failure, stages
from warmrank.orchestrator.show.html_places import facts, nodes, problems
from warmrank.orchestrator.show.html_ranks import ranks
from warmrank.orchestrator.show.html_timeline import timeline
from warmrank.orchestrator.show.markup import Html, tag
from warmrank.orchestrator.show.report import Report

_LEVELS = {"do": "to do", "look": "look", "good": "good"}


def render_html(report: Report) -> str:
    """The page."""
    css, script = Html(_asset("report.css")), Html(_asset("report.js"))
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy(script)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="generator", content="warmrank"),
        tag("title", f"{report.name}: {report.outcome} - warmrank"),
        tag("style", css),
    )
    sections = _sections(report)
    body = tag(
        "body",
        _header(report, [(key, title) for key, title, _ in sections]),
        tag("main", [tag("section", tag("h2", title), body, id=key) for key, title, body in sections]),
        _footer(report),
        tag("script", script),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def _sections(report: Report) -> list[tuple[str, str, Html]]:
    """Id, title and content of every section that has something to say, in order."""
    every: list[tuple[str, str, Html | None]] = [
        ("failure", "Why it failed", failure(report)),
        ("next", "What to do next", _steps(next_steps(report))),
        ("timeline", "Timeline", timeline(report)),
        ("stages", "Stages and attempts", stages(report)),
        ("classes", "Classes of ranks", classes(report)),
        ("lookups", "Hits and misses", lookups(report)),
        ("bytes", "Bytes", bytes_moved(report)),
        ("nodes", "Nodes", nodes(report)),
        ("ranks", "Ranks", ranks(report)),
        ("problems", "Problems", problems(report)),
        ("facts", "What was launched", facts(report)),
    ]
    return [(key, title, body) for key, title, body in every if body is not None]


def _header(report: Report, sections: list[tuple[str, str]]) -> Html:
    pill = "warm" if report.outcome == "warm" else f"failed, exit status {report.exit_code}"
    num_nodes = len({rank.node_rank for rank in report.ranks})
    about = [
        count_text(report.world_size, "rank") + (f" on {count_text(num_nodes, 'node')}" if num_nodes else ""),
        parallel_text(report),
        f"started {report.started[:19].replace('T', ' ')} UTC",
    ]
    return tag(
        "header",
        tag(
            "div",
            tag("span", tag("b", "warmrank"), " launch report"),
            tag("button", "light / dark", id="theme", type="button", hidden=True),
            class_="brand",
        ),
        tag("h1", report.name, tag("span", pill, class_=f"pill {report.outcome}")),
        tag("p", headline(report), class_="lead"),
        tag("p", " · ".join(text for text in about if text), class_="sub"),
        tag("nav", [tag("a", title, href=f"#{key}") for key, title in sections], aria_label="Sections"),
        _cards(report),
    )


def _cards(report: Report) -> Html:
    totals = report.totals
    shared = held_text(report)
    cards = [
        ("Wall time", f"{totals.wall_s:.1f} s", count_text(max(len(report.course.attempts), 1), "attempt")),
        *_failed_card(report),
        ("Compiled", f"{totals.num_compiled:,}", "functions, summed over ranks"),
        ("Loaded", f"{totals.num_loaded:,}", "from the ranks' own partitions"),
        ("Adopted", f"{totals.num_adopted:,}", "made by another rank or world"),
        ("Artifacts", f"{totals.num_artifacts:,}", f"{size_text(totals.artifact_bytes)}{shared}"),
        ("Store", size_text(totals.fetched_bytes), f"fetched, {size_text(totals.published_bytes)} published"),
    ]
    items = [tag("div", tag("dt", name), tag("dd", value, tag("small", note))) for name, value, note in cards]
    return tag("dl", items, class_="cards")


def _failed_card(report: Report) -> list[tuple[str, str, str]]:
    if report.failure is None or not report.failure.stage:
        return []
    num_failed = len({rank for cause in report.failure.causes for rank in cause.ranks})
    stage = report.failure.stage.replace("_", " ")
    on = f"{num_failed:,} of {count_text(report.world_size, 'rank')}" if num_failed else ""
    return [("Failed in", stage, on)]


def _steps(steps: tuple[Step, ...]) -> Html | None:
    if not steps:
        return None
    items = [
        tag(
            "li",
            tag("span", _LEVELS[step.level], class_="level"),
            tag("b", step.title),
            tag("p", step.text),
            tag("pre", step.command) if step.command else None,
            class_=step.level,
        )
        for step in steps
    ]
    return tag("ul", items, class_="steps")


def _footer(report: Report) -> Html:
    return tag(
        "footer",
        f"Made from the launch's JSON report, schema version {report.schema_version}; ",
        tag("code", "warmrank report REPORT.json -o FILE.html"),
        " makes it again. All times are wall seconds since the launch began.",
    )


def _asset(name: str) -> str:
    return files("warmrank.orchestrator.show").joinpath("assets", name).read_text(encoding="utf-8")


def _policy(script: str) -> str:
    """What the page may do: be styled, and run this one script."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
