"""Declaring commands; the options that several take; getting a command its config and store."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, is_dataclass
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer
from typer import Argument, Option
from typer.core import TyperCommand, TyperGroup

from warmrank.cache_store.errors import StoreError
from warmrank.orchestrator.cli.console import session
from warmrank.orchestrator.errors import BadArgument, ConfigError, ConfigProblem

if TYPE_CHECKING:
    from warmrank.cache_store.store import Store
    from warmrank.orchestrator.config.lint import LintFinding
    from warmrank.orchestrator.config.reading import Config

OptionalConfig = Annotated[
    Path | None, Argument(metavar="CONFIG", help="YAML file; or --config FILE.", show_default=False)
]
Overrides = Annotated[
    list[str] | None,
    Option("--set", metavar="KEY=VALUE", help="Override a key of the config, e.g. ranks=4. Repeatable."),
]
NodeNames = Annotated[
    list[str] | None,
    Option("--node", metavar="ID", help="Only this node: id, address or host name. Repeatable."),
]
ReportFile = Annotated[
    Path | None, Option("--json", metavar="FILE", help="Write the report there; - for stdout.")
]
AsJson = Annotated[bool, Option("--json", help="Print JSON on stdout, and nothing else there.")]
_Debug = Annotated[bool, Option("--debug", help="Log everything, and show the traceback of an error.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigOptions:
    """A config that must be named, with its overrides.

    Options:
        config: YAML file; or --config FILE.
    """

    config: Annotated[Path, Argument(metavar="CONFIG")]
    overrides: Overrides = None

    def load(self) -> Config:
        """Load the config; raises `ConfigError`."""
        return load_config(self.config, self.overrides)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """A store to look into: that of a config, or one at a place.

    Options:
        store: A store's directory or URL; signatures are not checked.
    """

    config: OptionalConfig = None
    store: Annotated[str | None, Option(metavar="PATH")] = None
    overrides: Overrides = None

    def load(self) -> Config | None:
        """Load the config, if one is named; raises `ConfigError`, or `BadArgument` for a directory."""
        return load_optional(self.config, self.overrides)

    def open(self, *, with_keyring: bool = False) -> tuple[Store, Config | None]:
        """Open the store, and load its config; raises as `inspect.store_contents.open_to_look` does."""
        from warmrank.orchestrator.inspect.store_contents import open_to_look

        loaded = self.load()
        return open_to_look(loaded, self.store, with_keyring=with_keyring), loaded


def load_config(config: Path, overrides: Sequence[str] | None) -> Config:
    """Load a config with its overrides; raises `ConfigError`."""
    from warmrank.orchestrator.config.reading import load

    return load(config, tuple(overrides or ()))


def load_optional(config: Path | None, overrides: Sequence[str] | None) -> Config | None:
    """Load a config where one was named; raises `ConfigError`, or `BadArgument` for a directory."""
    if config is not None and config.is_dir():
        raise BadArgument(
            f"{config}: expected a config, found a directory; a store's is named with --store {config}"
        )
    return None if config is None else load_config(config, overrides)


def is_config_name(name: str) -> bool:
    """True for the name of a config; no launch or partition is called so."""
    return Path(name).suffix.lower() in {".yaml", ".yml", ".json"}


def check_line(text: str, option: str) -> None:
    """Refuse a text that would not be one line for its readers."""
    if not text.isprintable() or len(text) > 500:
        raise typer.BadParameter("expected at most 500 characters without line breaks", param_hint=option)


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
    config: Config, place: Path, overrides: Sequence[str] | None = None, **how: bool
) -> None:
    """Refuse, before Ray starts, what `config check` calls an error; ``how`` as `lint_here` takes it.

    ``place`` is the config's file. Raises `ConfigError`, or `UnusableCache` if the ranks of an own Ray could
    not use the cache directory.
    """
    from warmrank.cache_store.backends.deadline import all_within
    from warmrank.cache_store.cache_dir.private_files import ensure_cache_dir
    from warmrank.orchestrator.config.reading import place_of, written_places
    from warmrank.orchestrator.config.store import LOOK_S
    from warmrank.orchestrator.gang.ray_session import way_in_now
    from warmrank.orchestrator.gang.upload import refuse_in_job

    way = way_in_now(config.ray)
    if way == "job":
        refuse_in_job(written_places(place, tuple(overrides or ())), str(place), Path.cwd())
    problems = []
    for finding in lint_here(config, **how):
        if finding.level == "error":
            key = ", ".join(finding.keys)
            where = place_of(key, str(place), overrides or ())
            problems.append(ConfigProblem(place=where, key=key, found=finding.found, remedy=finding.remedy))
    if problems:
        raise ConfigError(problems)
    if way == "local" and how.get("starts_ray", True) and not how.get("is_elsewhere"):
        # A disk that does not answer is left to the ranks, whose stages have time-outs.
        all_within([partial(ensure_cache_dir, config.cache_dir)], timeout_s=LOOK_S)


class PlainCommand(TyperCommand):
    """A command whose help names no value for a flag, which takes none."""

    def get_params(self, ctx: Any) -> list[Any]:
        """See `click.Command.get_params`."""
        return _flags_without_value(super().get_params(ctx))


class Command(PlainCommand):
    """A command whose CONFIG may be named by ``--config FILE`` too, unless that is an option of its own."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """See `click.Command.parse_args`; the FILE goes behind the other arguments, where CONFIG stands."""
        end = args.index("--") if "--" in args else len(args)
        return super().parse_args(ctx, [*self.words_of(args[:end]), *args[end:]])

    def words_of(self, args: list[str]) -> list[str]:
        """The words before ``--``, with the FILE where it goes."""
        if any("--config" in each.opts for each in self.params):
            return args
        words: list[str] = []
        for word in args:
            words += word.split("=", 1) if word.startswith("--config=") else [word]
        if "--config" in words[:-1]:
            at = words.index("--config")
            words = [*words[:at], *words[at + 2 :], words[at + 1]]
        return words


class _Group(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        """See `click.Command.get_params`."""
        return _flags_without_value(super().get_params(ctx))


def _flags_without_value(found: list[Any]) -> list[Any]:
    for each in found:
        if getattr(each, "is_flag", False):
            each.metavar = ""
    return found


class Commands(typer.Typer):
    """A group of commands, which shows its help where none is named.

    A parameter of a command whose type is a dataclass stands for options, its fields. What the help says of
    an option stands in the docstring, below ``Options:``; one that is just a ``bool`` is a flag. Every
    command takes ``--debug`` too, and ends as `console.session` says.
    """

    def __init__(self, about: str, **options: Any) -> None:
        names = {"help_option_names": ["-h", "--help"]}
        super().__init__(cls=_Group, no_args_is_help=True, help=about, context_settings=names, **options)

    def register(
        self, name: str | None = None, *, bad_input: tuple[type[StoreError], ...] = (), **options: Any
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Decorate a command; errors of the store that are ``bad_input`` come of what it was given."""
        add = self.command(name, **{"cls": Command, **options})

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            add(_on_the_command_line(function, bad_input))
            return function

        return decorate


def _on_the_command_line(
    function: Callable[..., Any], bad_input: tuple[type[StoreError], ...]
) -> Callable[..., Any]:
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[Any, list[str]]] = {}
    text, own = _declared(function, inspect.signature(function, eval_str=True).parameters.values())
    for each in own:
        if is_dataclass(each.annotation):
            kind: Any = each.annotation
            hints = get_type_hints(kind, include_extras=True)
            plain = inspect.signature(kind).parameters.values()
            _, found = _declared(kind, [field.replace(annotation=hints[field.name]) for field in plain])
            groups[each.name] = kind, [field.name for field in found]
            parameters += found
        else:
            parameters.append(each)
    parameters.append(
        inspect.Parameter("debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=_Debug)
    )

    @wraps(function)
    def run(*, debug: bool, **options: Any) -> None:
        for name, (kind, names) in groups.items():
            options[name] = kind(**{each: options.pop(each) for each in names})
        with session(debug=debug, bad_input=bad_input):
            function(**options)

    # Typer reads these; an argument that may be left out need not stand last there.
    run.__doc__ = text
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [each.replace(kind=each.KEYWORD_ONLY) for each in parameters]
    )
    return run


def _declared(of: Any, parameters: Iterable[inspect.Parameter]) -> tuple[str, list[inspect.Parameter]]:
    """A docstring's text on a function or class, and on each parameter."""
    bases = of.__mro__[:-1] if inspect.isclass(of) else (of,)
    texts = [(inspect.cleandoc(each.__doc__ or "")).partition("\n\nOptions:\n") for each in bases]
    about = {name: " ".join(said.split()) for *_, section in texts for name, said in _OPTION.findall(section)}
    found = []
    for each in parameters:
        is_annotated = hasattr(each.annotation, "__metadata__")
        kind, *infos = get_args(each.annotation) if is_annotated else (each.annotation,)
        if each.name in about:
            flag = [f"--{each.name.strip('_').replace('_', '-')}"] if kind is bool and not infos else []
            info = copy(infos[0]) if infos else Option(*flag)
            info.help = about[each.name]
            found.append(each.replace(annotation=Annotated[kind, info]))
        else:
            found.append(each)
    return texts[0][0], found


_OPTION = re.compile(r"^ {4}(\w+): (.*?)(?=^ {4}\w|\Z)", re.DOTALL | re.MULTILINE)
