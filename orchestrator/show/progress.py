"""Shows a launch while it runs: a live table in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from orchestrator.errors import ranks_text
from orchestrator.show.listener import STAGES, Listener
from orchestrator.show.report_table import MAX_RANKS_SHOWN
from worker.results import FunctionResult

_HEADS = {"first_call": "first"}
_REFRESH_PER_S = 8


@contextmanager
def progress(console: Console, num_ranks: int) -> Iterator[Listener]:
    """A listener that shows a launch on a console for as long as the context lasts."""
    if not console.is_terminal:
        yield PlainLines(console)
        return
    table = LiveTable(num_ranks)
    with Live(console=console, get_renderable=table.render, refresh_per_second=_REFRESH_PER_S):
        yield table


class PlainLines:
    """Prints a line when a stage begins and ends, and for each function that has its artifact."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._num_told = 0

    def stage_started(self, stage: str, ranks: tuple[int, ...]) -> None:
        """Print that a stage begins."""
        self._num_told = 0
        self._line(f"{stage}: on {ranks_text(ranks)}")

    def rank_finished(self, stage: str, rank: int, seconds: float) -> None:
        """Print nothing: with many ranks that would be a flood."""

    def function_finished(self, stage: str, rank: int, result: FunctionResult) -> None:
        """Print how a function got its artifact, for the first few ranks."""
        self._num_told += 1
        if stage not in {"compile", "load", "script"} or self._num_told > 2 * MAX_RANKS_SHOWN:
            return
        outcome = result.outcome if result.ok else "refused"
        why = f" ({result.reason})" if result.reason else ""
        self._line(f"  rank {rank}: {result.function} {outcome}{why}")

    def stage_finished(self, stage: str, seconds: float) -> None:
        """Print how long a stage took."""
        self._line(f"{stage}: {seconds:.2f} s")

    def problem(self, text: str) -> None:
        """Print a problem."""
        self._line(f"problem: {text}")

    def _line(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)


class LiveTable:
    """Ranks down, stages across, seconds in the cells; with many ranks, stages down and counts across."""

    def __init__(self, num_ranks: int, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._num_ranks = num_ranks
        self._clock = clock
        self._seconds: dict[tuple[str, int], float] = {}
        self._asked: dict[str, tuple[int, ...]] = {}
        self._running: tuple[str, float] | None = None
        self._problems: list[str] = []

    def stage_started(self, stage: str, ranks: tuple[int, ...]) -> None:
        """Mark a stage as running."""
        self._asked[stage] = ranks
        self._running = (stage, self._clock())
        for rank in ranks:
            self._seconds.pop((stage, rank), None)

    def rank_finished(self, stage: str, rank: int, seconds: float) -> None:
        """Fill a cell."""
        del seconds  # counts from the last call, but a stage may consist of several
        began_s = self._running[1] if self._running else self._clock()
        self._seconds[stage, rank] = self._clock() - began_s

    def function_finished(self, stage: str, rank: int, result: FunctionResult) -> None:
        """Show nothing: the report has it."""

    def stage_finished(self, stage: str, seconds: float) -> None:
        """Mark that no stage is running."""
        del stage, seconds
        self._running = None

    def problem(self, text: str) -> None:
        """Show a problem below the table."""
        self._problems.append(text)

    def render(self) -> RenderableType:
        """The table as of now."""
        table = self._by_rank() if self._num_ranks <= MAX_RANKS_SHOWN else self._by_stage()
        return Group(table, *(Text(f"problem: {problem}", style="yellow") for problem in self._problems))

    def _by_rank(self) -> Table:
        table = Table(pad_edge=False, padding=(0, 1, 0, 0), box=None)
        table.add_column("rank", justify="right")
        shown = [stage for stage in STAGES if stage in self._asked]
        for stage in shown:
            table.add_column(_HEADS.get(stage, stage), justify="right", min_width=5)
        for rank in range(self._num_ranks):
            table.add_row(str(rank), *(self._cell(stage, rank) for stage in shown))
        return table

    def _by_stage(self) -> Table:
        table = Table(pad_edge=False, padding=(0, 1, 0, 0), box=None)
        for name in ("stage", "ranks", "seconds"):
            table.add_column(name, justify="left" if name == "stage" else "right")
        for stage in (stage for stage in STAGES if stage in self._asked):
            cells = [self._seconds.get((stage, rank)) for rank in self._asked[stage]]
            done = [seconds for seconds in cells if seconds is not None]
            elapsed = self._elapsed(stage)
            slowest = max(done, default=0.0) if elapsed is None else elapsed
            table.add_row(stage, f"{len(done)}/{len(self._asked[stage])}", f"{slowest:.1f}")
        return table

    def _cell(self, stage: str, rank: int) -> Text:
        seconds = self._seconds.get((stage, rank))
        if seconds is not None:
            return Text(f"{seconds:.1f}", style="green")
        if rank not in self._asked[stage]:
            return Text("-", style="dim")
        elapsed = self._elapsed(stage)
        return Text("?" if elapsed is None else f"{elapsed:.1f}", style="yellow")

    def _elapsed(self, stage: str) -> float | None:
        """Seconds since a stage began, while it is running."""
        if self._running is None or self._running[0] != stage:
            return None
        return self._clock() - self._running[1]
