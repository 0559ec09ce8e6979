"""Shows how far a long fetch or verify has come: a bar in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from warmrank.cache_store.fetching.progress import OnProgress
from warmrank.cache_store.fetching.progress import Progress as Fetched
from warmrank.orchestrator.show.figures import count_text, size_text

LINE_EVERY_S = 10.0


@contextmanager
def fetch_progress(console: Console, what: str = "fetch") -> Iterator[OnProgress]:
    """What to call with the state of a fetch, or of ``what`` else, for as long as the context lasts."""
    if not console.is_terminal:
        yield Lines(console, what)
        return
    columns = (
        TextColumn(what),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda state: bar.update(task, completed=state.done_bytes, total=state.total_bytes)


class Lines:
    """Prints a line once in `LINE_EVERY_S`, so none for a short fetch."""

    def __init__(
        self, console: Console, what: str = "fetch", *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console
        self._what = what
        self._clock = clock
        self._told_s = clock()

    def __call__(self, state: Fetched) -> None:
        """Print, if it is time."""
        now_s = self._clock()
        if now_s - self._told_s < LINE_EVERY_S:
            return
        self._told_s = now_s
        self._console.print(
            Text(
                f"{self._what}: {size_text(state.done_bytes)} of {size_text(state.total_bytes)}, "
                f"{state.done_files} of {count_text(state.total_files, 'file')}"
            ),
            soft_wrap=True,
        )
