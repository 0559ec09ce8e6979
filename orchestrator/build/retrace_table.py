"""What an audit of a store found, for people."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from warmrank.orchestrator.build.retrace import CacheAudit
from warmrank.orchestrator.show.figures import count_text, seconds_text
from warmrank.orchestrator.show.folding import brief_ranks, runs_text
from warmrank.orchestrator.show.plain_table import plain_table

_DIGEST_CHARS = 12
_STYLES = {"equal": "green", "differs": "bold red", "missing": "yellow", "failed": "yellow"}
_WORDS = {
    "fresh": "fresh: every artifact is what would be traced now",
    "stale": "stale: something differs",
    "incomplete": "incomplete: nothing differs, but not everything could be compared",
}


def render_audit(found: CacheAudit) -> RenderableType:
    """A row for each artifact, and lines below."""
    table = plain_table(f"{found.name}: {count_text(found.world_size, 'rank')}, {found.source}")
    for name in ("function", "artifact", "ranks", "trace"):
        table.add_column(name, overflow="fold")
    for name in ("took", "CPU"):
        table.add_column(name, justify="right", no_wrap=True)
    for item in found.functions:
        table.add_row(
            Text(item.function),
            item.digest[:_DIGEST_CHARS] or "-",
            runs_text(item.ranks),
            Text(item.outcome, style=_STYLES[item.outcome]),
            seconds_text(item.seconds),
            seconds_text(item.cpu_s),
        )
    reasons = [
        Text(f"{item.function} {item.outcome} on {brief_ranks(item.ranks)}: {item.reason}")
        for item in found.functions
        if item.outcome != "equal"
    ]
    others = [
        Text(f"not compared: {item.function} {item.digest[:_DIGEST_CHARS]} ({where}): {item.reason}")
        for item in found.not_compared
        for where in [brief_ranks(item.ranks)]
    ]
    problems = [Text(f"problem: {text}", style="yellow") for text in found.problems]
    traced = count_text(found.num_retraced_ranks, "rank")
    summary = Text(f"{_WORDS[found.outcome]}; {traced} traced, in {seconds_text(found.wall_s)}", style="bold")
    return Group(table, *reasons, *others, *problems, Text(f"for: {found.environment_source}"), summary)
