"""Code that stands in no file, as a notebook's: who defines the same code loads, who edits it compiles."""

from __future__ import annotations

import linecache
import sys
import types
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
import torch

from warmrank.inference import cache_compile

CELLS = (
    """
import torch
from torch import nn
SCALE = 2.0
act = lambda x: x.relu() + 0
def helper(x):
    return x * SCALE
def untraced(x):
    return x
""",
    """
import dataclasses
@dataclasses.dataclass
class Config:
    k: float = 3.0
    def twice(self):
        return self.k * 2
class Inner(nn.Module):
    def forward(self, x):
        def local(y):
            return y + 1
        return local(helper(x))
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.config = Inner(), Config()
    def parts(self, x):
        for step in range(2):
            yield x + step
    @property
    def factor(self):
        return 4.0
    def forward(self, x):
        return act(self.inner(x)) + self.config.twice() + sum(self.parts(x)) * self.factor
""",
)
_KERNELS = count()


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Runs the cells in a new `__main__`, under names of their own; returns the outcome of a call."""

    def run(edit: str = "") -> str:
        old, _, new = edit.partition(" => ")
        main, kernel = types.ModuleType("__main__"), next(_KERNELS)
        monkeypatch.setitem(sys.modules, "__main__", main)
        for number, cell in enumerate(CELLS):
            assert not old or any(old in text for text in CELLS)
            text = cell.replace(old, new) if old else cell
            name = f"/nowhere/ipykernel_{kernel}/{number}.py"
            monkeypatch.setitem(
                linecache.cache, name, (len(text), None, text.splitlines(keepends=True), name)
            )
            exec(compile(text, name, "exec"), vars(main))  # noqa: S102 - as a notebook does
        with torch.no_grad():
            model = vars(main)["Model"]()
            cached = cache_compile(model.forward, cache_dir=tmp_path)
            x = torch.arange(6.0).reshape(2, 3) - 2
            assert torch.equal(cached(x), model.forward(x))
        assert cached.last_result is not None
        return cached.last_result.outcome

    return run


def test_cells_load_what_the_same_cells_compiled(notebook: Callable[..., str]) -> None:
    untraced = "def untraced(x):\n    return x => def untraced(x):\n    return -x"
    assert [notebook(), notebook(), notebook(untraced)] == ["compiled", "loaded", "loaded"]


@pytest.mark.one_in(3)
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
def test_edited_cell_is_compiled_again(notebook: Callable[..., str], edit: str) -> None:
    assert [notebook(), notebook(edit)] == ["compiled", "compiled"]
