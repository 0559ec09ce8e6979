"""Shows a launch while it runs: a live view in a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live

from warmrank.orchestrator.show.events import Listener
from warmrank.orchestrator.show.live_view import LiveView
from warmrank.orchestrator.show.plain_lines import PlainLines

_REFRESH_PER_S = 8
_REFRESH_PER_S_OF_MANY = 2
_MANY_RANKS = 256


@contextmanager
def progress(console: Console, num_ranks: int, *, name: str = "") -> Iterator[Listener]:
    """A listener that shows a launch on a console for as long as the context lasts."""
    if not console.is_terminal:
        yield PlainLines(console, num_ranks)
        return
    view = LiveView(num_ranks, name=name)
    rate = _REFRESH_PER_S if num_ranks <= _MANY_RANKS else _REFRESH_PER_S_OF_MANY
    with Live(view, console=console, refresh_per_second=rate):
        yield view
