"""What `warmrank doctor` found, for people: one line for each check, and below what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from warmrank.orchestrator.doctor.cluster import hosts_text
from warmrank.orchestrator.doctor.findings import LEVELS, Diagnosis, Finding, Folded, fold
from warmrank.orchestrator.text import count_text
from warmrank.orchestrator.ui.table import plain_table

_STYLES = {"ok": "green", "note": "cyan", "warning": "bold yellow", "error": "bold red"}


def render_diagnosis(found: Diagnosis) -> RenderableType:
    """All findings, equal ones of several nodes once; then those that ask for something, in full."""
    folded = (*(_alone(finding) for finding in found.cluster), *fold(found.nodes))
    several = len(found.nodes) > 1
    trouble = sorted(
        (item for item in folded if item.finding.level != "ok"),
        key=lambda item: -LEVELS.index(item.finding.level),
    )
    parts: list[RenderableType] = [_head(found), _table(folded, len(found.nodes) if several else 0)]
    full = (_full(item, len(found.nodes) if several else 0) for item in trouble)
    return Group(*parts, *full, _summary(item.finding for item in folded))


def _alone(finding: Finding) -> Folded:
    """A finding on the cluster as a whole."""
    return Folded(finding=finding, found=((finding.actual, ()),))


def _head(found: Diagnosis) -> Text:
    who = found.nodes[0].node.host if len(found.nodes) == 1 else count_text(len(found.nodes), "node")
    launch = f" for config {found.config}" if found.config else ""
    return Text(f"{who}, device kind {found.device}{launch}", style="bold")


def _table(folded: Sequence[Folded], num_nodes: int) -> Table:
    table = plain_table()
    table.add_column("level", no_wrap=True)
    table.add_column("check", no_wrap=True)
    if num_nodes:
        table.add_column("nodes", overflow="fold")
    table.add_column("found", overflow="fold")
    for item in folded:
        finding = item.finding
        level = Text(finding.level, style=_STYLES[finding.level])
        where = [Text(_where(item, num_nodes))] if num_nodes else []
        table.add_row(level, finding.check, *where, Text(_line(item)))
    return table


def _line(item: Folded) -> str:
    finding = item.finding
    if finding.level == "ok" and len(item.found) > 1:
        return f"{finding.what}; otherwise on other nodes"
    is_bare = finding.level == "note" and not finding.expected
    return f"{finding.what}: {finding.actual}" if is_bare and finding.actual else finding.what


def _where(item: Folded, num_nodes: int) -> str:
    if not item.hosts:
        return "cluster"
    return f"all {num_nodes}" if len(item.hosts) == num_nodes else hosts_text(item.hosts)


def _full(item: Folded, num_nodes: int) -> RenderableType:
    finding = item.finding
    rows = [
        (name, text)
        for name, text in (
            ("expected", finding.expected),
            ("found", _found(item)),
            ("remedy", finding.remedy),
        )
        if text
    ]
    if not finding.expected and not finding.remedy:
        return Group()
    where = f" ({_where(item, num_nodes)})" if num_nodes else ""
    head = Text.assemble(
        "\n", (f"{finding.level}: ", _STYLES[finding.level]), f"{finding.check}{where}: {finding.what}"
    )
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold")
    grid.add_column(overflow="fold")
    for name, text in rows:
        grid.add_row(f"  {name}", Text(text))
    return Group(head, grid)


def _found(item: Folded) -> str:
    if len(item.found) == 1:
        return item.finding.actual
    return "; ".join(f"{text} on {hosts_text(hosts)}" for text, hosts in item.found)


def _summary(findings: Iterable[Finding]) -> Text:
    counts = Counter(finding.level for finding in findings)
    parts = [count_text(counts[level], level) for level in reversed(LEVELS[1:]) if counts[level]]
    fine = f"{count_text(counts['ok'], 'check')} fine"
    worst = next((level for level in reversed(LEVELS) if counts[level]), "ok")
    return Text(f"\n{', '.join([*parts, fine])}", style=_STYLES[worst])
