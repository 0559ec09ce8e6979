"""Progress: a live view or a bar in a terminal, plain lines elsewhere, for CI logs and Ray jobs.

Invariants: the number of lines, and the length of each but for errors, has a bound that does not grow with
the number of ranks; while nothing else happens, lines come ever more rarely. The live view is never wider
than the terminal nor taller than the screen, whatever their sizes are when it is drawn. The state changes in
the driver's thread, drawing happens in another: the state's lock keeps them apart.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import nsmallest

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from warmrank.cache_store.parallel import OnProgress
from warmrank.cache_store.parallel import Progress as Fetched
from warmrank.orchestrator.gang.rank_files import RENDEZVOUS
from warmrank.orchestrator.launch import events
from warmrank.orchestrator.launch.events import (
    AuditReport,
    ClassState,
    Event,
    LaunchState,
    Listener,
    RankClass,
    StageState,
)
from warmrank.orchestrator.text import (
    brief_names,
    brief_ranks,
    count_text,
    first_lines,
    grouped,
    runs_text,
    seconds_text,
    size_text,
)
from warmrank.orchestrator.ui.table import STYLES
from warmrank.worker.results import FunctionResult

MAX_LINES_SHOWN = 12  # classes of a plan, and kinds of results of a stage, that are told one by one

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
        told_s = time.monotonic()

        def tell(state: Fetched) -> None:
            nonlocal told_s
            if time.monotonic() - told_s >= FETCH_LINE_EVERY_S:
                told_s = time.monotonic()
                console.print(_fetch_line(state, what), soft_wrap=True)

        yield tell
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


def _fetch_line(state: Fetched, what: str) -> Text:
    done = f"{size_text(state.done_bytes)} of {size_text(state.total_bytes)}"
    return Text(f"{what}: {done}, {state.done_files} of {count_text(state.total_files, 'file')}")


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
        alike = grouped(
            ((result.function, result.outcome if result.ok else "refused", result.reason), rank)
            for rank, result in self._results
        )
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


MAX_RANK_ROWS = 16
_MAX_LIVE_PROBLEMS = 3
MAX_STRIP_LINES = 3
_BAR_WIDTH = 24
_MIN_BAR_WIDTH = 4
_LOW_SCREEN = 12
_CELL_WIDTH = 16
_MAX_KINDS = 3
_GOING = {"compile": "compiling", "load": "loading"}


class LiveView:
    """The state of a launch as something that rich can draw; ``clock`` gives seconds that only rise."""

    def __init__(
        self, num_ranks: int, *, name: str = "", clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._name = name
        self._clock = clock
        self._state = LaunchState(num_ranks=num_ranks)  # until there is the launch's own
        self._began_s = clock()

    def __call__(self, state: LaunchState, event: Event) -> None:
        """Hear of an event; the next drawing shows the state that it made."""
        self._state = state
        self._began_s = self._clock() - event.at_s

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """As of now, for the terminal as it is now."""
        width, height = options.max_width, max(console.size.height - 1, 1)
        state = self._state
        with state.lock:
            drawn = self._draw(state, width, height)
            lines = console.render_lines(drawn, options.update(width=width, height=None), pad=False)
        for line in lines[:height]:
            yield from line
            yield Segment.line()

    def _draw(self, state: LaunchState, width: int, height: int) -> RenderableType:
        now_s = self._clock() - self._began_s
        strip = _strip(state, now_s, width)
        # Where lines are dear, ranks count more than the stages that are over.
        head = [self._title(state, now_s), *(strip[-1:] if height < _LOW_SCREEN else strip[:MAX_STRIP_LINES])]
        if state.running is not None:
            head.append(_running(state.running, now_s, width))
        elif state.ending_s is not None:
            head.append(Text(f"taking the ranks down, {max(now_s - state.ending_s, 0.0):.1f} s"))
        tail = [*_attempts(state), *_problems(state)]
        room = height - len(head) - 1 - (len(tail) + 1 if tail else 0)
        body: list[RenderableType] = []
        if state.num_ranks <= min(room - 1, MAX_RANK_ROWS):
            body.append(_rank_table(state, now_s, width))
        elif room > 0:
            late = _late_lines(state, now_s, width, max_lines=max(room // 3, 1))
            if state.classes and room - len(late) > 2:
                body.append(_class_table(state, max_rows=room - len(late) - 2))
            body += late
        for text in (*head, *tail):
            _cut(text, width)
        return Group(*head, *([Text()] if body else []), *body, *([Text()] if tail else []), *tail)

    def _title(self, state: LaunchState, now_s: float) -> Text:
        parts = [count_text(state.num_ranks, "rank")]
        if state.num_nodes:
            hosts = brief_names(state.hosts(), max_names=2)
            parts[0] += f" on {count_text(state.num_nodes, 'node')} ({hosts})"
        if state.attempt > 1:
            parts.append(f"attempt {state.attempt}")
        if state.round:
            parts.append(f"round {state.round} of the plan")
        if state.is_over:
            parts.append("failed")
        parts.append(f"{now_s:.1f} s")
        return Text.assemble((f"{self._name}  " if self._name else "", "bold"), " | ".join(parts))


def _cut(text: Text, width: int) -> Text:
    """The text in one line of at most so many columns."""
    text.truncate(max(width, 1), overflow="ellipsis")
    text.no_wrap = True
    return text


def _strip(state: LaunchState, now_s: float, width: int) -> list[Text]:
    """Every stage that has begun, with its seconds; what runs or failed stands out, also without colours."""
    lines = [Text()]
    failed = state.attempts[-1].failed_stage if state.attempts else ""
    for stage in state.stages.values():
        text = f"{stage.stage} {stage.seconds_at(now_s):.1f}s"
        if stage.is_running:
            shown = Text(f"> {text} <", "bold yellow")
        elif stage.stage == failed:
            shown = Text(f"{text} failed", "bold red")
        else:
            shown = Text(text, "green")
        if len(lines[-1]) and len(lines[-1]) + 2 + len(shown) > width:
            lines.append(Text())
        lines[-1] = lines[-1].append("  " if len(lines[-1]) else "").append_text(shown)
    return lines


def _running(stage: StageState, now_s: float, width: int) -> Text:
    """Number of ranks that are through the running stage, in numbers, and as a bar where there is room."""
    num_ranks, num_done = len(stage.ranks), stage.num_done()
    step = f"  step {stage.step}" if stage.step > 1 else ""
    name = f"{stage.stage:<10} "
    numbers = f"{num_done:,} of {count_text(num_ranks, 'rank')} done{step}, {now_s - stage.start_s:.1f} s"
    wide = min(_BAR_WIDTH, width - len(name) - len(numbers) - 1)
    if wide < _MIN_BAR_WIDTH:
        return Text.assemble((f"{stage.stage} ", "bold"), numbers)
    filled = wide * num_done // max(num_ranks, 1)
    bar = ("#" * filled, "green"), ("-" * (wide - filled), "dim")
    return Text.assemble((name, "bold"), *bar, f" {numbers}")


def _attempts(state: LaunchState) -> list[Text]:
    """Attempts that failed, the last two, each with the first line of its error."""
    return [
        Text(
            f"attempt {each.attempt} failed{f' in {each.failed_stage}' if each.failed_stage else ''}: "
            + each.error.partition("\n")[0],
            style="red",
        )
        for each in state.failed()[-2:]
    ]


def _problems(state: LaunchState) -> list[Text]:
    every = [text.partition("\n")[0] for text in state.problems]
    shown = [Text(f"problem: {text}", style="yellow") for text in every[-_MAX_LIVE_PROBLEMS:]]
    more = len(every) - len(shown)
    return [Text(f"{count_text(more, 'problem')} before these", style="yellow"), *shown] if more else shown


def _rank_table(state: LaunchState, now_s: float, width: int) -> Table:
    """A row for each rank: where it is, how it gets each function, what it does now."""
    functions, hosts = list(state.functions), state.num_nodes > 1
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("rank", justify="right", no_wrap=True, min_width=4)
    for name in (*(["host"] if hosts else []), *functions, "now"):
        table.add_column(name, no_wrap=True, overflow="ellipsis", min_width=min(_CELL_WIDTH, width // 4))
    for rank in range(state.num_ranks):
        host = [Text(state.host(rank))] if hosts else []
        cells = (_function_cell(state, rank, name, now_s) for name in functions)
        table.add_row(str(rank), *host, *cells, _now(state, rank, now_s))
    return table


def _class_table(state: LaunchState, *, max_rows: int) -> Table:
    """A row for each class of ranks; classes that still wait for something come first."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("function", "how", "ranks", "leader"):
        table.add_column(name, no_wrap=True, overflow="ellipsis")
    for name in ("have it", "slowest"):
        table.add_column(name, justify="right", no_wrap=True)
    classes = sorted(state.classes.values(), key=lambda found: not found.waiting)
    shown = classes if len(classes) <= max_rows else classes[: max(max_rows - 1, 0)]
    for found in shown:
        num = len(found.ranks)
        share = Text(f"{num - len(found.waiting):,}/{num:,}", style="" if found.waiting else "green")
        table.add_row(
            Text(found.function),
            Text(found.action, style=STYLES["compiled"] if found.action == "compile" else ""),
            Text(f"{num:,}: {runs_text(found.ranks, max_runs=3)}"),
            Text("-" if found.leader is None else f"{found.leader} {state.host(found.leader)}"),
            share.append(f" {found.num_failed} failed", "red") if found.num_failed else share,
            seconds_text(found.slowest_s),
        )
    if len(shown) < len(classes):
        rest = classes[len(shown) :]
        done = sum(not found.waiting for found in rest)
        table.add_row(Text(f"and {count_text(len(rest), 'class')} more", style="dim"), "", f"{done:,} done")
    return table


def _late_lines(state: LaunchState, now_s: float, width: int, *, max_lines: int) -> list[Text]:
    """Whom the running stage waits for: by name where they are few, by what they do where they are many."""
    stage = state.running
    late = stage.waiting_for() if stage is not None else ()
    if stage is None or not late:
        return []
    if len(late) > max_lines and 2 * len(late) > len(stage.ranks):
        doing = Counter(state.busy[rank].doing for rank in late if rank in state.busy)
        kinds = [f"{count_text(count, 'rank')}: {text}" for text, count in doing.most_common(_MAX_KINDS)]
        return [_cut(Text(line), width) for line in kinds[:max_lines]]
    seconds = now_s - stage.start_s
    lines = [f"waiting for {brief_ranks(late)}"]
    lines += [
        f"  rank {rank} {state.host(rank)}: {_doing_text(state, rank)}, {seconds:.1f} s"
        for rank in nsmallest(max(max_lines - 1, 0), late)
    ]
    return [_cut(Text(line, style="yellow"), width) for line in lines]


def _function_cell(state: LaunchState, rank: int, function: str, now_s: float) -> Text:
    result = state.results.get((rank, function))
    if result is not None and result.ok:
        spent = result.seconds
        seconds = seconds_text(spent.trace_s + spent.compile_s + spent.load_s)
        return Text(f"{result.outcome} {seconds}", style=STYLES[result.outcome])
    planned = state.class_of(rank, function)
    if planned is None:
        return Text("refused", style="red") if result else Text("-", style="dim")
    return _waiting_cell(planned, rank, state, now_s)


def _waiting_cell(planned: ClassState, rank: int, state: LaunchState, now_s: float) -> Text:
    """A rank's step towards a function that it lacks, or its last one when the attempt failed."""
    running = state.running or state.cut
    if rank in planned.auditors and running is not None and running.stage == "compile":
        if rank in running.ended_s:
            return Text("audit done", style="green")
        return Text(f"auditing {now_s - running.start_s:.1f} s", style="bold")
    awaits_leader = planned.action == "compile" and rank != planned.leader
    if awaits_leader and (running is None or running.stage != "load"):
        return Text(f"waits for {planned.leader}", style="dim")
    stage = "compile" if rank == planned.leader else "load"
    if running is not None and running.stage == stage and rank in running.ranks:
        # What came of it is told when all ranks are through.
        if rank in running.ended_s:
            return Text(f"{stage} done", style="green")
        if not running.is_running:
            return Text(f"{stage} cut short", style="red")
        return Text(f"{_GOING[stage]} {now_s - running.start_s:.1f} s", style="bold")
    return Text(f"to {planned.action}", style="dim")


def _now(state: LaunchState, rank: int, now_s: float) -> Text:
    """A rank's work in the running stage, or the time at which it was through."""
    stage = state.running
    if stage is None or rank not in stage.ranks:
        return Text("-", style="dim")
    if rank in stage.ended_s and rank not in stage.waiting_for():
        return Text(f"{stage.stage} done, {stage.ended_s[rank] - stage.start_s:.1f} s", style="green")
    return Text(f"{_doing_text(state, rank)}, {now_s - stage.start_s:.1f} s", style="bold")


def _doing_text(state: LaunchState, rank: int) -> str:
    busy = state.busy.get(rank)
    if busy is None:
        return state.running.stage if state.running else ""
    return f"{busy.doing} (cpu {busy.cpu_s:.0f} s, {size_text(busy.resident_bytes)})"
