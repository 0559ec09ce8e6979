"""An artifact as text for people."""

from __future__ import annotations

import ast
import stat
from pathlib import Path

import pytest
import torch

from cache_store.node.local import add_variant
from tests.support.small_models import Cached
from tests.support.tracing import compiled
from worker.artifact import Artifact
from worker.errors import ArtifactCorrupt
from worker.inference import readable_cache
from worker.readable import conditions, render


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    return compiled(Cached().store, torch.ones(2, 4))


@pytest.fixture(scope="module")
def path(artifact: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return add_variant(tmp_path_factory.mktemp("cache") / "store", artifact.to_bytes())


def test_text_names_function_engine_and_digest(path: Path) -> None:
    text = render(path)
    assert "Cached.store(x" in text
    assert "engine graph 1" in text
    assert f"{path.stat().st_size} bytes" in text


@pytest.mark.parametrize("section", ["request", "used only if", "inputs", "frame", "graph"])
def test_text_has_every_section(path: Path, section: str) -> None:
    assert f" {section} ".center(100, "-") in render(path).splitlines()


@pytest.mark.parametrize(
    "line",
    [
        "made for: a test",
        "source tests.support.small_models:Cached.store is ",
        "grad mode is False",
        "x is a torch.float32 tensor of sizes ['*', 4] on cpu",
        "self._buffers['cache'] is a torch.float32 tensor of sizes [8, 4] on cpu",
        "x.size()[0] <= 8",
        "0: mutated",
        "LOAD_GLOBAL",
        "    def graph(arg0_1",
    ],
)
def test_text_says_what_a_person_looks_for(path: Path, line: str) -> None:
    assert line in render(path)


def test_text_is_the_same_each_time(path: Path) -> None:
    assert render(path) == render(path)


def test_conditions_are_one_line_each(artifact: Artifact) -> None:
    assert all("\n" not in line for line in conditions(artifact))


def test_conditions_name_every_guard(artifact: Artifact) -> None:
    guards = artifact.guards
    parts = (guards.sources, guards.ambient, guards.ranks, guards.checks, guards.shapes)
    assert len(conditions(artifact)) >= sum(map(len, parts))


def test_readable_cache_prints_the_text(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = readable_cache(path)
    assert capsys.readouterr().out == f"{text}\n"


def test_readable_cache_can_be_silent(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert readable_cache(path, print_output=False) == render(path)
    assert capsys.readouterr().out == ""


def test_readable_cache_writes_a_private_file_of_python(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "new" / "store.py"
    readable_cache(path, print_output=False, file=file)
    names = [node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)]
    assert names == ["bind", "graph"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_readable_cache_takes_a_path_as_text(path: Path) -> None:
    assert readable_cache(str(path), print_output=False) == render(path)


def test_readable_cache_of_another_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("notes")
    with pytest.raises(ArtifactCorrupt, match=r"notes\.txt is no usable artifact"):
        readable_cache(file)


def test_readable_cache_of_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        readable_cache(tmp_path / "none")


def test_readable_cache_that_fails_writes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("notes")
    with pytest.raises(ArtifactCorrupt):
        readable_cache(file, file=tmp_path / "out.py")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
