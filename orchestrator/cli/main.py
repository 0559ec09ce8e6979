"""The command line: every command by its name and panel.

Importing this module imports neither torch nor Ray; a command imports what it needs when it runs.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from functools import partial
from io import TextIOWrapper
from typing import Annotated

import typer

from warmrank.orchestrator.cli import launch, look, nodes, store
from warmrank.orchestrator.cli.options import Commands, PlainCommand
from warmrank.orchestrator.signals import ctrl_c_leaves, leave_at_once_if_needed

app = Commands(
    "Every rank starts warm: compile a model once for a cluster, load it in milliseconds everywhere.",
    name="warmrank",
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog="Exit status: 0 every rank is warm; 1 the launch failed; 2 bad input or config; "
    "3 something missed that must not be compiled; 4 a fault in store or cache; 5 ranks, nodes or cluster "
    "were lost; 130 stopped (Ctrl-C); 143 stopped (SIGTERM); 129 stopped (SIGHUP).",
)


def main() -> None:
    """Run the command line; a standard stream that is closed is the null device, lest a file be it."""
    ctrl_c_leaves()
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, so the stream's own
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, "w" if number else "r"))
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr: names of files that its encoding lacks
    if os.environ.get("COLUMNS") == "0":  # not known; a table of no width would be empty
        del os.environ["COLUMNS"]
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


_launch = partial(app.register, rich_help_panel="Launch")
_launch("launch")(launch.launch)
_launch("submit")(launch.submit)
_launch("preseed")(nodes.preseed)
_launch("build")(nodes.build)
_launch("audit")(nodes.audit)
_launch("exec", cls=nodes.ExecCommand)(nodes.exec_)
_AS_GIVEN = {"ignore_unknown_options": True, "allow_interspersed_args": False}  # options are the script's
_run = partial(app.command, cls=PlainCommand, rich_help_panel="Launch")
_run("run", context_settings=_AS_GIVEN)(nodes.run)
_look = partial(app.register, rich_help_panel="Look")
_look("explain")(look.explain)
_look("report")(launch.report)
_look("ls")(look.list_)
_look("show")(look.show)
_look("doctor")(look.doctor)
for _name, _group in {"store": store.app, "keys": store.keys_app, "config": look.config_app}.items():
    app.add_typer(_group, name=_name, rich_help_panel="Store, keys and config")
