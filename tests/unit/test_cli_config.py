"""The commands on configs: what they print, and what they end with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from warmrank.orchestrator.cli.main import app

MINIMAL = "workload: {entrypoint: json:dumps}\nranks: 2\nparallel: {dp: 2}\nray: {num_cpus: 4}\n"


def run(*arguments: str | Path) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(MINIMAL)
    return path


def test_check_names_every_mistake_and_ends_with_two(file: Path):
    file.write_text(MINIMAL + "guards: never\nmax_round: 3\n")
    result = run("config", "check", file)
    assert result.exit_code == 2
    assert "2 problems" in result.stderr
    assert "did you mean max_rounds?" in result.stderr


def test_check_finds_what_is_wrong_between_keys(file: Path):
    result = run("config", "check", file, "--set", "engine=torchair")
    assert result.exit_code == 2
    assert "error: engine, device" in result.stdout
    assert "set device: npu, or engine: auto" in result.stdout


def test_warnings_end_with_two_only_if_strict(file: Path):
    arguments = ("config", "check", file, "--set", "no_compile=true")
    assert run(*arguments).exit_code == 0
    assert "warning: no_compile, store" in run(*arguments).stdout
    assert run(*arguments, "--strict").exit_code == 2


def test_mistakes_in_single_keys_are_json_too(file: Path):
    file.write_text(MINIMAL + "max_round: 3\n")
    result = run("config", "check", file, "--json")
    assert result.exit_code == 2
    (problem,) = json.loads(result.stdout)
    assert {name: problem[name] for name in ("level", "place", "key", "nearest")} == {
        "level": "error",
        "place": str(file),
        "key": "max_round",
        "nearest": "max_rounds",
    }
    assert {"found", "expected"} <= problem.keys()


@pytest.mark.parametrize("kind", ["config", "report"])
def test_schema_is_json_alone(kind: str):
    result = run("config", "schema", "--of", kind)
    assert result.exit_code == 0
    assert json.loads(result.stdout)["$schema"].startswith("https://json-schema.org/")
