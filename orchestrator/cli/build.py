"""The commands that trace offline: `build` and `audit`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from warmrank.orchestrator.cli.console import ExitCode, answer, command, output
from warmrank.orchestrator.cli.options import AsJson, ConfigFile, Overrides, ReportFile

if TYPE_CHECKING:
    from warmrank.orchestrator.build.driver import BuildOptions
    from warmrank.orchestrator.config.reading import Config

_WorldSize = Annotated[
    int | None, Option("--world-size", metavar="N", min=1, help="Number of ranks; else the config's.")
]
_Device = Annotated[
    str | None, Option("--device", metavar="KIND", help="cpu, cuda or npu; else the config's.")
]
_EnvironmentFile = Annotated[
    Path | None,
    Option("--environment", metavar="FILE", help="What warmrank doctor --environment printed on a target."),
]
_RealTensors = Annotated[
    bool, Option("--real-tensors", help="Build the model with memory and values (device cpu).")
]
_EveryRank = Annotated[
    bool, Option("--every-rank", help="Build every rank's model, not one for each position.")
]
_Jobs = Annotated[int | None, Option("--jobs", metavar="J", min=1, help="Ranks that work at a time.")]


@command
def build(  # noqa: PLR0913, PLR0917 - options of a command
    config: ConfigFile,
    world_size: _WorldSize = None,
    device: _Device = None,
    environment_file: _EnvironmentFile = None,
    real_tensors: _RealTensors = False,
    every_rank: _EveryRank = False,
    jobs: _Jobs = None,
    overrides: Overrides = None,
    json_file: ReportFile = None,
) -> None:
    """Make the partitions of all ranks on this machine, without devices and without a cluster."""
    from warmrank.orchestrator.build.driver import build as run
    from warmrank.orchestrator.build.plan import to_json
    from warmrank.orchestrator.launch.report import make_way, write_whole
    from warmrank.orchestrator.ui.progress import progress
    from warmrank.orchestrator.ui.report_table import render_build

    loaded = _load(config, overrides, device, world_size)
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


@command
def audit(  # noqa: PLR0913, PLR0917 - options of a command
    config: ConfigFile,
    world_size: _WorldSize = None,
    device: _Device = None,
    environment_file: _EnvironmentFile = None,
    real_tensors: _RealTensors = False,
    every_rank: _EveryRank = False,
    jobs: _Jobs = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Trace again what a store holds, and compare: is it what would be compiled now?"""
    from warmrank.orchestrator.build.driver import audit_cache
    from warmrank.orchestrator.inspect.store_contents import open_if_there
    from warmrank.orchestrator.ui.progress import progress
    from warmrank.orchestrator.ui.report_table import render_audit

    loaded = _load(config, overrides, device, world_size)
    options = _options(environment_file, real_tensors=real_tensors, every_rank=every_rank, jobs=jobs)
    with progress(output(stderr=True), loaded.ranks) as listener:
        found = audit_cache(loaded, options, open_if_there(loaded), listener=listener)
    answer(found, render_audit, as_json=as_json)
    if found.outcome != "fresh":
        raise typer.Exit(ExitCode.FAULT if found.outcome == "stale" else ExitCode.MISSED)


def _load(config: Path, overrides: list[str] | None, device: str | None, world_size: int | None) -> Config:
    from warmrank.orchestrator.config.reading import load

    chosen = (*(overrides or ()), *([f"device={device}"] if device else ()))
    return load(config, chosen, world_size=world_size)


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
