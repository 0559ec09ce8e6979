"""The commands that look into a store or an artifact; each also with ``--json``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from warmrank.orchestrator.cli.console import answer, defused, output, print_json, session
from warmrank.orchestrator.cli.options import (
    AsJson,
    ConfigFile,
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
    """List the launches in a store."""
    with session(debug=debug):
        from warmrank.orchestrator.look import store_contents as look
        from warmrank.orchestrator.look.listing import list_store
        from warmrank.orchestrator.ui.table import render_listing

        loaded = load_optional(config, overrides)
        listing = list_store(look.open_to_look(loaded, store), loaded)
        if as_json:
            print_json(listing)
        else:
            console = output()
            console.print(render_listing(listing, long=long, width=console.width))


def show(  # noqa: PLR0913, PLR0917 - a parameter is an option of the command
    wanted: Annotated[
        str,
        typer.Argument(
            metavar="PARTITION|FILE",
            help="A partition's name, or the first characters of its manifest's key; or a compiled_module.",
        ),
    ],
    config: OptionalConfig = None,
    store: StorePath = None,
    overrides: Overrides = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Of a compiled_module: write Python source there."),
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show a partition of a store, or an artifact's file: request, guards, and the graph as Python."""
    with session(debug=debug):
        from warmrank.orchestrator.look import store_contents as look
        from warmrank.orchestrator.ui.table import render_partition

        is_config = look.is_config_name(wanted)
        if config is None and store is None and not is_config and (out or Path(wanted).is_file()):
            _show_artifact(Path(wanted), out, as_json=as_json)
            return
        if out is not None:
            raise typer.BadParameter("it goes with the file of an artifact", param_hint="--out")
        if config is None and store is None and is_config:
            look.refuse_lone_config(wanted, load_config(Path(wanted), overrides))
        loaded = load_optional(config, overrides)
        view = look.show_partition(look.open_to_look(loaded, store), wanted, loaded)
        answer(view, render_partition, as_json=as_json)


def _show_artifact(file: Path, out: Path | None, *, as_json: bool) -> None:
    from warmrank.worker.inference import readable_cache

    text = readable_cache(file, print_output=False, file=out)
    if as_json:
        print_json({"file": file, "out": out, "text": text})
    elif out is None:
        typer.echo(defused(text))
    else:
        output().print(f"written to {out}", soft_wrap=True, markup=False)


def explain(
    config: ConfigFile, overrides: Overrides = None, as_json: AsJson = False, debug: Debug = False
) -> None:
    """Say what a launch here would find, and name what differs from what is stored."""
    with session(debug=debug):
        from warmrank.orchestrator.look.explain import explain_if_away
        from warmrank.orchestrator.ui.table import render_explanation

        found = explain_if_away(load_config(config, overrides))
        answer(found, render_explanation, as_json=as_json)
