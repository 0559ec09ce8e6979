"""The commands that start and stop a Ray cluster on plain hosts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from warmrank.orchestrator.cli.completion import config_arguments
from warmrank.orchestrator.cli.console import ExitCode, answer, output, session
from warmrank.orchestrator.cli.options import AsJson, Debug

if TYPE_CHECKING:
    from warmrank.orchestrator.cluster.connections import Answer

HostsPath = Annotated[
    Path,
    typer.Argument(
        metavar="HOSTS",
        help="YAML file; see cluster_configs/hosts/.",
        show_default=False,
        autocompletion=config_arguments,
    ),
]


def up(
    hosts: HostsPath,
    look: Annotated[
        bool,
        typer.Option("--status", help="Change nothing: say which hosts are up; ends with 1 if one is not."),
    ] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Start Ray on plain hosts, the head first; what is up already is left alone."""
    with session(debug=debug):
        from warmrank.orchestrator.cluster import bring
        from warmrank.orchestrator.cluster.hosts import load_hosts
        from warmrank.orchestrator.cluster.table import render_cluster

        loaded = load_hosts(hosts)
        report = bring.status(loaded) if look else bring.up(loaded, on_answer=_say)
        answer(report, render_cluster, as_json=as_json)
    if not report.all_up:
        raise typer.Exit(ExitCode.FAILED)


def down(hosts: HostsPath, as_json: AsJson = False, debug: Debug = False) -> None:
    """Stop what `warmrank up` started on every host, and remove Ray's files there."""
    with session(debug=debug):
        from warmrank.orchestrator.cluster import bring
        from warmrank.orchestrator.cluster.hosts import load_hosts
        from warmrank.orchestrator.cluster.table import render_cluster

        report = bring.down(load_hosts(hosts), on_answer=_say)
        answer(report, render_cluster, as_json=as_json)


def _say(answer: Answer) -> None:
    """A line for each host as it answers: many hosts take long, and one of them may be silent."""
    if answer.trouble:
        what = f"failed: {answer.trouble}"
    elif "stopped" in answer.values:
        from warmrank.orchestrator.text import count_text

        what = f"{count_text(answer.values['stopped'], 'process')} ended"
    else:
        what = "was up already" if answer.values["was_up"] else "started"
    output(stderr=True).print(f"{answer.host}: {what}", markup=False, soft_wrap=True)
