"""The command that launches, with its demo, and the one that renders a launch's report again.

The demo launches the embedded default twice, in fresh processes, cold and then warm.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from warmrank.orchestrator.cli.console import command, exit_code_of, others_on_stderr, output
from warmrank.orchestrator.cli.options import NodeNames, Overrides, ReportFile, load_config, refuse_what_fails
from warmrank.orchestrator.errors import BadArgument, DemoFailed
from warmrank.orchestrator.signals import Terminated, leave_at_once_later, named, undisturbed
from warmrank.orchestrator.text import count_text, seconds_text
from warmrank.orchestrator.ui.table import WIDE, table_of
from warmrank.worker.settings import settings

if TYPE_CHECKING:
    from warmrank.orchestrator.launch.report import RankReport, Report


OptionalLaunch = Annotated[
    Path | None, typer.Argument(metavar="CONFIG", help="YAML file.", show_default=False)
]
HtmlFile = Annotated[
    Path | None,
    typer.Option("--report", metavar="FILE.html", help="Write the report there as one page for a browser."),
]
TraceFile = Annotated[
    Path | None, typer.Option("--trace", metavar="FILE.json", help="Write the timeline there, for Perfetto.")
]
MetricsFile = Annotated[
    Path | None,
    typer.Option("--metrics", metavar="FILE.prom", help="Write metrics there, for node_exporter."),
]


@command
def launch(  # noqa: PLR0913, PLR0917 - a parameter is an option of the command
    config: OptionalLaunch = None,
    overrides: Overrides = None,
    json_file: ReportFile = None,
    html_file: HtmlFile = None,
    trace_file: TraceFile = None,
    metrics_file: MetricsFile = None,
    node: NodeNames = None,
    exclude_node: Annotated[
        list[str] | None,
        typer.Option("--exclude-node", metavar="NODE", help="Start no rank on this node. Repeatable."),
    ] = None,
    no_compile: Annotated[
        bool, typer.Option("--no-compile", help="Never compile: a miss is an error that explains itself.")
    ] = False,
    demo: Annotated[
        Path | None,
        typer.Option(
            "--demo",
            metavar="DIR",
            help="In place of CONFIG: launch the embedded default twice, cold and then warm, with cache, "
            "store and reports in DIR, and compare.",
        ),
    ] = None,
) -> None:
    """Bring every rank to a warm state; compile only what is nowhere stored."""
    if (config is None) == (demo is None):
        raise typer.BadParameter("expected either a CONFIG or --demo DIR", param_hint="CONFIG")
    if config is None:
        run_demo(demo or Path(), output())
        return
    from warmrank.orchestrator.config.reading import require_workload
    from warmrank.orchestrator.launch.driver import Launch
    from warmrank.orchestrator.launch.events import all_of
    from warmrank.orchestrator.launch.report import keep_last, to_json
    from warmrank.orchestrator.ui.outputs import Outputs, RayMetrics
    from warmrank.orchestrator.ui.progress import progress
    from warmrank.orchestrator.ui.report_table import render

    nodes = {"ray.nodes": node, "ray.exclude_nodes": exclude_node}
    overrides = [*(overrides or ()), *(f"{key}={json.dumps(names)}" for key, names in nodes.items() if names)]
    loaded = load_config(config, overrides)
    require_workload(loaded, str(config))
    refuse_what_fails(loaded, str(config), overrides, reads_only=no_compile or settings().no_compile)
    outputs = Outputs(json=json_file, html=html_file, trace=trace_file, metrics=metrics_file)
    outputs.prepare()
    console = output(stderr=outputs.json_to_stdout)

    named_by = (str(config), *(word for each in overrides for word in ("--set", each)))

    def tell(report: Report) -> None:
        keep_last(report)
        if outputs.json_to_stdout:
            typer.echo(to_json(report), nl=False)
        for what, path in outputs.write(report):
            console.print(f"{what}: {path}", soft_wrap=True, markup=False)

    with progress(console, loaded.ranks, name=loaded.name) as shown:
        run = Launch(loaded, no_compile=no_compile, listener=all_of(shown, RayMetrics(loaded.name)))
        try:
            with others_on_stderr(), named():
                report = replace(run.run(), config=named_by)
        except (Exception, KeyboardInterrupt) as error:
            if isinstance(error, KeyboardInterrupt):
                leave_at_once_later()  # all has ended; a Ray that was cut short may crash at the end
            failed = replace(run.failed(error, exit_code=exit_code_of(error)), config=named_by)
            with undisturbed():
                try:
                    tell(failed)
                except OSError as trouble:  # the disk is full, perhaps: what ended the launch counts more
                    output(stderr=True).print(f"report not written: {trouble}", markup=False)
            raise
    console.print()
    console.print(render(report))
    tell(report)


@command
def report(
    json_file: Annotated[
        Path | None,
        typer.Argument(
            metavar="REPORT.json",
            help="What launch --json wrote; else the last launch of this user on this machine.",
            show_default=False,
        ),
    ] = None,
    html_file: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE.html", help="One page for a browser.")
    ] = None,
    trace_file: TraceFile = None,
    metrics_file: MetricsFile = None,
) -> None:
    """Show the report of a launch again: as a table, a page, a trace, metrics."""
    from warmrank.orchestrator.launch.report import read_last, read_report
    from warmrank.orchestrator.ui.outputs import Outputs
    from warmrank.orchestrator.ui.report_table import render

    found = read_report(json_file) if json_file else read_last()
    outputs = Outputs(html=html_file, trace=trace_file, metrics=metrics_file)
    outputs.prepare()
    console = output()
    written = outputs.write(found)
    if not written:
        console.print(render(found))
    for what, path in written:
        console.print(f"{what}: {path}", soft_wrap=True, markup=False)


MARKER = ".made-by-warmrank-demo"
_MADE = ("cache", "store", "cold.json", "warm.json", "cold.html", "warm.html")

Run = Callable[[Sequence[str]], int]


def run_demo(out: Path, console: Console, *, run: Run | None = None) -> None:
    """Launch cold, launch warm, and compare; ``run`` runs a command and returns its exit status.

    Raises:
        BadArgument: ``out`` holds something that no demo made; nothing was touched.
        DemoFailed: a launch failed, or the warm one compiled.
    """
    import importlib.resources

    prepare_demo(out)
    config = Path(str(importlib.resources.files("warmrank.cluster_configs") / "llama-cpu.yaml"))
    if config.is_relative_to(Path.cwd()):  # as people would name it from here
        config = config.relative_to(Path.cwd())
    sets = ("--set", f"cache_dir={out / 'cache'}", "--set", f"store.path={out / 'store'}")
    cold, warm = (_launch(name, (str(config), *sets), out, console, run) for name in ("cold", "warm"))
    before_s, after_s = (max(map(_saved_s, report.ranks)) for report, _ in (cold, warm))
    saved = (
        f"{seconds_text(before_s)} of tracing and compiling, cold; {seconds_text(after_s)} of loading, warm"
    )
    faster = (f"   {before_s / max(after_s, 1e-9):.1f} x faster", "bold green")
    console.print()
    console.print(Text.assemble(("To get warm: ", "bold"), saved, faster), soft_wrap=True)
    console.print(_comparison(cold, warm))
    totals = warm[0].totals
    if totals.num_compiled:
        compiled = count_text(totals.num_compiled, "function")
        raise DemoFailed(f"the warm launch compiled {compiled}; expected none", exit_code=1)
    kept = f"{totals.num_loaded} loaded, {totals.num_adopted} adopted, 0 compiled"
    program = "warmrank" if shutil.which("warmrank") else f"{sys.executable} -m warmrank"
    named = f"{config} {' '.join(sets)}"
    for text, style in (
        (f"The warm launch compiled nothing: {kept}.", "bold green"),
        (f"  artifacts  {out / 'cache'}", ""),
        (f"  store      {out / 'store'}", ""),
        (f"  reports    {out / 'cold.html'}, {out / 'warm.html'}, for a browser; beside them as JSON", ""),
        ("Try next, with twice the ranks: they adopt, and nothing is compiled either.", ""),
        (f"  {program} launch {named} --set ranks=4 --set parallel.dp=2", "bold"),
        (f"  {program} explain {named}", "bold"),
    ):
        console.print(Text(text, style=style), soft_wrap=True)


def prepare_demo(out: Path) -> None:
    """Make ``out``, or empty it of what an earlier demo made.

    Raises:
        BadArgument: it holds something, and no demo made it.
    """
    if out.exists() and not (out.is_dir() and ((out / MARKER).is_file() or not any(out.iterdir()))):
        raise BadArgument(
            f"{out} exists, and no demo made it (it has no {MARKER}), so it is left alone; "
            "move it away, or name another directory"
        )
    out.mkdir(parents=True, exist_ok=True)
    for path in map(out.joinpath, _MADE):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
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


def _comparison(*launches: tuple[Report, float]) -> Table:
    """Speed-ups of the warm launch: first of the work that a cache can save, last of the whole process."""
    reports = [report for report, _ in launches]
    starts = [sum(each.seconds for each in report.stages if each.stage == "start") for report in reports]
    rows = [
        (f"rank {rank}: trace + compile + load", [_saved_s(report.ranks[rank]) for report in reports])
        for rank in range(len(reports[0].ranks))
    ]
    after = [report.totals.wall_s - start for report, start in zip(reports, starts, strict=True)]
    rows.append(("launch, once its ranks are started", after))
    rows.append(("start of Ray and of its ranks, which no cache saves", starts))
    rows.append(("whole process, all that included", [process_s for _, process_s in launches]))
    table = table_of("what the seconds span", ">cold", ">warm", ">faster", title="cold and warm")
    for what, (before_s, after_s) in rows:
        ratio = f"{before_s / after_s:.1f} x" if after_s > 0 else "-"
        table.add_row(what, seconds_text(before_s), seconds_text(after_s), ratio)
    return table


def _launch(
    name: str, words: Sequence[str], out: Path, console: Console, run: Run | None
) -> tuple[Report, float]:
    """One launch of the demo: its report, and the wall seconds of its process."""
    from warmrank.orchestrator.launch.report import read_report

    path = out / f"{name}.json"
    console.print()
    console.print(Rule(Text(f"{name} launch", style="bold"), align="left"), width=min(console.width, WIDE))
    started = time.perf_counter()
    files = ("--json", str(path), "--report", str(path.with_suffix(".html")))
    status = (run or run_process)((sys.executable, "-m", "warmrank", "launch", *words, *files))
    process_s = time.perf_counter() - started
    if status != 0:
        raise DemoFailed(
            f"the {name} launch ended with status {status}; its own message stands above",
            exit_code=status if status > 0 else 128 - status,
        )
    return read_report(path), process_s


def _saved_s(rank: RankReport) -> float:
    return sum(each.seconds.trace_s + each.seconds.compile_s + each.seconds.load_s for each in rank.functions)
