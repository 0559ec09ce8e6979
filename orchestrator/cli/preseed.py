"""The command `preseed`: nodes' local disks filled from the store before anything runs on them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from warmrank.orchestrator.cli.console import (
    ExitCode,
    command,
    defused_json,
    others_on_stderr,
    output,
    print_json,
)
from warmrank.orchestrator.cli.options import (
    AsJson,
    ConfigFile,
    NodeNames,
    Overrides,
    load_config,
    refuse_shadows,
)
from warmrank.orchestrator.errors import BadArgument

if TYPE_CHECKING:
    from warmrank.orchestrator.config.reading import Config
    from warmrank.orchestrator.seed.seeding import NodeSeed, SeedPlan

FanOutChoice = Literal["auto", "always", "never"]


@command
def preseed(  # noqa: PLR0913, PLR0917 - options of a command
    config: ConfigFile,
    here: Annotated[
        bool, typer.Option("--here", help="This node only; imports neither torch nor Ray.")
    ] = False,
    nodes: NodeNames = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Keep running: seed nodes as they join, try failed ones again.")
    ] = False,
    for_s: Annotated[
        float | None, typer.Option("--for", metavar="SECONDS", min=0.0, help="End the watch after so long.")
    ] = None,
    until: Annotated[
        int | None,
        typer.Option("--until", metavar="N", min=1, help="End the watch once N nodes are seeded."),
    ] = None,
    fan_out: Annotated[
        FanOutChoice,
        typer.Option("--fan-out", help="One node reads the store for the others; auto: from 8 nodes."),
    ] = "auto",
    verify: Annotated[
        bool, typer.Option("--verify", help="Read and verify again what is there already.")
    ] = False,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Bring a launch's partitions from the store onto nodes' local disks, verified."""
    if here and nodes:
        raise typer.BadParameter("--here and --node exclude each other")
    if here and watch:
        raise typer.BadParameter("--here and --watch exclude each other: a node seeds itself once, at boot")
    if (for_s is not None or until is not None) and not watch:
        raise typer.BadParameter("--for and --until say when a --watch ends")
    from warmrank.orchestrator.seed.seeding import SeedPlan, check_store

    loaded = load_config(config, overrides)
    check_store(loaded)
    plan = SeedPlan(wanted=tuple(nodes or ()), fan_out=fan_out, verify=verify)
    if watch:
        seeds = _watch(loaded, plan, for_s, until, as_json=as_json)
    else:
        seeds = _here(loaded, plan) if here else _once(loaded, plan)
        if as_json:
            print_json(seeds)
        else:
            _print_table(seeds)
    raise typer.Exit(_exit_code(seeds, wanted=until or 1))


def _here(config: Config, plan: SeedPlan) -> tuple[NodeSeed, ...]:
    from warmrank.cache_store.fetch.blobs import FetchOptions
    from warmrank.orchestrator.seed.seeding import seed_here
    from warmrank.orchestrator.ui.progress import fetch_progress

    with fetch_progress(output(stderr=True)) as on_progress:
        options = FetchOptions(reread=plan.verify, on_progress=on_progress)
        return (seed_here(config, options=options),)


def _once(config: Config, plan: SeedPlan) -> tuple[NodeSeed, ...]:
    from warmrank.orchestrator.nodes import choose, this_node
    from warmrank.orchestrator.seed import on_ray
    from warmrank.orchestrator.seed.seeding import seed_lines

    if on_ray.is_this_machine(config):
        choose((this_node(),), plan.wanted)
        return _here(config, plan)
    refuse_shadows()
    with seed_lines(output(stderr=True)) as lines, others_on_stderr():
        on_ray.preseed(config, plan, show=lines.show)
        return lines.outcomes()


def _watch(
    config: Config, plan: SeedPlan, seconds: float | None, num_nodes: int | None, *, as_json: bool
) -> tuple[NodeSeed, ...]:
    """Watch; show a table also when interrupted, with ``as_json`` a line for each node that ended instead."""
    from warmrank.orchestrator.seed.on_ray import Watch, is_this_machine, seeding_process
    from warmrank.orchestrator.seed.seeding import seed_lines

    if is_this_machine(config):
        raise BadArgument(
            "--watch: expected a cluster, because nodes join one; set ray.address, or RAY_ADDRESS"
        )
    refuse_shadows()
    results: tuple[NodeSeed, ...] = ()
    try:
        with seed_lines(output(stderr=True), _print_line if as_json else lambda _: None) as lines:

            def start(seeded: tuple[NodeSeed, ...]) -> AbstractContextManager[Any]:
                return seeding_process(config, plan, seeded)

            try:
                Watch(start, lines, seconds=seconds, num_nodes=num_nodes).run()
            finally:
                results = lines.outcomes()
    finally:
        if results and not as_json:
            _print_table(results)
    return results


def _print_line(seed: NodeSeed) -> None:
    typer.echo(defused_json(seed, indent=None))


def _print_table(seeds: Sequence[NodeSeed]) -> None:
    from warmrank.orchestrator.ui.table import render_seeds

    output().print(render_seeds(seeds))


def _exit_code(seeds: Sequence[NodeSeed], *, wanted: int) -> ExitCode:
    """The worst of all nodes; a watch that ended with fewer than were wanted failed."""
    statuses = {seed.status for seed in seeds}
    if "faults" in statuses:
        return ExitCode.FAULT
    if "miss" in statuses:
        return ExitCode.MISSED
    return ExitCode.OK if len(seeds) >= wanted else ExitCode.FAILED
