"""``warmrank publish``: what launches left on this node's disk while their store was away."""

from __future__ import annotations

import typer

from orchestrator.cli_options import AsJson, ConfigFile, Debug, Overrides, load_config
from orchestrator.console import ExitCode, output, print_json, session


def publish(
    config: ConfigFile, overrides: Overrides = None, as_json: AsJson = False, debug: Debug = False
) -> None:
    """Publish what launches left on this node while the store was away; imports neither torch nor Ray."""
    with session(debug=debug):
        from orchestrator.late import publish_late, render_late

        found = publish_late(load_config(config, overrides))
        if as_json:
            print_json(found)
        else:
            output().print(render_late(found))
    if found.kept or found.problems:
        raise typer.Exit(ExitCode.FAULT)
