"""The commands that trace offline: `build`, `audit`, and `environment` for the machines that they are for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from warmrank.orchestrator.cli.console import ExitCode, answer, output, print_json, session
from warmrank.orchestrator.cli.options import AsJson, ConfigFile, Debug, Overrides

if TYPE_CHECKING:
    from warmrank.orchestrator.build.driver import BuildOptions


WorldSize = Annotated[
    int | None,
    typer.Option("--world-size", metavar="N", min=1, help="Number of ranks; else the config's."),
]
Device = Annotated[
    str | None, typer.Option("--device", metavar="KIND", help="cpu, cuda or npu; else the config's.")
]
EnvironmentFile = Annotated[
    Path | None,
    typer.Option(
        "--environment", metavar="FILE", help="What warmrank environment printed on a target machine."
    ),
]
RealTensors = Annotated[
    bool, typer.Option("--real-tensors", help="Build the model with memory and values (device cpu).")
]
EveryRank = Annotated[
    bool, typer.Option("--every-rank", help="Build every rank's model, not one for each position.")
]
Jobs = Annotated[int | None, typer.Option("--jobs", metavar="J", min=1, help="Ranks that work at a time.")]


def build(  # noqa: PLR0913, PLR0917 - options of a command
    config: ConfigFile,
    world_size: WorldSize = None,
    device: Device = None,
    environment_file: EnvironmentFile = None,
    real_tensors: RealTensors = False,
    every_rank: EveryRank = False,
    jobs: Jobs = None,
    overrides: Overrides = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the report there; - for stdout.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Make the partitions of all ranks on this machine, without devices and without a cluster."""
    with session(debug=debug):
        from warmrank.orchestrator.build.driver import build as run
        from warmrank.orchestrator.build.report import to_json
        from warmrank.orchestrator.config.reading import load
        from warmrank.orchestrator.ui.progress import progress
        from warmrank.orchestrator.ui.table import render_build
        from warmrank.orchestrator.whole_file import make_way, write_whole

        chosen = (*(overrides or ()), *([f"device={device}"] if device else ()))
        loaded = load(config, chosen, world_size=world_size)
        options = _options(environment_file, real_tensors=real_tensors, every_rank=every_rank, jobs=jobs)
        to_stdout = json_file == Path("-")
        if json_file and not to_stdout:
            make_way(json_file)
        console = output(stderr=to_stdout)
        with progress(console, loaded.ranks) as listener:
            report = run(loaded, options, listener=listener)
        console.print()
        console.print(render_build(report))
        if to_stdout:
            typer.echo(to_json(report), nl=False)
        elif json_file:
            write_whole(json_file, to_json(report))
            console.print(f"report: {json_file}", soft_wrap=True, markup=False)


def audit(  # noqa: PLR0913, PLR0917 - options of a command
    config: ConfigFile,
    world_size: WorldSize = None,
    device: Device = None,
    environment_file: EnvironmentFile = None,
    real_tensors: RealTensors = False,
    every_rank: EveryRank = False,
    jobs: Jobs = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Trace again what a store holds, and compare: is it what would be compiled now?"""
    with session(debug=debug):
        from warmrank.orchestrator.build.retrace import audit_cache
        from warmrank.orchestrator.config.reading import load
        from warmrank.orchestrator.look.store_contents import open_if_there
        from warmrank.orchestrator.ui.progress import progress
        from warmrank.orchestrator.ui.table import render_audit

        chosen = (*(overrides or ()), *([f"device={device}"] if device else ()))
        loaded = load(config, chosen, world_size=world_size)
        options = _options(environment_file, real_tensors=real_tensors, every_rank=every_rank, jobs=jobs)
        with progress(output(stderr=True), loaded.ranks) as listener:
            found = audit_cache(loaded, options, open_if_there(loaded), listener=listener)
        answer(found, render_audit, as_json=as_json)
    if found.outcome != "fresh":
        raise typer.Exit(ExitCode.FAULT if found.outcome == "stale" else ExitCode.MISSED)


def _options(
    environment_file: Path | None, *, real_tensors: bool, every_rank: bool, jobs: int | None
) -> BuildOptions:
    from warmrank.orchestrator.build.driver import BuildOptions
    from warmrank.orchestrator.build.plan import read_target, target_here

    return BuildOptions(
        target=read_target(environment_file) if environment_file else target_here(),
        real_tensors=real_tensors,
        every_rank=every_rank,
        num_jobs=jobs or len(os.sched_getaffinity(0)),
    )


def environment(debug: Debug = False) -> None:
    """Print this machine's environment as JSON, for warmrank build --environment elsewhere."""
    with session(debug=debug):
        from warmrank.worker.keys.environment import environment as here

        print_json(here())
