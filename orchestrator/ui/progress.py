"""Progress: a live view or a bar in a terminal, plain lines elsewhere, for CI logs and Ray jobs.

Invariant: the number of lines, and the length of each but for errors, has a bound that does not grow with the
number of ranks; while nothing else happens, lines come ever more rarely.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from warmrank.cache_store.progress import OnProgress
from warmrank.cache_store.progress import Progress as Fetched
from warmrank.orchestrator.gang.rank_files import RENDEZVOUS
from warmrank.orchestrator.launch import events
from warmrank.orchestrator.launch.events import AuditReport, Event, RankClass
from warmrank.orchestrator.launch.state import LaunchState, Listener
from warmrank.orchestrator.text import brief_names, brief_ranks, count_text, first_lines, size_text
from warmrank.orchestrator.ui.live import LiveView
from warmrank.worker.results import FunctionResult

MAX_LINES_SHOWN = 12
"""Classes of a plan, and kinds of results of a stage, that are told one by one."""

MAX_PROBLEMS_SHOWN = 20
MAX_ERROR_LINES = 30
FIRST_BEAT_S = 30.0
"""A stage that runs for so long tells how far it is; then after twice that time, and so on."""

FETCH_LINE_EVERY_S = 10.0

_TOLD = frozenset({"compile", "load", "script"})
"""Stages whose results are told; what the others do to a function stands in the report."""

_REFRESH_PER_S = 8
_REFRESH_PER_S_OF_MANY = 2
_MANY_RANKS = 256


@contextmanager
def progress(console: Console, num_ranks: int, *, name: str = "") -> Iterator[Listener]:
    """A listener that shows a launch on a console for as long as the context lasts."""
    if not console.is_terminal:
        yield PlainLines(console)
        return
    view = LiveView(num_ranks, name=name)
    rate = _REFRESH_PER_S if num_ranks <= _MANY_RANKS else _REFRESH_PER_S_OF_MANY
    with Live(view, console=console, refresh_per_second=rate):
        yield view


@contextmanager
def fetch_progress(console: Console, what: str = "fetch") -> Iterator[OnProgress]:
    """A listener to the progress of a fetch, or of ``what`` else, for as long as the context lasts."""
    if not console.is_terminal:
        yield FetchLines(console, what)
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


class FetchLines:
    """Prints a line once in `FETCH_LINE_EVERY_S`, so none for a short fetch."""

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
        if now_s - self._told_s < FETCH_LINE_EVERY_S:
            return
        self._told_s = now_s
        done = f"{size_text(state.done_bytes)} of {size_text(state.total_bytes)}"
        files = f"{state.done_files} of {count_text(state.total_files, 'file')}"
        self._console.print(Text(f"{self._what}: {done}, {files}"), soft_wrap=True)


class PlainLines:
    """Prints what happens in a launch, equal things of many ranks in one line."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._results: list[tuple[int, FunctionResult]] = []
        self._num_problems = 0
        self._beat_s = FIRST_BEAT_S

    def __call__(self, state: LaunchState, event: Event) -> None:
        """Print what of an event is worth a line."""
        match event:
            case events.AttemptStarted() if event.attempt > 1:
                self._line(f"attempt {event.attempt}, {state.attempts[-1].why_again}")
            case events.Seated():
                nodes = count_text(state.num_nodes, "node")
                self._line(f"{count_text(len(event.seats), 'rank')} on {nodes}: {brief_names(state.hosts())}")
            case events.Planned():
                again = f" again, round {state.round}" if state.round else ""
                self._line(f"plan{again}: {count_text(len(event.classes), 'class')}")
                self._some([_class_text(found) for found in event.classes], "classes")
            case events.StageStarted():
                self._results.clear()
                self._beat_s = FIRST_BEAT_S
                self._line(f"{event.stage}: on {brief_ranks(event.ranks)}")
            case events.FunctionFinished() if event.stage in _TOLD:
                self._results.append((event.rank, event.result))
            case events.StageFinished():
                self._tell_results()
                self._line(f"{event.stage}: {event.seconds:.2f} s")
            case events.Audited() if event.audit.outcome != "differs":  # which is a problem as well
                self._line(f"  {_audit_text(event.audit)}")
            case events.Problem():
                self._problem(state, event.text)
            case events.AttemptFailed():
                self._fail(event)
            case _:
                self._beat(state)

    def _tell_results(self) -> None:
        """Print the outcomes of functions in this stage, equal ones together."""
        alike: dict[tuple[str, str, str], list[int]] = {}
        for rank, result in self._results:
            outcome = result.outcome if result.ok else "refused"
            alike.setdefault((result.function, outcome, result.reason), []).append(rank)
        self._results.clear()
        self._some(
            [
                f"{function} {outcome} on {brief_ranks(ranks)}" + (f" ({reason})" if reason else "")
                for (function, outcome, reason), ranks in alike.items()
            ],
            "kinds of results",
        )

    def _problem(self, state: LaunchState, text: str) -> None:
        known, self._num_problems = self._num_problems, len(state.problems)
        if self._num_problems == known:
            return
        if known < MAX_PROBLEMS_SHOWN:
            self._line(f"problem: {text}")
        elif known == MAX_PROBLEMS_SHOWN:
            self._line("problem: further ones stand in the report")

    def _fail(self, event: events.AttemptFailed) -> None:
        self._tell_results()
        self._line(f"attempt {event.attempt} failed" + (f" in stage {event.stage}" if event.stage else ""))
        if not event.is_last:  # the last error comes last of all, from whoever runs the launch
            self._some(event.text.splitlines(), "lines", limit=MAX_ERROR_LINES)

    def _beat(self, state: LaunchState) -> None:
        """Say how far a long stage is, and whom it waits for."""
        stage = state.running
        if stage is None or state.now_s - stage.start_s < self._beat_s:
            return
        seconds = state.now_s - stage.start_s
        while self._beat_s <= seconds:
            self._beat_s *= 2
        waiting, busy = stage.waiting_for(), state.busy
        # Those at the rendezvous wait for the others themselves.
        late = [rank for rank in waiting if rank not in busy or busy[rank].doing != RENDEZVOUS] or waiting
        if not late:
            return
        first = late[0]
        where = f" on {state.host(first)}" if state.host(first) else ""
        doing = f"; rank {first}{where}: {busy[first].doing}" if first in busy else ""
        through = f"{len(stage.ranks) - len(waiting)} of {count_text(len(stage.ranks), 'rank')}"
        self._line(f"{stage.stage}: {through} after {seconds:.0f} s; waiting for {brief_ranks(late)}{doing}")

    def _some(self, lines: list[str], what: str, *, limit: int = MAX_LINES_SHOWN) -> None:
        for line in first_lines(lines, max_lines=limit, what=f"more {what}, in the report"):
            self._line(f"  {line}")

    def _line(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)


def _audit_text(audit: AuditReport) -> str:
    why = "as conditions say" if audit.outcome == "guarded" else "and cannot have the artifact there"
    found = "equal" if audit.outcome == "equal" else f"differs, {why}: {audit.difference}"
    return f"{audit.function} audited on {brief_ranks(audit.ranks)}: {found} ({audit.seconds:.2f} s)"


def _class_text(found: RankClass) -> str:
    by = f", compiled by rank {found.leader}" if found.leader is not None else ""
    audited = f", audited by {brief_ranks(found.auditors)}" if found.auditors else ""
    return f"{found.action} {found.function} on {brief_ranks(found.ranks)}{by}{audited}"
