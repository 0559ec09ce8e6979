"""Arguments and options that several commands share, and how a command gets its config."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option
from typer.core import TyperGroup

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
    from warmrank.orchestrator.config.lint import lint, machine_here
    from warmrank.orchestrator.gang.ray_session import way_in_now

    way = way_in_now(config.ray)
    changes: dict[str, Any] = {"no_compile": True} if reads_only else {}
    if not starts_ray:
        changes["workload"] = None
    if is_elsewhere or not starts_ray or way in {"address", "initialized"}:
        changes["ray"] = config.ray.model_copy(update={"address": config.ray.address or "auto"})
    config = config.model_copy(update=changes)
    machine = machine_here(config)
    if is_elsewhere:
        machine = replace(machine, requires_signature="", has_signing_key=True)
    if way == "job":
        machine = replace(machine, num_cpus=None)
    return lint(config, machine)


def refuse_what_fails(
    config: Config,
    place: str,
    overrides: Sequence[str] | None = None,
    *,
    reads_only: bool = False,
    starts_ray: bool = True,
    is_elsewhere: bool = False,
) -> None:
    """Refuse, before Ray starts, what `config check` calls an error; see `lint_here`.

    ``place`` is the config's file. Raises `ConfigError`, or `UnusableCache` if the ranks of an own Ray could
    not use the cache directory.
    """
    from warmrank.orchestrator.config.reading import place_of
    from warmrank.orchestrator.gang.ray_session import way_in_now
    from warmrank.orchestrator.gang.upload import own_places, refuse_in_job

    way = way_in_now(config.ray)
    if way == "job":
        refuse_in_job(own_places(config, Path.cwd()), place)
    found = lint_here(config, reads_only=reads_only, starts_ray=starts_ray, is_elsewhere=is_elsewhere)
    problems = []
    for finding in found:
        if finding.level == "error":
            key = ", ".join(finding.keys)
            where = place_of(key, place, overrides or ())
            problems.append(ConfigProblem(place=where, key=key, found=finding.found, remedy=finding.remedy))
    if problems:
        raise ConfigError(problems)
    if way == "local" and starts_ray and not is_elsewhere:
        _refuse_unusable(config.cache_dir)


def _refuse_unusable(cache_dir: Path) -> None:
    """Refuse a cache directory that is not private to this user, or cannot be made or written."""
    from warmrank.cache_store.backends.deadline import all_within
    from warmrank.cache_store.cache_dir.private_files import ensure_cache_dir
    from warmrank.orchestrator.config.store import LOOK_S

    # A disk that does not answer is left to the ranks, whose stages have time-outs.
    all_within([partial(ensure_cache_dir, cache_dir)], timeout_s=LOOK_S)


def refuse_shadows() -> None:
    """Refuse a directory with a module that ranks and nodes would import in place of `warmrank`."""
    from warmrank.orchestrator.config.lint import shadow, shadow_finding

    path = shadow(Path.cwd())
    if path is not None:
        finding = shadow_finding(path)
        raise BadArgument(f"{finding.found}: {finding.remedy}")


class ConfigGroup(TyperGroup):
    """A group of commands; those with an argument CONFIG also take it as an option."""

    def get_params(self, ctx: Any) -> Any:
        """See `click.Command.get_params`; flags take no value that --help should name."""
        return _with_plain_flags(super().get_params(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """See `click.Group.get_command`."""
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            _with_plain_flags(command.get_params(ctx))
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """See `click.Group.resolve_command`."""
        name, command, rest = super().resolve_command(ctx, args)
        params = command.params if command else ()
        arguments = [each.name for each in params if each.param_type_name == "argument"]
        return name, command, as_argument(rest, arguments)


def _with_plain_flags(params: Sequence[Any]) -> Sequence[Any]:
    for each in params:
        if getattr(each, "is_flag", False):
            each.metavar = ""
    return params


_OPTION = "--config"


def as_argument(words: Sequence[str], arguments: Sequence[str | None]) -> list[str]:
    """The words of a command, with ``--config FILE`` moved to where its argument CONFIG is looked for.

    ``arguments`` are the names of the command's arguments, in order; words after ``--`` are not touched.
    """
    end = words.index("--") if "--" in words else len(words)
    own, rest = list(words[:end]), list(words[end:])
    for index, word in enumerate(own if "config" in arguments else ()):
        if word == _OPTION and index + 1 < len(own):
            value, others = own[index + 1], own[:index] + own[index + 2 :]
        elif word.startswith(f"{_OPTION}="):
            value, others = word.partition("=")[2], own[:index] + own[index + 1 :]
        else:
            continue
        return [value, *others, *rest] if arguments[0] == "config" else [*others, value, *rest]
    return [*own, *rest]


def group_of_commands(about: str, **options: Any) -> typer.Typer:
    """A group that shows its help where no command is named."""
    help_options = {"help_option_names": ["-h", "--help"]}
    return typer.Typer(
        cls=ConfigGroup, no_args_is_help=True, help=about, context_settings=help_options, **options
    )
