"""A process that calls a cached function on the emulated NPU, undisturbed or not, and prints what it saw.

Usage: python -m tests.support.npu_damage_child MODE CACHE_DIR WHAT

WHAT: ``call``; ``killed`` in the middle of a compile; ``full``: the directory for temporary files has no
space, for the compile and, once there was some, for the load.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests import npu_emulator


class Damaged(nn.Module):
    """A model with a parameter, a buffer and a mutated input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("offset", torch.arange(4.0))
        self.offset: torch.Tensor

    def step(self, x: torch.Tensor, cache: torch.Tensor) -> Any:
        cache.add_(x)
        return self.layer(x) * self.offset + cache

    def other(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x) * self.offset


def build() -> Damaged:
    torch.manual_seed(0)
    return Damaged().eval()


def cached(model: Damaged, mode: str, cache_dir: str | Path, name: str = "step", **options: Any) -> Any:
    from warmrank import CompilerConfig
    from warmrank.inference import cache_compile

    config: Any = CompilerConfig()
    config.mode = mode
    return cache_compile(
        getattr(model, name), config=config, cache_dir=cache_dir, engine="torchair", **options
    )


def is_right(model: Damaged, function: Any) -> bool:
    """Whether result and mutated input are eager's, twice."""
    with torch.no_grad():
        for rows in (3, 5):
            x = torch.linspace(-1.0, 1.0, rows * 4).reshape(rows, 4)
            mine, eagers = torch.ones(rows, 4), torch.ones(rows, 4)
            got, wanted = function(x, mine), model.step(x, eagers)
            if not (torch.allclose(got, wanted) and torch.equal(mine, eagers)):
                return False
    return True


def kill_in_compile() -> None:
    """End this process as soon as TorchAir is asked to compile."""
    vendor: Any = importlib.import_module("warmrank.worker.engines.torchair_vendor")
    vendor.instead_of_torch_compile = lambda *_: os.kill(os.getpid(), signal.SIGKILL)


def fill(directory: Path) -> Path:
    """Take all the space of a directory's disk."""
    ballast = directory / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(512))
        except OSError:
            return ballast


def refusal(model: Damaged, mode: str, cache_dir: str) -> str:
    """The error of a call that cannot be served."""
    from warmrank.cache_store.errors import UnusableCache

    try:
        is_right(model, cached(model, mode, cache_dir))
    except UnusableCache as error:
        return str(error)
    return "no error"


def main(mode: str, cache_dir: str, what: str) -> None:
    warnings.simplefilter("ignore")
    npu_emulator.install()
    model = build()
    found: dict[str, Any] = {}
    if what == "killed":
        kill_in_compile()
    elif what == "full":
        ballast = fill(Path(tempfile.gettempdir()))
        found["compile"] = refusal(model, mode, cache_dir)
        ballast.unlink()
        found["right"] = is_right(model, cached(model, mode, cache_dir))
        fill(Path(tempfile.gettempdir()))
        found["load"] = refusal(model, mode, cache_dir)
        ballast.unlink()
    function = cached(model, mode, cache_dir)
    found["right"] = is_right(model, function)
    found["outcome"] = function.last_result.outcome
    print(json.dumps(found), file=sys.__stdout__)


if __name__ == "__main__":
    from tests.support import npu_damage_child  # under its own name, by which the model's class is known

    npu_damage_child.main(*sys.argv[1:])
