"""Arguments and options that several commands share, and how a command gets its config."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from warmrank.orchestrator.cli import completion

if TYPE_CHECKING:
    from warmrank.orchestrator.config.reading import Config

ConfigFile = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG",
        help="YAML file, also as --config FILE; see cluster_configs/.",
        show_default=False,
        autocompletion=completion.config_arguments,
    ),
]
OptionalConfig = Annotated[
    Path | None,
    typer.Argument(
        metavar="[CONFIG]",
        help="Config that names the store and whom to trust; also as --config FILE.",
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
    from warmrank.orchestrator.config.reading import load

    return load(config, tuple(overrides or ()))


def refuse_what_fails(
    config: Config,
    place: str,
    *,
    reads_only: bool = False,
    starts_ray: bool = True,
    is_elsewhere: bool = False,
) -> None:
    """Refuse, before Ray starts, what `config check` calls an error; the entrypoint is `refuse_for_ranks`'s.

    Args:
        config: what is about to begin.
        place: the file that it is from.
        reads_only: nothing will be published.
        starts_ray: a Ray of its own may be started here.
        is_elsewhere: it runs as a job of a cluster, whose nodes have what is missing on this machine.

    Raises:
        ConfigError: something in it can never work.
    """
    from warmrank.orchestrator.config.doubts import doubts
    from warmrank.orchestrator.config.machine import look
    from warmrank.orchestrator.errors import ConfigError, ConfigProblem
    from warmrank.orchestrator.gang.ray_session import way_in_now
    from warmrank.orchestrator.gang.upload import own_places, refuse_in_job

    if way_in_now(config.ray) == "job":
        refuse_in_job(own_places(config, Path.cwd()), place)
    judged = config.model_copy(update={"no_compile": True}) if reads_only else config
    if is_elsewhere or not starts_ray:
        judged = judged.model_copy(update={"ray": config.ray.model_copy(update={"address": "auto"})})
    machine = look(judged)
    if is_elsewhere:
        machine = replace(machine, requires_signature="", has_signing_key=True)
    problems = [
        ConfigProblem(place=place, key=", ".join(doubt.keys), found=doubt.found, expected=doubt.remedy)
        for doubt in doubts(judged, machine)
        if doubt.level == "error" and (is_elsewhere or doubt.keys != ("workload.entrypoint",))
    ]
    if problems:
        raise ConfigError(problems)


def refuse_shadows() -> None:
    """Refuse a directory with a module that ranks and nodes would import in place of `warmrank`.

    Raises:
        BadArgument: there is such a module.
    """
    from warmrank.orchestrator.config.doubts import shadow_doubt
    from warmrank.orchestrator.config.entrypoint import shadow
    from warmrank.orchestrator.errors import BadArgument

    path = shadow(Path.cwd())
    if path is not None:
        doubt = shadow_doubt(path)
        msg = f"{doubt.found}: {doubt.remedy}"
        raise BadArgument(msg)


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
        from warmrank.orchestrator.errors import ConfigError, ConfigProblem

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
        from warmrank.orchestrator.errors import BadArgument

        msg = f"{config}: expected a config, found a directory; a store's is named with --store {config}"
        raise BadArgument(msg)
    return None if config is None else load_config(config, overrides)
