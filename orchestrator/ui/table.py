"""Tables of what commands found and did, for people, in 100 columns; reports are in `report_table`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from warmrank.cache_store.text import (
    brief_names,
    count_text,
    first_lines,
    grouped,
    seconds_text,
    size_text,
    time_text,
)
from warmrank.orchestrator.errors import ranks_text

if TYPE_CHECKING:
    from warmrank.cache_store.errors import NotInStore
    from warmrank.cache_store.gc.evict import EvictOutcome, EvictReport
    from warmrank.cache_store.gc.pins import Pin
    from warmrank.cache_store.publish_pending import QueueReport
    from warmrank.cache_store.records.manifest import RequestEntry
    from warmrank.cache_store.signing.keyring import KeyList
    from warmrank.cache_store.sync.pull import PullReport
    from warmrank.cache_store.sync.push import PushReport
    from warmrank.orchestrator.config.lint import LintFinding
    from warmrank.orchestrator.inspect.doctor import Diagnosis
    from warmrank.orchestrator.inspect.explain import Explanation
    from warmrank.orchestrator.inspect.store_contents import (
        Contents,
        DirectoryLine,
        LaunchLine,
        Listing,
        PartitionView,
        RecordView,
        Verified,
    )
    from warmrank.orchestrator.seed.seeding import NodeSeed
    from warmrank.orchestrator.vllm_plugin.entries import Outcome

KEY_CHARS = 12
MAX_LINES = 8
_MAX_STATES = 32
WIDE = 100  # columns of a terminal that has room for all that a table lists
STYLES = {
    "compiled": "yellow", "loaded": "green", "adopted": "cyan",
    "compile": "bold yellow", "load": "bold green", "adopt": "bold cyan",
    "equal": "green", "differs": "bold red", "missing": "yellow", "failed": "yellow",
    "ok": "green", "note": "cyan", "warning": "bold yellow", "error": "bold red",
}  # fmt: skip
"""Of outcomes and levels, wherever they are shown."""


def table_of(*columns: str, rows: Iterable[Sequence[str | Text]] = (), title: str = "") -> Table:
    """A table with these columns: ``>`` before those of numbers, ``=`` before those that are never folded."""
    table = Table(
        title=title or None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=bool(title),
        padding=(0, 1, 0, 0),
    )
    for column in columns:
        name = column.lstrip(">=")
        table.add_column(
            name,
            justify="right" if column.startswith(">") else "left",
            no_wrap=name != column,
            min_width=len(name),
            overflow="fold" if name == column else "ellipsis",  # on a narrow terminal, 18… and not 18 m
        )
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return table


def pairs(rows: Iterable[tuple[str, str]], *, style: str = "dim") -> Table:
    """Names with their values."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(Text(f"  {name}", style=style), Text(value))
    return grid


def some(lines: Iterable[str], *, style: str = "dim") -> list[Text]:
    """The first few lines, and the number of the others."""
    return [Text(line, style=style) for line in first_lines(lines, max_lines=MAX_LINES)]


def problems(texts: Iterable[str]) -> list[Text]:
    """A line for each problem."""
    return [Text(f"problem: {text}", style="bold yellow") for text in texts]


def word(outcome: str) -> Text:
    """An outcome or a level in its colour."""
    return Text(outcome, style=STYLES[outcome])


def _heading(text: str) -> Text:
    return Text(f"\n{text}", style="bold")


def render_evicted(done: EvictOutcome, *, dry_run: bool) -> RenderableType:
    """Files that went and that stay, place by place, then the places where nothing could be done."""
    lines = [line for report in done.reports for line in _evicted(report, dry_run=dry_run)]
    faults = [Text(f"fault: {fault.location}: {fault.reason}", style="bold red") for fault in done.faults]
    return Group(*lines, *faults)


def _evicted(report: EvictReport, *, dry_run: bool) -> Iterable[Text]:
    from warmrank.cache_store.gc.pins import short_name

    went, deleted = ("would go", "would be deleted") if dry_run else ("went", "deleted")
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
        came = "would come" if dry_run else "came"
        yield Text(f"  {count_text(len(report.restored), 'file')} {came} back from the trash")
    yield Text(f"  {size_text(report.remaining_bytes)} remain")
    if report.over_bytes:
        over = f"  {size_text(report.over_bytes)} over --max-size: what remains is pinned, kept or too young"
        yield Text(over, style="bold yellow")
    yield from problems(report.problems)


def render_pins(pins: Sequence[Pin]) -> RenderableType:
    """All pins, a line for each."""
    from warmrank.cache_store.gc.pins import short_name

    lines = []
    for pin in pins:
        since = f", since {time_text(pin.created)}" if pin.created else ""
        lines.append(f"{short_name(pin.record)}{since}" + (f": {pin.reason}" if pin.reason else ""))
    return Group(*map(Text, lines or ["nothing is pinned"]))


def render_pushes(reports: Sequence[PushReport]) -> RenderableType:
    """Outcome of each push."""
    parts: list[RenderableType] = []
    for report in reports:
        files, blobs = count_text(report.num_files, "file"), count_text(report.num_blobs_new, "blob")
        text = (
            f"  {files}, {size_text(report.size_bytes)}; new in the store: {blobs}, "
            f"{size_text(report.bytes_new)}; key {report.key[:KEY_CHARS]}"
        )
        what = "pushed" if report.created else "unchanged"
        parts += [Text.assemble((what, "bold green"), f" {report.directory}"), Text(text)]
        parts += some((f"  left out: {line}" for line in report.left_out), style="yellow")
    return Group(*parts)


def render_pulls(reports: Sequence[PullReport], misses: Sequence[NotInStore]) -> RenderableType:
    """Outcome of each pull, and the misses."""
    parts: list[RenderableType] = []
    for report in reports:
        rewritten = f", {report.num_rewritten} changed to name it" if report.num_rewritten else ""
        text = (
            f"  {count_text(report.num_new, 'file')} new, {report.num_replaced} replaced "
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
    rows, reasons = [], []
    for item in seeds:
        counts = (str(item.num_partitions), str(item.num_files), str(item.num_already_there))
        moved = (size_text(item.bytes_copied), seconds_text(item.seconds))
        status = Text(item.status, style=SEED_STYLES[item.status])
        rows.append((names[item.node], item.node.address or "-", status, *counts, *moved))
        on_node = item.node_artifacts.words() if item.node_artifacts is not None else ()
        faults = (fault for fault in item.faults if fault not in item.reason)
        reasons += [(line, names[item.node]) for line in dict.fromkeys((item.reason, *faults, *on_node))]
    sources = {
        "from the store": sum(item.bytes_from_store for item in seeds),
        "from node to node": sum(item.bytes_from_nodes for item in seeds),
    }
    read = ", ".join(
        f"{size_text(size_bytes)} {where}" for where, size_bytes in sources.items() if size_bytes
    )
    lines = [f"read: {read}"] if read else []
    for line, hosts in grouped(reasons).items():
        lines.append(f"{brief_names(hosts, max_names=MAX_LINES)}: {line}")
    columns = ("node", "address", "outcome", ">partitions", ">files", ">there before", ">copied", ">seconds")
    return Group(table_of(*columns, rows=rows), *map(Text, lines))


def render_listing(listing: Listing, *, long: bool = False, width: int = WIDE) -> RenderableType:
    """The launches of a store; in a terminal narrower than `WIDE` columns without last use and sizes.

    ``long`` adds what each launches and its partitions.
    """
    head = Text(f"store {listing.store}: {count_text(len(listing.launches), 'launch')}", style="bold")
    parts: list[RenderableType] = [head]
    if listing.launches:
        rows = [_launch_cells(line) for line in listing.launches]
        columns = [name for name in rows[0] if width >= WIDE or name not in {"=used", ">files", ">size"}]
        parts.append(table_of(*columns, rows=[[row[name] for name in columns] for row in rows]))
        if any(line.view.marked for line in listing.launches):
            parts.append(Text("* the launch of this config", style="dim"))
        if any(line.pinned for line in listing.launches):
            parts.append(Text("P pinned: no evict takes it", style="dim"))
    for line in listing.launches if long else ():
        parts += _launch_details(line)
    return Group(*parts, *problems(listing.problems))


def _launch_cells(line: LaunchLine) -> dict[str, Text | str]:
    return {
        "=": ("*" if line.view.marked else "") + ("P" if line.pinned else ""),
        "=launch": line.view.launch_key[:KEY_CHARS],
        "=made": time_text(line.view.created),
        "=used": line.last_used[:10] or "-",
        "what": line.what,
        ">ranks": str(line.view.world_size),
        ">files": str(line.contents.num_files),
        ">size": size_text(line.contents.size_bytes),
        "environment": _environment(line.view, shown=1),
    }


def _launch_details(line: LaunchLine) -> list[RenderableType]:
    view = line.view
    ranks = count_text(view.world_size, "rank")
    title = f"launch {view.launch_key[:KEY_CHARS]} of {ranks}, made {time_text(view.created)}"
    parts: list[RenderableType] = [_heading(title), pairs(line.identity.items())]
    if view.others:
        elsewhere = [(ranks_text(other.ranks), "; ".join(other.changes)) for other in view.others]
        parts += [_heading("ranks of other environments"), pairs(elsewhere)]
    rows = [(part.partition, part.key[:KEY_CHARS], *_numbers(part.contents)) for part in line.partitions]
    return [*parts, table_of("partition", "=manifest", *_NUMBERS, rows=rows)]


_NUMBERS = (">artifacts", ">files", ">size")


def _numbers(found: Contents) -> tuple[str, str, str]:
    return str(found.num_artifacts), str(found.num_files), size_text(found.size_bytes)


def _environment(view: RecordView, *, shown: int) -> Text:
    if view.changes:
        more = f" (and {len(view.changes) - shown} more)" if len(view.changes) > shown else ""
        return Text("; ".join(view.changes[:shown]) + more, style="yellow")
    ranks = sorted(rank for other in view.others for rank in other.ranks)
    here = Text("as here", style="green")
    return here + Text(f", but {ranks_text(ranks)}", style="yellow") if ranks else here


def render_directories(lines: Sequence[DirectoryLine]) -> RenderableType:
    """Directories of other tools in a store."""
    rows = [
        (line.tool, time_text(line.created), line.what, str(line.num_files), size_text(line.size_bytes))
        for line in lines
    ]
    return table_of("=directory of", "=pushed", "what", ">files", ">size", rows=rows)


def render_partition(view: PartitionView) -> RenderableType:
    """One partition: where it belongs, its artifacts, its requests, and its captures."""
    made = view.manifest
    facts = [("manifest", view.key), ("launch", view.launch_key), ("made", time_text(made.created))]
    if view.others:
        facts.append(("same name", ", ".join(key[:KEY_CHARS] for key in view.others)))
    rows = [
        (
            entry.function if entry.scope == "rank" else f"(node) {entry.function}",
            size_text(entry.size_bytes),
            entry.sha256[:KEY_CHARS],
            entry.path,
        )
        for entry in made.artifacts
    ]
    head = Text(f"{made.partition}: rank {made.rank} of {made.world_size}", style="bold")
    parts: list[RenderableType] = [head, pairs(facts)]
    parts.append(table_of("=function", ">size", "=sha256", "file", rows=rows))
    parts += _requests([(entry.function, entry) for entry in made.requests], made.environment)
    differs = f"  differs on this machine: {'; '.join(view.changes)}"
    here = Text(differs, style="yellow") if view.changes else Text("  as on this machine", style="green")
    parts += [_heading("environment"), pairs(made.environment.items()), here]
    if made.captures:
        parts.append(_heading("captured, in this order"))
        parts += [Text(f"  {entry.function} {entry.signature}") for entry in made.captures]
    return Group(*parts)


def render_explanation(found: Explanation) -> RenderableType:
    """The findings for a launch, the verdict first."""
    verdict = Text(found.verdict)
    verdict.stylize(STYLES[found.outlook], 0, len(found.outlook))
    parts: list[RenderableType] = [verdict]
    if found.records:
        rows = [
            (
                "*" if view.marked else "",
                time_text(view.created),
                str(view.world_size),
                _environment(view, shown=3),
            )
            for view in found.records
        ]
        parts += [_heading("this launch in the store")]
        parts.append(table_of("=", "=made", ">ranks", "environment", rows=rows))
    if found.nearest_launch:
        parts.append(_heading("nearest launch in the store differs in"))
        parts += [Text(f"  {change}") for change in found.nearest_launch]
    if found.functions:
        parts += [_heading("functions stored"), *_functions(found)]
    elif found.cached:
        parts += [_heading("in the cache directory, of any launch"), *_cached(found.cached)]
    places = [("launch key", found.launch_key), ("store", found.store or "none"), ("cache", found.cache_dir)]
    for title, values in (
        ("what is asked for", found.identity.items()),
        ("environment here", found.environment.items()),
        ("where", places),
    ):
        parts += [_heading(title), pairs(values)]
    return Group(*parts, Text(f"note: {found.note}", style="dim"), *problems(found.problems))


def _functions(found: Explanation) -> list[RenderableType]:
    rows, requests = [], []
    for item in found.functions:
        here = f"{item.num_on_this_node} of {item.contents.num_files}"
        asking = ranks_text(rank for _, ranks in item.requests for rank in ranks)
        rows.append((item.function, *_numbers(item.contents), here, asking))
        requests += [(f"{item.function} on {ranks_text(ranks)}", asked) for asked, ranks in item.requests]
    columns = ("=function", *_NUMBERS, "files on this node", "asked for by")
    return [table_of(*columns, rows=rows), *_requests(requests, found.environment)]


def _requests(
    requests: Iterable[tuple[str, RequestEntry]], environment: Mapping[str, str]
) -> list[RenderableType]:
    """Components of requests that are not the environment's, equal ones once; then the runtime state."""
    from warmrank.worker.runtime.runtime_state import in_words

    every = list(requests)
    alike = grouped(
        (tuple((name, value) for name, value in asked.components.items() if name not in environment), asked)
        for _, asked in every
    )
    parts: list[RenderableType] = []
    for own, asking in alike.items():
        functions = ", ".join(dict.fromkeys(asked.function for asked in asking))
        parts += [_heading(f"request of {functions}"), pairs(own)]
    if states := [(whose, in_words(asked.runtime_state)) for whose, asked in every if asked.runtime_state]:
        if len(states) > _MAX_STATES:
            states[_MAX_STATES:] = [("", f"and {len(states) - _MAX_STATES} more")]
        parts += [_heading("runtime state, declared by the workload"), pairs(states)]
    return parts


def _cached(directories: Iterable[str]) -> list[Text]:
    """A line for each model directory: its functions, and the number of partitions."""
    places = [directory.split("/") for directory in directories]
    lines = []
    for model, below in grouped((model, rest) for model, *rest in places).items():
        functions = ", ".join(sorted({function for *_, function in below}))
        partitions = count_text(len({tuple(middle) for *middle, _ in below}), "partition")
        lines.append(Text(f"  {model}: {functions} in {partitions}"))
    return lines


def render_verified(found: Verified) -> RenderableType:
    """Counts of all that was read, and every fault."""
    lines = []
    if store := found.store:
        counts = {
            "launch": store.num_launches,
            "directory": store.num_listings,
            "manifest": store.num_manifests,
            "blob": store.num_blobs,
        }
        read = ", ".join(count_text(count, noun) for noun, count in counts.items())
        where = f" in {found.num_places} places together" if found.num_places > 1 else ""
        hashed = size_text(store.bytes_hashed)
        lines.append(Text(f"store {found.location}: {read}, {hashed} hashed{where}"))
        if not found.signatures_checked:
            lines.append(Text("signatures not checked: name a CONFIG, whose trust policy then applies"))
    if cache := found.cache:
        artifacts, files = count_text(cache.num_artifacts, "artifact"), count_text(cache.num_files, "file")
        others = f" ({cache.num_of_other_versions} of other versions)" if cache.num_of_other_versions else ""
        read = size_text(cache.size_bytes)
        lines.append(Text(f"cache {cache.path}: {artifacts}{others} in {files}, {read} read"))
    lines += [Text(f"fault: {fault}", style="bold red") for fault in found.faults]
    lines += [Text(f"repair: {repair}") for repair in store.repairs] if store else []
    return Group(*lines, *([] if found.faults else [Text("no faults", style="green")]))


def render_keys(found: KeyList) -> RenderableType:
    """The keys of a keyring: which sign, which are trusted, which are revoked."""
    rows = []
    for line in found.keys:
        states = {"own": line.own, "trusted": line.trusted, str(line.revoked): line.revoked}
        state = ", ".join(name for name, holds in states.items() if holds)
        files = "\n".join(str(path.relative_to(found.keyring)) for path in line.files)
        rows.append((line.name, line.key_id, state, files))
    head = Text(f"keyring {found.keyring}: {count_text(len(rows), 'key')}", style="bold")
    table = [table_of("name", "id", "state", "file", rows=rows)] if rows else []
    return Group(head, *table, *problems(found.problems))


def render_diagnosis(found: Diagnosis) -> RenderableType:
    """One line for each check with what to do; equal findings of several nodes once."""
    several = len(found.nodes) > 1
    by_host = [("cluster", found.cluster), *((one.node.host, one.findings) for one in found.nodes)]
    hosts = grouped((finding, host) for host, findings in by_host for finding in findings)
    rows: list[list[str | Text]] = []
    for row, on in hosts.items():
        text = row.what + (f"\n  remedy: {row.remedy}" if row.remedy else "")
        where = f"all {len(on)}" if len(on) == len(found.nodes) else brief_names(on, max_names=MAX_LINES)
        nodes = [where] if several else []
        rows.append([word(row.level), row.check, *nodes, text])
    counts = Counter(row.level for row in hosts)
    parts = [count_text(counts[level], level) for level in ("error", "warning", "note") if counts[level]]
    who = count_text(len(found.nodes), "node") if several else found.nodes[0].node.host
    launch = f" for config {found.config}" if found.config else ""
    summary = ", ".join([*parts, f"{count_text(counts['ok'], 'check')} fine"])
    return Group(
        Text(f"{who}, device kind {found.device}{launch}", style="bold"),
        table_of("=level", "=check", *(["nodes"] if several else []), "found", rows=rows),
        Text(f"\n{summary}", style=STYLES[found.worst]),
    )
