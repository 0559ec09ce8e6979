"""The tables of the command line: what commands found, for people; fits 100 columns.

A launch's own table is `report_table`, made of the same parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from warmrank.orchestrator.errors import ranks_text
from warmrank.orchestrator.text import (
    brief_names,
    brief_ranks,
    count_text,
    first_lines,
    runs_text,
    seconds_text,
    size_text,
    time_text,
)
from warmrank.worker.runtime.runtime_state import in_words

if TYPE_CHECKING:
    from warmrank.cache_store.errors import NotInStore
    from warmrank.cache_store.gc.evict import EvictOutcome, EvictReport
    from warmrank.cache_store.gc.pins import Pin
    from warmrank.cache_store.publish_pending import QueueReport
    from warmrank.cache_store.sync.pull import PullReport
    from warmrank.cache_store.sync.push import PushReport
    from warmrank.orchestrator.build.plan import BuildReport
    from warmrank.orchestrator.build.retrace import CacheAudit
    from warmrank.orchestrator.config.doubts import Doubt
    from warmrank.orchestrator.inspect.explain import Explanation, FunctionView
    from warmrank.orchestrator.inspect.findings import Diagnosis, Finding
    from warmrank.orchestrator.inspect.key_list import KeyList
    from warmrank.orchestrator.inspect.store_contents import (
        DirectoryLine,
        LaunchLine,
        Listing,
        OtherRanks,
        PartitionView,
    )
    from warmrank.orchestrator.inspect.verify import Verified
    from warmrank.orchestrator.launch.events import AuditOutcome, AuditReport
    from warmrank.orchestrator.vllm_plugin.entries import Outcome

KEY_CHARS = 12
WIDE = 100
"""Columns of a terminal that has room for all that is listed."""

MAX_LINES = 8
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

_STATES_SHOWN = 32
_AS_HERE = Text("as here", style="green")
_FRESHNESS = {
    "fresh": "fresh: every artifact is what would be traced now",
    "stale": "stale: something differs",
    "incomplete": "incomplete: nothing differs, but not everything could be compared",
}


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


def render_listing(listing: Listing, *, long: bool = False, width: int = WIDE) -> RenderableType:
    """The launches of a store; in a terminal narrower than `WIDE` columns without last use and sizes.

    ``long`` adds what each launches and its partitions.
    """
    head = Text(f"store {listing.store}: {count_text(len(listing.launches), 'launch')}", style="bold")
    parts: list[RenderableType] = [head]
    if listing.launches:
        rows = [_launch_cells(line) for line in listing.launches]
        columns = [name for name in rows[0] if width >= WIDE or name not in {"=used", ">files", ">size"}]
        table = table_of(*columns)
        for row in rows:
            table.add_row(*(row[name] for name in columns))
        parts.append(table)
        if any(line.of_config for line in listing.launches):
            parts.append(Text("* the launch of this config", style="dim"))
        if any(line.pinned for line in listing.launches):
            parts.append(Text("P pinned: no evict takes it", style="dim"))
    for line in listing.launches if long else ():
        parts += _launch_details(line)
    return Group(*parts, *problems(listing.problems))


def _launch_cells(line: LaunchLine) -> dict[str, Text | str]:
    return {
        "=": ("*" if line.of_config else "") + ("P" if line.pinned else ""),
        "=launch": line.launch_key[:KEY_CHARS],
        "=made": time_text(line.created),
        "=used": line.last_used[:10] or "-",
        "what": Text(line.what),
        ">ranks": str(line.world_size),
        ">files": str(line.num_files),
        ">size": size_text(line.size_bytes),
        "environment": _environment(line.changes, line.others, shown=1),
    }


def _launch_details(line: LaunchLine) -> list[RenderableType]:
    partitions = table_of("partition", "=manifest", ">artifacts", ">files", ">size")
    for part in line.partitions:
        cells = (part.key[:KEY_CHARS], str(part.num_artifacts), str(part.num_files))
        partitions.add_row(Text(part.partition), *cells, size_text(part.size_bytes))
    ranks = count_text(line.world_size, "rank")
    title = f"launch {line.launch_key[:KEY_CHARS]} of {ranks}, made {time_text(line.created)}"
    parts: list[RenderableType] = [heading(title), pairs(line.identity.items())]
    if line.others:
        elsewhere = [(ranks_text(other.ranks), "; ".join(other.changes)) for other in line.others]
        parts += [heading("ranks of other environments"), pairs(elsewhere)]
    return [*parts, partitions]


def render_directories(lines: Sequence[DirectoryLine]) -> RenderableType:
    """Directories of other tools in a store."""
    table = table_of("=directory of", "=pushed", "what", ">files", ">size")
    for line in lines:
        cells = (str(line.num_files), size_text(line.size_bytes))
        table.add_row(line.tool, time_text(line.created), line.what, *cells)
    return table


def render_partition(view: PartitionView) -> RenderableType:
    """One partition: where it belongs, its artifacts, its requests, and its captures."""
    from warmrank.orchestrator.inspect.store_contents import short_signature

    facts = [("manifest", view.key), ("launch", view.launch_key), ("made", time_text(view.created))]
    if view.others:
        facts.append(("others", ", ".join(key[:KEY_CHARS] for key in view.others)))
    artifacts = table_of("=function", ">size", "=sha256", "file")
    for entry in view.artifacts:
        name = entry.function if entry.scope == "rank" else f"(node) {entry.function}"
        cells = (size_text(entry.size_bytes), entry.sha256[:KEY_CHARS])
        artifacts.add_row(Text(name), *cells, Text(entry.path))
    head = Text(f"{view.partition}: rank {view.rank} of {view.world_size}", style="bold")
    parts: list[RenderableType] = [head, pairs(facts), artifacts]
    parts += _requests([(entry.function, entry.components) for entry in view.requests], view.environment)
    parts += _runtime_states((entry.function, entry.runtime_state) for entry in view.requests)
    differs = f"  differs on this machine: {'; '.join(view.changes)}"
    here = Text(differs, style="yellow") if view.changes else Text("  as on this machine", style="green")
    parts += [heading("environment"), pairs(view.environment.items()), here]
    if view.captures:
        parts.append(heading("captured, in this order"))
        parts += [Text(f"  {entry.function} {short_signature(entry.signature)}") for entry in view.captures]
    return Group(*parts)


def render_explanation(found: Explanation) -> RenderableType:
    """What a launch would find, the verdict first."""
    verdict = Text(found.verdict)
    verdict.stylize(STYLES[found.outlook], 0, len(found.outlook))
    parts: list[RenderableType] = [verdict]
    if found.records:
        table = table_of("=", "=made", ">ranks", "environment")
        for record in found.records:
            mark, differs = "*" if record.chosen else "", _environment(record.changes, record.others, shown=3)
            table.add_row(mark, time_text(record.created), str(record.world_size), differs)
        parts += [heading("this launch in the store"), table]
    if found.nearest_launch:
        parts.append(heading("nearest launch in the store differs in"))
        parts += [Text(f"  {change}") for change in found.nearest_launch]
    if found.functions:
        parts += [heading("functions stored"), *_functions(found.functions, found.environment)]
    elif found.cached:
        parts.append(heading("in the cache directory, of any launch"))
        parts += _cached([item.directory for item in found.cached])
    parts += [heading("what is asked for"), pairs(found.identity.items())]
    parts += [heading("environment here"), pairs(found.environment.items())]
    places = [("launch key", found.launch_key), ("store", found.store or "none"), ("cache", found.cache_dir)]
    parts += [heading("where"), pairs(places), Text(f"note: {found.note}", style="dim")]
    return Group(*parts, *problems(found.problems))


def _functions(functions: Sequence[FunctionView], environment: Mapping[str, str]) -> list[RenderableType]:
    table = table_of("=function", ">artifacts", ">files", ">size", "files on this node", "asked for by")
    requests: list[tuple[str, dict[str, str]]] = []
    states: list[tuple[str, dict[str, str]]] = []
    for item in functions:
        ranks = sorted({rank for request in item.requests for rank in request.ranks})
        here = f"{item.num_on_this_node} of {item.num_files}"
        numbers = (str(item.num_artifacts), str(item.num_files), size_text(item.size_bytes))
        table.add_row(Text(item.function), *numbers, here, ranks_text(ranks))
        requests += [(item.function, request.components) for request in item.requests]
        states += [
            (f"{item.function} on {ranks_text(each.ranks)}", each.values) for each in item.runtime_state
        ]
    return [table, *_requests(requests, environment), *_runtime_states(states)]


def _requests(
    requests: Iterable[tuple[str, dict[str, str]]], environment: Mapping[str, str]
) -> list[RenderableType]:
    """Components of requests that are not the environment's; equal ones once, with their functions."""
    alike: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for function, components in requests:
        own = tuple((name, value) for name, value in components.items() if name not in environment)
        alike.setdefault(own, []).append(function)
    parts: list[RenderableType] = []
    for own, functions in alike.items():
        parts += [heading(f"request of {', '.join(dict.fromkeys(functions))}"), pairs(own)]
    return parts


def _runtime_states(declared: Iterable[tuple[str, dict[str, str]]]) -> list[RenderableType]:
    """Declared values, each with whose they are."""
    rows = [(whose, in_words(values)) for whose, values in declared if values]
    if len(rows) > _STATES_SHOWN:
        rows[_STATES_SHOWN:] = [("", f"and {len(rows) - _STATES_SHOWN} more")]
    return [heading("runtime state, declared by the workload"), pairs(rows)] if rows else []


def _cached(directories: Iterable[str]) -> list[Text]:
    """A line for each model directory: its functions, and the number of partitions."""
    found: dict[str, tuple[set[str], set[str]]] = {}
    for directory in directories:
        model, *middle, function = directory.split("/")
        functions, partitions = found.setdefault(model, (set(), set()))
        functions.add(function)
        partitions.add("/".join(middle))
    return [
        Text(f"  {model}: {', '.join(sorted(functions))} in {count_text(len(partitions), 'partition')}")
        for model, (functions, partitions) in found.items()
    ]


def _environment(changes: Sequence[str], others: Sequence[OtherRanks], *, shown: int) -> Text:
    if not changes:
        ranks = sorted(rank for other in others for rank in other.ranks)
        return _AS_HERE + Text(f", but {ranks_text(ranks)}", style="yellow") if ranks else _AS_HERE
    more = f" (and {len(changes) - shown} more)" if len(changes) > shown else ""
    return Text("; ".join(changes[:shown]) + more, style="yellow")


def render_verified(found: Verified) -> RenderableType:
    """What was read, and every fault."""
    lines = []
    if store := found.store:
        counts = {
            "launch": store.num_launches,
            "directory": store.num_listings,
            "manifest": store.num_manifests,
            "blob": store.num_blobs,
        }
        read = ", ".join(count_text(count, noun) for noun, count in counts.items())
        lines.append(Text(f"store {found.location}: {read}, {size_text(store.bytes_hashed)} hashed"))
        if not found.signatures_checked:
            lines.append(Text("signatures not checked: name a CONFIG, whose trust policy then applies"))
    if cache := found.cache:
        artifacts, files = count_text(cache.num_artifacts, "artifact"), count_text(cache.num_files, "file")
        lines.append(Text(f"cache {cache.path}: {artifacts} in {files}, {size_text(cache.size_bytes)} read"))
    lines += [Text(f"fault: {fault}", style="bold red") for fault in found.faults]
    lines += [Text(f"repair: {repair}") for repair in store.repairs] if store else []
    return Group(*lines, *([] if found.faults else [Text("no faults", style="green")]))


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
    summary = (
        f"{count_text(totals.num_classes, 'class')}, {totals.num_compiled} compiled in "
        f"{seconds_text(totals.compile_s)}; {count_text(totals.num_artifacts, 'artifact')} of "
        f"{size_text(totals.artifact_bytes)}; {count_text(totals.num_partitions_new, 'new partition')} in "
        f"{where}; {seconds_text(totals.wall_s)} in all, {totals.rank_ms:.1f} ms a rank beyond the compiles"
    )
    return Group(
        table,
        Text(summary),
        Text(f"for: {report.environment_source}"),
        *audit_lines(report.audits, totals.compile_s),
        *(Text(f"not built: {item.what}: {item.reason}") for item in report.not_built),
        *(Text(f"assumed: {text}") for text in report.assumed),
        *problems(report.problems),
    )


def render_audit(found: CacheAudit) -> RenderableType:
    """What the audit of a store or cache found: a row for each artifact, and lines below."""
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
    """What went and what stays, place by place, then the places where nothing could be done."""
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
    """What each push stored."""
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
    """What each pull restored, and why the others did not."""
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
    """What of a cache directory's queue was published, what waits still, and what is lost."""
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


def render_keys(found: KeyList) -> RenderableType:
    """The keys of a keyring: which sign, which are trusted, which are revoked."""
    head = Text(f"keyring {found.keyring}: {count_text(len(found.keys), 'key')}", style="bold")
    table = table_of("name", "id", "state", "file")
    for line in found.keys:
        states = {"own": line.own, "trusted": line.trusted, str(line.revoked): line.revoked}
        state = Text(", ".join(name for name, holds in states.items() if holds))
        files = "\n".join(str(path.relative_to(found.keyring)) for path in line.files)
        table.add_row(Text(line.name), line.key_id, state, Text(files))
    return Group(head, *([table] if found.keys else []), *problems(found.problems))


def render_doubts(found: Sequence[Doubt]) -> RenderableType:
    """What does not go together in a config, with what to do."""
    blocks: list[RenderableType] = []
    for doubt in found:
        blocks.append(Text.assemble((f"{doubt.level}: ", STYLES[doubt.level]), ", ".join(doubt.keys)))
        blocks.append(pairs([("found", doubt.found), ("remedy", doubt.remedy)], style="bold"))
    return Group(*blocks)


def render_outcomes(outcomes: Sequence[Outcome]) -> RenderableType:
    """What vLLM's ranks on this node did at their last starts, newest first."""
    nothing = "nothing of its own to publish"
    lines = [f"{one.model}: {one.line()}\n  {one.published or nothing}" for one in outcomes]
    return Group(*map(Text, lines or ["no vLLM started here with WARMRANK_STORE"]))


def render_diagnosis(found: Diagnosis) -> RenderableType:
    """One line for each check with what to do; findings of several nodes with one remedy once."""
    from warmrank.orchestrator.inspect.findings import LEVELS

    several = len(found.nodes) > 1
    by_host = [("cluster", found.cluster), *((node.node.host, node.findings) for node in found.nodes)]
    rows: dict[Finding, dict[str, list[str]]] = {}
    for host, findings in by_host:
        for finding in findings:
            hosts_of = rows.setdefault(replace(finding, what=""), {})
            hosts_of.setdefault(finding.what, []).append(host)
    table = plain_table()
    for column in ("level", "check", *(["nodes"] if several else []), "found"):
        table.add_column(column, no_wrap=column in {"level", "check"}, overflow="fold")
    for row, hosts_of in rows.items():
        hosts = list(dict.fromkeys(host for each in hosts_of.values() for host in each))
        where = (
            f"all {len(hosts)}" if len(hosts) == len(found.nodes) else brief_names(hosts, max_names=MAX_LINES)
        )
        told = list(hosts_of)
        if several and len(told) > 1:
            told = [f"{what} ({brief_names(each, max_names=MAX_LINES)})" for what, each in hosts_of.items()]
            told[MAX_LINES:] = ["..."] if len(told) > MAX_LINES else []
        text = "\n".join([*told, *([f"  remedy: {row.remedy}"] if row.remedy else [])])
        level = Text(row.level, style=STYLES[row.level])
        table.add_row(level, row.check, *([Text(where)] if several else []), Text(text))
    counts = Counter(row.level for row in rows)
    parts = [count_text(counts[level], level) for level in reversed(LEVELS[1:]) if counts[level]]
    who = count_text(len(found.nodes), "node") if several else found.nodes[0].node.host
    launch = f" for config {found.config}" if found.config else ""
    summary = ", ".join([*parts, f"{count_text(counts['ok'], 'check')} fine"])
    return Group(
        Text(f"{who}, device kind {found.device}{launch}", style="bold"),
        table,
        Text(f"\n{summary}", style=STYLES[found.worst]),
    )
