"""docs/launch.md says of every code and every command what is so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from warmrank.orchestrator.cli.console import ExitCode
from warmrank.orchestrator.cli.main import app

TEXT = (Path(__file__).parents[2] / "docs" / "launch.md").read_text()
CODES, BY_COMMAND = TEXT.partition("## Exit codes\n")[2].split("### By command")


def rows(text: str) -> list[tuple[str, ...]]:
    """The rows of the first table in a text, without its head."""
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [tuple(cell.strip() for cell in line) for line in lines[2:]]


def commands() -> set[str]:
    return set(names(get_command(app)))


def names(command: Any, above: str = "") -> Iterator[str]:
    for name, each in command.commands.items():
        if hasattr(each, "commands"):
            yield from names(each, f"{above}{name} ")
        else:
            yield f"{above}{name}"


def test_table_of_codes_is_the_enumeration():
    assert [(int(code), name.strip("`")) for code, name, _ in rows(CODES)] == [
        (code.value, code.name) for code in ExitCode
    ]


def test_every_command_has_its_row():
    named = [name for cell, _ in rows(BY_COMMAND) for name in re.findall(r"`([^`]+)`", cell)]
    assert len(named) == len(set(named))
    assert set(named) == commands()


def test_commands_name_known_codes_only():
    known = {code.value for code in ExitCode} | {126, 127}  # those two are the user's own command's
    for command, text in rows(BY_COMMAND):
        codes = {int(code) for code in re.findall(r"(?:^|[;,(] ?)(\d+)\b", text)}
        assert codes <= known, command
