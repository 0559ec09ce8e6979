"""Renders what `look`, `explain` and `verify` found, for people; fits 100 columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from warmrank.orchestrator.errors import ranks_text
from warmrank.orchestrator.launch.outlook import OtherRanks
from warmrank.orchestrator.look.captures import short_signature
from warmrank.orchestrator.look.explain import CachedView, Explanation, FunctionView
from warmrank.orchestrator.look.listing import LaunchLine, Listing
from warmrank.orchestrator.look.store_contents import PartitionView
from warmrank.orchestrator.look.verify import Verified
from warmrank.orchestrator.show.figures import count_text, size_text, time_text
from warmrank.orchestrator.show.plain_table import plain_table
from warmrank.worker.runtime_state import in_words

KEY_CHARS = 12
WIDE = 100
"""Columns of a terminal that has room for all that is listed."""

_LISTED = ("", "launch", "made", "used", "what", "ranks", "files", "size", "environment")
_OUTLOOK_STYLES = {"load": "bold green", "adopt": "bold cyan", "compile": "bold yellow"}
_STATES_SHOWN = 32
_AS_HERE = Text("as here", style="green")


def render_listing(listing: Listing, *, long: bool = False, width: int = WIDE) -> RenderableType:
    """The launches of a store, without their last use where there is little room.

    ``long`` adds what each launches and its partitions; ``width`` is the terminal's, in columns.
    """
    head = Text(f"store {listing.store}: {count_text(len(listing.launches), 'launch')}", style="bold")
    parts: list[RenderableType] = [head]
    if listing.launches:
        left_out = {"used", "files", "size"} if width < WIDE else set()
        table = _table(*(name for name in _LISTED if name not in left_out))
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
    return Group(*parts, *_problems(listing.problems))


def render_partition(view: PartitionView) -> RenderableType:
    """One partition: where it belongs, its artifacts, what was asked for, and what is captured."""
    head = Text(f"{view.partition}: rank {view.rank} of {view.world_size}", style="bold")
    facts = _pairs(
        [
            ("manifest", view.key),
            ("launch", view.launch_key),
            ("made", time_text(view.created)),
            *([("others", ", ".join(key[:KEY_CHARS] for key in view.others))] if view.others else []),
        ]
    )
    artifacts = _table("function", "size", "sha256", "file")
    for entry in view.artifacts:
        artifacts.add_row(
            Text(entry.function if entry.scope == "rank" else f"(node) {entry.function}"),
            size_text(entry.size_bytes),
            entry.sha256[:KEY_CHARS],
            Text(entry.path),
        )
    parts: list[RenderableType] = [head, facts, artifacts]
    parts += _requests([(entry.function, entry.components) for entry in view.requests], view.environment)
    parts += _runtime_states((entry.function, entry.runtime_state) for entry in view.requests)
    parts += [_heading("environment"), _pairs(view.environment.items()), _differences(view.changes)]
    if view.captures:
        parts.append(_heading("captured, in this order"))
        parts += [Text(f"  {entry.function} {short_signature(entry.signature)}") for entry in view.captures]
    return Group(*parts)


def render_explanation(found: Explanation) -> RenderableType:
    """What a launch would find, the verdict first."""
    verdict = Text(found.verdict)
    verdict.stylize(_OUTLOOK_STYLES[found.outlook], 0, len(found.outlook))
    parts: list[RenderableType] = [verdict]
    if found.records:
        table = _table("", "made", "ranks", "environment")
        for record in found.records:
            mark = "*" if record.chosen else ""
            differs = _environment(record.changes, record.others, shown=3)
            table.add_row(mark, time_text(record.created), str(record.world_size), differs)
        parts += [_heading("this launch in the store"), table]
    if found.nearest_launch:
        parts.append(_heading("nearest launch in the store differs in"))
        parts += [Text(f"  {change}") for change in found.nearest_launch]
    if found.functions:
        parts += [_heading("functions stored"), *_functions(found.functions, found.environment)]
    elif found.cached:
        parts.append(_heading("in the cache directory, of any launch"))
        parts += [Text(f"  {line}") for line in _cached(found.cached)]
    parts += [_heading("what is asked for"), _pairs(found.identity.items())]
    parts += [_heading("environment here"), _pairs(found.environment.items())]
    places = [("launch key", found.launch_key), ("store", found.store or "none"), ("cache", found.cache_dir)]
    parts += [_heading("where"), _pairs(places), Text(f"note: {found.note}", style="dim")]
    return Group(*parts, *_problems(found.problems))


def render_verified(found: Verified) -> RenderableType:
    """What was read, and every fault."""
    lines = []
    if found.store:
        lines.append(
            f"store {found.location}: {count_text(found.store.num_launches, 'launch')}, "
            f"{count_text(found.store.num_listings, 'directory')}, "
            f"{count_text(found.store.num_manifests, 'manifest')}, "
            f"{count_text(found.store.num_blobs, 'blob')}, {size_text(found.store.bytes_hashed)} hashed"
        )
        if not found.signatures_checked:
            lines.append("signatures not checked: name a CONFIG, whose trust policy then applies")
    if found.cache:
        lines.append(
            f"cache {found.cache.path}: {count_text(found.cache.num_artifacts, 'artifact')} "
            f"in {count_text(found.cache.num_files, 'file')}, "
            f"{size_text(found.cache.size_bytes)} read"
        )
    faults = [Text(f"fault: {fault}", style="bold red") for fault in found.faults]
    repairs = [Text(f"repair: {repair}") for repair in found.store.repairs] if found.store else []
    end = [] if faults else [Text("no faults", style="green")]
    return Group(*(Text(line) for line in lines), *faults, *repairs, *end)


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
    partitions = _table("partition", "manifest", "artifacts", "files", "size")
    for part in line.partitions:
        cells = (part.key[:KEY_CHARS], str(part.num_artifacts), str(part.num_files))
        partitions.add_row(Text(part.partition), *cells, size_text(part.size_bytes))
    ranks = count_text(line.world_size, "rank")
    title = f"launch {line.launch_key[:KEY_CHARS]} of {ranks}, made {time_text(line.created)}"
    elsewhere = [(ranks_text(other.ranks), "; ".join(other.changes)) for other in line.others]
    parts: list[RenderableType] = [_heading(title), _pairs(line.identity.items())]
    if elsewhere:
        parts += [_heading("ranks of other environments"), _pairs(elsewhere)]
    return [*parts, partitions]


def _functions(functions: Sequence[FunctionView], environment: dict[str, str]) -> list[RenderableType]:
    table = _table("function", "artifacts", "files", "size", "files on this node", "asked for by")
    requests: list[tuple[str, dict[str, str]]] = []
    for item in functions:
        ranks = sorted({rank for request in item.requests for rank in request.ranks})
        here = f"{item.num_on_this_node} of {item.num_files}"
        numbers = (str(item.num_artifacts), str(item.num_files))
        cells = (*numbers, size_text(item.size_bytes), here, ranks_text(ranks))
        table.add_row(Text(item.function), *cells)
        requests += [(item.function, request.components) for request in item.requests]
    states = [
        (f"{item.function} on {ranks_text(state.ranks)}", state.values)
        for item in functions
        for state in item.runtime_state
    ]
    return [table, *_requests(requests, environment), *_runtime_states(states)]


def _requests(
    requests: Iterable[tuple[str, dict[str, str]]], environment: dict[str, str]
) -> list[RenderableType]:
    """Components of requests that are not the environment's; equal ones once, with their functions."""
    alike: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for function, components in requests:
        own = tuple((name, value) for name, value in components.items() if name not in environment)
        alike.setdefault(own, []).append(function)
    parts: list[RenderableType] = []
    for own, functions in alike.items():
        parts += [_heading(f"request of {', '.join(dict.fromkeys(functions))}"), _pairs(own)]
    return parts


def _runtime_states(declared: Iterable[tuple[str, dict[str, str]]]) -> list[RenderableType]:
    """Values that were declared, each with whose they are; nothing where there are none."""
    rows = [(whose, in_words(values)) for whose, values in declared if values]
    more = len(rows) - _STATES_SHOWN
    rows = [*rows[:_STATES_SHOWN], *([("", f"and {more} more")] if more > 0 else [])]
    return [_heading("runtime state, declared by the workload"), _pairs(rows)] if rows else []


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


def _differences(changes: Sequence[str]) -> Text:
    if not changes:
        return Text("  as on this machine", style="green")
    return Text(f"  differs on this machine: {'; '.join(changes)}", style="yellow")


def _problems(problems: Iterable[str]) -> list[Text]:
    return [Text(f"problem: {problem}", style="bold yellow") for problem in problems]


def _heading(text: str) -> Text:
    return Text(f"\n{text}", style="bold")


_WHOLE = frozenset({"", "launch", "made", "used", "function", "sha256", "manifest"})
"""Columns that are not folded."""

_RIGHT = frozenset(
    {"ranks", "functions", "artifacts", "files", "size", "partitions", "there before", "copied", "seconds"}
)


def _table(*names: str) -> Table:
    table = plain_table()
    for name in names:
        right = name in _RIGHT
        table.add_column(
            name,
            justify="right" if right else "left",
            no_wrap=right or name in _WHOLE,
            min_width=len(name),
            overflow="fold",
        )
    return table


def _pairs(rows: Iterable[tuple[str, str]]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(Text(f"  {name}", style="dim"), Text(value))
    return grid
