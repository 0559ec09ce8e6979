"""Modules that read Python state: attributes of all kinds, classes, closures, globals, configuration."""

from __future__ import annotations

import collections
import enum
import functools
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import nn

from tests.support.zoo.case import Call, call, case, numbers


class Mode(enum.Enum):
    FAST = 1
    SLOW = 3


@dataclass(frozen=True)
class Settings:
    scale: float = 1.5
    mode: Mode = Mode.FAST
    sizes: tuple[int, ...] = (1, 2)


def one() -> list[Call]:
    return [call(numbers(3, 4))]


def two_sizes() -> list[Call]:
    return [call(numbers(3, 4)), call(numbers(5, 4))]


class Base(nn.Module):
    def helped(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.helped(x) * 2


@case(one, "compiled")
class Overriding(Base):
    def helped(self, x: torch.Tensor) -> torch.Tensor:
        return super().helped(x) * 5


@case(one, "compiled")
class OverridingTheMethodItself(Base):
    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x) * 5


@case(lambda: [call(numbers(3, 4)) for _ in range(3)], "compiled compiled ran")
def made_at_first_use(self: Any, x: torch.Tensor) -> Any:
    try:
        held = self.held
    except AttributeError:
        held = self.held = torch.ones(4)
    return x * held


@case(two_sizes, "compiled ran", context="torch.no_grad(), torch.device('cpu')")
def under_default_device(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x * torch.full((4,), 2.0)


@case(one, "compiled")
class PlainState(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.named = {"k": 3.0}
        self.nested = (1, 2, (3,))
        self.members = {1, 2}
        self.part = slice(0, 2)
        self.ordered = collections.OrderedDict(a=1)
        self.settings = Settings()

    def __getattr__(self, name: str) -> Any:
        return 5.0 if name == "magic" else super().__getattr__(name)

    def forward(self, x: torch.Tensor) -> Any:
        y = x[self.part] * self.magic + self.named["k"] + self.nested[2][0] + len(self.members)
        y = y + self.ordered["a"] + (1 if 2 in self.members else 0) + self.settings.sizes[1]
        return y * self.settings.scale if self.settings.mode is Mode.FAST else y


@case(one, "compiled")
def comprehensions(self: Any, x: torch.Tensor) -> Any:
    several = [x * index for index in range(3)]
    named = dict(zip("abc", several, strict=True))
    total = functools.reduce(lambda one, other: one + other, several)
    return torch.stack([named[key] for key in sorted(named)]), torch.cat(several), total


@case(one, "compiled", tolerance=1e-6)
class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(4, 4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.eval()

    def forward(self, x: torch.Tensor) -> Any:
        query = self.query(x).view(1, 1, x.shape[0], 4)
        own = F.scaled_dot_product_attention(query, query, query, is_causal=True)
        return own, self.attention(x[None], x[None], x[None])[0], F.layer_norm(x, (4,))


@case(lambda: [call(numbers(1, 2, 8, 8)), call(numbers(2, 2, 8, 8))], "compiled compiled", tolerance=1e-6)
class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(2, 3, 3)
        self.norm = nn.BatchNorm2d(3)
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(self.norm(self.layer(x)), 2)


@case(two_sizes, "compiled ran", tolerance=1e-2)
def autocast_within(self: Any, x: torch.Tensor) -> Any:
    with torch.no_grad():
        doubled = x * 2
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = x @ x.t()
    with torch.autocast("cpu", enabled=False):
        high = x @ x.t()
    return doubled, low, high


@case(two_sizes, "compiled ran", context="torch.inference_mode()", layer=lambda: nn.Linear(4, 4))
def under_inference_mode(self: Any, x: torch.Tensor) -> Any:
    return self.layer(x).relu_()


@case(
    two_sizes,
    "compiled ran",
    context="torch.enable_grad()",
    layer=lambda: nn.Linear(4, 4),
    last=lambda: nn.Buffer(torch.zeros(4)),
)
def with_gradients_on(self: Any, x: torch.Tensor) -> Any:
    y = self.layer(x)
    self.last.copy_(y.sum(0))
    return y


@case(
    two_sizes,
    "compiled ran",
    context="torch.autocast('cpu', dtype=torch.bfloat16), torch.no_grad()",
    tolerance=1e-2,
    layer=lambda: nn.Linear(4, 4),
)
def under_autocast(self: Any, x: torch.Tensor) -> Any:
    return self.layer(x)
