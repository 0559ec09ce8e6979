"""The command line: thin commands over `launch`, `preseed`, `submit`, `look`, `explain`, `verify` and `demo`.

Importing this module imports neither torch nor Ray; a command imports what it needs when it runs.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Annotated

import typer

from warmrank.orchestrator.cli import build as cli_build
from warmrank.orchestrator.cli import config as cli_config
from warmrank.orchestrator.cli import exec as cli_exec
from warmrank.orchestrator.cli import keys as cli_keys
from warmrank.orchestrator.cli import launch as cli_launch
from warmrank.orchestrator.cli import look as cli_doctor
from warmrank.orchestrator.cli import look as cli_look
from warmrank.orchestrator.cli import preseed as cli_preseed
from warmrank.orchestrator.cli import store as cli_evict
from warmrank.orchestrator.cli import store as cli_publish
from warmrank.orchestrator.cli import store as cli_sync
from warmrank.orchestrator.cli import submit as cli_submit
from warmrank.orchestrator.cli.completion import for_bash
from warmrank.orchestrator.cli.console import output, session
from warmrank.orchestrator.cli.options import ConfigGroup, Debug
from warmrank.orchestrator.leaving import leave_at_once_if_needed

# The panels of --help; a command that belongs to none of them is hard to find.
LAUNCH, LOOK, STORE, KEYS = "Launch", "Look", "Store", "Keys"

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


app.command(rich_help_panel=LAUNCH)(cli_submit.submit)
app.command(rich_help_panel=LAUNCH)(cli_preseed.preseed)
app.command("exec", cls=cli_exec.ExecCommand, rich_help_panel=LAUNCH)(cli_exec.exec_)
app.command(rich_help_panel=LAUNCH)(cli_build.build)
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
