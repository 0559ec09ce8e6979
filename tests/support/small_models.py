"""Small modules whose methods are traced by the worker's tests; each shows one thing.

It is no test module: pytest would rewrite the assertion of `Faulty`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed as dist
from torch import nn


class Plain(nn.Module):
    """One linear layer, and methods of every kind of signature."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.factor = 2

    def affine(self, x: torch.Tensor) -> Any:
        return self.linear(x) * self.factor

    def scaled(self, x: torch.Tensor, scale: float = 2.0, *, negate: bool = False) -> Any:
        y = self.linear(x) * scale
        return -y if negate else y

    def forward(self, x: torch.Tensor) -> Any:
        return self.linear(x)


class Derived(Plain):
    """Overrides a method whose base version can be cached as well."""

    def affine(self, x: torch.Tensor) -> Any:
        return self.linear(x) - 100.0


class Cached(nn.Module):
    """A buffer that is written in place, as a KV cache is."""

    def __init__(self, rows: int = 8, width: int = 4) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.register_buffer("cache", torch.zeros(rows, width))
        self.cache: torch.Tensor

    def store(self, x: torch.Tensor) -> Any:
        self.cache[: x.shape[0]].copy_(x)
        return self.linear(x) + self.cache.sum()

    def accumulate(self, x: torch.Tensor) -> torch.Tensor:
        self.cache.add_(x.sum())
        return self.cache * 1.0


class Unfit(nn.Module):
    """Methods that cannot be cached."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.dropout = nn.Dropout(0.5)

    def drops(self, x: torch.Tensor) -> Any:
        return self.dropout(self.linear(x))

    def draws(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.randn_like(x)

    def breaks(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x + 1
        return x - 1


class Spread(nn.Module):
    """Constants of its own, dimensions that are used as numbers, and several outputs."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
        table = torch.tensor([1.0, 2.0, 4.0])
        return x.sum(0) / x.shape[0], table[0] * x.reshape(-1), x.shape[0]


class Collective(nn.Module):
    """Adds over a group."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y, group=self.group)
        return y


class Faulty(nn.Module):
    """Methods that raise."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def bad(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("bad shape in attention")

    def wide(self, x: torch.Tensor) -> Any:
        return self.linear(x[:, :7])

    def adds(self, x: torch.Tensor) -> torch.Tensor:
        return x + None  # type: ignore[operator]

    def lacks(self, x: torch.Tensor) -> Any:
        return x + {"b": 1}["a"]

    def wants(self, x: torch.Tensor) -> Any:
        return self.linear(x) + self.nothing

    def asserts(self, x: torch.Tensor) -> torch.Tensor:
        assert x.dim() > 3, "too flat"
        return x + 1

    def calls(self, x: torch.Tensor) -> Any:
        return self.linear(x, 3)

    def overruns(self, x: torch.Tensor) -> torch.Tensor:
        return x[9]

    def misspells(self, x: torch.Tensor) -> Any:
        return x + no_such_name  # type: ignore[name-defined]  # noqa: F821

    def reads(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum().item() > 3 else x

    def stops(self, x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x + 1
