"""A model whose methods raise, for what becomes of it when they are traced.

It is no test module: pytest would rewrite its assertion.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class OwnError(Exception):
    """An exception of the model's."""


class Faulty(nn.Module):
    """Methods that raise."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def bad(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("bad shape in attention")

    def deep(self, x: torch.Tensor) -> Any:
        return self.attend(self.linear(x))

    def attend(self, x: torch.Tensor) -> Any:
        raise OwnError("mine", 3)

    def told(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError(f"not {x}")

    def sized(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("bad shape %s" % (tuple(x.shape),))  # noqa: UP031 - as Dynamo cannot trace it

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

    def misspells(self, x: torch.Tensor) -> Any:
        return x + no_such_name  # type: ignore[name-defined]  # noqa: F821

    def reads(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum().item() > 3 else x

    def stops(self, x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x + 1
