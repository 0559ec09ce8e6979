"""What the model calls and reads: functions, decorators, constants, configuration."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from . import deeper

Function = Callable[[torch.Tensor], torch.Tensor]

GAIN = 1.5
TABLE = {"low": 0.5, "high": 2.0}
STEPS = [1.0, 0.5]


class Mode(enum.Enum):
    SOFT = 0.125
    HARD = 4.0


class Pair(NamedTuple):
    left: float
    right: float


class Limits:
    LOW = -3.0
    HIGH = 3.0


class Tight(Limits):
    pass


@dataclass
class Options:
    mode: Mode = Mode.SOFT
    scale: float = 2.0
    window: int = 3
    limits: type[Limits] = Tight
    pair: Pair = Pair(left=1.0, right=-2.0)  # noqa: RUF009 - a NamedTuple is immutable


def mixed(x: torch.Tensor, amount: float = 0.5) -> torch.Tensor:
    return deeper.shifted(x) * amount * GAIN


def unmixed(x: torch.Tensor, amount: float = 0.5) -> torch.Tensor:
    return deeper.shifted(x) * amount + GAIN


def scaler(factor: float) -> Function:
    def scale(x: torch.Tensor) -> torch.Tensor:
        return x * factor

    return scale


def times(factor: float) -> Callable[[Function], Function]:
    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def wrapper(x: torch.Tensor) -> torch.Tensor:
            return function(x) * factor

        return wrapper

    return decorate


@times(0.75)
def decorated(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x)


def loud(method: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(method)
    def wrapper(self: object, x: torch.Tensor) -> torch.Tensor:
        return method(self, x) * 2.0

    return wrapper


def decomposed_clamp(x: torch.Tensor, low: float, high: float) -> Any:
    return torch.ops.aten.clamp_max.default(at_least(x, low), high)


def at_least(x: torch.Tensor, low: float) -> Any:
    return torch.ops.aten.clamp_min.default(x, low)


def untraced(x: torch.Tensor) -> torch.Tensor:
    return x * 1000.0
