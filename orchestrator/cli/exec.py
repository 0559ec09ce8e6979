"""``warmrank exec``: the user's own command on warm nodes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from warmrank.orchestrator.cli.console import output, plain, session
from warmrank.orchestrator.cli.options import (
    ConfigFile,
    Debug,
    Overrides,
    check_line,
    load_config,
    refuse_what_fails,
)
from warmrank.orchestrator.others_output import others_on_stderr

_GRACE_S = 30.0

_Words = Annotated[
    list[str],
    typer.Argument(
        metavar="-- COMMAND...",
        help="After --. {node_rank}, {nnodes}, {nproc}, {ranks}, {master_addr}, {master_port} and "
        "{cache_dir} are replaced on each node.",
        show_default=False,
    ),
]
_When = Annotated[
    str,
    typer.Option(
        metavar="FILE|PORT|exit|none",
        help="When to publish what the command added: a file appears, a port accepts connections (PORT or "
        "HOST:PORT), or the command ends with status 0.",
    ),
]


def exec_(  # noqa: PLR0913 - a command has one parameter for each option
    config: ConfigFile,
    words: _Words,
    *,
    here: Annotated[bool, typer.Option("--here", help="This node only, without Ray.")] = False,
    nodes: Annotated[
        list[str] | None,
        typer.Option(
            "--node", metavar="ID", help="Node id, address or host name. Repeatable; else those needed."
        ),
    ] = None,
    nnodes: Annotated[
        int, typer.Option(min=1, help="With --here: hosts that each run this, for one world of ranks.")
    ] = 1,
    node_rank: Annotated[
        int | None, typer.Option(min=0, help="With --nnodes: which host this is, from 0.")
    ] = None,
    run_id: Annotated[
        str,
        typer.Option(metavar="ID", help="With --nnodes: the same on all hosts of a run, other each time."),
    ] = "",
    master_addr: Annotated[
        str, typer.Option(metavar="ADDRESS", help="With --nnodes: the first host's, for {master_addr}.")
    ] = "",
    master_port: Annotated[
        int, typer.Option(min=0, max=65535, help="With --nnodes: a port there, for {master_port}.")
    ] = 0,
    publish_when: _When = "exit",
    grace: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.0, help="From SIGTERM or Ctrl-C to SIGKILL.")
    ] = _GRACE_S,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write what became of it there.")
    ] = None,
    overrides: Overrides = None,
    debug: Debug = False,
) -> None:
    """Run your own command (vLLM, torchrun) on warm nodes, and publish what it added."""
    if here and nodes:
        raise typer.BadParameter("--here and --node exclude each other")
    if nnodes > 1 and not here:
        raise typer.BadParameter("--nnodes goes with --here; with Ray, --node names nodes")
    if nnodes > 1 and (node_rank is None or node_rank >= nnodes):
        raise typer.BadParameter(f"expected a number from 0 to {nnodes - 1}", param_hint="--node-rank")
    if nnodes > 1 and not run_id:
        raise typer.BadParameter("expected what all hosts of this run have in common", param_hint="--run-id")
    check_line(run_id, "--run-id")

    def say(line: str) -> None:
        output(stderr=True).print(f"warmrank: {line}", soft_wrap=True, markup=False)

    with session(debug=debug):
        from warmrank.orchestrator.exec.driver import Options, execute
        from warmrank.orchestrator.exec.placement import HostGroup, parse_when

        hosts = HostGroup(
            nnodes=nnodes,
            node_rank=node_rank or 0,
            run_id=run_id,
            master_addr=master_addr,
            master_port=master_port,
        )
        options = Options(
            here=here,
            nodes=tuple(nodes or ()),
            when=parse_when(publish_when),
            grace_s=grace,
            hosts=hosts if nnodes > 1 else None,
        )
        loaded = load_config(config, overrides)
        refuse_what_fails(loaded, str(config), overrides, reads_only=publish_when == "none", starts_ray=False)
        if loaded.ranks % nnodes:
            raise typer.BadParameter(f"ranks ({loaded.ranks}) are not as many on each of {nnodes} hosts")
        if json_file is not None:
            json_file.parent.mkdir(parents=True, exist_ok=True)  # before, lest the run's end be an error
        out, err = sys.stdout.buffer, sys.stderr.buffer
        with others_on_stderr():
            outcome = execute(loaded, words, options, say=say, out=out, err=err)
        if json_file is not None:
            json_file.write_text(json.dumps(plain(outcome), indent=2) + "\n", encoding="utf-8")
    raise typer.Exit(outcome.exit_code)
