"""Renders what became of nodes that were seeded, for people; fits 100 columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from warmrank.orchestrator.nodes import Node, distinct_names
from warmrank.orchestrator.seed.outcome import NodeSeed, word
from warmrank.orchestrator.text import seconds_text, size_text

STYLES = {"seeded": "green", "miss": "yellow", "faults": "bold red"}
_COLUMNS = ("node", "address", "outcome", "partitions", "files", "there before", "copied", "seconds")
_RIGHT = frozenset(_COLUMNS[3:])
MAX_HOSTS = 8


def render_seeds(seeds: Sequence[NodeSeed]) -> RenderableType:
    """One line for each node, then why, equal reasons together, and where the bytes came from."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for name in _COLUMNS:
        right = name in _RIGHT
        table.add_column(name, justify="right" if right else "left", min_width=len(name), overflow="fold")
    names = distinct_names(item.node for item in seeds)
    for item in seeds:
        table.add_row(
            Text(names[item.node]),
            item.node.address or "-",
            Text(word(item), style=STYLES[word(item)]),
            str(item.num_partitions),
            str(item.num_files),
            str(item.num_already_there),
            size_text(item.bytes_copied),
            seconds_text(item.seconds),
        )
    return Group(table, *(Text(line) for line in (*_sources(seeds), *_reasons(seeds, names))))


def _sources(seeds: Sequence[NodeSeed]) -> list[str]:
    parts = (
        ("from the store", sum(item.bytes_from_store for item in seeds)),
        ("from node to node", sum(item.bytes_from_nodes for item in seeds)),
        ("left by a preseed that did not end", sum(item.bytes_resumed for item in seeds)),
    )
    found = [f"{size_text(size_bytes)} {where}" for where, size_bytes in parts if size_bytes]
    return [f"read: {', '.join(found)}"] if found else []


def _reasons(seeds: Sequence[NodeSeed], names: Mapping[Node, str]) -> list[str]:
    reasons: dict[str, list[str]] = {}
    for item in seeds:
        node = item.node_artifacts.words() if item.node_artifacts is not None else ()
        for line in dict.fromkeys((item.reason, *item.faults, *node)):
            reasons.setdefault(line, []).append(names[item.node])
    return [f"{_hosts(hosts)}: {line}" for line, hosts in reasons.items()]


def _hosts(hosts: list[str]) -> str:
    named = list(dict.fromkeys(hosts))
    more = f" and {len(named) - MAX_HOSTS} more" if len(named) > MAX_HOSTS else ""
    return ", ".join(named[:MAX_HOSTS]) + more
