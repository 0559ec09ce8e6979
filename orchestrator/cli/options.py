"""Arguments and options that several commands share, and how a command gets its config."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli import completion

if TYPE_CHECKING:
    from orchestrator.config.reading import Config

ConfigFile = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG",
        help="YAML file; see cluster_configs/.",
        show_default=False,
        autocompletion=completion.config_arguments,
    ),
]
OptionalConfig = Annotated[
    Path | None,
    typer.Argument(
        metavar="[CONFIG]",
        help="Config that names the store and whom to trust.",
        show_default=False,
        autocompletion=completion.config_arguments,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a key of the config, e.g. ranks=4. Repeatable.",
        autocompletion=completion.overrides,
    ),
]
StorePath = Annotated[
    str | None,
    typer.Option("--store", metavar="PATH", help="A store's directory or URL; signatures are not checked."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else there.")]
Debug = Annotated[bool, typer.Option("--debug", help="Log everything, and show the traceback of an error.")]


def check_line(text: str, option: str) -> None:
    """Refuse what would not be one line for whoever reads it later."""
    if not text.isprintable() or len(text) > 500:
        raise typer.BadParameter("expected at most 500 characters without line breaks", param_hint=option)


def load_config(config: Path, overrides: list[str] | None) -> Config:
    """Load a config with its overrides; raises `ConfigError`."""
    from orchestrator.config.reading import load

    return load(config, tuple(overrides or ()))


def check_script(config: Config, place: str) -> None:
    """Refuse a script that is not there, before Ray starts, where ranks get this directory or share it.

    Raises:
        ConfigError: it is not there.
    """
    script = getattr(config.workload, "script", "")
    if not script or Path(script).is_file():
        return
    is_local = not (config.ray.address or os.environ.get("RAY_ADDRESS"))
    if is_local or (config.ray.ship_code and not Path(script).is_absolute()):
        from orchestrator.errors import ConfigError, ConfigProblem

        expected = f"a Python script, looked for from {Path.cwd()}"
        raise ConfigError(
            [ConfigProblem(place=place, key="workload.script", found=f"no file {script}", expected=expected)]
        )


def load_optional(config: Path | None, overrides: list[str] | None) -> Config | None:
    """Load a config where one was named.

    Raises:
        ConfigError: it cannot be used.
        BadArgument: it is a directory, perhaps that of a store.
    """
    if config is not None and config.is_dir():
        from orchestrator.errors import BadArgument

        msg = f"{config}: expected a config, found a directory; a store's is named with --store {config}"
        raise BadArgument(msg)
    return None if config is None else load_config(config, overrides)
