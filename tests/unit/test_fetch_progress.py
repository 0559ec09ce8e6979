"""How a long fetch is shown."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from warmrank.cache_store.fetching.progress import Progress
from warmrank.orchestrator.show.fetch_progress import Lines, fetch_progress


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def state(done_bytes: int) -> Progress:
    return Progress(done_bytes=done_bytes, total_bytes=4 << 20, done_files=1, total_files=8)


@pytest.fixture
def text() -> io.StringIO:
    return io.StringIO()


def test_short_fetch_prints_no_line(text: io.StringIO) -> None:
    clock = Clock()
    lines = Lines(Console(file=text), clock=clock)
    clock.now_s += 9.9
    lines(state(1 << 20))
    assert text.getvalue() == ""


def test_long_fetch_prints_a_line_every_ten_seconds(text: io.StringIO) -> None:
    clock = Clock()
    lines = Lines(Console(file=text), clock=clock)
    for _ in range(40):
        clock.now_s += 1
        lines(state(1 << 20))
    assert text.getvalue().splitlines() == ["fetch: 1.0 MiB of 4.0 MiB, 1 of 8 files"] * 4


def test_without_a_terminal_there_are_lines(text: io.StringIO) -> None:
    with fetch_progress(Console(file=text)) as on_progress:
        assert isinstance(on_progress, Lines)


def test_terminal_gets_a_bar(text: io.StringIO) -> None:
    with fetch_progress(Console(file=text, force_terminal=True, width=100)) as on_progress:
        on_progress(state(2 << 20))
    assert "2.1/4.2 MB" in text.getvalue()
