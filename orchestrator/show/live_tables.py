"""The tables of the live view: ranks by functions, classes of ranks, and whom a stage waits for. Pure."""

from __future__ import annotations

from collections import Counter
from heapq import nsmallest

from rich.table import Table
from rich.text import Text

from warmrank.orchestrator.show.figures import count_text, seconds_text, size_text
from warmrank.orchestrator.show.folding import brief_ranks, runs_text
from warmrank.orchestrator.show.standing import ClassStanding, Standing
from warmrank.worker.results import FunctionResult

_STYLES = {"compiled": "yellow", "loaded": "green", "adopted": "cyan"}
_GOING = {"compile": "compiling", "load": "loading"}
_RANK_WIDTH = 6
_CELL_WIDTH = 18
_DOING_WIDTH = 30
_MAX_KINDS = 3


def cut(text: Text, width: int) -> Text:
    """The text in one line of at most so many columns."""
    text.truncate(max(width, 1), overflow="ellipsis")
    text.no_wrap = True
    return text


def rank_table(standing: Standing, now_s: float, width: int) -> Table:
    """A row for each rank: where it is, how it gets each function, what it does now."""
    functions, hosts = list(standing.functions), standing.num_nodes > 1
    left = width - _RANK_WIDTH - hosts * _CELL_WIDTH - _DOING_WIDTH
    fits = sum(max(len(name) + 2, _CELL_WIDTH) for name in functions) <= left
    heads = functions if fits else ["functions"][: len(functions)]
    table = _table()
    table.add_column("rank", justify="right", no_wrap=True, min_width=4)
    for name in (*(["host"] if hosts else []), *heads):
        table.add_column(name, no_wrap=True, min_width=min(_CELL_WIDTH - 2, width // 4))
    table.add_column("now", no_wrap=True)
    for rank in range(standing.num_ranks):
        cells = (
            [_function_cell(standing, rank, name, now_s) for name in functions]
            if fits
            else [_sum_cell(standing, rank, functions)][: len(functions)]
        )
        host = [cut(Text(standing.host(rank)), _CELL_WIDTH - 2)] if hosts else []
        now = cut(_now(standing, rank, now_s), max(width - _RANK_WIDTH - 20 * (len(cells) + len(host)), 24))
        table.add_row(str(rank), *host, *cells, now)
    return table


def class_table(standing: Standing, *, max_rows: int) -> Table:
    """A row for each class of ranks; classes that still wait for something come first."""
    table = _table()
    for name in ("function", "how", "ranks", "leader"):
        table.add_column(name, no_wrap=True, overflow="ellipsis")
    for name in ("have it", "slowest"):
        table.add_column(name, justify="right", no_wrap=True)
    classes = sorted(standing.classes.values(), key=lambda found: not found.waiting)
    shown = classes if len(classes) <= max_rows else classes[: max(max_rows - 1, 0)]
    for found in shown:
        table.add_row(
            Text(found.function),
            Text(found.action, style=_STYLES["compiled"] if found.action == "compile" else ""),
            Text(f"{len(found.ranks):,}: {runs_text(found.ranks, max_runs=3)}"),
            Text(_leader(standing, found)),
            _share(found),
            seconds_text(found.slowest_s),
        )
    if len(shown) < len(classes):
        rest = classes[len(shown) :]
        done = sum(not found.waiting for found in rest)
        table.add_row(Text(f"and {count_text(len(rest), 'class')} more", style="dim"), "", f"{done:,} done")
    return table


def late_lines(standing: Standing, now_s: float, width: int, *, max_lines: int) -> list[Text]:
    """Whom the running stage waits for: by name where they are few, by what they do where they are many."""
    stage = standing.running
    late = stage.waiting_for() if stage is not None else ()
    if stage is None or not late:
        return []
    seconds = now_s - stage.start_s
    if len(late) > max_lines and 2 * len(late) > len(stage.ranks):
        return [cut(Text(line), width) for line in _kinds(standing, late)[:max_lines]]
    lines = [f"waiting for {brief_ranks(late)}"]
    lines += [
        f"  rank {rank} {standing.host(rank)}: {_doing_text(standing, rank)}, {seconds:.1f} s"
        for rank in nsmallest(max(max_lines - 1, 0), late)
    ]
    return [cut(Text(line, style="yellow"), width) for line in lines]


def _kinds(standing: Standing, late: tuple[int, ...]) -> list[str]:
    doing = Counter(standing.busy[rank].doing for rank in late if rank in standing.busy)
    return [f"{count_text(count, 'rank')}: {text}" for text, count in doing.most_common(_MAX_KINDS)]


def _table() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))


def _function_cell(standing: Standing, rank: int, function: str, now_s: float) -> Text:
    result = standing.results.get((rank, function))
    if result is not None and result.ok:
        return _result_cell(result)
    planned = standing.class_of(rank, function)
    if planned is None:
        return Text("refused", style="red") if result else Text("-", style="dim")
    return _waiting_cell(planned, rank, standing, now_s)


def _result_cell(result: FunctionResult) -> Text:
    spent = result.seconds
    seconds = spent.trace_s + spent.compile_s + spent.load_s
    return Text(f"{result.outcome} {seconds_text(seconds)}", style=_STYLES[result.outcome])


def _waiting_cell(planned: ClassStanding, rank: int, standing: Standing, now_s: float) -> Text:
    """What a rank does about a function that it does not have yet, or did when the attempt failed."""
    running = standing.running or standing.cut
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


def _sum_cell(standing: Standing, rank: int, functions: list[str]) -> Text:
    """All functions of a rank in one cell, where each by itself would be too wide."""
    found = [standing.results[rank, name] for name in functions if (rank, name) in standing.results]
    outcomes = Counter(result.outcome if result.ok else "refused" for result in found)
    kinds = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())
    return Text(f"{len(found)} of {len(functions)}" + (f": {kinds}" if kinds else ""))


def _now(standing: Standing, rank: int, now_s: float) -> Text:
    """What a rank does in the running stage, or when it was through."""
    stage = standing.running
    if stage is None or rank not in stage.ranks:
        return Text("-", style="dim")
    if rank in stage.ended_s and rank not in stage.waiting_for():
        return Text(f"{stage.stage} done, {stage.ended_s[rank] - stage.start_s:.1f} s", style="green")
    return Text(f"{_doing_text(standing, rank)}, {now_s - stage.start_s:.1f} s", style="bold")


def _doing_text(standing: Standing, rank: int) -> str:
    busy = standing.busy.get(rank)
    if busy is None:
        return standing.running.stage if standing.running else ""
    return f"{busy.doing} (cpu {busy.cpu_s:.0f} s, {size_text(busy.resident_bytes)})"


def _leader(standing: Standing, found: ClassStanding) -> str:
    return "-" if found.leader is None else f"{found.leader} {standing.host(found.leader)}"


def _share(found: ClassStanding) -> Text:
    num = len(found.ranks)
    text = Text(f"{num - len(found.waiting):,}/{num:,}", style="" if found.waiting else "green")
    return text.append(f" {found.num_failed} failed", "red") if found.num_failed else text
