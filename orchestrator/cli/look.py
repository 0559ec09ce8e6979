"""The commands that look into a store, a cache or an artifact; each also with ``--json``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from warmrank.orchestrator.cli.console import ExitCode, answer, defused, output, plain, print_json, session
from warmrank.orchestrator.cli.options import (
    AsJson,
    Debug,
    OptionalConfig,
    Overrides,
    StorePath,
    load_config,
    load_optional,
)


def list_(
    config: OptionalConfig = None,
    store: StorePath = None,
    overrides: Overrides = None,
    long: Annotated[
        bool, typer.Option("--long", "-l", help="Also what is launched, and partitions.")
    ] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List the launches in a store, and directories of other tools, such as vLLM's."""
    with session(debug=debug):
        from warmrank.orchestrator.look import store_contents as look
        from warmrank.orchestrator.look.directories import list_directories
        from warmrank.orchestrator.look.store_contents import list_store
        from warmrank.orchestrator.ui.directories import render_directories
        from warmrank.orchestrator.ui.table import render_listing

        loaded = load_optional(config, overrides)
        opened = look.open_to_look(loaded, store)
        directories = list_directories(opened)
        listing = list_store(opened, loaded)
        if as_json:
            print_json({**plain(listing), "directories": directories})
        else:
            console = output()
            console.print(render_listing(listing, long=long, width=console.width))
            if directories:
                console.print(render_directories(directories))


def show(
    partition: Annotated[
        str,
        typer.Argument(metavar="PARTITION", help="Its name, or the first characters of its manifest's key."),
    ],
    config: OptionalConfig = None,
    store: StorePath = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show one partition of a store: artifacts, requests, environment, capture plan."""
    with session(debug=debug):
        from warmrank.orchestrator.look import store_contents as look
        from warmrank.orchestrator.ui.table import render_partition

        if config is None and store is None and look.is_config_name(partition):
            look.refuse_lone_config(partition, load_config(Path(partition), overrides))
        loaded = load_optional(config, overrides)
        view = look.show_partition(look.open_to_look(loaded, store), partition, loaded)
        answer(view, render_partition, as_json=as_json)


def explain(
    config: OptionalConfig = None,
    vllm: Annotated[
        Path | None,
        typer.Option(
            "--vllm",
            metavar="DIR",
            help="In place of CONFIG: what vLLM's ranks loaded and compiled on this node, and why; DIR is "
            "VLLM_CACHE_ROOT, such as ~/.cache/vllm.",
        ),
    ] = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Say what a launch here would find, and name what differs from what is stored."""
    with session(debug=debug):
        if vllm is not None:
            from warmrank.orchestrator.ui.directories import render_outcomes
            from warmrank.orchestrator.vllm_plugin.entries import aot_root, read_outcomes

            answer(read_outcomes(aot_root(vllm.expanduser())), render_outcomes, as_json=as_json)
            return
        if config is None:
            raise typer.BadParameter("expected CONFIG, or --vllm DIR")
        from warmrank.orchestrator.look.explain import explain_if_away
        from warmrank.orchestrator.ui.table import render_explanation

        found = explain_if_away(load_config(config, overrides))
        answer(found, render_explanation, as_json=as_json)


def readable(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A compiled_module.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write Python source there.")
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Print an artifact as text: request, guards, and the graph as Python."""
    with session(debug=debug):
        from warmrank.worker.inference import readable_cache

        text = readable_cache(file, print_output=False, file=out)
        if as_json:
            print_json({"file": file, "out": out, "text": text})
        elif out is None:
            typer.echo(defused(text))
        else:
            output().print(f"written to {out}", soft_wrap=True, markup=False)


def verify(  # noqa: PLR0913, PLR0917 - a parameter is an option of the command
    config: OptionalConfig = None,
    store: StorePath = None,
    cache: Annotated[
        Path | None, typer.Option("--cache", metavar="DIR", help="A cache directory; else the config's.")
    ] = None,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Move what is damaged in the store away; bring back what is whole in its trash, in another "
            "place of it or in the cache.",
        ),
    ] = False,
    overrides: Overrides = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Read store and cache again, byte for byte, and say what is wrong."""
    with session(debug=debug):
        from warmrank.orchestrator.look import store_contents as look
        from warmrank.orchestrator.look.verify import verify as run
        from warmrank.orchestrator.ui.progress import fetch_progress
        from warmrank.orchestrator.ui.table import render_verified

        loaded = load_optional(config, overrides)
        only_cache = cache is not None and loaded is None and store is None
        opened = None if only_cache else look.open_to_look(loaded, store)
        if cache is None and loaded is not None and loaded.cache_dir.is_dir():
            cache = loaded.cache_dir
        with fetch_progress(output(stderr=True), "verify") as on_progress:
            found = run(
                opened,
                cache,
                signatures_checked=loaded is not None,
                repair=repair,
                on_progress=on_progress,
            )
        answer(found, render_verified, as_json=as_json)
    if found.faults:
        raise typer.Exit(ExitCode.FAULT)
