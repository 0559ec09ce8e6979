"""The command `preseed`: nodes' local disks filled from the store before anything runs on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.text import Text

from warmrank.orchestrator.cli.console import (
    ExitCode,
    answer,
    command,
    defused_json,
    others_on_stderr,
    output,
)
from warmrank.orchestrator.cli.options import (
    AsJson,
    ConfigFile,
    NodeNames,
    Overrides,
    load_config,
)
from warmrank.orchestrator.errors import BadArgument

if TYPE_CHECKING:
    from warmrank.orchestrator.config.reading import Config
    from warmrank.orchestrator.seed.seeding import NodeSeed

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
    from warmrank.orchestrator.gang.ray_session import is_this_machine
    from warmrank.orchestrator.nodes import choose, this_node
    from warmrank.orchestrator.seed.on_ray import seed_cluster, watch_cluster
    from warmrank.orchestrator.seed.seeding import Outcomes, SeedPlan, check_store
    from warmrank.orchestrator.ui.table import render_seeds

    loaded = load_config(config, overrides)
    check_store(loaded)
    plan = SeedPlan(wanted=tuple(nodes or ()), fan_out=fan_out, verify=verify)
    if not here and is_this_machine(loaded):
        if watch:
            raise BadArgument(
                "--watch: expected a cluster, because nodes join one; set ray.address, or RAY_ADDRESS"
            )
        choose((this_node(),), plan.wanted)
        here = True
    if here:
        seeds = _here(loaded, verify=verify)
        answer(seeds, render_seeds, as_json=as_json)
        raise typer.Exit(_exit_code(seeds, wanted=1))
    console = output(stderr=True)
    outcomes = Outcomes(
        lambda line, style: console.print(Text(line, style=style), soft_wrap=True),
        _print_line if watch and as_json else lambda _: None,
    )
    if not watch:
        with others_on_stderr():
            seed_cluster(loaded, plan, outcomes.take)
        answer(outcomes.all(), render_seeds, as_json=as_json)
    else:
        try:
            watch_cluster(loaded, plan, outcomes, seconds=for_s, num_nodes=until)
        finally:
            if outcomes.all() and not as_json:  # also when it is stopped
                output().print(render_seeds(outcomes.all()))
    raise typer.Exit(_exit_code(outcomes.all(), wanted=until or 1))


def _here(config: Config, *, verify: bool) -> tuple[NodeSeed, ...]:
    from warmrank.cache_store.fetch.blobs import FetchOptions
    from warmrank.orchestrator.seed.seeding import seed_here
    from warmrank.orchestrator.ui.progress import fetch_progress

    with fetch_progress(output(stderr=True)) as on_progress:
        return (seed_here(config, options=FetchOptions(reread=verify, on_progress=on_progress)),)


def _print_line(seed: NodeSeed) -> None:
    typer.echo(defused_json(seed, indent=None))


def _exit_code(seeds: Sequence[NodeSeed], *, wanted: int) -> ExitCode:
    """The worst of all nodes; a watch that ended with fewer than were wanted failed."""
    statuses = {seed.status for seed in seeds}
    if "faults" in statuses:
        return ExitCode.FAULT
    if "miss" in statuses:
        return ExitCode.MISSED
    return ExitCode.OK if len(seeds) >= wanted else ExitCode.FAILED
