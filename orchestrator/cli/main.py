"""The command line: every command by its name and panel.

Importing this module imports neither torch nor Ray; a command imports what it needs when it runs.
"""

from __future__ import annotations

import importlib.metadata
from typing import Annotated

import typer

from warmrank.orchestrator.cli import build, config, exec, inspect, keys, launch, preseed, store, submit  # noqa: A004
from warmrank.orchestrator.cli.options import group_of_commands
from warmrank.orchestrator.signals import leave_at_once_if_needed

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
    if wanted:
        typer.echo(f"warmrank {importlib.metadata.version('warmrank')}")
        raise typer.Exit


@app.callback()
def root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Take the options of the program itself."""


for _name, _command in {
    "launch": launch.launch,
    "submit": submit.submit,
    "preseed": preseed.preseed,
    "build": build.build,
    "audit": build.audit,
}.items():
    app.command(_name, rich_help_panel="Launch")(_command)
app.command("exec", cls=exec.ExecCommand, rich_help_panel="Launch")(exec.exec_)
_AS_GIVEN = {"ignore_unknown_options": True, "allow_interspersed_args": False}  # options are the script's
app.command("run", context_settings=_AS_GIVEN, rich_help_panel="Launch")(exec.run)
for _name, _command in {
    "explain": inspect.explain,
    "report": launch.report,
    "ls": inspect.list_,
    "show": inspect.show,
    "doctor": inspect.doctor,
}.items():
    app.command(_name, rich_help_panel="Look")(_command)
for _group, _of in {"store": store.app, "keys": keys.app, "config": config.app}.items():
    app.add_typer(_of, name=_group, rich_help_panel="Store, keys and config")
