"""What a watcher of a launch or a long fetch sees: a live view or a bar in a terminal, lines elsewhere."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from rich.console import Console

from tests.support.made_reports import failing, result, seats, until_compile, whole
from warmrank.cache_store.fetching.progress import Progress
from warmrank.orchestrator.gang.step_file import RENDEZVOUS
from warmrank.orchestrator.launch import events as e
from warmrank.orchestrator.launch.state import LaunchState, silence
from warmrank.orchestrator.seats import Seat
from warmrank.orchestrator.ui.live import LiveView
from warmrank.orchestrator.ui.progress import FIRST_BEAT_S, FetchLines, PlainLines, fetch_progress, progress
from warmrank.worker.results import FunctionResult


class Clock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def lines_of(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def plain(*heard: Iterable[e.Event], num_ranks: int = 2) -> list[str]:
    console = Console(file=io.StringIO(), width=40)
    listener, state = PlainLines(console), LaunchState(num_ranks=num_ranks)
    for events in heard:
        for event in events:
            state.apply(event)
            listener(state, event)
    return lines_of(console)


def live(
    heard: Iterable[e.Event],
    num_ranks: int,
    *,
    width: int = 100,
    height: int = 40,
    later_s: float = 0.0,
) -> list[str]:
    """The screen when these events were heard, and some time passed."""
    clock = Clock()
    view, state = LiveView(num_ranks, name="tiny", clock=clock), LaunchState(num_ranks=num_ranks)
    for event in heard:
        clock.now_s = event.at_s
        state.apply(event)
        view(state, event)
    clock.now_s += later_s
    console = Console(
        file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None, no_color=True
    )
    console.print(view)
    return lines_of(console)


def refused(rank: int, stage: str = "load") -> e.FunctionFinished:
    why = FunctionResult(function="Model.decode", ok=False, outcome="adopted", reason="a guard does not hold")
    return e.FunctionFinished(at_s=1.0, stage=stage, rank=rank, result=why)


def stage(name: str, *ranks: int, at_s: float = 0.0) -> e.StageStarted:
    return e.StageStarted(at_s=at_s, stage=name, ranks=ranks)


def finished(name: str, rank: int, at_s: float) -> e.RankFinished:
    return e.RankFinished(at_s=at_s, stage=name, rank=rank, ok=True)


def test_plain_lines_tell_the_beginning_and_end_of_a_stage() -> None:
    heard: list[e.Event] = [
        stage("build", 0, 1, 2),
        finished("build", 0, 1.0),
        e.StageFinished(at_s=1.5, stage="build", seconds=1.5),
    ]
    assert plain(heard) == ["build: on ranks 0-2", "build: 1.50 s"]


def test_plain_lines_tell_how_functions_got_their_artifacts_once_for_equal_ranks_without_wrapping() -> None:
    heard = [
        e.FunctionFinished(at_s=1.0, stage="load", rank=rank, result=result("Model.decode", compiled=False))
        for rank in (1, 2, 3)
    ]
    lines = plain([stage("load", 1, 2, 3), *heard, e.StageFinished(at_s=1.0, stage="load", seconds=1.0)])
    assert lines[1] == "  Model.decode adopted on ranks 1-3 (from rank 0)"


def test_plain_lines_tell_a_refusal_as_such() -> None:
    lines = plain([refused(0), e.StageFinished(at_s=1.0, stage="load", seconds=1.0)])
    assert "refused on rank 0 (a guard does not hold)" in lines[0]


def test_plain_lines_of_many_ranks_are_as_many_as_of_few() -> None:
    few, many = plain(whole(64), num_ranks=64), plain(whole(2048), num_ranks=2048)
    assert len(few) == len(many)
    assert max(map(len, many)) < 200


def test_plain_lines_of_many_kinds_of_results_are_bounded() -> None:
    heard = [
        e.FunctionFinished(at_s=1.0, stage="load", rank=rank, result=result(f"f{rank}", compiled=True))
        for rank in range(500)
    ]
    assert len(plain(heard, [e.StageFinished(at_s=1.0, stage="load", seconds=1.0)])) < 20


def test_plain_lines_tell_a_problem_once_and_not_without_end() -> None:
    heard = [e.Problem(at_s=1.0, text=f"problem {index // 2}") for index in range(400)]
    lines = plain(heard)
    assert lines[:2] == ["problem: problem 0", "problem: problem 1"]
    assert lines[-1] == "problem: further ones stand in the report"
    assert len(lines) < 30


def test_plain_lines_tell_why_there_is_another_attempt() -> None:
    lines = plain(failing(8), num_ranks=8)
    assert "attempt 1 failed in stage compile" in lines
    assert "    rank 0: node lost" in lines
    assert "attempt 2, because attempt 1 failed: node node-0 was lost" in lines


def test_plain_lines_leave_the_last_error_to_whoever_raises_it() -> None:
    lines = plain(failing(8), num_ranks=8)
    assert lines[-1] == "attempt 2 failed in stage compile"


def test_plain_lines_tell_of_a_long_stage_ever_more_rarely_and_name_who_is_late() -> None:
    busy = [
        e.RankBusy(at_s=at_s, rank=1, doing="compile f", cpu_s=1.0, resident_bytes=1)
        for at_s in range(1, 1000)
    ]
    lines = plain([e.Seated(at_s=0.0, seats=seats(2, 1)), stage("compile", 0, 1)], busy[:3])
    assert len(lines) == 2
    lines = plain(
        [e.Seated(at_s=0.0, seats=seats(2, 1)), stage("compile", 0, 1), finished("compile", 0, 0.5)], busy
    )
    beats = lines[2:]
    assert beats[0] == (
        f"compile: 1 of 2 ranks after {FIRST_BEAT_S:.0f} s; waiting for rank 1; rank 1 on node-1: compile f"
    )
    assert len(beats) == 6  # after 30, 60, 120, 240, 480, 960 s


def test_plain_lines_of_a_start_name_who_is_not_at_the_rendezvous() -> None:
    doing = {0: RENDEZVOUS, 1: "start: importing torch"}
    busy = [
        e.RankBusy(at_s=at_s, rank=rank, doing=text, cpu_s=1.0, resident_bytes=1)
        for at_s in (29.0, 31.0)
        for rank, text in doing.items()
    ]
    lines = plain([e.Seated(at_s=0.0, seats=seats(2, 1)), stage("start", 0, 1)], busy)
    assert lines[-1].endswith("waiting for rank 1; rank 1 on node-1: start: importing torch")


def test_plain_lines_say_how_far_a_start_is_that_only_waits() -> None:
    heard = [e.StillWaiting(at_s=at_s / 2) for at_s in range(1, 140)]
    lines = plain([stage("start", *range(64)), *heard], num_ranks=64)
    assert lines[1:] == [
        f"start: 0 of 64 ranks after {seconds} s; waiting for ranks 0-63" for seconds in (30, 60)
    ]


def compiling_two() -> list[e.Event]:
    """Two ranks compile a function each; rank 1 is through."""
    classes = tuple(
        e.RankClass(
            round=0, function="f", request_key=str(rank), ranks=(rank,), action="compile", leader=rank
        )
        for rank in (0, 1)
    )
    return [
        e.AttemptStarted(at_s=0.0, attempt=1, reason=""),
        e.Planned(at_s=0.0, classes=classes),
        stage("compile", 0, 1),
        finished("compile", 1, 5.0),
    ]


def cells(screen: list[str]) -> list[str]:
    """The column of the function, of both ranks."""
    rows = [line for line in screen if line.strip().startswith(("0 ", "1 "))]
    return [row.split("  ")[1].strip() or row.split("  ")[2].strip() for row in (row.strip() for row in rows)]


def test_live_view_says_of_a_rank_that_compiled_that_it_did() -> None:
    assert cells(live(compiling_two(), 2, later_s=4.0)) == ["compiling 9.0 s", "compile done"]


def test_live_view_says_of_a_launch_that_was_stopped_what_was_cut_short() -> None:
    stopped = e.AttemptFailed(at_s=6.0, attempt=1, stage="compile", text="stopped", is_last=True)
    screen = live([*compiling_two(), stopped], 2, later_s=1.5)
    assert cells(screen) == ["compile cut short", "compile done"]
    assert "taking the ranks down, 1.5 s" in screen


def test_live_view_says_which_stage_failed() -> None:
    heard: list[e.Event] = [
        e.AttemptStarted(at_s=0.0, attempt=1),
        stage("fetch", 0, 1),
        e.StageFinished(at_s=1.0, stage="fetch", seconds=1.0),
        stage("build", 0, 1, at_s=1.0),
        e.AttemptFailed(at_s=3.0, attempt=1, stage="build", text="rank 1: died", is_last=False),
    ]
    (strip,) = [line for line in live(heard, 2) if "fetch" in line]
    assert strip == "fetch 1.0s  build 2.0s failed"
    again: list[e.Event] = [
        e.AttemptStarted(at_s=4.0, attempt=2, reason="rank 1: died"),
        stage("build", 0, 1, at_s=4.0),
    ]
    assert any("> build 0.0s <" in line for line in live([*heard, *again], 2))


def one_host(num_nodes: int) -> e.Seated:
    """Nodes of Ray that are all on one machine, with a rank each."""
    return e.Seated(at_s=0.0, seats=tuple(replace(seat, host="vm") for seat in id_seats(num_nodes)))


def id_seats(num_nodes: int) -> list[Seat]:
    return [replace(seat, node_id=f"{seat.rank}f{54 * '0'}") for seat in seats(num_nodes, 1)]


def test_nodes_of_one_host_can_be_told_apart() -> None:
    assert plain([one_host(2)]) == ["2 ranks on 2 nodes: vm 0f0000000000, vm 1f0000000000"]
    text = "\n".join(live([one_host(2), stage("build", 0, 1)], 2, width=120))
    assert "2 ranks on 2 nodes (vm 0f0000000000, vm 1f0000000000)" in text
    assert "vm 1f0000000000" in next(line for line in text.splitlines() if line.strip().startswith("1 "))
    assert plain([one_host(1)], num_ranks=1) == ["1 rank on 1 node: vm"]


def test_live_view_names_what_comes_after_the_last_stage() -> None:
    heard: list[e.Event] = [
        stage("commit", 0, 1),
        e.StageFinished(at_s=2.0, stage="commit", seconds=2.0),
        e.Ending(at_s=2.0),
    ]
    screen = live(heard, 2, later_s=1.0)
    assert "taking the ranks down, 1.0 s" in screen


def test_live_view_of_a_low_and_narrow_screen_shows_ranks_and_numbers() -> None:
    screen = live(compiling_two(), 2, width=50, height=8, later_s=4.0)
    assert any(line.endswith("1 of 2 ranks done, 9.0 s") for line in screen)
    assert [line.split()[0] for line in screen[-2:]] == ["0", "1"]


def test_live_view_of_few_ranks_shows_every_rank_with_its_functions() -> None:
    text = "\n".join(live(until_compile(2, 1), 2, width=120, later_s=1.5))
    assert "2 ranks on 2 nodes (node-0, node-1) | 17.0 s" in text
    assert "> compile 7.5s <" in text
    (row,) = [line for line in text.splitlines() if line.strip().startswith("1 ")]
    assert row.split()[:3] == ["1", "node-1", "compiling"]
    assert "compile Llama.decode (cpu 31 s, 3.0 GiB)" in row


def test_live_view_says_how_a_function_was_got() -> None:
    rows = [line.split() for line in live(whole(2), 2) if line.strip().startswith("0 ")]
    assert rows[0][:4] == ["0", "compiled", "12.00", "s"]


def test_live_view_of_many_ranks_folds_them_by_class() -> None:
    screen = live(until_compile(1024), 1024)
    rows = [line.split() for line in screen if line.startswith("Llama.prefill")]
    assert rows[1][:6] == ["Llama.prefill", "compile", "256:", "256-511", "256", "node-32"]
    assert len(rows) == 4


def test_live_view_names_the_ranks_that_a_stage_waits_for() -> None:
    heard: list[e.Event] = [
        e.Seated(at_s=0.0, seats=seats(1024, 8)),
        stage("build", *range(1024)),
        *(finished("build", rank, 2.0) for rank in range(1024) if rank != 77),
        e.RankBusy(at_s=2.5, rank=77, doing="build", cpu_s=0.1, resident_bytes=1 << 30),
    ]
    text = "\n".join(live(heard, 1024, later_s=30.0))
    assert "1,023 of 1024 ranks done" in text
    assert "rank 77 node-9: build (cpu 0 s, 1.0 GiB), 32.5 s" in text


def test_live_view_counts_the_steps_of_a_stage_and_who_is_behind() -> None:
    heard: list[e.Event] = [stage("capture", *range(40))]
    heard += [finished("capture", rank, 1.0) for rank in range(40)]
    heard += [finished("capture", rank, 2.0) for rank in range(39)]
    text = "\n".join(live(heard, 40))
    assert "39 of 40 ranks done  step 2" in text
    assert "waiting for rank 39" in text


def test_live_view_tells_of_attempts_and_problems() -> None:
    heard = [*failing(8), e.Problem(at_s=41.0, text="the store [here] was away")]
    text = "\n".join(live(heard, 8))
    assert "attempt 1 failed in compile: stage compile failed on 1 of 8 ranks" in text
    assert "problem: the store [here] was away" in text
    assert "| attempt 2 | failed |" in text


@pytest.mark.one_in(4)
@pytest.mark.parametrize("num_ranks", [1, 16, 1024])
@pytest.mark.parametrize(("width", "height"), [(200, 60), (80, 24), (40, 10), (20, 4), (7, 2), (1, 1)])
def test_live_view_is_never_larger_than_the_screen(num_ranks: int, width: int, height: int) -> None:
    many = [e.Problem(at_s=1.0, text=f"problem {index} " * 20) for index in range(9)]
    for heard in (until_compile(num_ranks), whole(num_ranks), failing(num_ranks)):
        screen = live([*heard, *many], num_ranks, width=width, height=height)
        assert max(map(len, screen), default=0) <= width
        assert len(screen) <= max(height - 1, 1)


def test_live_view_of_many_ranks_draws_no_more_than_of_few() -> None:
    few, many = live(until_compile(64), 64), live(until_compile(2048), 2048)
    assert len(few) == len(many)


def test_live_view_is_drawn_while_events_come_in() -> None:
    view, state = LiveView(256, clock=Clock()), LaunchState(num_ranks=256)
    stop, begun, drawn = threading.Event(), threading.Event(), []

    def draw() -> None:
        while not stop.is_set():
            console = Console(file=io.StringIO(), width=100, height=30, force_terminal=True)
            console.print(view)
            drawn.append(len(lines_of(console)))
            begun.set()

    with ThreadPoolExecutor(1) as pool:
        drawing = pool.submit(draw)
        assert begun.wait(60)
        for event in (*whole(256), *failing(256)):
            state.apply(event)
            view(state, event)
        stop.set()
        drawing.result(timeout=60)
    assert drawn


def test_terminal_gets_the_live_view_and_keeps_its_last_state() -> None:
    console, state = Console(file=io.StringIO(), force_terminal=True, width=80), LaunchState(num_ranks=1)
    with progress(console, 1) as listener:
        for event in (stage("build", 0), finished("build", 0, 1.0)):
            state.apply(event)
            listener(state, event)
    assert "build" in "".join(lines_of(console))


def test_elsewhere_lines_are_printed() -> None:
    console = Console(file=io.StringIO())
    with progress(console, 1) as listener:
        listener(LaunchState(num_ranks=1), e.StageFinished(at_s=1.0, stage="build", seconds=1.0))
    assert lines_of(console) == ["build: 1.00 s"]


def test_silence_hears_every_event_and_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    for event in whole(2):
        silence(LaunchState(num_ranks=2), event)
    assert capsys.readouterr() == ("", "")


FETCHED = Progress(done_bytes=1 << 20, total_bytes=4 << 20, done_files=1, total_files=8)


@pytest.mark.parametrize(("seconds", "num_lines"), [(9, 0), (40, 4)])
def test_long_fetch_prints_a_line_every_ten_seconds(seconds: int, num_lines: int) -> None:
    clock, console = Clock(), Console(file=io.StringIO())
    lines = FetchLines(console, clock=clock)
    for _ in range(seconds):
        clock.now_s += 1
        lines(FETCHED)
    assert lines_of(console) == ["fetch: 1.0 MiB of 4.0 MiB, 1 of 8 files"] * num_lines


def test_fetch_has_a_bar_in_a_terminal_and_lines_elsewhere() -> None:
    with fetch_progress(Console(file=io.StringIO())) as on_progress:
        assert isinstance(on_progress, FetchLines)
    terminal = Console(file=io.StringIO(), force_terminal=True, width=100)
    with fetch_progress(terminal) as on_progress:
        on_progress(FETCHED)
    assert "1.0/4.2 MB" in "".join(lines_of(terminal))
