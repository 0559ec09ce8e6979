"""Shows how far the seeding of a cluster's nodes is: a live table in a terminal, plain lines elsewhere.

Invariants: in a terminal at most `MAX_ROWS` nodes are shown at a time, the others as a number; elsewhere each
change of a node is one line, and once in `LINE_EVERY_S` one more says how far all are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from warmrank.cache_store.fetching.progress import Progress
from warmrank.orchestrator.nodes import Node, distinct_names
from warmrank.orchestrator.seed.events import Advanced, Away, Back, Began, Ended, Looked, SeedEvent, Tell
from warmrank.orchestrator.seed.outcome import word
from warmrank.orchestrator.seed.rates import Rate
from warmrank.orchestrator.seed.table import STYLES
from warmrank.orchestrator.text import count_text, seconds_text, size_text

LINE_EVERY_S = 10.0
MAX_ROWS = 12
_REFRESH_HZ = 4
_BAR_COLUMNS = 24


@dataclass(slots=True, kw_only=True)
class _Running:
    """A node that is being seeded."""

    node: Node
    progress: Progress | None = None
    rate: Rate = field(default_factory=Rate)


class SeedDisplay:
    """Hears what happens; `seed_display` makes one.

    Args:
        console: where it is shown.
        clock: seconds, never going back.
    """

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._told_s = clock()
        self._running: dict[str, _Running] = {}
        self._outcomes: dict[str, str] = {}
        self._num_nodes = 0

    def __call__(self, event: SeedEvent) -> None:
        """Take an event in, and print its line."""
        if isinstance(event, Looked):
            self._look(event)
        elif isinstance(event, Began):
            self._running[event.node.node_id] = _Running(node=event.node)
            others = "another node" if event.num_sources == 1 else f"{event.num_sources} other nodes"
            origin = f"from the store and {others}" if event.num_sources else "from the store"
            again = f", attempt {event.attempt}" if event.attempt > 1 else ""
            self._line(f"{event.node}: begun, {origin}{again}")
        elif isinstance(event, Advanced):
            self._advance(event)
        elif isinstance(event, Ended):
            self._end(event)
        elif isinstance(event, Away):
            self._running.clear()
            text = f"the cluster is away, and asked again until it is back: {event.reason}"
            self._line(text, style="yellow")
        elif isinstance(event, Back):
            self._line(f"the cluster is back after {event.after_s:.0f} s", style="green")

    def render(self) -> RenderableType:
        """The live part: a row for each running node, then how many are done."""
        rows = Table.grid(padding=(0, 2))
        names = distinct_names(running.node for running in self._running.values())
        for running in list(self._running.values())[:MAX_ROWS]:
            rows.add_row(*_cells(running, names[running.node]))
        more = len(self._running) - MAX_ROWS
        lines = [Text(f"and {count_text(more, 'node')} more", style="dim")] if more > 0 else []
        return Group(rows, *lines, Text(self.totals(), style="bold"))

    def totals(self) -> str:
        """How many nodes are done, and how fast the others are."""
        words = list(self._outcomes.values())
        parts = [f"{words.count('seeded')} of {count_text(self._num_nodes, 'node')} seeded"]
        parts += [f"{words.count(bad)} {text}" for bad, text in _BAD if bad in words]
        states = [running.progress for running in self._running.values() if running.progress is not None]
        if states:
            done, total = sum(s.done_bytes for s in states), sum(s.total_bytes for s in states)
            rate = sum(running.rate.bytes_per_s for running in self._running.values())
            parts.append(f"{size_text(done)} of {size_text(total)}, {size_text(int(rate))}/s")
        return "; ".join(parts)

    def _look(self, event: Looked) -> None:
        here = {node.node_id for node in event.nodes}
        self._num_nodes = len(here)
        self._running = {key: value for key, value in self._running.items() if key in here}
        self._outcomes = {key: value for key, value in self._outcomes.items() if key in here}
        for node in event.left:
            self._line(f"{node}: left the cluster")
        if event.joined:
            told_apart = distinct_names(event.nodes)
            names = ", ".join(told_apart.get(node, node.host) for node in event.joined[:MAX_ROWS])
            more = " ..." if len(event.joined) > MAX_ROWS else ""
            self._line(f"{count_text(len(event.joined), 'node')} found: {names}{more}")

    def _advance(self, event: Advanced) -> None:
        now_s = self._clock()
        for node_id, progress in event.progress.items():
            if running := self._running.get(node_id):
                running.progress = progress
                running.rate.note(now_s, progress.done_bytes)
        if self._running and not self._console.is_terminal and now_s - self._told_s >= LINE_EVERY_S:
            self._line(self.totals())

    def _end(self, event: Ended) -> None:
        seed = event.seed
        self._running.pop(seed.node.node_id, None)
        self._outcomes[seed.node.node_id] = word(seed)
        text = (
            f"{seed.node}: {word(seed)}, {size_text(seed.bytes_copied)} copied, {seconds_text(seed.seconds)}"
        )
        if word(seed) != "seeded":
            text = f"{seed.node}: {word(seed)}: {seed.reason}"
        if event.retry_in_s is not None:
            text += f"; tried again in {event.retry_in_s:.0f} s"
        self._line(text, style=STYLES[word(seed)])

    def _line(self, text: str, *, style: str = "") -> None:
        self._told_s = self._clock()
        self._console.print(Text(text, style=style), soft_wrap=True)


_BAD = (("miss", "without a launch"), ("faults", "with faults"))


@contextmanager
def seed_display(console: Console) -> Iterator[Tell]:
    """What to tell of everything, for as long as the context lasts."""
    display = SeedDisplay(console)
    if not console.is_terminal:
        yield display
        return
    with Live(console=console, get_renderable=display.render, refresh_per_second=_REFRESH_HZ, transient=True):
        yield display


def _cells(running: _Running, name: str) -> tuple[RenderableType, ...]:
    host, state = Text(name), running.progress
    if state is None:
        return host, Text("starting", style="dim"), "", ""
    bar = ProgressBar(total=max(state.total_bytes, 1), completed=state.done_bytes, width=_BAR_COLUMNS)
    rate = f"{size_text(int(running.rate.bytes_per_s))}/s"
    return host, bar, Text(f"{size_text(state.done_bytes)} of {size_text(state.total_bytes)}"), Text(rate)
