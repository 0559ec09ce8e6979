"""Shows how far the seeding of a cluster's nodes is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from rich.console import Console
from rich.text import Text

from warmrank.orchestrator.nodes import Node, distinct_names
from warmrank.orchestrator.seed.seeding import NodeSeed, NodeState, retry_in_s
from warmrank.orchestrator.text import brief_names, count_text, seconds_text, size_text

MAX_HOSTS = 8
LINE_EVERY_S = 10.0
STYLES = {"seeded": "green", "miss": "yellow", "faults": "bold red"}


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
        self.say(f"{now.node}: {text}{retry}", style=STYLES[seed.status])
        self._ended(seed)


@contextmanager
def seed_lines(console: Console, ended: Callable[[NodeSeed], None] = lambda _: None) -> Iterator[SeedLines]:
    """Lines on a console for as long as the context lasts; a terminal also shows how far all are."""
    if not console.is_terminal:
        yield SeedLines(console, ended=ended)
        return
    with console.status("") as status:
        yield SeedLines(console, status=status.update, ended=ended)


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
