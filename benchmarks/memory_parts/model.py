"""A model with two cached functions whose calls come in gears of the batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import warmrank


class Layer(nn.Module):
    """A feed-forward layer: its wide middle is what a graph's memory is spent on."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.up = nn.Linear(dim, 4 * dim)
        self.down = nn.Linear(4 * dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, positions, dim) -> the same."""
        y: torch.Tensor = x + self.down(torch.nn.functional.silu(self.up(x)))
        return y


class TwoFunctions(nn.Module):
    """The same layers under two cached functions, as prefill and decode are."""

    def __init__(self, config: warmrank.CompilerConfig, cache_dir: str, *, layers: int, dim: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(dim) for _ in range(layers))
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.02)
        options: dict[str, Any] = {"config": config, "cache_dir": cache_dir}
        self.cached_first = warmrank.inference.cache_compile(self.first, **options)
        self.cached_second = warmrank.inference.cache_compile(self.second, **options)

    def first(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, positions, dim) -> the same."""
        for layer in self.layers:
            x = layer(x)
        return x

    def second(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, positions, dim) -> (batch, positions)."""
        for layer in self.layers:
            x = layer(x)
        return x.sum(-1)
