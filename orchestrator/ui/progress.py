"""Progress: a live view in a terminal, plain lines elsewhere, for CI logs and Ray jobs.

Invariants: the number of lines, and the length of each but for errors, has a bound that does not grow with
the number of ranks; while nothing else happens, lines come ever more rarely. The live view is never wider
than the terminal nor taller than the screen, whatever their sizes are when it is drawn. The state changes in
the driver's thread, drawing happens in another: the state's lock keeps them apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, JustifyMethod, RenderableType, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from warmrank.cache_store.text import (
    brief_names,
    brief_ranks,
    count_text,
    first_lines,
    grouped,
    runs_text,
    seconds_text,
    size_text,
)
from warmrank.orchestrator.gang.rank_files import RENDEZVOUS
from warmrank.orchestrator.launch import events
from warmrank.orchestrator.launch.events import Event, LaunchState, Listener, RankClass, StageState
from warmrank.orchestrator.ui.report_table import audit_text
from warmrank.orchestrator.ui.table import STYLES
from warmrank.worker.results import FunctionResult

MAX_LINES_SHOWN = 12  # classes of a plan, and kinds of results of a stage, that are told one by one
MAX_PROBLEMS_SHOWN = 20
MAX_ERROR_LINES = 30
FIRST_BEAT_S = 30.0
"""A stage that runs for so long tells how far it is; then after twice that time, and so on."""

_TOLD = frozenset({"compile", "load", "script"})
"""Stages whose results are told; what the others do to a function stands in the report."""


@contextmanager
def progress(console: Console, num_ranks: int, *, name: str = "") -> Iterator[Listener]:
    """A listener that shows a launch on a console for as long as the context lasts."""
    if not console.is_terminal or console.is_dumb_terminal:  # nothing is drawn twice there
        yield PlainLines(console)
        return
    view = LiveView(num_ranks, name=name)
    # With 16,384 ranks a drawing takes some 0.3 s, for which the driver waits.
    with Live(view, console=console, refresh_per_second=min(8.0, max(2048 / num_ranks, 0.5))):
        yield view


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
            case events.Placed():
                nodes = count_text(state.num_nodes, "node")
                self._line(
                    f"{count_text(len(event.placements), 'rank')} on {nodes}: {brief_names(state.hosts())}"
                )
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
                self._line(f"  {audit_text(event.audit)} ({event.audit.seconds:.2f} s)")
            case events.Problem():
                self._problem(len(state.problems), event.text)
            case events.AttemptFailed():
                self._fail(event)
            case _:
                self._beat(state)

    def _problem(self, num: int, text: str) -> None:
        is_new, self._num_problems = num > self._num_problems, num
        if is_new and num <= MAX_PROBLEMS_SHOWN:
            self._line(f"problem: {text}")
        elif is_new and num == MAX_PROBLEMS_SHOWN + 1:
            self._line("problem: further ones stand in the report")

    def _fail(self, event: events.AttemptFailed) -> None:
        self._tell_results()
        self._line(f"attempt {event.attempt} failed" + (f" in stage {event.stage}" if event.stage else ""))
        if not event.is_last:  # the last error comes last of all, from whoever runs the launch
            self._some(event.text.splitlines(), "lines", limit=MAX_ERROR_LINES)

    def _tell_results(self) -> None:
        """Print the outcomes of functions in this stage, equal ones together."""
        alike = grouped(
            ((each.function, each.outcome if each.ok else "refused", each.reason.partition("\n")[0]), rank)
            for rank, each in self._results
        )
        self._results.clear()
        lines = [
            f"{function} {outcome} on {brief_ranks(ranks)}" + (f" ({reason})" if reason else "")
            for (function, outcome, reason), ranks in alike.items()
        ]
        self._some(lines, "kinds of results")

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
        if late:
            first, where = late[0], f" on {state.host(late[0])}" if state.host(late[0]) else ""
            doing = f"; rank {first}{where}: {busy[first].doing}" if first in busy else ""
            through = f"{len(stage.ranks) - len(waiting)} of {count_text(len(stage.ranks), 'rank')}"
            waits = f"{through} after {seconds:.0f} s; waiting for {brief_ranks(late)}"
            self._line(f"{stage.stage}: {waits}{doing}")

    def _some(self, lines: list[str], what: str, *, limit: int = MAX_LINES_SHOWN) -> None:
        for line in first_lines(lines, max_lines=limit, what=f"more {what}, in the report"):
            self._line(f"  {line}")

    def _line(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)


def _class_text(found: RankClass) -> str:
    by = f", compiled by rank {found.leader}" if found.leader is not None else ""
    audited = f", audited by {brief_ranks(found.auditors)}" if found.auditors else ""
    return f"{found.action} {found.function} on {brief_ranks(found.ranks)}{by}{audited}"


MAX_RANK_ROWS = 16
_MAX_LIVE_PROBLEMS = 3


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
        """As of now, for the terminal as it is now; what is too high is cut at the bottom."""
        height, options = max(console.size.height - 1, 1), options.update(height=None)
        state, now_s = self._state, self._clock() - self._began_s
        with state.lock:
            head, tail = self._head(state, now_s), _tail(state)
            room = height - len(console.render_lines(Group(*head, *tail), options)) - 2
            body = _body(state, now_s, room)
        parts = [*head, *([Text(), *body] if body else []), *([Text(), *tail] if tail else [])]
        lines = console.render_lines(Group(*parts), options, pad=False, new_lines=True)
        for line in lines[:height]:
            yield from line

    def _head(self, state: LaunchState, now_s: float) -> list[RenderableType]:
        """The launch and its nodes; every stage that has begun, with its seconds; the one that runs."""
        parts = [count_text(state.num_ranks, "rank")]
        if state.num_nodes:
            hosts = brief_names(state.hosts(), max_names=2)
            parts[0] += f" on {count_text(state.num_nodes, 'node')} ({hosts})"
        parts += [f"attempt {state.attempt}"] if state.attempt > 1 else []
        parts += [f"round {state.round} of the plan"] if state.round else []
        parts += [*(["failed"] if state.is_over else []), f"{now_s:.1f} s"]
        title = Text.assemble((f"{self._name}  " if self._name else "", "bold"), " | ".join(parts))
        stages = [_stage(each, state, now_s) for each in state.stages.values()]
        head: list[RenderableType] = [_line(title), Columns(stages, padding=(0, 2))]
        if state.running is not None:
            head.append(_running(state.running, now_s))
        elif state.ending_s is not None:
            head.append(_line(Text(f"taking the ranks down, {max(now_s - state.ending_s, 0.0):.1f} s")))
        return head


def _line(text: Text) -> Text:
    """The text in one line that is cut at the terminal's end."""
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _stage(stage: StageState, state: LaunchState, now_s: float) -> Text:
    """A stage with its seconds; what runs or failed stands out, also without colours."""
    text = f"{stage.stage} {stage.seconds_at(now_s):.1f}s"
    if stage.is_running:
        return Text(f"> {text} <", "bold yellow")
    if state.attempts and stage.stage == state.attempts[-1].failed_stage:
        return Text(f"{text} failed", "bold red")
    return Text(text, "green")


def _running(stage: StageState, now_s: float) -> Table:
    """Number of ranks that are through the running stage, as a bar and in numbers."""
    step = f"  step {stage.step}" if stage.step > 1 else ""
    of = count_text(len(stage.ranks), "rank")
    numbers = f"{stage.num_done():,} of {of} done{step}, {now_s - stage.start_s:.1f} s"
    grid = Table.grid(padding=(0, 1))
    for is_bar in (False, True, False):  # which gives way in a narrow terminal
        grid.add_column(no_wrap=not is_bar)
    bar = ProgressBar(total=max(len(stage.ranks), 1), completed=stage.num_done(), width=24)
    grid.add_row(Text(stage.stage, "bold"), bar, numbers)
    return grid


def _tail(state: LaunchState) -> list[RenderableType]:
    """The last attempts that failed, and the last problems, each with its first line."""
    lines = []
    for each in state.failed()[-2:]:
        where = f" in {each.failed_stage}" if each.failed_stage else ""
        error = each.error.partition("\n")[0]
        lines.append(Text(f"attempt {each.attempt} failed{where}: {error}", "red"))
    every = list(state.problems)
    if (more := len(every) - _MAX_LIVE_PROBLEMS) > 0:
        lines.append(Text(f"{count_text(more, 'problem')} before these", "yellow"))
    last = (text.partition("\n")[0] for text in every[-_MAX_LIVE_PROBLEMS:])
    lines += (Text(f"problem: {text}", "yellow") for text in last)
    return [_line(line) for line in lines]


def _body(state: LaunchState, now_s: float, room: int) -> list[RenderableType]:
    """A row for each rank where there is room, else classes, and those that the running stage waits for."""
    if state.num_ranks <= min(room - 1, MAX_RANK_ROWS):
        return [_rank_table(state, now_s)]
    if room <= 0:
        return []
    late = _late(state, now_s, max_lines=max(room // 3, 1))
    rows = room - len(late) - 2
    return [*([_class_table(state, max_rows=rows)] if state.class_of and rows > 0 else []), *late]


def _plain_table(*columns: str) -> Table:
    """A table without lines, whose cells are cut where it is too wide; ``>`` before columns of numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in columns:
        justify: JustifyMethod = "right" if name.startswith(">") else "left"
        table.add_column(name.lstrip(">"), justify=justify, no_wrap=True, overflow="ellipsis")
    return table


def _rank_table(state: LaunchState, now_s: float) -> Table:
    """A row for each rank: where it is, how it gets each function, what it does now."""
    known, hosts = (*state.class_of, *state.results), state.num_nodes > 1
    functions = list(dict.fromkeys(function for _, function in known))
    table = _plain_table(">rank", *(["host"] if hosts else []), *functions, "now")
    for rank in range(state.num_ranks):
        host = [Text(state.host(rank))] if hosts else []
        cells = (_function_cell(state, rank, name) for name in functions)
        table.add_row(str(rank), *host, *cells, _now(state, rank, now_s))
    return table


def _class_table(state: LaunchState, *, max_rows: int) -> Table:
    """A row for each class of ranks; classes that still wait for something come first."""
    table = _plain_table("function", "how", "ranks", "leader", ">have it", ">slowest")
    keys = {id(each): (each.function, each.request_key, each.action, each.leader) for each in state.planned}
    slots = grouped((keys[id(found)], slot) for slot, found in state.class_of.items())
    results = {key: list(filter(None, map(state.results.get, own))) for key, own in slots.items()}
    have = {key: sum(each.ok for each in found) for key, found in results.items()}
    classes = sorted(slots, key=lambda key: have[key] == len(slots[key]))
    shown = classes if len(classes) <= max_rows else classes[: max_rows - 1]
    for key in shown:
        (function, _, action, leader), ranks = key, [rank for rank, _ in slots[key]]
        num_failed = len(results[key]) - have[key]
        spent = (each.seconds for each in results[key])
        share = Text(f"{have[key]:,}/{len(ranks):,}", style="" if have[key] < len(ranks) else "green")
        table.add_row(
            Text(function),
            Text(action, style=STYLES["compiled"] if action == "compile" else ""),
            Text(f"{len(ranks):,}: {runs_text(ranks, max_runs=3)}"),
            Text("-" if leader is None else f"{leader} {state.host(leader)}"),
            share.append(f" {num_failed} failed", "red") if num_failed else share,
            seconds_text(max((each.trace_s + each.compile_s + each.load_s for each in spent), default=0.0)),
        )
    if rest := classes[len(shown) :]:
        done = sum(have[key] == len(slots[key]) for key in rest)
        table.add_row(Text(f"and {count_text(len(rest), 'class')} more", style="dim"), "", f"{done:,} done")
    return table


def _late(state: LaunchState, now_s: float, *, max_lines: int) -> list[RenderableType]:
    """The ranks that the running stage waits for, and what the first of them do."""
    late = state.running.waiting_for() if state.running is not None else ()
    lines = [f"waiting for {brief_ranks(late)}"] if late else []
    lines += (
        f"  rank {rank} {state.host(rank)}: {_doing(state, rank, now_s)}" for rank in late[: max_lines - 1]
    )
    return [_line(Text(line, style="yellow")) for line in lines]


def _function_cell(state: LaunchState, rank: int, function: str) -> Text:
    """The way in which a rank got a function, or is to get it."""
    result, planned = state.results.get((rank, function)), state.class_of.get((rank, function))
    if result is not None and result.ok:
        spent = result.seconds
        seconds = seconds_text(spent.trace_s + spent.compile_s + spent.load_s)
        return Text(f"{result.outcome} {seconds}", style=STYLES[result.outcome])
    if planned is None:
        return Text("refused", style="red") if result else Text("-", style="dim")
    if planned.action != "compile" or rank == planned.leader:
        if planned.action == "compile" and rank in state.busy and function in state.busy[rank].doing:
            return Text("compiling", style=STYLES["compile"])
        return Text(f"to {planned.action}", style="dim")
    return Text("to audit" if rank in planned.auditors else f"waits for {planned.leader}", style="dim")


def _now(state: LaunchState, rank: int, now_s: float) -> Text:
    """A rank's work in the running stage, or the time at which it was through."""
    stage = state.running
    if stage is None or rank not in stage.ranks:
        return Text("-", style="dim")
    if rank in stage.ended_s and rank not in stage.waiting_for():
        return Text(f"{stage.stage} done, {stage.ended_s[rank] - stage.start_s:.1f} s", style="green")
    return Text(_doing(state, rank, now_s), style="bold")


def _doing(state: LaunchState, rank: int, now_s: float) -> str:
    busy, stage = state.busy.get(rank), state.running
    spent = f", {now_s - stage.start_s:.1f} s" if stage else ""
    if busy is None:
        return (stage.stage if stage else "") + spent
    return f"{busy.doing} (cpu {busy.cpu_s:.0f} s, {size_text(busy.resident_bytes)}){spent}"
