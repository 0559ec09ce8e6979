"""The model: attention over a buffer that it writes to, and layers that read all kinds of Python state."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import nn

from . import helpers, left, right
from .helpers import Options, mixed, scaler

OFFSET = 0.0625


@dataclass
class Batch:
    tokens: torch.Tensor
    positions: torch.Tensor
    mask: torch.Tensor | None = None
    temperature: float = 1.0
    note: str = "plain"


@dataclass
class OtherBatch:
    tokens: torch.Tensor
    positions: torch.Tensor
    mask: torch.Tensor | None = None
    temperature: float = 1.0
    note: str = "plain"


class Norm(nn.Module):
    EPSILON = 1e-5

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, width))

    def spread(self, x: torch.Tensor) -> torch.Tensor:
        return x.pow(2).mean(-1, keepdim=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(self.spread(x) + self.EPSILON) * self.weight


class AbsoluteNorm(Norm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / (x.abs().mean(-1, keepdim=True) + self.EPSILON) * self.weight


class BlockNorm(Norm):
    pass


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.project = nn.Linear(width, width)
        self.register_buffer("cache", torch.zeros(16, width))
        self.cache: torch.Tensor

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        self.cache[positions] = self.project(x).to(self.cache.dtype)
        scores = torch.softmax(x @ self.cache.t(), dim=-1)
        return scores @ self.cache


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = BlockNorm(width)
        self.attention = Attention(width)
        self.activation = functools.partial(F.leaky_relu, negative_slope=0.1)
        self.gate = lambda x: torch.sigmoid(x) * 2.0

    @property
    def ratio(self) -> float:
        return 1.0 / 3.0

    @staticmethod
    def halved(x: torch.Tensor) -> torch.Tensor:
        return x * 0.5

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm(x), positions) * self.ratio
        x = x + self.halved(x)
        if self.training:
            x = x * 1.25
        return self.gate(self.activation(x))


class Model(nn.Module):
    def __init__(self, width: int = 8, classes: int = 4) -> None:
        super().__init__()
        self.options = Options()
        self.blocks = nn.ModuleList(Block(width) for _ in range(1))
        self.norm = Norm(width)
        self.head = nn.Linear(width, classes)
        self.scale = scaler(1.25)
        self.depth = 2
        self.residual = 0.5

    def step(
        self, batch: Batch, steps: list[float], offset: int = 3, *, gain: float = 1.0, flip: bool = False
    ) -> Any:
        x = mixed(batch.tokens.view(batch.tokens.shape[0], -1)) + offset
        for index, block in enumerate(self.blocks):
            x = block(x, batch.positions) + OFFSET * (index + 1)
        x = x.clamp(self.options.limits.LOW, self.options.limits.HIGH) * self.options.mode.value
        x = x * self.options.pair.left + self.options.pair.right * self.options.scale
        if os.environ.get("TINY_MODEL_SWITCH") == "on":
            x = x * 3.0
        if batch.mask is not None:
            x = x * batch.mask
        for value in steps:
            x = x + value
        x = right.curved(left.curved(x))
        x = helpers.decorated(self.scale(x)) * helpers.TABLE["low"] + helpers.STEPS[1]
        x = self.head(self.norm(x) + self.residual * x) * gain / batch.temperature
        return x.flip(-1) if flip or batch.note == "flipped" else x


def build() -> Model:
    torch.manual_seed(0)
    return Model().eval()


def batch(rows: int = 3, width: int = 8) -> Batch:
    values = torch.linspace(-1.0, 1.0, rows * width).reshape(rows, width)
    return Batch(tokens=values, positions=torch.arange(rows))
