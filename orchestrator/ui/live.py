"""A launch on a terminal, drawn again and again: what runs, on whom it waits, ranks by functions.

Invariants: never wider than the terminal nor taller than the screen, whatever their sizes are when it is
drawn; with more ranks than rows, ranks are folded by class. The state changes in the driver's thread, drawing
happens in another: the state's lock keeps them apart.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from heapq import nsmallest

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from warmrank.orchestrator.launch.events import Event
from warmrank.orchestrator.launch.state import ClassState, LaunchState, StageState
from warmrank.orchestrator.text import (
    brief_names,
    brief_ranks,
    count_text,
    runs_text,
    seconds_text,
    size_text,
)
from warmrank.orchestrator.ui.table import STYLES

MAX_RANK_ROWS = 16
MAX_PROBLEMS_SHOWN = 3
MAX_STRIP_LINES = 3
_BAR_WIDTH = 24
_MIN_BAR_WIDTH = 4
_LOW_SCREEN = 12
_RANK_WIDTH = 6
_CELL_WIDTH = 18
_DOING_WIDTH = 30
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
    furthest = max(stage.behind, default=0)
    step = f"  step {furthest}" if furthest > 1 else ""
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
    shown = [Text(f"problem: {text}", style="yellow") for text in every[-MAX_PROBLEMS_SHOWN:]]
    more = len(every) - len(shown)
    return [Text(f"{count_text(more, 'problem')} before these", style="yellow"), *shown] if more else shown


def _rank_table(state: LaunchState, now_s: float, width: int) -> Table:
    """A row for each rank: where it is, how it gets each function, what it does now."""
    functions, hosts = list(state.functions), state.num_nodes > 1
    left = width - _RANK_WIDTH - hosts * _CELL_WIDTH - _DOING_WIDTH
    fits = sum(max(len(name) + 2, _CELL_WIDTH) for name in functions) <= left
    heads = functions if fits else ["functions"][: len(functions)]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("rank", justify="right", no_wrap=True, min_width=4)
    for name in (*(["host"] if hosts else []), *heads):
        table.add_column(name, no_wrap=True, min_width=min(_CELL_WIDTH - 2, width // 4))
    table.add_column("now", no_wrap=True)
    for rank in range(state.num_ranks):
        cells = (
            [_function_cell(state, rank, name, now_s) for name in functions]
            if fits
            else [_sum_cell(state, rank, functions)][: len(functions)]
        )
        host = [_cut(Text(state.host(rank)), _CELL_WIDTH - 2)] if hosts else []
        now = _cut(_now(state, rank, now_s), max(width - _RANK_WIDTH - 20 * (len(cells) + len(host)), 24))
        table.add_row(str(rank), *host, *cells, now)
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


def _sum_cell(state: LaunchState, rank: int, functions: list[str]) -> Text:
    """All functions of a rank in one cell, where each by itself would be too wide."""
    found = [state.results[rank, name] for name in functions if (rank, name) in state.results]
    outcomes = Counter(result.outcome if result.ok else "refused" for result in found)
    kinds = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())
    return Text(f"{len(found)} of {len(functions)}" + (f": {kinds}" if kinds else ""))


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
