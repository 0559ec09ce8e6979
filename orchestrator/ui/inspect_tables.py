"""Tables of what `orchestrator.inspect` found, for people; fits 100 columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from warmrank.cache_store.records.manifest import RequestEntry
from warmrank.cache_store.signing.keyring import KeyList
from warmrank.orchestrator.errors import ranks_text
from warmrank.orchestrator.inspect.explain import Explanation, FunctionView
from warmrank.orchestrator.inspect.findings import LEVELS, Diagnosis
from warmrank.orchestrator.inspect.store_contents import (
    DirectoryLine,
    LaunchLine,
    Listing,
    OtherRanks,
    PartitionView,
    Verified,
)
from warmrank.orchestrator.text import brief_names, count_text, grouped, size_text, time_text
from warmrank.orchestrator.ui.table import (
    KEY_CHARS,
    MAX_LINES,
    STYLES,
    WIDE,
    heading,
    pairs,
    plain_table,
    problems,
    table_of,
)
from warmrank.worker.runtime.runtime_state import in_words

_STATES_SHOWN = 32
_AS_HERE = Text("as here", style="green")


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
    made = view.manifest
    facts = [("manifest", view.key), ("launch", view.launch_key), ("made", time_text(made.created))]
    if view.others:
        facts.append(("others", ", ".join(key[:KEY_CHARS] for key in view.others)))
    artifacts = table_of("=function", ">size", "=sha256", "file")
    for entry in made.artifacts:
        name = entry.function if entry.scope == "rank" else f"(node) {entry.function}"
        cells = (size_text(entry.size_bytes), entry.sha256[:KEY_CHARS])
        artifacts.add_row(Text(name), *cells, Text(entry.path))
    head = Text(f"{made.partition}: rank {made.rank} of {made.world_size}", style="bold")
    parts: list[RenderableType] = [head, pairs(facts), artifacts]
    parts += _requests([(entry.function, entry) for entry in made.requests], made.environment)
    differs = f"  differs on this machine: {'; '.join(view.changes)}"
    here = Text(differs, style="yellow") if view.changes else Text("  as on this machine", style="green")
    parts += [heading("environment"), pairs(made.environment.items()), here]
    if made.captures:
        parts.append(heading("captured, in this order"))
        parts += [Text(f"  {entry.function} {entry.signature}") for entry in made.captures]
    return Group(*parts)


def render_explanation(found: Explanation) -> RenderableType:
    """The findings for a launch, the verdict first."""
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
        parts += _cached(found.cached)
    parts += [heading("what is asked for"), pairs(found.identity.items())]
    parts += [heading("environment here"), pairs(found.environment.items())]
    places = [("launch key", found.launch_key), ("store", found.store or "none"), ("cache", found.cache_dir)]
    parts += [heading("where"), pairs(places), Text(f"note: {found.note}", style="dim")]
    return Group(*parts, *problems(found.problems))


def _functions(functions: Sequence[FunctionView], environment: Mapping[str, str]) -> list[RenderableType]:
    table = table_of("=function", ">artifacts", ">files", ">size", "files on this node", "asked for by")
    requests = []
    for item in functions:
        here = f"{item.num_on_this_node} of {item.num_files}"
        numbers = (str(item.num_artifacts), str(item.num_files), size_text(item.size_bytes))
        asking = ranks_text(rank for _, ranks in item.requests for rank in ranks)
        table.add_row(Text(item.function), *numbers, here, asking)
        requests += [(f"{item.function} on {ranks_text(ranks)}", asked) for asked, ranks in item.requests]
    return [table, *_requests(requests, environment)]


def _requests(
    requests: Iterable[tuple[str, RequestEntry]], environment: Mapping[str, str]
) -> list[RenderableType]:
    """Components of requests that are not the environment's, equal ones once; then the runtime state."""
    alike: dict[tuple[tuple[str, str], ...], list[str]] = {}
    states: list[tuple[str, str]] = []
    for whose, asked in requests:
        own = tuple((name, value) for name, value in asked.components.items() if name not in environment)
        alike.setdefault(own, []).append(asked.function)
        states += [(whose, in_words(asked.runtime_state))] if asked.runtime_state else []
    parts: list[RenderableType] = []
    for own, functions in alike.items():
        parts += [heading(f"request of {', '.join(dict.fromkeys(functions))}"), pairs(own)]
    if len(states) > _STATES_SHOWN:
        states[_STATES_SHOWN:] = [("", f"and {len(states) - _STATES_SHOWN} more")]
    if states:
        parts += [heading("runtime state, declared by the workload"), pairs(states)]
    return parts


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
        lines.append(Text(f"store {found.location}: {read}, {size_text(store.bytes_hashed)} hashed"))
        if not found.signatures_checked:
            lines.append(Text("signatures not checked: name a CONFIG, whose trust policy then applies"))
    if cache := found.cache:
        artifacts, files = count_text(cache.num_artifacts, "artifact"), count_text(cache.num_files, "file")
        lines.append(Text(f"cache {cache.path}: {artifacts} in {files}, {size_text(cache.size_bytes)} read"))
    lines += [Text(f"fault: {fault}", style="bold red") for fault in found.faults]
    lines += [Text(f"repair: {repair}") for repair in store.repairs] if store else []
    return Group(*lines, *([] if found.faults else [Text("no faults", style="green")]))


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


def render_diagnosis(found: Diagnosis) -> RenderableType:
    """One line for each check with what to do; equal findings of several nodes once."""
    several = len(found.nodes) > 1
    by_host = [("cluster", found.cluster), *((one.node.host, one.findings) for one in found.nodes)]
    rows = grouped((finding, host) for host, findings in by_host for finding in findings)
    table = plain_table()
    for column in ("level", "check", *(["nodes"] if several else []), "found"):
        table.add_column(column, no_wrap=column in {"level", "check"}, overflow="fold")
    for row, hosts in rows.items():
        is_all = len(hosts) == len(found.nodes)
        where = f"all {len(hosts)}" if is_all else brief_names(hosts, max_names=MAX_LINES)
        text = row.what + (f"\n  remedy: {row.remedy}" if row.remedy else "")
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
