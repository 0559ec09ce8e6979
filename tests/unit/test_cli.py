"""The command line: exit codes, error blocks, what goes to stdout, and what it does not import."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.support.launching import loaded_config, make_report, store_launch, write_config
from tests.support.stored import blob_path, make_partition, overwrite
from warmrank.cache_store.errors import StoreUnavailable
from warmrank.cache_store.publish_pending import add_partition
from warmrank.orchestrator.causes import WorkerFailure
from warmrank.orchestrator.cli.main import app
from warmrank.orchestrator.cli.options import as_argument
from warmrank.orchestrator.config.reading import Config
from warmrank.orchestrator.errors import CompileForbidden, ForbiddenCompile, LaunchFailed
from warmrank.orchestrator.launch.identity import launch_key
from warmrank.orchestrator.launch.report import Failure, Report, from_json


def run(*arguments: str | Path) -> Result:
    # Wide, so that no path is folded, however long the test's directory is.
    return CliRunner(env={"COLUMNS": "400"}).invoke(app, [str(argument) for argument in arguments])


class FakeLaunch:
    """Stands in for the driver's class and its objects."""

    def __init__(self, answer: Report | BaseException) -> None:
        self.answer = answer
        self.config: Config | None = None
        self.options: dict[str, Any] = {}

    def __call__(self, config: Config, **options: Any) -> FakeLaunch:
        self.config, self.options = config, options
        return self

    def failed(self, error: BaseException, *, exit_code: int) -> Report:
        failure = Failure(kind=type(error).__name__, message=str(error))
        return replace(make_report(), outcome="failed", exit_code=exit_code, failure=failure)

    def run(self) -> Report:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def launching(monkeypatch: pytest.MonkeyPatch, answer: Report | BaseException) -> FakeLaunch:
    fake = FakeLaunch(answer)
    monkeypatch.setattr("warmrank.orchestrator.launch.driver.Launch", fake)
    # What such a launch has no ranks to run is not looked for.
    monkeypatch.setattr("warmrank.orchestrator.config.doubts.fault_of", lambda _config: None)
    return fake


def failed() -> LaunchFailed:
    failure = WorkerFailure(rank=1, stage="build", kind="FileNotFoundError", message="no weights here")
    return LaunchFailed("build", [failure], num_ranks=2)


def test_launch_prints_the_table_and_ends_with_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    launching(monkeypatch, make_report())
    result = run("launch", write_config(tmp_path))
    assert result.exit_code == 0
    assert "Llama.prefill" in result.stdout
    assert "loaded" in result.stdout


def test_launch_with_json_dash_leaves_stdout_to_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    launching(monkeypatch, make_report())
    result = run("launch", write_config(tmp_path), "--json", "-")
    assert replace(from_json(result.stdout), config=()) == make_report()
    assert "Llama.prefill" in result.stderr


def test_report_that_cannot_be_written_is_bad_input_before_the_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    fake = launching(monkeypatch, make_report())
    (tmp_path / "file").touch()
    result = run("launch", write_config(tmp_path), "--json", tmp_path / "file" / "report.json")
    assert result.exit_code == 2
    assert "--json" in result.stderr
    assert fake.config is None


def test_failed_launch_leaves_a_report_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    launching(monkeypatch, failed())
    report = tmp_path / "report.json"
    report.write_text("from yesterday")
    run("launch", write_config(tmp_path), "--json", report)
    found = from_json(report.read_text())
    assert (found.outcome, found.exit_code) == ("failed", 1)
    assert found.failure is not None
    assert "no weights here" in found.failure.message


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (failed(), 1),
        (CompileForbidden([ForbiddenCompile(function="Llama.prefill", reason="torch", ranks=(0, 1))]), 3),
        (StoreUnavailable(what="store", where="/mnt/gone", reason="not mounted"), 4),
        (KeyboardInterrupt(), 130),
    ],
)
def test_launch_ends_with_the_code_of_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, exit_code: int
):
    launching(monkeypatch, error)
    assert run("launch", write_config(tmp_path)).exit_code == exit_code


def test_misspelt_key_is_named_with_place_and_remedy(tmp_path: Path):
    path = write_config(tmp_path, rankz=2)
    result = run("launch", path)
    assert result.exit_code == 2
    text = " ".join(result.stderr.split())
    assert f"where {path}: rankz found an unknown key" in text
    assert text.endswith("remedy did you mean ranks?")


def test_preseed_of_an_unknown_launch_ends_with_three(tmp_path: Path):
    config = loaded_config(tmp_path)
    store_launch(config, tmp_path / "work")
    result = run("preseed", tmp_path / "tiny.yaml", "--here", "--set", "workload.arguments.layers=9")
    assert result.exit_code == 3
    assert "miss" in result.stdout


def test_preseed_with_a_damaged_blob_ends_with_four(tmp_path: Path):
    config = loaded_config(tmp_path)
    store_launch(config, tmp_path / "work", functions={"Llama.decode": b"right"})
    overwrite(blob_path(tmp_path / "store", b"right"), b"wrong")
    assert run("preseed", tmp_path / "tiny.yaml", "--here").exit_code == 4


def test_verify_with_a_fault_ends_with_four(tmp_path: Path):
    config = loaded_config(tmp_path)
    store_launch(config, tmp_path / "work", functions={"Llama.decode": b"right"})
    overwrite(blob_path(tmp_path / "store", b"right"), b"wrong")
    result = run("store", "verify", tmp_path / "tiny.yaml", "--json")
    assert result.exit_code == 4
    assert len(json.loads(result.stdout)["faults"]) >= 1


def test_show_of_an_unknown_partition_ends_with_two(tmp_path: Path):
    store_launch(loaded_config(tmp_path), tmp_path / "work")
    result = run("show", "world9global_rank0", "--store", tmp_path / "store")
    assert result.exit_code == 2
    assert "world2global_rank0" in result.stderr


def test_explain_works_before_the_first_launch(tmp_path: Path):
    result = run("explain", write_config(tmp_path))
    assert result.exit_code == 0
    assert result.stdout.startswith("compile, unless the cache holds it: there is no store at ")


def test_publish_brings_what_waits_to_the_store(tmp_path: Path):
    config = loaded_config(tmp_path)
    manifest = make_partition(config.cache_dir, rank=0, world_size=1)
    add_partition(config.cache_dir, launch_key(config), manifest)
    result = run("store", "publish", tmp_path / "tiny.yaml", "--json")
    assert result.exit_code == 0
    assert [len(json.loads(result.stdout)[name]) for name in ("published", "committed", "kept")] == [1, 0, 0]


def test_publish_ends_with_four_while_something_waits_still(tmp_path: Path):
    config = loaded_config(tmp_path)
    manifest = make_partition(config.cache_dir, rank=0, world_size=1)
    add_partition(config.cache_dir, launch_key(config), manifest)
    result = run("store", "publish", tmp_path / "tiny.yaml", "--set", "store.trust.policy=require")
    assert result.exit_code == 4
    assert "waits: world1global_rank0" in result.stdout


def test_publish_imports_neither_torch_nor_ray(tmp_path: Path):
    code = (
        "import sys; from warmrank.orchestrator.store.stores import publish_late;"
        "from warmrank.orchestrator.config.reading import load;"
        f"from pathlib import Path; publish_late(load(Path({str(write_config(tmp_path))!r})));"
        "print(sorted({'torch', 'ray'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("verify", "store verify"),
        ("readable", "show"),
        ("environment", "doctor --environment"),
        ("config reference", "config schema"),
    ],
)
def test_old_name_is_one_line_with_the_new_one(old: str, new: str):
    result = run(*old.split(), "x")
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert f"is now: warmrank {new}" in line


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
def test_config_option_is_put_where_the_argument_is_looked_for(
    words: list[str], arguments: list[str], expected: list[str]
):
    assert as_argument(words, arguments) == expected
