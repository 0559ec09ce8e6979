"""What a watcher of a launch sees, in a terminal and elsewhere."""

from __future__ import annotations

import io

from rich.console import Console

from orchestrator.show.listener import Silence
from orchestrator.show.progress import LiveTable, PlainLines, progress
from worker.results import FunctionResult


class Clock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def result(*, ok: bool = True) -> FunctionResult:
    return FunctionResult(function="Model.decode", ok=ok, outcome="compiled", reason="nothing lies there")


def lines_of(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def plain() -> tuple[PlainLines, Console]:
    console = Console(file=io.StringIO(), width=40)
    return PlainLines(console), console


def rows_of(table: LiveTable, width: int = 120) -> list[list[str]]:
    console = Console(width=width, file=io.StringIO())
    console.print(table.render())
    return [line.split() for line in lines_of(console) if line.strip()]


def test_plain_lines_tell_the_beginning_and_end_of_a_stage() -> None:
    listener, console = plain()
    listener.stage_started("build", (0, 1, 2))
    listener.rank_finished("build", 0, 1.0)
    listener.stage_finished("build", 1.5)
    assert lines_of(console) == ["build: on ranks 0-2", "build: 1.50 s"]


def test_plain_lines_tell_how_a_function_got_its_artifact_without_wrapping() -> None:
    listener, console = plain()
    listener.function_finished("compile", 0, result())
    assert lines_of(console) == ["  rank 0: Model.decode compiled (nothing lies there)"]


def test_plain_lines_tell_a_refusal_as_such() -> None:
    listener, console = plain()
    listener.function_finished("load", 0, result(ok=False))
    assert "refused" in lines_of(console)[0]


def test_plain_lines_of_many_ranks_are_no_flood() -> None:
    listener, console = plain()
    listener.stage_started("load", tuple(range(1000)))
    for rank in range(1000):
        listener.function_finished("load", rank, result())
    assert len(lines_of(console)) < 50


def test_live_table_shows_running_seconds_and_those_of_ranks_that_are_done() -> None:
    clock = Clock()
    table = LiveTable(2, clock=clock)
    table.stage_started("build", (0, 1))
    clock.now_s += 1.5
    table.rank_finished("build", 0, 1.5)
    clock.now_s += 2.0
    assert rows_of(table) == [["rank", "build"], ["0", "1.5"], ["1", "3.5"]]


def test_live_table_marks_ranks_with_nothing_to_do() -> None:
    table = LiveTable(2, clock=Clock())
    table.stage_started("compile", (0,))
    assert rows_of(table)[2] == ["1", "-"]


def test_live_table_counts_a_stage_of_several_steps_from_its_beginning() -> None:
    clock = Clock()
    table = LiveTable(1, clock=clock)
    table.stage_started("capture", (0,))
    for _ in range(3):
        clock.now_s += 1.0
        table.rank_finished("capture", 0, 1.0)
    assert rows_of(table)[1] == ["0", "3.0"]


def test_live_table_of_many_ranks_counts_them_by_stage() -> None:
    clock = Clock()
    table = LiveTable(64, clock=clock)
    table.stage_started("build", tuple(range(64)))
    clock.now_s += 2.0
    for rank in range(10):
        table.rank_finished("build", rank, 2.0)
    assert rows_of(table)[1] == ["build", "10/64", "2.0"]


def test_live_table_fits_eighty_columns_with_all_stages() -> None:
    clock = Clock()
    table = LiveTable(1, clock=clock)
    for stage in (
        "start",
        "fetch",
        "build",
        "probe",
        "compile",
        "load",
        "capture",
        "first_call",
        "verify",
        "commit",
    ):
        table.stage_started(stage, (0,))
        clock.now_s += 12.0
        table.rank_finished(stage, 0, 12.0)
        table.stage_finished(stage, 12.0)
    assert [len(row) for row in rows_of(table, 80)] == [11, 11]


def test_problem_is_shown_below_the_live_table() -> None:
    table = LiveTable(1, clock=Clock())
    table.problem("the store [here] was away")
    assert ["problem:", "the", "store", "[here]", "was", "away"] in rows_of(table)


def test_terminal_gets_the_live_table_and_keeps_its_last_state() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with progress(console, 1) as listener:
        assert isinstance(listener, LiveTable)
        listener.stage_started("build", (0,))
        listener.rank_finished("build", 0, 1.0)
    assert "build" in "".join(lines_of(console))


def test_elsewhere_lines_are_printed() -> None:
    console = Console(file=io.StringIO())
    with progress(console, 1) as listener:
        listener.stage_finished("build", 1.0)
    assert lines_of(console) == ["build: 1.00 s"]


def test_silence_hears_every_event_and_says_nothing() -> None:
    silence = Silence()
    silence.stage_started("build", (0,))
    silence.rank_finished("build", 0, 1.0)
    silence.function_finished("load", 0, result())
    silence.stage_finished("build", 1.0)
    silence.problem("none")
