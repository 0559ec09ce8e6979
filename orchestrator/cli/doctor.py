"""The command that checks a node, or every node of a cluster, before a launch meets with what is wrong."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from warmrank.orchestrator.cli.console import ExitCode, answer, session
from warmrank.orchestrator.cli.options import (
    AsJson,
    Debug,
    OptionalConfig,
    Overrides,
    load_config,
    refuse_shadows,
)
from warmrank.orchestrator.others_output import others_on_stderr


def doctor(
    config: OptionalConfig = None,
    device: Annotated[
        Literal["cpu", "cuda", "npu"] | None,
        typer.Option(
            "--device", metavar="KIND", help="cpu, cuda or npu; else the config's, else what is there."
        ),
    ] = None,
    all_nodes: Annotated[
        bool, typer.Option("--all-nodes", help="Every node of the config's Ray cluster, not this one alone.")
    ] = False,
    overrides: Overrides = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Check versions, devices, limits, network, store, disk and clocks; say what is wrong and how to mend it.

    Ends with 1 if there is an error, with 0 also where there are warnings.
    """
    if all_nodes and config is None:
        raise typer.BadParameter("it needs a CONFIG, which names the cluster", param_hint="--all-nodes")
    with session(debug=debug):
        from warmrank.orchestrator.doctor.table import render_diagnosis

        loaded = None if config is None else load_config(config, overrides)
        if all_nodes and loaded is not None:
            from warmrank.orchestrator.doctor.nodes import diagnose_nodes

            refuse_shadows()
            with others_on_stderr():
                found = diagnose_nodes(loaded, device)
        else:
            from warmrank.orchestrator.doctor.examine import diagnose_here

            found = diagnose_here(loaded, device)
        answer(found, render_diagnosis, as_json=as_json)
    if found.worst == "error":
        raise typer.Exit(ExitCode.FAILED)
