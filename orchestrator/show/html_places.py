"""Nodes, problems, and what was launched where, as sections of a launch's page."""

from __future__ import annotations

from collections.abc import Mapping

from warmrank.orchestrator.errors import ranks_text
from warmrank.orchestrator.show.figures import count_text, seconds_text, size_text
from warmrank.orchestrator.show.folding import runs_text
from warmrank.orchestrator.show.html_tables import closed, table
from warmrank.orchestrator.show.markup import Html, join, tag
from warmrank.orchestrator.show.report import Report, config_words, verified_text
from warmrank.orchestrator.show.slow_ranks import node_lags


def nodes(report: Report) -> Html | None:
    """Every node: its ranks, what it moved, and the stage in which it was furthest behind."""
    members: dict[int, list[int]] = {}
    hosts: dict[int, str] = {}
    for rank in report.ranks:
        members.setdefault(rank.node_rank, []).append(rank.rank)
        hosts[rank.node_rank] = rank.host
    if not members:
        return None
    fetched = {node.node_rank: node for node in report.fetches}
    published = {node.node_rank: node for node in report.publishes}
    lags = node_lags(report.course, report.ranks)
    rows = []
    for node in sorted(members):
        lag_s, stage = lags.get(node, (0.0, ""))
        fetch, publish = fetched.get(node), published.get(node)
        rows.append(
            (
                str(node),
                hosts[node],
                runs_text(members[node]),
                size_text(fetch.bytes_copied) if fetch else "-",
                (fetch.reason or ("found" if fetch.found else "nothing there")) if fetch else "-",
                size_text(publish.bytes_new) if publish else "-",
                f"{publish.num_queued:,}" if publish else "-",
                f"{seconds_text(lag_s)} in {stage.replace('_', ' ')}" if stage else "-",
            )
        )
    heads = (
        "node",
        "host",
        "ranks",
        "fetched",
        "in the store",
        "published",
        "queued",
        "most behind half of all ranks",
    )
    return closed(table(heads, rows, numbers=frozenset({0, 3, 5, 6, 7})), len(rows), "node")


def problems(report: Report) -> Html | None:
    """What did not stop the launch, but should be looked at."""
    if not report.problems:
        return None
    shown = tag("ul", [tag("li", text) for text in report.problems[:200]])
    return closed(shown, len(report.problems), "problem")


def facts(report: Report) -> Html:
    """What was launched where, in named components."""
    plain = {
        "launch key": report.launch_key,
        "launch record": report.record or "none",
        "cache directory": report.cache_dir,
    }
    plain["store"] = (
        "; ".join(f"{tier.location} ({tier.mode}, {tier.state})" for tier in report.tiers)
        or report.store
        or "none"
    )
    if verified := verified_text(report):
        plain["check"] = verified
    if report.config:
        plain["config"] = config_words(report)
    shown = [_pairs(plain)]
    parts = [("Identity", report.identity), ("Environment of rank 0", report.environment)]
    parts += [
        (f"Environment of {ranks_text(other.ranks)}", other.environment)
        for other in report.other_environments
    ]
    for title, pairs in parts:
        if pairs:
            shown.append(
                tag(
                    "details",
                    tag("summary", f"{title}: {count_text(len(pairs), 'component')}"),
                    _pairs(pairs),
                )
            )
    return join(shown)


def _pairs(pairs: Mapping[str, str]) -> Html:
    return tag("dl", [[tag("dt", name), tag("dd", value)] for name, value in pairs.items()], class_="kv")
