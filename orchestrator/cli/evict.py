"""The commands that decide what a store keeps; each also with ``--json``."""

from __future__ import annotations

from typing import Annotated

import typer

from warmrank.cache_store.errors import Conflict, NotInStore
from warmrank.orchestrator.cli.console import ExitCode, output, print_json, session
from warmrank.orchestrator.cli.options import (
    AsJson,
    Debug,
    OptionalConfig,
    Overrides,
    StorePath,
    check_line,
    load_optional,
)
from warmrank.orchestrator.store.retention import parse_duration_s, parse_size_bytes


def evict(  # noqa: PLR0913, PLR0917 - a parameter is an option of the command
    config: OptionalConfig = None,
    store: StorePath = None,
    older_than_s: Annotated[
        float | None,
        typer.Option(
            "--older-than", metavar="TIME", parser=parse_duration_s, help="Unused for so long: 30d, 12h."
        ),
    ] = None,
    max_bytes: Annotated[
        int | None,
        typer.Option(
            "--max-size",
            metavar="SIZE",
            parser=parse_size_bytes,
            help="Least recently used go until it fits.",
        ),
    ] = None,
    keep: Annotated[
        int, typer.Option(min=0, help="So many of the newest records of each launch and environment stay.")
    ] = 1,
    grace_s: Annotated[
        float,
        typer.Option(
            "--grace",
            metavar="TIME",
            parser=parse_duration_s,
            help="Nothing younger goes, and the trash is emptied after it: longer than the longest publish.",
        ),
    ] = "24h",  # type: ignore[assignment]  # typer parses a default too
    tier: Annotated[
        str | None, typer.Option(metavar="LOCATION", help="One place of the store; else every writable one.")
    ] = None,
    no_records: Annotated[
        bool, typer.Option("--no-records", help="A store without one launch is no mistake; empty it.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go, and why.")] = False,
    overrides: Overrides = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Take away what no launch needs any more; the trash keeps it for the grace."""
    with session(debug=debug, bad_input=(NotInStore,)):
        from warmrank.cache_store.gc.evict_plan import EvictPolicy
        from warmrank.orchestrator.look import store_contents as look
        from warmrank.orchestrator.ui.table import render_evicted

        opened = look.open_to_evict(load_optional(config, overrides), store)
        policy = EvictPolicy(
            older_than_s=older_than_s,
            max_bytes=max_bytes,
            keep=keep,
            grace_s=grace_s,
            expects_records=not no_records,
        )
        done = opened.evict(policy, place=tier, dry_run=dry_run)
        if as_json:
            print_json({"dry_run": dry_run, "places": done.reports, "faults": done.faults})
        else:
            output().print(render_evicted(done, dry_run=dry_run))
    if done.faults:
        raise typer.Exit(ExitCode.FAULT)


def pin(  # noqa: PLR0913, PLR0917 - as evict
    launch: Annotated[
        str | None,
        typer.Argument(metavar="[LAUNCH]", help="First characters of a launch key or record digest."),
    ] = None,
    config: Annotated[
        str | None, typer.Option("--config", metavar="FILE", help="Config that names the store.")
    ] = None,
    store: StorePath = None,
    reason: Annotated[str, typer.Option(help="Why, for whoever asks later.")] = "",
    remove: Annotated[bool, typer.Option("--remove", help="Remove the pin.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="Only list what is pinned.")] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Keep a launch from being evicted, until the pin is removed."""
    check_line(reason, "--reason")
    if list_ == (launch is not None) or (list_ and remove):
        raise typer.BadParameter("expected either LAUNCH, or --list")
    with session(debug=debug, bad_input=(Conflict,)):
        from pathlib import Path

        from warmrank.orchestrator.look import store_contents as look
        from warmrank.orchestrator.ui.table import render_pins

        opened = look.open_to_look(load_optional(Path(config) if config else None, None), store)
        if launch is not None and remove:
            removed = opened.unpin(launch)
        elif launch is not None:
            pinned = opened.pin(launch, reason=reason)
            if reason and any(each.reason != reason for each in pinned):
                note = "note: pinned before, and the first reason stays; to change it, --remove the pin first"
                output(stderr=True).print(note)
        pins = opened.pins()
        if as_json:
            print_json({"removed": removed if launch and remove else (), "pins": pins})
        else:
            output().print(render_pins(pins))
