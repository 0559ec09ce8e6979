"""The command line: every command by its name and panel.

Importing this module imports neither torch nor Ray; a command imports what it needs when it runs.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from typing import Annotated

import typer

from warmrank.orchestrator.cli import build as cli_build
from warmrank.orchestrator.cli import config as cli_config
from warmrank.orchestrator.cli import exec as cli_exec
from warmrank.orchestrator.cli import inspect as cli_inspect
from warmrank.orchestrator.cli import keys as cli_keys
from warmrank.orchestrator.cli import launch as cli_launch
from warmrank.orchestrator.cli import preseed as cli_preseed
from warmrank.orchestrator.cli import store as cli_store
from warmrank.orchestrator.cli import submit as cli_submit
from warmrank.orchestrator.cli.options import group_of_commands
from warmrank.orchestrator.signals import leave_at_once_if_needed

# The panels of --help; a command that belongs to none of them is hard to find.
LAUNCH, LOOK, STORE = "Launch", "Look", "Store, keys and config"


app = group_of_commands(
    "Every rank starts warm: compile a model once for a cluster, load it in milliseconds everywhere.",
    name="warmrank",
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog="Exit status: 0 every rank is warm; 1 the launch failed; 2 bad input or config; "
    "3 something missed that must not be compiled; 4 a fault in store or cache; 5 ranks, nodes or cluster "
    "were lost; 130 stopped (Ctrl-C); 143 stopped (SIGTERM).",
)


def main() -> None:
    """Run the command line."""
    try:
        app(prog_name="warmrank")
    except SystemExit as end:
        leave_at_once_if_needed(end.code)
        raise


def _print_version(wanted: bool) -> None:
    if not wanted:
        return
    try:
        version = importlib.metadata.version("warmrank")
    except importlib.metadata.PackageNotFoundError:
        version = "(not installed)"
    typer.echo(f"warmrank {version}")
    raise typer.Exit


@app.callback()
def root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Take the options of the program itself."""


_COMMANDS: dict[str, dict[str, Callable[..., None]]] = {
    LAUNCH: {
        "launch": cli_launch.launch,
        "submit": cli_submit.submit,
        "preseed": cli_preseed.preseed,
        "exec": cli_exec.exec_,
        "run": cli_exec.run,
        "build": cli_build.build,
        "audit": cli_build.audit,
    },
    LOOK: {
        "explain": cli_inspect.explain,
        "report": cli_launch.report,
        "ls": cli_inspect.list_,
        "show": cli_inspect.show,
        "doctor": cli_inspect.doctor,
    },
}
_AS_GIVEN = {"ignore_unknown_options": True, "allow_interspersed_args": False}
for _panel, _commands in _COMMANDS.items():
    for _name, _command in _commands.items():
        _settings = _AS_GIVEN if _name == "run" else None  # whose options are the script's
        _class = cli_exec.ExecCommand if _name == "exec" else None
        app.command(_name, cls=_class, rich_help_panel=_panel, context_settings=_settings)(_command)
app.add_typer(cli_store.app, name="store", rich_help_panel=STORE)
app.add_typer(cli_keys.app, name="keys", rich_help_panel=STORE)
app.add_typer(cli_config.app, name="config", rich_help_panel=STORE)
