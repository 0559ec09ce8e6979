"""Classes of ranks, look-ups and bytes, as sections of a launch's page; None where there are none."""

from __future__ import annotations

from collections.abc import Iterable

from warmrank.orchestrator.show.figures import count_text, seconds_text, size_text
from warmrank.orchestrator.show.folding import runs_text
from warmrank.orchestrator.show.html_tables import closed, table
from warmrank.orchestrator.show.markup import Html, join, tag
from warmrank.orchestrator.show.metrics import held_bytes
from warmrank.orchestrator.show.report import Report


def classes(report: Report) -> Html | None:
    """Who asked for the same, who made it, and what became of it."""
    found = report.course.classes
    if not found:
        return None
    outcomes = {
        (rank.rank, function.function): function for rank in report.ranks for function in rank.functions
    }
    rows = []
    for each in found:
        results = [outcomes[rank, each.function] for rank in each.ranks if (rank, each.function) in outcomes]
        seconds = [result.seconds for result in results]
        rows.append(
            (
                each.function,
                tag("span", each.action, class_=f"tagged {each.action}"),
                f"{len(each.ranks):,}",
                runs_text(each.ranks),
                "-" if each.leader is None else f"rank {each.leader}",
                runs_text(each.auditors) if each.auditors else "-",
                _outcomes(result.outcome for result in results),
                seconds_text(max((part.trace_s + part.compile_s for part in seconds), default=0.0)),
                seconds_text(max((part.load_s for part in seconds), default=0.0)),
                str(each.round),
            )
        )
    text = (
        "Ranks of a class ask for the same artifact and get it in the same way; where one has to be "
        "compiled, its leader does, and the others adopt it."
    )
    heads = (
        "function",
        "plan",
        "ranks",
        "which",
        "leader",
        "audited by",
        "outcome",
        "trace and compile",
        "slowest load",
        "round",
    )
    return join(
        [
            tag("p", text, class_="sub"),
            closed(table(heads, rows, numbers=frozenset({2, 7, 8, 9})), len(rows), "class"),
            _audits(report),
        ]
    )


def _audits(report: Report) -> Html | None:
    """Who traced what a leader compiled, what that showed, and what it cost."""
    if not report.course.audits:
        return None
    words = {
        "equal": "equal",
        "guarded": "differs, as conditions say",
        "apart": "differs, on nodes that cannot have it",
        "differs": "differs behind all conditions",
    }
    rows = [
        (
            audit.function,
            f"rank {audit.leader}",
            runs_text(audit.ranks),
            words[audit.outcome],
            audit.difference or "-",
            seconds_text(audit.seconds),
            seconds_text(audit.cpu_s),
        )
        for audit in report.course.audits
    ]
    heads = ("function", "leader", "audited by", "trace", "first difference", "took", "CPU")
    text = (
        "While a leader compiles, another rank of its class traces as well; the two must be equal before "
        "anybody adopts."
    )
    shown = closed(table(heads, rows, numbers=frozenset({5, 6})), len(rows), "comparison")
    return join([tag("h3", "Audits"), tag("p", text, class_="sub"), shown])


def _outcomes(found: Iterable[str]) -> Html | str:
    counts: dict[str, int] = {}
    for outcome in found:
        counts[outcome] = counts.get(outcome, 0) + 1
    if not counts:
        return "not reached"
    return join(
        [
            [tag("span", f"{count:,} {outcome}", class_=f"tagged {outcome}"), " "]
            for outcome, count in counts.items()
        ]
    )


def lookups(report: Report) -> Html | None:
    """For every function how its ranks got it, and why."""
    totals = report.totals
    parts = (
        ("compiled", totals.num_compiled),
        ("adopted", totals.num_adopted),
        ("loaded", totals.num_loaded),
    )
    whole = sum(count for _, count in parts)
    if not whole:
        return None
    alike: dict[tuple[str, str, str], list[int]] = {}
    for rank in report.ranks:
        for function in rank.functions:
            key = (function.function, function.outcome, function.reason)
            alike.setdefault(key, []).append(rank.rank)
    rows = [
        (
            name,
            tag("span", outcome, class_=f"tagged {outcome}"),
            f"{len(ranks):,}",
            runs_text(ranks),
            reason or "-",
        )
        for (name, outcome, reason), ranks in alike.items()
    ]
    words = ", ".join(f"{count:,} {name}" for name, count in parts)
    bar = tag(
        "div",
        [
            tag("i", class_=name, style=f"width:{100 * count / whole:.2f}%", title=f"{count:,} {name}")
            for name, count in parts
        ],
        class_="bar",
        role="img",
        aria_label=words,
    )
    heads = ("function", "outcome", "ranks", "which", "why")
    return join(
        [
            bar,
            tag("p", words, class_="sub"),
            closed(table(heads, rows, numbers=frozenset({2})), len(rows), "row"),
        ]
    )


def held_text(report: Report) -> str:
    """How much larger the artifacts would be if nothing were shared; empty where it makes no difference."""
    held, distinct = held_bytes(report), report.totals.artifact_bytes
    return f", held by ranks {held / distinct:.0f} times" if distinct and held >= 1.5 * distinct else ""


def bytes_moved(report: Report) -> Html | None:
    """What was fetched, published, and shared."""
    totals, held = report.totals, held_bytes(report)
    if not held and not totals.fetched_bytes and not totals.published_bytes:
        return None
    rows = [
        ("Held by ranks, each its own", held, "summed over ranks and functions"),
        ("Distinct, as the store keeps them", totals.artifact_bytes, count_text(totals.num_files, "file")),
        ("Saved by sharing", held - totals.artifact_bytes, ""),
        ("Fetched from the store", totals.fetched_bytes, f"by {count_text(len(report.fetches), 'node')}"),
        (
            "Published, new to the store",
            totals.published_bytes,
            f"by {count_text(len(report.publishes), 'node')}",
        ),
    ]
    most = max(size for _, size, _ in rows) or 1
    shown = [
        (
            what,
            size_text(size),
            tag("div", tag("i", class_="load", style=f"width:{100 * size / most:.2f}%"), class_="bar"),
            note,
        )
        for what, size, note in rows
        if size >= 0
    ]
    return table(("what", "bytes", "", "over"), shown, numbers=frozenset({1}), wide=2)
