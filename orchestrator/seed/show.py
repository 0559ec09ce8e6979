"""Shows how far the seeding of a cluster's nodes is, and its outcome; fits 100 columns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from warmrank.orchestrator.nodes import Node, distinct_names
from warmrank.orchestrator.seed.seeding import NodeSeed, NodeState, retry_in_s
from warmrank.orchestrator.text import brief_names, count_text, grouped, seconds_text, size_text

MAX_HOSTS = 8
LINE_EVERY_S = 10.0
_STYLES = {"seeded": "green", "miss": "yellow", "faults": "bold red"}
_COLUMNS = ("node", "address", "outcome", "partitions", "files", "there before", "copied", "seconds")


class SeedLines:
    """Prints a line for each change of a node, and how far all are.

    ``status`` shows how far all are, in a terminal; without it a line says so each `LINE_EVERY_S`. ``ended``
    hears of each node that ended.
    """

    def __init__(
        self,
        console: Console,
        *,
        status: Callable[[str], None] | None = None,
        ended: Callable[[NodeSeed], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console, self._status, self._ended, self._clock = console, status, ended, clock
        self._told_s = clock()
        self._before: dict[Node, NodeState] = {}

    def show(self, states: Iterable[NodeState]) -> None:
        """Say what changed since the last call."""
        before, now = self._before, {state.node: replace(state) for state in states}
        for node in before.keys() - now.keys():
            self.say(f"{node}: left the cluster")
        if joined := [node for node in now if node not in before]:
            names = distinct_names(now)
            found = brief_names((names[node] for node in joined), max_names=MAX_HOSTS)
            self.say(f"{count_text(len(joined), 'node')} found: {found}")
        for node, state in now.items():
            self._show_change(before.get(node, NodeState(node=node)), state)
        self._before = now
        if self._status is not None:
            self._status(_totals(now.values()))
        elif self._clock() - self._told_s >= LINE_EVERY_S and any(s.phase == "running" for s in now.values()):
            self.say(_totals(now.values()))

    def outcomes(self) -> tuple[NodeSeed, ...]:
        """The outcomes of the nodes that were shown last, by host."""
        found = (state.seed for state in self._before.values() if state.seed is not None)
        return tuple(sorted(found, key=lambda seed: (seed.node.host, seed.node.node_id)))

    def say(self, text: str, *, style: str = "") -> None:
        """Print a line."""
        self._told_s = self._clock()
        self._console.print(Text(text, style=style), soft_wrap=True)

    def _show_change(self, before: NodeState, now: NodeState) -> None:
        if now.attempts > before.attempts:
            origin = f"from {now.source.host}" if now.source is not None else "from the store"
            again = f", attempt {now.attempts}" if now.attempts > 1 else ""
            self.say(f"{now.node}: begun, {origin}{again}")
        if (seed := now.seed) is None or seed == before.seed:
            return
        text = f"{size_text(seed.bytes_copied)} copied, {seconds_text(seed.seconds)}"
        text = f"seeded, {text}" if seed.status == "seeded" else f"{seed.status}: {seed.reason}"
        retry = f"; tried again in {retry_in_s(now.attempts):.0f} s" if now.phase == "waiting" else ""
        self.say(f"{now.node}: {text}{retry}", style=_STYLES[seed.status])
        self._ended(seed)


@contextmanager
def seed_lines(console: Console, ended: Callable[[NodeSeed], None] = lambda _: None) -> Iterator[SeedLines]:
    """Lines on a console for as long as the context lasts; a terminal also shows how far all are."""
    if not console.is_terminal:
        yield SeedLines(console, ended=ended)
        return
    with console.status("") as status:
        yield SeedLines(console, status=status.update, ended=ended)


def render_seeds(seeds: Sequence[NodeSeed]) -> RenderableType:
    """One line for each node, then where the bytes came from, and reasons, equal ones together."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for position, name in enumerate(_COLUMNS):
        table.add_column(
            name, justify="right" if position > 2 else "left", min_width=len(name), overflow="fold"
        )
    names = distinct_names(item.node for item in seeds)
    for item in seeds:
        table.add_row(
            Text(names[item.node]),
            item.node.address or "-",
            Text(item.status, style=_STYLES[item.status]),
            str(item.num_partitions),
            str(item.num_files),
            str(item.num_already_there),
            size_text(item.bytes_copied),
            seconds_text(item.seconds),
        )
    return Group(table, *(Text(line) for line in (*_sources(seeds), *_reasons(seeds, names))))


def _totals(states: Iterable[NodeState]) -> str:
    """Number of nodes that are done, and of bytes of those that are not."""
    states = list(states)
    statuses = [state.seed.status for state in states if state.seed is not None]
    parts = [f"{statuses.count('seeded')} of {count_text(len(states), 'node')} seeded"]
    bad = (("miss", "without a launch"), ("faults", "with faults"))
    parts += [f"{statuses.count(status)} {text}" for status, text in bad if status in statuses]
    running = [s.progress for s in states if s.phase == "running" and s.progress is not None]
    if running:
        done, total = sum(p.done_bytes for p in running), sum(p.total_bytes for p in running)
        parts.append(f"{size_text(done)} of {size_text(total)}")
    return "; ".join(parts)


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
    return [f"{brief_names(hosts, max_names=MAX_HOSTS)}: {line}" for line, hosts in reasons.items()]
