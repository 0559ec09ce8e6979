"""The demo: what it empties, what it runs, and what it says at the end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from tests.support.launching import make_report
from tests.support.processes import await_true
from warmrank.orchestrator.cli.demo import MARKER, demo, prepare, run_process
from warmrank.orchestrator.errors import DemoFailed, NotOurs
from warmrank.orchestrator.launch.report import Report, to_json
from warmrank.orchestrator.signals import Terminated
from warmrank.orchestrator.whole_file import write_whole


class FakeRuns:
    """Stands in for the two processes; writes their reports."""

    def __init__(self, *reports: Report | int) -> None:
        self.reports = list(reports)
        self.commands: list[Sequence[str]] = []

    def __call__(self, command: Sequence[str]) -> int:
        self.commands.append(command)
        report = self.reports.pop(0)
        if isinstance(report, int):
            return report
        write_whole(Path(command[command.index("--json") + 1]), to_json(report))
        return 0


def shown(out: Path, runs: FakeRuns) -> str:
    text = StringIO()
    demo(out, Console(file=text, width=100), run=runs)
    return text.getvalue()


def cold() -> Report:
    return make_report("compiled", trace_s=1.0, wall_s=10.0)


def test_demo_shows_the_saving_first_then_each_rank_and_where_everything_lies(tmp_path: Path):
    text = shown(tmp_path / "out", FakeRuns(cold(), make_report()))
    headline = (
        "Ready to serve: 2.01 s of tracing and compiling, cold; 10 ms of loading, warm   201.0 x faster"
    )
    assert text.index(headline) < text.index("cold and warm")
    (line,) = (line for line in text.splitlines() if "rank 1: trace + compile + load" in line)
    assert line.split()[-6:] == ["2.01", "s", "10", "ms", "201.0", "x"]
    assert "The warm launch compiled nothing: 2 loaded" in text
    assert str(tmp_path / "out" / "warm.html") in text


def test_demo_fails_when_the_warm_launch_compiled(tmp_path: Path):
    with pytest.raises(DemoFailed, match="compiled 2 functions") as caught:
        shown(tmp_path / "out", FakeRuns(cold(), cold()))
    assert caught.value.exit_code == 1


def test_prepare_empties_what_a_demo_made(tmp_path: Path):
    prepare(tmp_path / "out")
    (tmp_path / "out" / "cache" / "old").mkdir(parents=True)
    (tmp_path / "out" / "warm.json").write_text("old")
    (tmp_path / "out" / "notes.txt").write_text("mine")
    prepare(tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {MARKER, "notes.txt"}


def test_prepare_leaves_a_directory_alone_that_no_demo_made(tmp_path: Path):
    store = tmp_path / "out" / "store"
    store.mkdir(parents=True)
    with pytest.raises(NotOurs, match="no demo made it"):
        prepare(tmp_path / "out")
    assert store.exists()


def test_terminated_demo_ends_its_launch_and_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    out, has_handler = tmp_path / "out", tmp_path / "has_handler"
    code = f"""
import signal, sys, time
def end(*_):
    open({str(out)!r}, 'w').write('cleaned up')
    sys.exit(143)
signal.signal(signal.SIGTERM, end)
open({str(has_handler)!r}, 'w').close()
time.sleep(600)
"""
    original = subprocess.Popen.wait
    waits: list[str] = []

    def wait(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        waits.append("wait")
        if len(waits) == 1:
            assert await_true(has_handler.exists, timeout_s=60)
            raise Terminated
        return original(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", wait)
    with pytest.raises(Terminated):
        run_process([sys.executable, "-c", code])
    assert out.read_text() == "cleaned up"
