"""Lets every command take its config as ``--config FILE`` too, as those do that have other arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typer.core import TyperGroup

_OPTION = "--config"


class ConfigGroup(TyperGroup):
    """A group of commands, of which those with an argument CONFIG also take it as an option."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """See `click.Group.resolve_command`."""
        name, command, rest = super().resolve_command(ctx, args)
        arguments = (
            [each.name for each in command.params if each.param_type_name == "argument"] if command else []
        )
        return name, command, as_argument(rest, arguments)


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
