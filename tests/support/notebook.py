"""Runs cells as a notebook does: code that stands in no file, whose names differ in every process.

``notebook CACHE_DIR [OLD => NEW]``: prints how the cached function came to be, and whether it equals eager.
"""

from __future__ import annotations

import linecache
import os
import sys
from typing import Any

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


def run(number: int, cell: str, scope: dict[str, Any]) -> None:
    """Run one cell under a name that only this process has."""
    name = f"/nowhere/ipykernel_{os.getpid()}/{number}.py"
    linecache.cache[name] = (len(cell), None, cell.splitlines(keepends=True), name)
    exec(compile(cell, name, "exec"), scope)  # noqa: S102 - as a notebook does


def main() -> None:
    cache_dir, *edit = sys.argv[1:]
    old, _, new = (edit or [""])[0].partition(" => ")
    scope = vars(sys.modules["__main__"])
    for number, cell in enumerate(CELLS):
        run(number, cell.replace(old, new) if old else cell, scope)
    with torch.no_grad():
        model = scope["Model"]()
        cached = cache_compile(model.forward, cache_dir=cache_dir)
        x = torch.arange(6.0).reshape(2, 3) - 2
        equal = torch.equal(cached(x), model.forward(x))
        assert cached.last_result is not None
        traced = "torch._dynamo" in sys.modules
        sys.stdout.write(f"{cached.last_result.outcome} {equal} {traced}")


if __name__ == "__main__":
    main()
