"""Seed scripts with gears and `mark_static` in a process of their own: ``gears_child CACHE_DIR mark|plain``.

Prints JSON: outcome and equality with eager of each call of each case, and what was imported that a load must
not import. ``mark`` marks dimensions of the decoder's inputs as static, which imports the tracer.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

import warmrank
from warmrank.inference import cache_compile, set_dim_gears
from warmrank.worker.errors import GearError

FORBIDDEN = ("torch._dynamo", "torch._inductor", "sympy")


class Model(nn.Module):
    """The seed's model."""

    def forward(self, x1: torch.Tensor, x2: torch.Tensor) -> torch.Tensor:
        return x1 + x2


class Decoder(nn.Module):
    """The seed's decoder, as far as it says what it does."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)

    def decode(self, x: torch.Tensor, xa: torch.Tensor) -> torch.Tensor:
        scaled: torch.Tensor = self.linear(x) * xa.sum()
        return scaled


def gears(root: Path, policy: str, on_miss: str) -> list[dict[str, Any]]:
    config = warmrank.CompilerConfig()
    config.inference_config.dynamic_gears_merge_policy = policy
    model = Model()
    cached = cache_compile(
        model.forward, config=config, cache_dir=root / f"{policy}-{on_miss}", on_gear_miss=on_miss
    )
    input1, input2 = torch.ones(2, 2), torch.ones(2, 2)
    set_dim_gears(input1, dim_gears={0: [2, 4]})
    set_dim_gears(input2, dim_gears={0: [2, 4]})
    found = [_call(cached, model.forward, input1, input2)]
    for one, other in ((4, 4), (3, 3), (2, 4), (2, 2), (4, 4)):
        found.append(_call(cached, model.forward, torch.rand(one, 2), torch.rand(other, 2)))
    found.append({"captures": cached.variants[0].runner.statistics.captures})
    return found


def marked(root: Path, mark: str) -> list[dict[str, Any]]:
    decoder = Decoder()
    cached = cache_compile(decoder.decode, cache_dir=root / "marked", dynamic=True)
    found = []
    for rows in (2, 3, 2):
        x, xa = torch.rand(rows, 4), torch.rand(rows)
        if mark == "mark":
            torch._dynamo.mark_static(x)
            torch._dynamo.mark_static(xa)
        found.append(_call(cached, decoder.decode, x, xa))
    return found


def _call(cached: Any, eager: Any, *args: torch.Tensor) -> dict[str, Any]:
    before = cached.last_result
    try:
        with torch.no_grad():
            got = cached(*args)
    except GearError as error:
        return {"outcome": "GearError", "text": str(error)}
    with torch.no_grad():
        wanted = eager(*args)
    outcome = "ran" if cached.last_result == before else cached.last_result.outcome
    return {"outcome": outcome, "equal": bool(got.shape == wanted.shape and torch.allclose(got, wanted))}


def main() -> None:
    warnings.simplefilter("error")
    root, mark = Path(sys.argv[1]), sys.argv[2]
    found = {
        f"{policy}-{on_miss}": gears(root, policy, on_miss)
        for policy, on_miss in (("zip", "error"), ("product", "error"), ("zip", "pad"))
    }
    found["marked"] = marked(root, mark)
    imported = [name for name in FORBIDDEN if name in sys.modules]
    sys.stdout.write(json.dumps({"imported": imported, "found": found}))


if __name__ == "__main__":
    main()
