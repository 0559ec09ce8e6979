"""Tables of what commands did, for people, in 100 columns; and the parts that all tables have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from warmrank.orchestrator.text import (
    brief_names,
    brief_ranks,
    count_text,
    first_lines,
    grouped,
    runs_text,
    seconds_text,
    size_text,
    time_text,
)

if TYPE_CHECKING:
    from warmrank.cache_store.errors import NotInStore
    from warmrank.cache_store.gc.evict import EvictOutcome, EvictReport
    from warmrank.cache_store.gc.pins import Pin
    from warmrank.cache_store.publish_pending import QueueReport
    from warmrank.cache_store.sync.pull import PullReport
    from warmrank.cache_store.sync.push import PushReport
    from warmrank.orchestrator.build.plan import BuildReport, CacheAudit
    from warmrank.orchestrator.config.lint import LintFinding
    from warmrank.orchestrator.launch.events import AuditOutcome, AuditReport
    from warmrank.orchestrator.nodes import Node
    from warmrank.orchestrator.seed.seeding import NodeSeed
    from warmrank.orchestrator.vllm_plugin.entries import Outcome


KEY_CHARS = 12
MAX_LINES = 8
WIDE = 100  # columns of a terminal that has room for all that a table lists
STYLES = {
    "compiled": "yellow",
    "loaded": "green",
    "adopted": "cyan",
    "equal": "green",
    "differs": "bold red",
    "missing": "yellow",
    "failed": "yellow",
    "load": "bold green",
    "adopt": "bold cyan",
    "compile": "bold yellow",
    "ok": "green",
    "note": "cyan",
    "warning": "bold yellow",
    "error": "bold red",
}
"""Of outcomes and levels, wherever they are shown."""


def plain_table(title: str = "") -> Table:
    """A table to which columns are added: a line below its head, and one above a title."""
    return Table(
        title=title or None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=bool(title),
        padding=(0, 1, 0, 0),
    )


def table_of(*columns: str, title: str = "") -> Table:
    """A table with these columns: ``>`` before those of numbers, ``=`` before those that are never folded."""
    table = plain_table(title)
    for column in columns:
        name = column.lstrip(">=")
        table.add_column(
            name,
            justify="right" if column.startswith(">") else "left",
            no_wrap=name != column,
            min_width=len(name),
            overflow="fold",
        )
    return table


def pairs(rows: Iterable[tuple[str, str]], *, style: str = "dim") -> Table:
    """Names with their values."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(Text(f"  {name}", style=style), Text(value))
    return grid


def heading(text: str) -> Text:
    """The line above a part, at a distance from what is above it."""
    return Text(f"\n{text}", style="bold")


def problems(texts: Iterable[str]) -> list[Text]:
    """A line for each problem."""
    return [Text(f"problem: {text}", style="bold yellow") for text in texts]


def some(lines: Iterable[str], *, limit: int = MAX_LINES, style: str = "dim") -> list[Text]:
    """The first few lines, and the number of the others."""
    return [Text(line, style=style) for line in first_lines(lines, max_lines=limit)]


def audit_lines(audits: Sequence[AuditReport], compile_s: float) -> list[Text]:
    """The cost of audits beside compiles of so many seconds, and every difference."""
    if not audits:
        return []
    seen: dict[AuditOutcome, str] = {
        "guarded": "conditions say so",
        "apart": "and cannot have its artifact there",
        "differs": "no condition says so",
    }
    num_equal = sum(audit.outcome == "equal" for audit in audits)
    wall_s, cpu_s = sum(audit.seconds for audit in audits), sum(audit.cpu_s for audit in audits)
    cost = (
        f"audited: {num_equal} of {count_text(len(audits), 'comparison')} equal, in {seconds_text(wall_s)} "
        f"(CPU {seconds_text(cpu_s)}) beside {seconds_text(compile_s)} of traces and compiles"
    )
    differences = (
        f"{audit.function} is traced otherwise on {brief_ranks(audit.ranks)} than on rank {audit.leader} "
        f"({seen[audit.outcome]}): {audit.difference}"
        for audit in audits
        if audit.outcome != "equal"
    )
    return some([cost, *differences])


_FRESHNESS = {
    "fresh": "fresh: every artifact is what would be traced now",
    "stale": "stale: something differs",
    "incomplete": "incomplete: something is not stored, or could not be compared; what was compared is equal",
}


def render_build(report: BuildReport) -> RenderableType:
    """The classes of an offline build, with lines below."""
    title = f"{report.name}: {count_text(report.world_size, 'rank')} of device kind {report.device}"
    names = ("function", "outcome", "artifact", ">ranks", ">leader", ">size", ">trace", ">compile")
    table = table_of(*names, title=title)
    for item in report.classes:
        is_new = item.outcome == "compiled"
        outcome = Text("compiled", style=STYLES["compiled"]) if is_new else Text("there before")
        numbers = (str(item.num_ranks), str(item.leader), size_text(item.size_bytes))
        times = (seconds_text(item.trace_s), seconds_text(item.compile_s))
        table.add_row(Text(item.function), outcome, item.digest[:KEY_CHARS], *numbers, *times)
    totals = report.totals
    where = f"store {report.store}" if report.store else report.cache_dir
    duration = f" in {seconds_text(totals.compile_s)}" if totals.num_compiled else ""
    summary = (
        f"{count_text(totals.num_classes, 'class')}, {totals.num_compiled} compiled{duration}; "
        f"{count_text(totals.num_artifacts, 'artifact')} of {size_text(totals.artifact_bytes)}; "
        f"{count_text(totals.num_partitions_new, 'new partition')} in "
        f"{where}; {seconds_text(totals.wall_s)} in all, {totals.rank_ms:.1f} ms a rank beyond the compiles"
    )
    return Group(
        table,
        Text(summary),
        Text(f"for: {report.environment_source}"),
        *audit_lines(report.audits, totals.compile_s),
        *(Text(f"not built: {what}: {reason}") for what, reason in report.not_built.items()),
        *(Text(f"assumed: {text}") for text in report.assumed),
        *problems(report.problems),
    )


def render_audit(found: CacheAudit) -> RenderableType:
    """The audit of a store or cache: a row for each artifact, and lines below."""
    title = f"{found.name}: {count_text(found.world_size, 'rank')}, {found.source}"
    table = table_of("function", "artifact", "ranks", "trace", ">took", ">CPU", title=title)
    lines = []
    for item in found.functions:
        outcome = Text(item.outcome, style=STYLES[item.outcome])
        cells = (item.digest[:KEY_CHARS] or "-", runs_text(item.ranks), outcome)
        table.add_row(Text(item.function), *cells, seconds_text(item.seconds), seconds_text(item.cpu_s))
        if item.outcome != "equal":
            lines.append(f"{item.function} {item.outcome} on {brief_ranks(item.ranks)}: {item.reason}")
    for other in found.not_compared:
        whose = f"{other.function} {other.digest[:KEY_CHARS]} ({brief_ranks(other.ranks)})"
        lines.append(f"not compared: {whose}: {other.reason}")
    traced = count_text(found.num_retraced_ranks, "rank")
    summary = f"{_FRESHNESS[found.outcome]}; {traced} traced, in {seconds_text(found.wall_s)}"
    source = Text(f"for: {found.environment_source}")
    return Group(table, *map(Text, lines), *problems(found.problems), source, Text(summary, style="bold"))


def render_evicted(done: EvictOutcome, *, dry_run: bool) -> RenderableType:
    """Files that went and that stay, place by place, then the places where nothing could be done."""
    lines = [line for report in done.reports for line in _evicted(report, dry_run=dry_run)]
    faults = [Text(f"fault: {fault.location}: {fault.reason}", style="bold red") for fault in done.faults]
    return Group(*lines, *faults)


def _evicted(report: EvictReport, *, dry_run: bool) -> Iterable[Text]:
    from warmrank.cache_store.gc.pins import short_name

    went, deleted, came = (
        ("would go", "would be deleted", "would come") if dry_run else ("went", "deleted", "came")
    )
    yield Text(f"store {report.location}", style="bold")
    for choice in report.taken:
        if choice.kind == "record":
            yield Text(f"  evict  {short_name(choice.name)}: {choice.reason}", style="yellow")
    for choice in report.kept:
        yield Text(f"  keep   {short_name(choice.name)}: {choice.reason}")
    kinds = [choice.kind for choice in report.taken]
    counts = ", ".join(count_text(kinds.count(kind), kind) for kind in ("record", "manifest", "blob"))
    yield Text(f"  {counts} {went} into the trash, {size_text(report.bytes_taken)}")
    old = count_text(report.num_deleted, "old file")
    yield Text(f"  {old} {deleted} for good, {size_text(report.bytes_deleted)}")
    if report.restored:
        yield Text(f"  {count_text(len(report.restored), 'file')} {came} back from the trash")
    yield Text(f"  {size_text(report.remaining_bytes)} remain")
    if report.over_bytes:
        over = f"  {size_text(report.over_bytes)} over --max-size: what remains is pinned, kept or too young"
        yield Text(over, style="bold yellow")
    yield from problems(report.problems)


def render_pins(pins: Sequence[Pin]) -> RenderableType:
    """All pins, a line for each."""
    from warmrank.cache_store.gc.pins import short_name

    lines = [
        short_name(pin.record)
        + (f", since {time_text(pin.created)}" if pin.created else "")
        + (f": {pin.reason}" if pin.reason else "")
        for pin in pins
    ]
    return Group(*map(Text, lines or ["nothing is pinned"]))


def render_pushes(reports: Sequence[PushReport]) -> RenderableType:
    """Outcome of each push."""
    parts: list[RenderableType] = []
    for report in reports:
        what = "pushed" if report.created else "unchanged"
        files, blobs = count_text(report.num_files, "file"), count_text(report.num_blobs_new, "blob")
        text = (
            f"  {files}, {size_text(report.size_bytes)}; new in the store: {blobs}, "
            f"{size_text(report.bytes_new)}; key {report.key[:KEY_CHARS]}"
        )
        parts += [Text.assemble((what, "bold green"), f" {report.directory}"), Text(text)]
        parts += some((f"  left out: {line}" for line in report.left_out), style="yellow")
    return Group(*parts)


def render_pulls(reports: Sequence[PullReport], misses: Sequence[NotInStore]) -> RenderableType:
    """Outcome of each pull, and the misses."""
    parts: list[RenderableType] = []
    for report in reports:
        rewritten = f", {report.num_rewritten} changed to name it" if report.num_rewritten else ""
        removed = f", {report.num_removed} removed" if report.num_removed else ""
        text = (
            f"  {count_text(report.num_new, 'file')} new, {report.num_replaced} replaced{removed} "
            f"({size_text(report.bytes_copied)}{rewritten}), {report.num_kept} there before; "
            f"pushed {time_text(report.pushed)}; key {report.key[:KEY_CHARS]}"
        )
        parts += [Text.assemble(("pulled", "bold green"), f" {report.directory}"), Text(text)]
        parts += some((f"  note: {line}" for line in report.problems), style="yellow")
    parts += [Text.assemble(("miss", "bold yellow"), f" {miss}") for miss in misses]
    return Group(*parts)


def render_queue(report: QueueReport, cache_dir: Path) -> RenderableType:
    """A cache directory's queue: published, waiting, and lost."""
    if not (report.published or report.committed or report.kept or report.dropped or report.problems):
        return Text(f"nothing waits on this node in {cache_dir}")
    published = count_text(len(report.published), "partition")
    committed = count_text(len(report.committed), "launch")
    return Group(
        Text(f"from {cache_dir}: published {published}, committed {committed}"),
        *(Text(f"waits: {what}: {why}", style="yellow") for what, why in report.kept.items()),
        *(Text(f"dropped: {what}: {why}", style="bold red") for what, why in report.dropped.items()),
        *(Text(f"problem: {problem}", style="bold red") for problem in report.problems),
    )


def render_lint(found: Sequence[LintFinding]) -> RenderableType:
    """Contradictions in a config, each with its remedy."""
    blocks: list[RenderableType] = []
    for finding in found:
        blocks.append(Text.assemble((f"{finding.level}: ", STYLES[finding.level]), ", ".join(finding.keys)))
        blocks.append(pairs([("found", finding.found), ("remedy", finding.remedy)], style="bold"))
    return Group(*blocks)


def render_outcomes(outcomes: Sequence[Outcome]) -> RenderableType:
    """The last starts of vLLM's ranks on this node, newest first."""
    nothing = "nothing of its own to publish"
    lines = [f"{one.model}: {one.line()}\n  {one.published or nothing}" for one in outcomes]
    return Group(*map(Text, lines or ["no vLLM started here with WARMRANK_STORE"]))


def render_seeds(seeds: Sequence[NodeSeed]) -> RenderableType:
    """One line for each seeded node, then where the bytes came from, and reasons, equal ones together."""
    from warmrank.orchestrator.nodes import distinct_names
    from warmrank.orchestrator.seed.seeding import STYLES as SEED_STYLES

    names = distinct_names(item.node for item in seeds)
    table = table_of(
        "node", "address", "outcome", ">partitions", ">files", ">there before", ">copied", ">seconds"
    )
    for item in seeds:
        status = Text(item.status, style=SEED_STYLES[item.status])
        numbers = (str(item.num_partitions), str(item.num_files), str(item.num_already_there))
        moved = size_text(item.bytes_copied), seconds_text(item.seconds)
        table.add_row(Text(names[item.node]), item.node.address or "-", status, *numbers, *moved)
    return Group(table, *(Text(line) for line in (*_sources(seeds), *_reasons(seeds, names))))


def _sources(seeds: Sequence[NodeSeed]) -> list[str]:
    parts = (
        ("from the store", sum(item.bytes_from_store for item in seeds)),
        ("from node to node", sum(item.bytes_from_nodes for item in seeds)),
    )
    found = [f"{size_text(size_bytes)} {where}" for where, size_bytes in parts if size_bytes]
    return [f"read: {', '.join(found)}"] if found else []


def _reasons(seeds: Sequence[NodeSeed], names: Mapping[Node, str]) -> list[str]:
    def lines(item: NodeSeed) -> dict[str, None]:
        node = item.node_artifacts.words() if item.node_artifacts is not None else ()
        faults = (fault for fault in item.faults if fault not in item.reason)
        return dict.fromkeys((item.reason, *faults, *node))

    reasons = grouped((line, names[item.node]) for item in seeds for line in lines(item))
    return [f"{brief_names(hosts, max_names=MAX_LINES)}: {line}" for line, hosts in reasons.items()]
