"""Code that stands in no file: who defines the same code loads, who edits it compiles."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.processes import printed_by


def notebook(cache: Path, *edit: str) -> str:
    return printed_by("tests.support.notebook", str(cache), *edit, OMP_NUM_THREADS="1")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cache = tmp_path_factory.mktemp("notebook") / "cache"
    assert notebook(cache) == "compiled True True"
    return cache


@pytest.mark.parametrize(
    "edit",
    [
        pytest.param([], marks=pytest.mark.slow),
        ["def untraced(x):\n    return x => def untraced(x):\n    return -x"],
    ],
)
def test_the_same_cells_load(compiled: Path, edit: list[str]) -> None:
    assert notebook(compiled, *edit) == "loaded True False"


@pytest.mark.slow
@pytest.mark.parametrize(
    "edit",
    [
        "y + 1 => y + 2",
        "x * SCALE => x / SCALE",
        "SCALE = 2.0 => SCALE = 3.0",
        "x.relu() + 0 => x.relu() + 1",
        "self.k * 2 => self.k * 3",
        "k: float = 3.0 => k: float = 4.0",
        "yield x + step => yield x - step",
        "return 4.0 => return 5.0",
        "+ self.config => - self.config",
    ],
)
def test_an_edited_cell_is_compiled_again(compiled: Path, edit: str, tmp_path: Path) -> None:
    shutil.copytree(compiled, tmp_path / "cache")
    assert notebook(tmp_path / "cache", edit) == "compiled True True"
