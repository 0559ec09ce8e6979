"""What TAB offers: the functions, the whole command line, and once a real bash."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.processes import PYTHONPATH
from warmrank.orchestrator.cli.completion import config_arguments, rejoined, settings_for, yaml_files

CONFIG = "workload: {entrypoint: a:b, arguments: {layers: 4, deep: {er: true}}}\nranks: 1\n"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.yaml").write_text(CONFIG)
    (tmp_path / "other.yml").touch()
    (tmp_path / "notes.txt").touch()
    (tmp_path / ".hidden.yaml").touch()
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "two.yaml").touch()
    return tmp_path


def offered(begun: str, config: Path | None = None) -> list[str]:
    return [value for value, _ in settings_for(begun, config)]


def shell(line: str, *, kind: str = "fish") -> list[str]:
    """What the command line offers; fish and zsh hand the whole line over."""
    environ = {
        **os.environ,
        "_WARMRANK_COMPLETE": f"complete_{kind}",
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "PYTHONPATH": PYTHONPATH,
    }
    command = [sys.executable, "-m", "warmrank"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=120)
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_files_are_yaml_files_and_directories():
    assert yaml_files("") == ["deep/", "one.yaml", "other.yml"]
    assert yaml_files(".") == [".hidden.yaml"]
    assert yaml_files("o") == ["one.yaml", "other.yml"]


def test_only_directory_is_looked_into_at_once():
    """A shell would put a space after it, as if it were all."""
    assert yaml_files("d") == ["deep/er/two.yaml"]


def test_directory_without_yaml_files_is_left_to_the_shell(place: Path):
    (place / "empty").mkdir()
    assert yaml_files("em") == []


def test_directory_that_is_not_there_offers_nothing():
    assert config_arguments("absent/x") == []


def test_keys_are_offered_with_their_meaning():
    assert ("timeouts.compile_s=", "seconds for the leaders to compile, each round") in settings_for(
        "time", None
    )
    assert {"ranks=", "parallel.tp=", "store.path=", "store.tiers.0.path="} <= set(offered(""))


def test_values_are_offered_where_they_are_few():
    assert offered("device=") == offered("dev") == ["device=cpu", "device=cuda", "device=npu"]
    assert offered("no_compile=") == ["no_compile=true", "no_compile=false"]
    assert offered("ray.placement=")[0] == "ray.placement=PACK"


def test_only_key_comes_with_its_default_so_that_no_space_follows():
    assert offered("max_r") == ["max_rounds=", "max_rounds=4"]


def test_arguments_of_the_config_s_own_workload_are_offered():
    found = offered("workload.arguments.", Path("one.yaml"))
    assert {"workload.arguments.layers=", "workload.arguments.deep.er="} <= set(found)


def test_config_that_is_not_there_does_no_harm():
    assert offered("device=", Path("absent.yaml")) == ["device=cpu", "device=cuda", "device=npu"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["w", "launch", ""], (["w", "launch", ""], 2, "")),
        (["w", "--set", "device"], (["w", "--set", "device"], 2, "")),
        (["w", "--set", "device", "="], (["w", "--set", "device="], 2, "device=")),
        (["w", "--set", "device", "=", "c"], (["w", "--set", "device=c"], 2, "device=")),
        (["w", "--set", "a", "=", "1", "--set", "b"], (["w", "--set", "a=1", "--set", "b"], 4, "")),
        (["w", "--store", "s3", ":", "//b"], (["w", "--store", "s3://b"], 2, "s3:")),
    ],
)
def test_words_that_bash_takes_apart_are_put_together(words: list[str], expected: tuple[list[str], int, str]):
    assert rejoined(words, len(words) - 1) == expected


@pytest.mark.slow
def test_command_line_offers_files_keys_and_values():
    assert shell("warmrank launch on") == ["one.yaml"]
    assert [line.partition("\t")[0] for line in shell("warmrank launch one.yaml --set device=c")] == [
        "device=cpu",
        "device=cuda",
    ]
    (first, _) = shell("warmrank launch one.yaml --set workload.arguments.l")
    assert first.startswith("workload.arguments.layers=")
    assert shell("warmrank config schema --of r") == ["report"]


def test_completing_imports_neither_torch_nor_ray():
    code = (
        "import sys\nfrom warmrank.orchestrator.cli.main import main\ntry: main()\nexcept SystemExit: pass\n"
        "print(sorted({'torch', 'ray', 'numpy'} & set(sys.modules)))"
    )
    environ = {
        **os.environ,
        "_WARMRANK_COMPLETE": "complete_zsh",
        "_TYPER_COMPLETE_ARGS": "warmrank launch one.yaml --set dev",
        "PYTHONPATH": PYTHONPATH,
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    assert "device=cpu" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.fixture
def command(place: Path) -> Path:
    """A command of that name, wherever the package is."""
    path = place / "bin" / "warmrank"
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\nPYTHONPATH={PYTHONPATH} exec {sys.executable} -m warmrank "$@"\n')
    path.chmod(0o755)
    return path


class Terminal:
    """A bash that a test types into."""

    def __init__(self, *, environ: dict[str, str]) -> None:
        self._master, slave = pty.openpty()
        words = ("bash", "--norc", "--noprofile", "-i")
        self._bash = subprocess.Popen(words, env=environ, stdin=slave, stdout=slave, stderr=slave)
        os.close(slave)
        self.said = ""

    def type(self, text: str, *, until: str) -> None:
        """Type, and read until bash has said something; fails after two minutes."""
        os.write(self._master, text.encode())
        self.said = ""
        deadline = time.monotonic() + 120
        while until not in self.said:
            assert select.select([self._master], [], [], deadline - time.monotonic())[0], self.said
            self.said += os.read(self._master, 4096).decode().replace("\a", "")

    def close(self) -> None:
        self._bash.kill()
        self._bash.wait()
        os.close(self._master)


@pytest.mark.slow
def test_real_bash_completes_a_file_a_key_and_a_value(command: Path):
    environ = {"PATH": f"{command.parent}:{os.environ['PATH']}", "TERM": "dumb", "PS1": "$ "}
    terminal = Terminal(environ=environ)
    try:
        terminal.type('eval "$(_WARMRANK_COMPLETE=source_bash warmrank)"; echo rea""dy\n', until="ready")
        terminal.type("warmrank launch on\t", until="one.yaml")
        terminal.type(" --set devi\t", until="device=")
        terminal.type("n\t", until="npu")
        terminal.type(" --set store.mode=re\t", until="store.mode=required")
    finally:
        terminal.close()
