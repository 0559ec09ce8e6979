"""Lets every command take its config as ``--config FILE`` too, as those do that have other arguments.

In the help of a command flags have no type, because they take no value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

_OPTION = "--config"


class ConfigGroup(TyperGroup):
    """A group of commands, of which those with an argument CONFIG also take it as an option."""

    def get_params(self, ctx: Any) -> Any:
        """See `click.Command.get_params`."""
        return _with_plain_flags(super().get_params(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """See `click.Group.get_command`."""
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            names = [each.name for each in command.params]
            if "config" in names and not any(_OPTION in each.opts for each in command.params):
                command.params.insert(names.index("config") + 1, _option_for_help())
            _with_plain_flags(command.get_params(ctx))
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """See `click.Group.resolve_command`."""
        name, command, rest = super().resolve_command(ctx, args)
        arguments = (
            [each.name for each in command.params if each.param_type_name == "argument"] if command else []
        )
        return name, command, as_argument(rest, arguments)


def _with_plain_flags(params: Sequence[Any]) -> Sequence[Any]:
    for each in params:
        if getattr(each, "is_flag", False):
            each.metavar = ""
    return params


def _option_for_help() -> Any:
    """What ``--help`` lists and TAB completes; `as_argument` has taken it out before options are read."""
    made = typer.Typer(add_completion=False)

    @made.command()
    def command(
        config_option: Annotated[
            str | None, typer.Option(_OPTION, metavar="FILE", help="In place of CONFIG.")
        ] = None,
    ) -> None:
        """Take the option."""

    (option,) = typer.main.get_command(made).params
    option.expose_value = False
    return option


def as_argument(words: Sequence[str], arguments: Sequence[str | None]) -> list[str]:
    """The words of a command with ``--config FILE`` put where its argument CONFIG is looked for.

    Args:
        words: after the command's name; what follows ``--`` is somebody else's.
        arguments: names of the command's arguments, in order.
    """
    end = words.index("--") if "--" in words else len(words)
    own, rest = list(words[:end]), list(words[end:])
    if "config" not in arguments:
        return [*own, *rest]
    for index, word in enumerate(own):
        if word == _OPTION and index + 1 < len(own):
            value, others = own[index + 1], own[:index] + own[index + 2 :]
        elif word.startswith(f"{_OPTION}="):
            value, others = word.partition("=")[2], own[:index] + own[index + 1 :]
        else:
            continue
        return [value, *others, *rest] if arguments[0] == "config" else [*others, value, *rest]
    return [*own, *rest]
