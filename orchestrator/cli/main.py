"""The command line: thin commands over `launch`, `preseed`, `submit`, `look`, `explain`, `verify` and `demo`.

Importing this module imports neither torch nor Ray; a command imports what it needs when it runs.
"""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path
from typing import Annotated

import typer

from warmrank.orchestrator.cli import build as cli_build
from warmrank.orchestrator.cli import cluster as cli_cluster
from warmrank.orchestrator.cli import config as cli_config
from warmrank.orchestrator.cli import doctor as cli_doctor
from warmrank.orchestrator.cli import evict as cli_evict
from warmrank.orchestrator.cli import exec as cli_exec
from warmrank.orchestrator.cli import keys as cli_keys
from warmrank.orchestrator.cli import launch as cli_launch
from warmrank.orchestrator.cli import look as cli_look
from warmrank.orchestrator.cli import preseed as cli_preseed
from warmrank.orchestrator.cli import publish as cli_publish
from warmrank.orchestrator.cli import sync as cli_sync
from warmrank.orchestrator.cli.completion import for_bash
from warmrank.orchestrator.cli.config_option import ConfigGroup
from warmrank.orchestrator.cli.console import output, session
from warmrank.orchestrator.cli.options import ConfigFile, Debug, Overrides, load_config, refuse_what_fails
from warmrank.orchestrator.leaving import leave_at_once_if_needed
from warmrank.worker.settings import settings

# The panels of --help; a command that belongs to none of them is hard to find.
LAUNCH, CLUSTER, LOOK, STORE, KEYS = "Launch", "Cluster", "Look", "Store", "Keys"

_WHERE = "Absolute, on the node that the job's driver runs on."

app = typer.Typer(
    name="warmrank",
    cls=ConfigGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit status: 0 every rank is warm; 1 the launch failed; 2 bad input or config; "
    "3 something missed that must not be compiled; 4 a fault in store or cache; 5 ranks, nodes or cluster "
    "were lost; 130 stopped (Ctrl-C); 143 stopped (SIGTERM).",
)


def main() -> None:
    """Run the command line."""
    try:
        with for_bash():
            app(prog_name="warmrank")
    except SystemExit as end:
        leave_at_once_if_needed(end.code)
        raise


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"warmrank {_version()}")
        raise typer.Exit


def _version() -> str:
    try:
        return importlib.metadata.version("warmrank")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


@app.callback()
def root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Every rank starts warm: compile a model once for a cluster, load it in milliseconds everywhere."""


app.command(rich_help_panel=LAUNCH)(cli_launch.launch)


@app.command(rich_help_panel=LAUNCH)
def demo(
    out: Annotated[Path, typer.Option(help="Directory for cache, store and reports.")] = Path(
        "warmrank-out/demo"
    ),
    debug: Debug = False,
) -> None:
    """Launch the embedded default twice, cold and then warm, and compare."""
    with session(debug=debug):
        from warmrank.orchestrator.cli.demo import demo as run

        run(out, output())


@app.command(rich_help_panel=LAUNCH)
def submit(  # noqa: PLR0913, PLR0917 - a parameter is an option of the command
    config: ConfigFile,
    address: Annotated[
        str | None, typer.Option(metavar="URL", help="The cluster's dashboard, e.g. http://HEAD:8265.")
    ] = None,
    overrides: Overrides = None,
    no_compile: Annotated[bool, typer.Option("--no-compile", help="As for launch.")] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help=f"The report. {_WHERE}")
    ] = None,
    html_file: Annotated[
        Path | None, typer.Option("--report", metavar="FILE.html", help=f"The same as a page. {_WHERE}")
    ] = None,
    trace_file: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE.json", help=f"The timeline, for Perfetto. {_WHERE}"),
    ] = None,
    metrics_file: Annotated[
        Path | None,
        typer.Option("--metrics", metavar="FILE.prom", help=f"Metrics, for node_exporter. {_WHERE}"),
    ] = None,
    no_wait: Annotated[
        bool,
        typer.Option("--no-wait", help="End once the job is submitted."),
    ] = False,
    job_id: Annotated[
        str | None, typer.Option("--job-id", metavar="ID", help="The job's id on the cluster; else Ray's.")
    ] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option("--metadata", metavar="KEY=VALUE", help="Kept with the job by Ray. Repeatable."),
    ] = None,
    debug: Debug = False,
) -> None:
    """Run a launch as a Ray job and follow its log; Ctrl-C stops the job."""
    with session(debug=debug):
        from warmrank.orchestrator.config.reading import relative_places, require_workload
        from warmrank.orchestrator.gang import upload
        from warmrank.orchestrator.jobs import submit as jobs

        loaded = load_config(config, overrides)
        require_workload(loaded, str(config))
        upload.refuse_in_job(relative_places(config, tuple(overrides or ())), str(config))
        refuse_what_fails(loaded, str(config), overrides, is_elsewhere=True)
        named = jobs.JobNames(job_id=job_id, metadata=jobs.parse_metadata(metadata or ()))
        no_compile = no_compile or settings().no_compile  # the job has an environment of its own
        here = Path.cwd()
        files = {
            "--json": json_file,
            "--report": html_file,
            "--trace": trace_file,
            "--metrics": metrics_file,
        }
        entrypoint = jobs.job_entrypoint(
            config, overrides or (), directory=here, no_compile=no_compile, files=files
        )
        notes = output(stderr=True)
        for line in upload.upload_notes(here, loaded):
            notes.print(f"note: {line}", soft_wrap=True, markup=False)
        client = jobs.connect(address, environ=os.environ)
        env = upload.runtime_env(here, loaded)
        job = jobs.submit_job(client, entrypoint=entrypoint, env=env, names=named)
        _write(f"job {job} submitted; follow it also with: ray job logs -f {job}\n")
        if no_wait:
            raise typer.Exit
        outcome = jobs.follow_job(client, job, write=_write)
        notes.print(f"job {outcome.job} {outcome.status}: {outcome.message}", soft_wrap=True, markup=False)
    raise typer.Exit(outcome.exit_code)


app.command(rich_help_panel=LAUNCH)(cli_preseed.preseed)
app.command("exec", rich_help_panel=LAUNCH)(cli_exec.exec_)
app.command(rich_help_panel=LAUNCH)(cli_build.build)
app.command(rich_help_panel=CLUSTER)(cli_cluster.up)
app.command(rich_help_panel=CLUSTER)(cli_cluster.down)
app.add_typer(cli_config.app, rich_help_panel=LOOK)
app.command("ls", rich_help_panel=LOOK)(cli_look.list_)
app.command(rich_help_panel=LOOK)(cli_launch.report)
app.command(rich_help_panel=LOOK)(cli_build.environment)
app.command(rich_help_panel=LOOK)(cli_look.show)
app.command(rich_help_panel=LOOK)(cli_look.explain)
app.command(rich_help_panel=LOOK)(cli_look.readable)
app.command(rich_help_panel=LOOK)(cli_doctor.doctor)
app.command(rich_help_panel=STORE)(cli_publish.init)
app.command(rich_help_panel=STORE)(cli_publish.publish)
app.command(rich_help_panel=STORE)(cli_look.verify)
app.command(rich_help_panel=STORE)(cli_build.audit)
app.command(rich_help_panel=STORE)(cli_evict.evict)
app.command(rich_help_panel=STORE)(cli_evict.pin)
app.add_typer(cli_sync.app, name="sync", rich_help_panel=STORE)
app.add_typer(cli_keys.app, rich_help_panel=KEYS)


def _write(text: str) -> None:
    typer.echo(text, nl=False)
