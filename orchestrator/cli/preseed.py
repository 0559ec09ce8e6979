"""The command `preseed`: nodes' local disks filled from the store before anything runs on them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from warmrank.orchestrator.cli.console import ExitCode, defused_json, output, plain, print_json, session
from warmrank.orchestrator.cli.options import (
    AsJson,
    ConfigFile,
    Debug,
    Overrides,
    load_config,
    refuse_shadows,
)
from warmrank.orchestrator.others_output import others_on_stderr

if TYPE_CHECKING:
    from warmrank.orchestrator.config.reading import Config
    from warmrank.orchestrator.seed.events import SeedEvent
    from warmrank.orchestrator.seed.options import SeedOptions
    from warmrank.orchestrator.seed.outcome import NodeSeed
    from warmrank.orchestrator.seed.watch import Until

FanOutChoice = Literal["auto", "always", "never"]
_STEP_S = 0.1


def preseed(  # noqa: PLR0913, PLR0917 - options of a command
    config: ConfigFile,
    here: Annotated[
        bool, typer.Option("--here", help="This node only; imports neither torch nor Ray.")
    ] = False,
    nodes: Annotated[
        list[str] | None,
        typer.Option(
            "--node", metavar="ID", help="Node id, address or host name. Repeatable; else all nodes."
        ),
    ] = None,
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
    limit: Annotated[
        str | None, typer.Option("--limit", metavar="RATE", help="Each node's bandwidth, e.g. 100MB/s.")
    ] = None,
    fan_out: Annotated[
        FanOutChoice,
        typer.Option("--fan-out", help="Read the store once, then go from node to node; auto: from 8 nodes."),
    ] = "auto",
    verify: Annotated[
        bool, typer.Option("--verify", help="Read and verify again what is there already.")
    ] = False,
    overrides: Overrides = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Bring a launch's partitions from the store onto nodes' local disks, verified."""
    _check(here=here, nodes=nodes, watch=watch, ends=for_s is not None or until is not None)
    with session(debug=debug):
        from warmrank.orchestrator.seed.options import SeedOptions, parse_rate
        from warmrank.orchestrator.seed.watch import Until

        rate = parse_rate(limit) if limit is not None else None
        options = SeedOptions(limit_bytes_per_s=rate, verify=verify, fan_out=fan_out)
        loaded, names = load_config(config, overrides), tuple(nodes or ())
        if watch:
            ends = Until(seconds=for_s, num_nodes=until)
            seeds = _watch(loaded, names, options, ends, as_json=as_json)
        else:
            seeds = _here(loaded, options) if here else _once(loaded, names, options)
            if as_json:
                print_json(seeds)
            else:
                _print_table(seeds)
    raise typer.Exit(_exit_code(seeds, wanted=until or 1))


def _check(*, here: bool, nodes: list[str] | None, watch: bool, ends: bool) -> None:
    if here and nodes:
        raise typer.BadParameter("--here and --node exclude each other")
    if here and watch:
        raise typer.BadParameter("--here and --watch exclude each other: a node seeds itself once, at boot")
    if ends and not watch:
        raise typer.BadParameter("--for and --until say when a --watch ends")


def _here(config: Config, options: SeedOptions) -> tuple[NodeSeed, ...]:
    from warmrank.orchestrator.seed.here import intake_of, seed_here
    from warmrank.orchestrator.ui.progress import fetch_progress

    with fetch_progress(output(stderr=True)) as on_progress:
        return (seed_here(config, intake=intake_of(options), on_progress=on_progress),)


def _once(config: Config, names: Sequence[str], options: SeedOptions) -> tuple[NodeSeed, ...]:
    from warmrank.orchestrator.nodes import choose, this_node
    from warmrank.orchestrator.seed import preseed as seeding
    from warmrank.orchestrator.seed.display import seed_display
    from warmrank.orchestrator.seed.here import check_store

    check_store(config)
    if seeding.is_this_machine(config):
        choose((this_node(),), names)
        return _here(config, options)
    refuse_shadows()
    with seed_display(output(stderr=True)) as tell, others_on_stderr():
        return seeding.preseed(config, names, options=options, tell=tell)


def _watch(
    config: Config, names: tuple[str, ...], options: SeedOptions, until: Until, *, as_json: bool
) -> tuple[NodeSeed, ...]:
    from warmrank.orchestrator.errors import BadArgument
    from warmrank.orchestrator.seed.here import check_store
    from warmrank.orchestrator.seed.preseed import is_this_machine
    from warmrank.orchestrator.seed.watch import Watch
    from warmrank.orchestrator.seed.watch_child import ProcessChild

    check_store(config)
    if is_this_machine(config):
        msg = "--watch: expected a cluster, because nodes join one; set ray.address, or RAY_ADDRESS"
        raise BadArgument(msg)
    refuse_shadows()
    results: tuple[NodeSeed, ...] = ()
    try:
        with _shown(as_json=as_json) as tell:
            watch = Watch(lambda seeded: ProcessChild(config, names, options, seeded), until, tell=tell)
            try:
                while not watch.is_done:
                    watch.step()
                    time.sleep(_STEP_S)
            finally:
                watch.stop()
                results = watch.results()
    finally:
        if results and not as_json:
            _print_table(results)
    return results


@contextmanager
def _shown(*, as_json: bool) -> Iterator[Callable[[SeedEvent], None]]:
    """Shows events, and with ``as_json`` writes a line of JSON for each node that ended."""
    from warmrank.orchestrator.seed.display import seed_display
    from warmrank.orchestrator.seed.events import Ended

    with seed_display(output(stderr=True)) as shown:

        def tell(event: SeedEvent) -> None:
            shown(event)
            if as_json and isinstance(event, Ended):
                typer.echo(defused_json(json.dumps(plain(event.seed), ensure_ascii=False)))

        yield tell


def _print_table(seeds: Sequence[NodeSeed]) -> None:
    from warmrank.orchestrator.seed.table import render_seeds

    output().print(render_seeds(seeds))


def _exit_code(seeds: Sequence[NodeSeed], *, wanted: int) -> ExitCode:
    """The worst of all nodes; a watch that ended with fewer than were wanted failed."""
    from warmrank.orchestrator.seed.outcome import word, worst

    codes = {"faults": ExitCode.FAULT, "miss": ExitCode.MISSED, "seeded": ExitCode.OK}
    code = codes[worst(seeds)]
    num_seeded = sum(word(seed) == "seeded" for seed in seeds)
    return ExitCode.FAILED if code == ExitCode.OK and num_seeded < wanted else code
