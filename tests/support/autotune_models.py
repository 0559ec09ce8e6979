"""A module whose one function does what compiled graphs get wrong, and a smaller one.

``main`` is for a process of its own: it calls the first in mode max-autotune, and prints JSON.
"""

from __future__ import annotations

import json
import sys

import torch
from torch import Tensor, nn

from warmrank import CompilerConfig
from warmrank.inference import cache_compile


class Mixed(nn.Module):
    """Writes to a buffer and an argument; returns views, sizes, equal results, and its argument."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.seen = nn.Buffer(torch.zeros(4, 8))
        self.table = torch.arange(8.0)

    def forward(self, x: Tensor, cache: Tensor, flags: Tensor, n: int) -> tuple[object, ...]:
        self.seen[:, :1].add_(1)
        cache[: x.shape[0]].copy_(x)
        y = torch.relu(self.linear(x)) * n + torch.tensor([0.5])
        one, other = (y + self.table).chunk(2, dim=1)
        z = torch.complex(y, y)
        return (
            y, y, y[0], y.t(), x, x[1:], cache[0], self.seen[0], one, other,
            y + 1, y + 1, y.sum(), y.to(torch.int32), y.to(torch.bfloat16), flags & (y[:, 0] > 0),
            (z * z).real, y[:0], x.shape[0] * 2, None, self.table[2:], {"last": y[-1]},
        )  # fmt: skip


class Sum(nn.Module):
    """One matrix and one cache."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.seen = nn.Buffer(torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add_(x[0])
        return torch.tanh(self.linear(x))


def mixed() -> Mixed:
    """The same weights in every process."""
    torch.manual_seed(0)
    return Mixed().eval()


def small() -> Sum:
    """The same weights in every process."""
    torch.manual_seed(0)
    return Sum().eval()


def mixed_call(batch: int = 4, n: int = 3) -> tuple[Tensor, Tensor, Tensor, int]:
    """Arguments of `Mixed.forward`: the first one is no contiguous tensor."""
    values = torch.linspace(-1, 1, 8 * batch).reshape(8, batch).t()
    return values, torch.zeros(6, 8), torch.arange(batch) % 2 == 0, n


def main(cache_dir: str) -> None:
    config = CompilerConfig()
    config.mode = "max-autotune"
    function = cache_compile(mixed().forward, config=config, cache_dir=cache_dir)
    call = mixed_call()
    with torch.no_grad():
        function(*call)
    heavy = [name for name in ("torch._dynamo", "torch._inductor", "sympy") if name in sys.modules]
    result = function.last_result
    assert result is not None
    found = {"outcome": result.outcome, "cache": call[1].tolist(), "heavy": heavy}
    print(json.dumps(found), file=sys.__stdout__)
