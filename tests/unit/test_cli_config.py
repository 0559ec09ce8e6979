"""The commands on configs: what they print, and what they end with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from warmrank.orchestrator.cli.main import app
from warmrank.orchestrator.config.reading import load

MINIMAL = "workload: {entrypoint: json:dumps}\nranks: 2\nparallel: {dp: 2}\nray: {num_cpus: 4}\n"


def run(*arguments: str | Path) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(MINIMAL)
    return path


def test_check_of_a_good_config_says_so(file: Path):
    result = run("config", "check", file)
    assert (result.exit_code, result.stdout) == (0, f"{file}: nothing is wrong with it; 2 ranks on cpu\n")


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


def test_axes_that_do_not_fit_hide_nothing_else_that_does_not_go_together(file: Path):
    arguments = ("config", "check", file, "--set", "ranks=3", "--set", "engine=torchair")
    result = run(*arguments)
    assert result.exit_code == 2
    assert "= 2, but ranks = 3" in result.stderr
    assert "once these keys are right" not in result.stderr
    assert "error: engine, device" in result.stdout
    axes, engine = json.loads(run(*arguments, "--json").stdout)
    assert (axes["key"], engine["keys"]) == ("ranks, parallel", ["engine", "device"])


def test_check_finds_what_is_missing_on_this_machine(file: Path, tmp_path: Path):
    (tmp_path / "plain").touch()
    changes = ("--set", "workload.entrypoint=absent_of_all:f", "--set", f"cache_dir={tmp_path}/plain/below")
    result = run("config", "check", file, *changes)
    assert result.exit_code == 2
    assert "error: workload.entrypoint" in result.stdout
    assert "error: cache_dir" in result.stdout
    assert run("config", "check", file, "--set", "workload={script: absent.py}").exit_code == 2


def test_directory_in_place_of_a_config_hints_at_the_option_for_stores(tmp_path: Path):
    result = run("ls", tmp_path)
    assert result.exit_code == 2
    assert f"named with --store {tmp_path}" in " ".join(result.stderr.split())
    other = run("doctor", tmp_path)  # which has no such option
    assert (other.exit_code, "--store" in other.stderr) == (2, False)


def test_show_prints_a_config_that_is_the_same(file: Path, tmp_path: Path):
    result = run("config", "show", file, "--set", "ranks=4", "--set", "parallel.dp=4")
    assert result.exit_code == 0
    shown = tmp_path / "shown.yaml"
    shown.write_text(result.stdout)
    assert load(shown) == load(file, ("ranks=4", "parallel.dp=4"))


@pytest.mark.parametrize("kind", ["config", "report"])
def test_schema_is_json_alone(kind: str):
    result = run("config", "schema", "--of", kind)
    assert result.exit_code == 0
    assert json.loads(result.stdout)["$schema"].startswith("https://json-schema.org/")
