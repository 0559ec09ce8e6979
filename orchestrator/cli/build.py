"""The commands of an offline build: `build`, and `environment` for the machines that it is for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.console import output, print_json, session
from orchestrator.cli.options import ConfigFile, Debug, Overrides


def build(  # noqa: PLR0913, PLR0917 - options of a command
    config: ConfigFile,
    world_size: Annotated[
        int | None,
        typer.Option("--world-size", metavar="N", min=1, help="Number of ranks; else the config's."),
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", metavar="KIND", help="cpu, cuda or npu; else the config's.")
    ] = None,
    environment_file: Annotated[
        Path | None,
        typer.Option(
            "--environment", metavar="FILE", help="What warmrank environment printed on a target machine."
        ),
    ] = None,
    real_tensors: Annotated[
        bool, typer.Option("--real-tensors", help="Build the model with memory and values (device cpu).")
    ] = False,
    every_rank: Annotated[
        bool, typer.Option("--every-rank", help="Build every rank's model, not one for each position.")
    ] = False,
    jobs: Annotated[
        int | None, typer.Option("--jobs", metavar="J", min=1, help="Ranks that work at a time.")
    ] = None,
    overrides: Overrides = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the report there; - for stdout.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Make the partitions of all ranks on this machine, without devices and without a cluster."""
    with session(debug=debug):
        from orchestrator.build.driver import BuildOptions
        from orchestrator.build.driver import build as run
        from orchestrator.build.report import to_json
        from orchestrator.build.table import render_build
        from orchestrator.build.target import read_target, target_here
        from orchestrator.config.reading import load
        from orchestrator.show.progress import progress
        from orchestrator.show.whole_file import make_way, write_whole

        chosen = (*(overrides or ()), *([f"device={device}"] if device else ()))
        loaded = load(config, chosen, world_size=world_size)
        options = BuildOptions(
            target=read_target(environment_file) if environment_file else target_here(),
            real_tensors=real_tensors,
            every_rank=every_rank,
            num_jobs=jobs or len(os.sched_getaffinity(0)),
        )
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


def environment(debug: Debug = False) -> None:
    """Print this machine's environment as JSON, for warmrank build --environment elsewhere."""
    with session(debug=debug):
        from worker.environment import environment as here

        print_json(here())
