"""``warmrank init`` makes a store; ``warmrank publish`` brings to it what waits on this node's disk."""

from __future__ import annotations

import typer

from warmrank.orchestrator.cli.console import ExitCode, output, print_json, session
from warmrank.orchestrator.cli.options import AsJson, ConfigFile, Debug, Overrides, load_config


def init(config: ConfigFile, overrides: Overrides = None, debug: Debug = False) -> None:
    """Make the store of a config where there is none yet; a launch makes none that is required."""
    with session(debug=debug):
        from warmrank.orchestrator.errors import BadArgument
        from warmrank.orchestrator.store.stores import make

        loaded = load_config(config, overrides)
        if loaded.store is None:
            msg = f"{config} names no store; expected store.path in it"
            raise BadArgument(msg)
        for place, is_new in make(loaded.store).items():
            output().print(f"{'made' if is_new else 'there already'}: {place}", soft_wrap=True, markup=False)


def publish(
    config: ConfigFile, overrides: Overrides = None, as_json: AsJson = False, debug: Debug = False
) -> None:
    """Publish what launches left on this node while the store was away; imports neither torch nor Ray."""
    with session(debug=debug):
        from warmrank.orchestrator.store.late import publish_late, render_late

        loaded = load_config(config, overrides)
        found = publish_late(loaded)
        if as_json:
            print_json(found)
        else:
            output().print(render_late(found, loaded.cache_dir), soft_wrap=True)
    if found.kept or found.dropped or found.problems:
        raise typer.Exit(ExitCode.FAULT)
