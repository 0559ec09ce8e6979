"""`warmrank launch --demo`: the embedded default launched twice, in fresh processes, cold and then warm.

Invariants: only a directory that an earlier demo made is emptied; the numbers at the end come from the two
launches' reports and from this process's clock, and each says what it spans.
"""

from __future__ import annotations

import importlib.resources
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from warmrank.orchestrator.errors import DemoFailed, NotOurs
from warmrank.orchestrator.launch.report import RankReport, Report, from_json, sum_seconds
from warmrank.orchestrator.signals import Terminated, undisturbed
from warmrank.orchestrator.text import count_text, seconds_text
from warmrank.orchestrator.ui.table import table_of

MARKER = ".made-by-warmrank-demo"
_STATE = ("cache", "store", "cold.json", "warm.json", "cold.html", "warm.html")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """One launch of the demo."""

    report: Report  # the launch's own report
    process_s: float  # wall seconds of its process, from start to exit


Run = Callable[[Sequence[str]], int]


def demo(out: Path, console: Console, *, run: Run | None = None) -> None:
    """Launch cold, launch warm, and compare; ``run`` runs a command and returns its exit status.

    Raises:
        NotOurs: ``out`` holds something that no demo made; nothing was touched.
        DemoFailed: a launch failed, or the warm one compiled.
    """
    prepare(out)
    config = Path(str(importlib.resources.files("warmrank.cluster_configs") / "llama-cpu.yaml"))
    if config.is_relative_to(Path.cwd()):  # as people would name it from here
        config = config.relative_to(Path.cwd())
    cold = _launch("cold", config, out, console, run or run_process)
    warm = _launch("warm", config, out, console, run or run_process)
    console.print()
    console.print(saving(cold, warm), soft_wrap=True)
    console.print(comparison(cold, warm))
    if warm.report.totals.num_compiled:
        compiled = count_text(warm.report.totals.num_compiled, "function")
        raise DemoFailed(f"the warm launch compiled {compiled}; expected none", exit_code=1)
    for line in closing_lines(warm.report, config, out):
        console.print(line, soft_wrap=True)


def prepare(out: Path) -> None:
    """Make ``out``, or empty it of what an earlier demo left.

    Raises:
        NotOurs: it holds something, and no demo made it.
    """
    if out.exists() and not (out.is_dir() and ((out / MARKER).is_file() or not any(out.iterdir()))):
        raise NotOurs(
            f"{out} exists, and no demo made it (it has no {MARKER}), so it is left alone; "
            "move it away, or name another directory"
        )
    for name in _STATE:
        path = out / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    out.mkdir(parents=True, exist_ok=True)
    (out / MARKER).write_text("`warmrank launch --demo` empties this directory when it runs again.\n")


def run_process(command: Sequence[str]) -> int:
    """Run a command to its end. Ctrl-C reaches it too, SIGTERM is passed on; it gets the time to clean up."""
    with subprocess.Popen(command) as process:  # noqa: S603 - our own interpreter and module
        try:
            return process.wait()
        except KeyboardInterrupt as stop:
            if isinstance(stop, Terminated):
                process.terminate()
            with undisturbed():
                process.wait()
            raise


def saving(cold: Launched, warm: Launched) -> Text:
    """Time that the cache saved, on the rank that waited longest."""
    before_s, after_s = (max(map(_saved_s, launched.report.ranks)) for launched in (cold, warm))
    text = Text.assemble(
        ("To get warm: ", "bold"),
        f"{seconds_text(before_s)} of tracing and compiling, cold; {seconds_text(after_s)} of loading, warm",
    )
    return text.append(f"   {_ratio(before_s, after_s)} faster", style="bold green")


def comparison(cold: Launched, warm: Launched) -> Table:
    """Speed-ups of the warm launch: first of the work that a cache can save, last of the whole process."""
    table = table_of("what the seconds span", ">cold", ">warm", ">faster", title="cold and warm")
    for before, after in zip(cold.report.ranks, warm.report.ranks, strict=True):
        _add(table, f"rank {before.rank}: trace + compile + load", _saved_s(before), _saved_s(after))
    before_s, after_s = (_start_s(launched.report) for launched in (cold, warm))
    work = "launch, once its ranks are started"
    _add(table, work, cold.report.totals.wall_s - before_s, warm.report.totals.wall_s - after_s)
    started = "start of Ray and of its ranks, which no cache saves"
    table.add_row(started, seconds_text(before_s), seconds_text(after_s), "-")
    _add(table, "whole process, all that included", cold.process_s, warm.process_s)
    return table


def closing_lines(report: Report, config: Path, out: Path) -> tuple[Text, ...]:
    """That nothing was compiled, where everything lies, and what to try next."""
    totals = report.totals
    kept = f"{totals.num_loaded} loaded, {totals.num_adopted} adopted, 0 compiled"
    sets = f" --set cache_dir={out}/cache --set store.path={out}/store"
    return (
        Text(f"The warm launch compiled nothing: {kept}.", style="bold green"),
        Text(f"  artifacts  {out / 'cache'}"),
        Text(f"  store      {out / 'store'}"),
        Text(f"  reports    {out / 'cold.html'}, {out / 'warm.html'}, for a browser; beside them as JSON"),
        Text("Try next, with twice the ranks: they adopt, and nothing is compiled either."),
        Text(f"  {program()} launch {config} --set ranks=4 --set parallel.dp=2{sets}", style="bold"),
        Text(f"  {program()} explain {config}{sets}", style="bold"),
    )


def program() -> str:
    """The command to call this program from here: its name where it is on the path."""
    if shutil.which("warmrank"):
        return "warmrank"
    script = Path(sys.executable).with_name("warmrank")
    if not script.exists():
        return f"{sys.executable} -m warmrank"
    return str(script.relative_to(Path.cwd())) if script.is_relative_to(Path.cwd()) else str(script)


def _launch(name: str, config: Path, out: Path, console: Console, run: Run) -> Launched:
    path = out / f"{name}.json"
    console.print()
    console.rule(Text(f"{name} launch", style="bold"), align="left")
    started = time.perf_counter()
    settings = ("--set", f"cache_dir={out / 'cache'}", "--set", f"store.path={out / 'store'}")
    files = ("--json", str(path), "--report", str(path.with_suffix(".html")))
    status = run((sys.executable, "-m", "warmrank", "launch", str(config), *settings, *files))
    process_s = time.perf_counter() - started
    if status != 0:
        raise DemoFailed(
            f"the {name} launch ended with status {status}; its own message stands above",
            exit_code=status if status > 0 else 128 - status,
        )
    return Launched(report=from_json(path.read_text(encoding="utf-8")), process_s=process_s)


def _saved_s(rank: RankReport) -> float:
    seconds = sum_seconds(function.seconds for function in rank.functions)
    return seconds.trace_s + seconds.compile_s + seconds.load_s


def _start_s(report: Report) -> float:
    return sum(stage.seconds for stage in report.stages if stage.stage == "start")


def _add(table: Table, what: str, cold_s: float, warm_s: float) -> None:
    table.add_row(what, seconds_text(cold_s), seconds_text(warm_s), _ratio(cold_s, warm_s))


def _ratio(cold_s: float, warm_s: float) -> str:
    return f"{cold_s / warm_s:.1f} x" if warm_s > 0 else "-"
