"""Names from documents that nobody signed, on their way to a terminal."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text
from typer.testing import CliRunner

from tests.support.launching import loaded_config, store_launch
from tests.support.stored import FUNCTIONS
from warmrank.orchestrator.cli.console import SafeConsole, defused, defused_json
from warmrank.orchestrator.cli.main import app
from warmrank.orchestrator.others_output import others_on_stderr
from warmrank.worker.keys.environment import environment

HOSTILE = "de\x1b]0;owned\x07code\x1b[2J\x9b31m\u202e\x7f"


def printed(renderable: object) -> str:
    file = io.StringIO()
    SafeConsole(file=file, width=100, color_system=None, legacy_windows=False).print(renderable)
    return file.getvalue()


def is_safe(text: str) -> bool:
    return all(char.isprintable() or char in "\n\t" for char in text)


def test_no_control_character_is_printed_from_text_cells_and_strings():
    table = Table(HOSTILE)
    table.add_row(Text(HOSTILE))
    for renderable in (Text(HOSTILE), table, HOSTILE):
        text = printed(renderable)
        assert is_safe(text)
        assert "?]0;owned" in text
    assert defused("a\tb\n\x9b\r\x7f\udc80") == "a\tb\n????"


def test_lines_of_libraries_are_folded_and_go_to_stderr(capsys):
    with others_on_stderr():
        sys.stdout.write(f"(raylet) A worker died. {'Worker ID: 0123456789abcdef ' * 40}\n")
        sys.stdout.write("short")
    out, err = capsys.readouterr()
    assert not out
    told, short = err.splitlines()
    assert told.startswith("(raylet) A worker died. ")
    assert told.endswith("characters more, with --debug)")
    assert len(told) < 250
    assert short == "short"


def test_json_escapes_what_its_grammar_lets_through():
    text = defused_json(json.dumps(HOSTILE, ensure_ascii=False))
    assert json.loads(text) == HOSTILE
    assert not {"\x1b", "\x07", "\x9b", "\x7f"} & set(text)


@pytest.mark.parametrize("arguments", [("ls", "--long"), ("show", "world2global_rank0", "--json")])
def test_hostile_names_in_a_store_reach_no_terminal(tmp_path: Path, arguments):
    config = loaded_config(tmp_path)
    functions = {f"{HOSTILE}.decode": FUNCTIONS["Llama.decode"]}
    here = {**environment(), HOSTILE: HOSTILE}
    store_launch(config, tmp_path / "work", here=here, functions=functions)
    wide = CliRunner(env={"COLUMNS": "400"})  # so that nothing is folded
    result = wide.invoke(app, [*arguments, "--store", str(tmp_path / "store")])
    assert (result.exit_code, "owned" in result.stdout) == (0, True)
    assert not {"\x1b", "\x07", "\x9b", "\x7f"} & set(result.output)
