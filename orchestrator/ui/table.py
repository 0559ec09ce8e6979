"""The tables of the command line: what commands found, for people; fits 100 columns.

A launch's own table is `report_table`, made of the same parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from warmrank.orchestrator.errors import ranks_text
from warmrank.orchestrator.text import brief_ranks, count_text, runs_text, seconds_text, size_text, time_text
from warmrank.worker.runtime.runtime_state import in_words

if TYPE_CHECKING:
    from warmrank.cache_store.errors import NotInStore
    from warmrank.cache_store.gc.evict import EvictOutcome, EvictReport
    from warmrank.cache_store.gc.pins import Pin
    from warmrank.cache_store.sync.pull import PullReport
    from warmrank.cache_store.sync.push import PushReport
    from warmrank.orchestrator.build.report import BuildReport
    from warmrank.orchestrator.build.retrace import CacheAudit
    from warmrank.orchestrator.launch.events import AuditOutcome, AuditReport
    from warmrank.orchestrator.launch.outlook import OtherRanks
    from warmrank.orchestrator.look.explain import CachedView, Explanation, FunctionView
    from warmrank.orchestrator.look.key_list import KeyList
    from warmrank.orchestrator.look.store_contents import LaunchLine, Listing, PartitionView
    from warmrank.orchestrator.look.verify import Verified

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
}
"""Of outcomes, wherever they are shown."""

_LISTED = ("=", "=launch", "=made", "=used", "what", ">ranks", ">files", ">size", "environment")
_STATES_SHOWN = 32
_AS_HERE = Text("as here", style="green")
_FRESHNESS = {
    "fresh": "fresh: every artifact is what would be traced now",
    "stale": "stale: something differs",
    "incomplete": "incomplete: nothing differs, but not everything could be compared",
}


def plain_table(title: str = "") -> Table:
    """A table to which columns are added: no lines but one below its head, and a line above a title."""
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
    """The first few lines, and how many there are more."""
    every = list(lines)
    more = [f"and {len(every) - limit} more"] if len(every) > limit else []
    return [Text(line, style=style) for line in (*every[:limit], *more)]


def audit_lines(audits: Sequence[AuditReport], compile_s: float) -> list[Text]:
    """What audits cost beside compiles of so many seconds, and every difference."""
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
    """The launches of a store, without their last use where there is little room.

    ``long`` adds what each launches and its partitions; ``width`` is the terminal's, in columns.
    """
    head = Text(f"store {listing.store}: {count_text(len(listing.launches), 'launch')}", style="bold")
    parts: list[RenderableType] = [head]
    if listing.launches:
        left_out = {"=used", ">files", ">size"} if width < WIDE else set()
        table = table_of(*(name for name in _LISTED if name not in left_out))
        for line in listing.launches:
            cells = zip(_LISTED, _launch_cells(line), strict=True)
            table.add_row(*(cell for name, cell in cells if name not in left_out))
        parts.append(table)
        if any(line.of_config for line in listing.launches):
            parts.append(Text("* the launch of this config", style="dim"))
        if any(line.pinned for line in listing.launches):
            parts.append(Text("P pinned: no evict takes it", style="dim"))
    if long:
        for line in listing.launches:
            parts += _launch_details(line)
    return Group(*parts, *problems(listing.problems))


def _launch_cells(line: LaunchLine) -> tuple[Text | str, ...]:
    return (
        ("*" if line.of_config else "") + ("P" if line.pinned else ""),
        line.launch_key[:KEY_CHARS],
        time_text(line.created),
        line.last_used[:10] or "-",
        Text(line.what),
        str(line.world_size),
        str(line.num_files),
        size_text(line.size_bytes),
        _environment(line.changes, line.others, shown=1),
    )


def _launch_details(line: LaunchLine) -> list[RenderableType]:
    partitions = table_of("partition", "=manifest", ">artifacts", ">files", ">size")
    for part in line.partitions:
        cells = (part.key[:KEY_CHARS], str(part.num_artifacts), str(part.num_files))
        partitions.add_row(Text(part.partition), *cells, size_text(part.size_bytes))
    ranks = count_text(line.world_size, "rank")
    title = f"launch {line.launch_key[:KEY_CHARS]} of {ranks}, made {time_text(line.created)}"
    elsewhere = [(ranks_text(other.ranks), "; ".join(other.changes)) for other in line.others]
    parts: list[RenderableType] = [heading(title), pairs(line.identity.items())]
    if elsewhere:
        parts += [heading("ranks of other environments"), pairs(elsewhere)]
    return [*parts, partitions]


def render_partition(view: PartitionView) -> RenderableType:
    """One partition: where it belongs, its artifacts, what was asked for, and what is captured."""
    from warmrank.orchestrator.look.store_contents import short_signature

    facts = [("manifest", view.key), ("launch", view.launch_key), ("made", time_text(view.created))]
    if view.others:
        facts.append(("others", ", ".join(key[:KEY_CHARS] for key in view.others)))
    artifacts = table_of("=function", ">size", "=sha256", "file")
    for entry in view.artifacts:
        artifacts.add_row(
            Text(entry.function if entry.scope == "rank" else f"(node) {entry.function}"),
            size_text(entry.size_bytes),
            entry.sha256[:KEY_CHARS],
            Text(entry.path),
        )
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
            mark = "*" if record.chosen else ""
            differs = _environment(record.changes, record.others, shown=3)
            table.add_row(mark, time_text(record.created), str(record.world_size), differs)
        parts += [heading("this launch in the store"), table]
    if found.nearest_launch:
        parts.append(heading("nearest launch in the store differs in"))
        parts += [Text(f"  {change}") for change in found.nearest_launch]
    if found.functions:
        parts += [heading("functions stored"), *_functions(found.functions, found.environment)]
    elif found.cached:
        parts.append(heading("in the cache directory, of any launch"))
        parts += [Text(f"  {line}") for line in _cached(found.cached)]
    parts += [heading("what is asked for"), pairs(found.identity.items())]
    parts += [heading("environment here"), pairs(found.environment.items())]
    places = [("launch key", found.launch_key), ("store", found.store or "none"), ("cache", found.cache_dir)]
    parts += [heading("where"), pairs(places), Text(f"note: {found.note}", style="dim")]
    return Group(*parts, *problems(found.problems))


def _functions(functions: Sequence[FunctionView], environment: Mapping[str, str]) -> list[RenderableType]:
    table = table_of("=function", ">artifacts", ">files", ">size", "files on this node", "asked for by")
    requests: list[tuple[str, dict[str, str]]] = []
    for item in functions:
        ranks = sorted({rank for request in item.requests for rank in request.ranks})
        here = f"{item.num_on_this_node} of {item.num_files}"
        numbers = (str(item.num_artifacts), str(item.num_files), size_text(item.size_bytes))
        table.add_row(Text(item.function), *numbers, here, ranks_text(ranks))
        requests += [(item.function, request.components) for request in item.requests]
    states = [
        (f"{item.function} on {ranks_text(state.ranks)}", state.values)
        for item in functions
        for state in item.runtime_state
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
    """Values that were declared, each with whose they are; nothing where there are none."""
    rows = [(whose, in_words(values)) for whose, values in declared if values]
    more = len(rows) - _STATES_SHOWN
    rows = [*rows[:_STATES_SHOWN], *([("", f"and {more} more")] if more > 0 else [])]
    return [heading("runtime state, declared by the workload"), pairs(rows)] if rows else []


def _cached(cached: Iterable[CachedView]) -> list[str]:
    """One line for each model directory: its functions, and in how many partitions they are."""
    functions: dict[str, set[str]] = {}
    partitions: dict[str, set[str]] = {}
    for item in cached:
        model, *middle, function = item.directory.split("/")
        functions.setdefault(model, set()).add(function)
        partitions.setdefault(model, set()).add("/".join(middle))
    return [
        f"{model}: {', '.join(sorted(names))} in {count_text(len(partitions[model]), 'partition')}"
        for model, names in functions.items()
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
    if found.store:
        store = found.store
        lines.append(
            f"store {found.location}: {count_text(store.num_launches, 'launch')}, "
            f"{count_text(store.num_listings, 'directory')}, {count_text(store.num_manifests, 'manifest')}, "
            f"{count_text(store.num_blobs, 'blob')}, {size_text(store.bytes_hashed)} hashed"
        )
        if not found.signatures_checked:
            lines.append("signatures not checked: name a CONFIG, whose trust policy then applies")
    if found.cache:
        lines.append(
            f"cache {found.cache.path}: {count_text(found.cache.num_artifacts, 'artifact')} in "
            f"{count_text(found.cache.num_files, 'file')}, {size_text(found.cache.size_bytes)} read"
        )
    faults = [Text(f"fault: {fault}", style="bold red") for fault in found.faults]
    repairs = [Text(f"repair: {repair}") for repair in found.store.repairs] if found.store else []
    end = [] if faults else [Text("no faults", style="green")]
    return Group(*(Text(line) for line in lines), *faults, *repairs, *end)


def render_build(report: BuildReport) -> RenderableType:
    """The classes of an offline build, with lines below."""
    title = f"{report.name}: {count_text(report.world_size, 'rank')} of device kind {report.device}"
    names = ("function", "outcome", "artifact", ">ranks", ">leader", ">size", ">trace", ">compile")
    table = table_of(*names, title=title)
    for item in report.classes:
        is_new = item.outcome == "compiled"
        table.add_row(
            Text(item.function),
            Text("compiled", style=STYLES["compiled"]) if is_new else Text("there before"),
            item.digest[:KEY_CHARS],
            str(item.num_ranks),
            str(item.leader),
            size_text(item.size_bytes),
            seconds_text(item.trace_s),
            seconds_text(item.compile_s),
        )
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
    names = ("function", "artifact", "ranks", "trace", ">took", ">CPU")
    table = table_of(*names, title=title)
    for item in found.functions:
        table.add_row(
            Text(item.function),
            item.digest[:KEY_CHARS] or "-",
            runs_text(item.ranks),
            Text(item.outcome, style=STYLES[item.outcome]),
            seconds_text(item.seconds),
            seconds_text(item.cpu_s),
        )
    reasons = [
        Text(f"{item.function} {item.outcome} on {brief_ranks(item.ranks)}: {item.reason}")
        for item in found.functions
        if item.outcome != "equal"
    ]
    others = [
        Text(f"not compared: {item.function} {item.digest[:KEY_CHARS]} ({where}): {item.reason}")
        for item in found.not_compared
        for where in [brief_ranks(item.ranks)]
    ]
    traced = count_text(found.num_retraced_ranks, "rank")
    summary = f"{_FRESHNESS[found.outcome]}; {traced} traced, in {seconds_text(found.wall_s)}"
    source = Text(f"for: {found.environment_source}")
    return Group(table, *reasons, *others, *problems(found.problems), source, Text(summary, style="bold"))


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
    counts = ", ".join(f"{kinds.count(kind)} {kind}s" for kind in ("record", "manifest", "blob"))
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
    return Group(*(Text(line) for line in lines)) if lines else Text("nothing is pinned")


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


def render_keys(found: KeyList) -> RenderableType:
    """The keys of a keyring: which sign, which are trusted, which are revoked."""
    head = Text(f"keyring {found.keyring}: {count_text(len(found.keys), 'key')}", style="bold")
    table = table_of("name", "id", "state", "file")
    for line in found.keys:
        words = [*(["own"] if line.own else []), *(["trusted"] if line.trusted else [])]
        state = Text(", ".join([*words, *([str(line.revoked)] if line.revoked else [])]))
        files = "\n".join(str(path.relative_to(found.keyring)) for path in line.files)
        table.add_row(Text(line.name), line.key_id, state, Text(files))
    return Group(head, *([table] if found.keys else []), *problems(found.problems))
