"""The command that launches, and the one that renders a launch's report again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from warmrank.orchestrator.cli.console import command, exit_code_of, others_on_stderr, output
from warmrank.orchestrator.cli.options import NodeNames, Overrides, ReportFile, load_config, refuse_what_fails
from warmrank.orchestrator.signals import leave_at_once_later, named, undisturbed
from warmrank.worker.settings import settings

if TYPE_CHECKING:
    from warmrank.orchestrator.launch.report import Report

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
        from warmrank.orchestrator.cli.demo import demo as run_demo

        run_demo(demo or Path(), output())
        return
    from warmrank.orchestrator.config.reading import require_workload
    from warmrank.orchestrator.launch.driver import Launch
    from warmrank.orchestrator.launch.report import keep_last, to_json
    from warmrank.orchestrator.launch.state import all_of
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
