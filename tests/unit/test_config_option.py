"""A config named as an option, where it is an argument."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from warmrank.orchestrator.cli.config_option import as_argument
from warmrank.orchestrator.cli.main import app


@pytest.mark.parametrize(
    ("words", "arguments", "expected"),
    [
        (["--set", "a=b", "--config", "c.yaml"], ["config"], ["c.yaml", "--set", "a=b"]),
        (
            ["--config=c.yaml", "--here", "--", "x", "--config", "y"],
            ["config", "words"],
            ["c.yaml", "--here", "--", "x", "--config", "y"],
        ),
        (["--config", "c.yaml", "part"], ["partition", "config"], ["part", "c.yaml"]),
        (["name", "--config", "c.yaml"], ["name"], ["name", "--config", "c.yaml"]),
        (["c.yaml", "--config"], ["config"], ["c.yaml", "--config"]),
    ],
)
def test_option_is_put_where_the_argument_is_looked_for(
    words: list[str], arguments: list[str], expected: list[str]
):
    assert as_argument(words, arguments) == expected


@pytest.mark.parametrize(
    "command", [("config", "check"), ("explain",), ("launch",), ("ls",), ("preseed",), ("doctor",)]
)
def test_commands_take_their_config_as_an_option(tmp_path: Path, command: tuple[str, ...]):
    absent = tmp_path / "absent.yaml"
    result = CliRunner(env={"COLUMNS": "400"}).invoke(app, [*command, "--config", str(absent)])
    assert result.exit_code == 2
    assert f"where     {absent}" in result.stderr


@pytest.mark.parametrize(
    "command", [(), ("launch",), ("explain",), ("ls",), ("config", "check"), ("sync", "push")]
)
def test_help_shows_flags_without_a_type_and_the_config_as_an_option(command: tuple[str, ...]):
    shown = CliRunner(env={"COLUMNS": "200"}).invoke(app, [*command, "--help"]).stdout
    assert "<bool>" not in shown
    assert not command or "--config" in shown
    assert "cluster_configs" not in shown
