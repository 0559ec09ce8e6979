"""A module whose methods draw random numbers, and how what they draw is compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

SEED = 11


class Drawing(nn.Module):
    """Methods that draw."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.drop = nn.Dropout(0.5)

    def dropout(self, x: torch.Tensor) -> Any:
        return self.drop(self.linear(x))

    def rand_like(self, x: torch.Tensor) -> Any:
        return torch.rand_like(x) + x

    def bernoulli(self, x: torch.Tensor) -> Any:
        return torch.bernoulli(x.sigmoid())

    def randint(self, x: torch.Tensor) -> Any:
        return torch.randint(0, 1 << 20, (4,), device=x.device) + x[0, :4]

    def multinomial(self, x: torch.Tensor) -> Any:
        return torch.multinomial(x.softmax(-1), 5)

    def in_place(self, x: torch.Tensor) -> Any:
        return x.clone().normal_()

    def attention(self, x: torch.Tensor) -> Any:
        return functional.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.5)

    def several(self, x: torch.Tensor) -> Any:
        return torch.rand(3, device=x.device), self.drop(x), torch.randn_like(x)


NAMES = [name for name in vars(Drawing) if not name.startswith("_")]


def values(outputs: Any) -> list[torch.Tensor]:
    return [item.clone() for item in (outputs if isinstance(outputs, tuple) else (outputs,))]


def drawn(function: Callable[..., Any], x: torch.Tensor, times: int = 3) -> list[list[torch.Tensor]]:
    torch.manual_seed(SEED)
    with torch.no_grad():
        return [values(function(x)) for _ in range(times)]


def assert_equal(found: list[list[torch.Tensor]], expected: list[list[torch.Tensor]]) -> None:
    for some, others in zip(found, expected, strict=True):
        assert len(some) == len(others)
        assert all(torch.equal(one, other) for one, other in zip(some, others, strict=True))
