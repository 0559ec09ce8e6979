"""Arguments and options that several commands share, and how a command gets its config."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from warmrank.orchestrator.errors import BadArgument, ConfigError, ConfigProblem

if TYPE_CHECKING:
    from warmrank.orchestrator.config.lint import LintFinding
    from warmrank.orchestrator.config.reading import Config

ConfigFile = Annotated[
    Path, Argument(metavar="CONFIG", help="YAML file; or --config FILE.", show_default=False)
]
OptionalConfig = Annotated[
    Path | None,
    Argument(metavar="CONFIG", help="Names store and trust; or --config FILE.", show_default=False),
]
Overrides = Annotated[
    list[str] | None,
    Option("--set", metavar="KEY=VALUE", help="Override a key of the config, e.g. ranks=4. Repeatable."),
]
StorePath = Annotated[
    str | None,
    Option("--store", metavar="PATH", help="A store's directory or URL; signatures are not checked."),
]
NodeNames = Annotated[
    list[str] | None,
    Option("--node", metavar="ID", help="Only this node: id, address or host name. Repeatable."),
]
ReportFile = Annotated[
    Path | None, Option("--json", metavar="FILE", help="Write the report there; - for stdout.")
]
AsJson = Annotated[bool, Option("--json", help="Print JSON on stdout, and nothing else there.")]


def is_config_name(name: str) -> bool:
    """True for the name of a config; no launch or partition is called so."""
    return Path(name).suffix.lower() in {".yaml", ".yml", ".json"}


def check_line(text: str, option: str) -> None:
    """Refuse a text that would not be one line for its readers."""
    if not text.isprintable() or len(text) > 500:
        raise typer.BadParameter("expected at most 500 characters without line breaks", param_hint=option)


def load_config(config: Path, overrides: list[str] | None) -> Config:
    """Load a config with its overrides; raises `ConfigError`."""
    from warmrank.orchestrator.config.reading import load

    return load(config, tuple(overrides or ()))


def load_optional(config: Path | None, overrides: list[str] | None) -> Config | None:
    """Load a config where one was named; raises `ConfigError`, or `BadArgument` for a directory."""
    if config is not None and config.is_dir():
        raise BadArgument(
            f"{config}: expected a config, found a directory; a store's is named with --store {config}"
        )
    return None if config is None else load_config(config, overrides)


def lint_here(
    config: Config, *, reads_only: bool = False, starts_ray: bool = True, is_elsewhere: bool = False
) -> tuple[LintFinding, ...]:
    """Findings about a config, and about this machine under it.

    Args:
        config: what is to begin.
        reads_only: nothing will be published.
        starts_ray: a Ray of its own may be started here, for its workload.
        is_elsewhere: it runs as a job of a cluster, whose nodes have what is missing on this machine.
    """
    from warmrank.orchestrator.config.lint import lint
    from warmrank.orchestrator.gang.ray_session import way_in_now

    way = way_in_now(config.ray)
    changes: dict[str, Any] = {"no_compile": True} if reads_only else {}
    if not starts_ray:
        changes["workload"] = None
    if is_elsewhere or not starts_ray or way in {"address", "initialized"}:
        changes["ray"] = config.ray.model_copy(update={"address": config.ray.address or "auto"})
    config = config.model_copy(update=changes)
    return lint(config, counts_cpus=way != "job", signs_elsewhere=is_elsewhere)


def refuse_what_fails(
    config: Config, place: str, overrides: Sequence[str] | None = None, **how: bool
) -> None:
    """Refuse, before Ray starts, what `config check` calls an error; ``how`` as `lint_here` takes it.

    ``place`` is the config's file. Raises `ConfigError`, or `UnusableCache` if the ranks of an own Ray could
    not use the cache directory.
    """
    from warmrank.cache_store.backends.deadline import all_within
    from warmrank.cache_store.cache_dir.private_files import ensure_cache_dir
    from warmrank.orchestrator.config.reading import place_of
    from warmrank.orchestrator.config.store import LOOK_S
    from warmrank.orchestrator.gang.ray_session import way_in_now
    from warmrank.orchestrator.gang.upload import own_places, refuse_in_job

    way = way_in_now(config.ray)
    if way == "job":
        refuse_in_job(own_places(config, Path.cwd()), place)
    errors = [finding for finding in lint_here(config, **how) if finding.level == "error"]
    problems = []
    for finding in errors:
        key = ", ".join(finding.keys)
        where = place_of(key, place, overrides or ())
        problems.append(ConfigProblem(place=where, key=key, found=finding.found, remedy=finding.remedy))
    if problems:
        raise ConfigError(problems)
    if way == "local" and how.get("starts_ray", True) and not how.get("is_elsewhere"):
        # A disk that does not answer is left to the ranks, whose stages have time-outs.
        all_within([partial(ensure_cache_dir, config.cache_dir)], timeout_s=LOOK_S)


def group_of_commands(about: str, **options: Any) -> typer.Typer:
    """A group that shows its help where no command is named."""
    help_options = {"help_option_names": ["-h", "--help"]}
    return typer.Typer(no_args_is_help=True, help=about, context_settings=help_options, **options)
