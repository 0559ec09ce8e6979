"""A launch on a terminal, drawn again and again: what runs, on whom it waits, ranks by functions.

Invariants: never wider than the terminal nor taller than the screen, whatever their sizes are when it is
drawn; with more ranks than rows, ranks are folded by class. Events come in the driver's thread, drawing
happens in another: a lock keeps them apart.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.text import Text

from warmrank.orchestrator.show.events import Event
from warmrank.orchestrator.show.figures import count_text
from warmrank.orchestrator.show.folding import brief_names
from warmrank.orchestrator.show.live_tables import class_table, cut, late_lines, rank_table
from warmrank.orchestrator.show.standing import StageStanding, Standing

MAX_RANK_ROWS = 16
MAX_PROBLEMS_SHOWN = 3
MAX_STRIP_LINES = 3
_BAR_WIDTH = 24
_MIN_BAR_WIDTH = 4
_LOW_SCREEN = 12


class LiveView:
    """The state of a launch as something that rich can draw."""

    def __init__(
        self, num_ranks: int, *, name: str = "", clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._name = name
        self._clock = clock
        self._standing = Standing(num_ranks=num_ranks)
        self._began_s = clock()
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        """Take an event in; the next drawing shows it."""
        with self._lock:
            self._standing(event)
            self._began_s = self._clock() - event.at_s

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """As of now, for the terminal as it is now."""
        width, height = options.max_width, max(console.size.height - 1, 1)
        with self._lock:
            drawn = self._draw(width, height)
            lines = console.render_lines(drawn, options.update(width=width, height=None), pad=False)
        for line in lines[:height]:
            yield from line
            yield Segment.line()

    def _draw(self, width: int, height: int) -> RenderableType:
        standing, now_s = self._standing, self._clock() - self._began_s
        strip = _strip(standing, now_s, width)
        # Where lines are dear, ranks count more than the stages that are over.
        head = [self._title(now_s), *(strip[-1:] if height < _LOW_SCREEN else strip[:MAX_STRIP_LINES])]
        if standing.running is not None:
            head.append(_running(standing.running, now_s, width))
        elif standing.ending_s is not None:
            head.append(Text(f"taking the ranks down, {max(now_s - standing.ending_s, 0.0):.1f} s"))
        tail = [*_attempts(standing), *_problems(standing)]
        room = height - len(head) - 1 - (len(tail) + 1 if tail else 0)
        body: list[RenderableType] = []
        if standing.num_ranks <= min(room - 1, MAX_RANK_ROWS):
            body.append(rank_table(standing, now_s, width))
        elif room > 0:
            late = late_lines(standing, now_s, width, max_lines=max(room // 3, 1))
            if standing.classes and room - len(late) > 2:
                body.append(class_table(standing, max_rows=room - len(late) - 2))
            body += late
        for text in (*head, *tail):
            cut(text, width)
        return Group(*head, *([Text()] if body else []), *body, *([Text()] if tail else []), *tail)

    def _title(self, now_s: float) -> Text:
        standing = self._standing
        parts = [count_text(standing.num_ranks, "rank")]
        if standing.num_nodes:
            hosts = brief_names(standing.hosts(), max_names=2)
            parts[0] += f" on {count_text(standing.num_nodes, 'node')} ({hosts})"
        if standing.attempt > 1:
            parts.append(f"attempt {standing.attempt}")
        if standing.round:
            parts.append(f"round {standing.round} of the plan")
        if standing.is_over:
            parts.append("failed")
        parts.append(f"{now_s:.1f} s")
        return Text.assemble((f"{self._name}  " if self._name else "", "bold"), " | ".join(parts))


def _strip(standing: Standing, now_s: float, width: int) -> list[Text]:
    """Every stage that has begun, with its seconds; what runs or failed stands out, also without colours."""
    lines, failed = [Text()], standing.failed_stage()
    for stage in standing.stages.values():
        text = f"{stage.stage} {stage.seconds_at(now_s):.1f}s"
        if stage.is_running:
            shown = Text(f"> {text} <", "bold yellow")
        else:
            is_bad = stage.stage == failed
            shown = Text(f"{text} failed" if is_bad else text, "bold red" if is_bad else "green")
        if len(lines[-1]) and len(lines[-1]) + 2 + len(shown) > width:
            lines.append(Text())
        lines[-1] = lines[-1].append("  " if len(lines[-1]) else "").append_text(shown)
    return lines


def _running(stage: StageStanding, now_s: float, width: int) -> Text:
    """How many ranks are through the running stage, as a bar where there is room, and in numbers."""
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


def _attempts(standing: Standing) -> list[Text]:
    """Attempts that failed, the last two, each with the first line of its error."""
    return [
        Text(f"attempt {number} failed{f' in {stage}' if stage else ''}: {_first_line(error)}", style="red")
        for number, stage, error in standing.failed[-2:]
    ]


def _problems(standing: Standing) -> list[Text]:
    every = list(standing.problems)
    shown = [Text(f"problem: {_first_line(text)}", style="yellow") for text in every[-MAX_PROBLEMS_SHOWN:]]
    more = len(every) - len(shown)
    return [Text(f"{count_text(more, 'problem')} before these", style="yellow"), *shown] if more else shown


def _first_line(text: str) -> str:
    return text.splitlines()[0] if text else ""
