"""Modules that read Python state: attributes of all kinds, classes, closures, globals, configuration."""

from __future__ import annotations

import collections
import enum
import functools
import math
import os
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import nn

from tests.support.zoo.case import Call, call, case, numbers

TABLE = torch.arange(4.0)
CONSTANT = 3
NUMBERS = [1.0, 2.0]
NAMED = {"a": 2.0}


class Mode(enum.Enum):
    FAST = 1
    SLOW = 3


class Level(enum.IntEnum):
    LOW = 2
    HIGH = 5


@dataclass(frozen=True)
class Settings:
    scale: float = 1.5
    mode: Mode = Mode.FAST
    sizes: tuple[int, ...] = (1, 2)


def one() -> list[Call]:
    return [call(numbers(3, 4))]


def two_sizes() -> list[Call]:
    return [call(numbers(3, 4)), call(numbers(5, 4))]


@case(two_sizes, "compiled ran")
class ClassAttribute(nn.Module):
    scale = 2.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


@case(one, "compiled")
class Property(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.third = 3

    @property
    def factor(self) -> int:
        return self.third * 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


@case(one, "compiled")
class PartialAttribute(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.activation = functools.partial(F.leaky_relu, negative_slope=0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.activation(x)


@case(one, "compiled")
class LambdaAttribute(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.activation = lambda value: value * 7

    def forward(self, x: torch.Tensor) -> Any:
        return self.activation(x)


def scaled_by(scale: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def inner(value: torch.Tensor) -> torch.Tensor:
        return value * scale

    return inner


@case(one, "compiled")
class Closure(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scaled = scaled_by(4.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scaled(x)


def times(factor: int) -> Callable[..., Any]:
    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def inner(*args: Any) -> Any:
            return function(*args) * factor

        return inner

    return wrap


@times(3)
def decorated(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@case(one, "compiled")
class Decorated(nn.Module):
    @times(2)
    def twice(self, x: torch.Tensor) -> torch.Tensor:
        return x - 1

    @torch.no_grad()
    def without_gradients(self, x: torch.Tensor) -> torch.Tensor:
        return x * 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.without_gradients(self.twice(decorated(x)))


@case(two_sizes, "compiled ran")
class Containers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.several = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.named = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.ReLU()})
        self.chain = nn.Sequential(nn.Linear(4, 4), nn.GELU())
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(4))])

    def forward(self, x: torch.Tensor) -> Any:
        for layer in self.several:
            x = layer(x)
        for layer in self.named.values():
            x = layer(x)
        return self.chain(x) * self.scales[0]


@case(lambda: [call(numbers(3, 4, dtype=torch.int64))], "compiled")
class TiedWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4, 8)
        self.out = nn.Linear(8, 4, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> Any:
        return self.out(self.embedding(x))


@case(one, "compiled")
class Enums(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mode = Mode.SLOW
        self.level = Level.HIGH

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.mode.value + self.level if self.mode is Mode.SLOW else x


@case(one, "compiled")
class Globals(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * TABLE + CONSTANT + NUMBERS[1] + NAMED["a"] + math.pi


@case(one, "compiled")
class EnvironmentVariable(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (2 if os.environ.get("WARMRANK_TEST_SWITCH") == "1" else 3)


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


def class_with_closure(factor: float) -> type[nn.Module]:
    class ClosedOver(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * factor

    return ClosedOver


case(one, "compiled")(class_with_closure(2.5))


@case(lambda: [call(numbers(3, 4)) for _ in range(3)], "compiled compiled ran")
class MadeAtFirstUse(nn.Module):
    held: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            held = self.held
        except AttributeError:
            held = self.held = torch.ones(4)
        return x * held


@case(two_sizes, "compiled ran", context="torch.no_grad(), torch.device('cpu')")
class UnderDefaultDevice(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.full((4,), 2.0)


@case(one, "compiled")
class StaticAndClassMethods(nn.Module):
    @staticmethod
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @classmethod
    def by_name(cls, x: torch.Tensor) -> torch.Tensor:
        return x * 3 if cls.__name__ == "StaticAndClassMethods" else x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.doubled(x) + self.by_name(x)


@case(one, "compiled")
class MethodOnTheInstance(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = 4
        self.helped = types.MethodType(lambda self, value: value * self.factor, self)

    def forward(self, x: torch.Tensor) -> Any:
        return self.helped(x)


class Caller:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        return value * self.factor


@case(one, "compiled")
class CallableObject(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.caller = Caller(3.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.caller(x) + Caller(2.0)(x)


@case(one, "compiled")
class Hooked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.layer.register_forward_hook(lambda module, given, out: out * 2)
        self.layer.register_forward_pre_hook(lambda module, given: (given[0] + 1,))

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x)


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


@case(two_sizes, "compiled ran")
class GeneratorMethod(nn.Module):
    def parts(self, x: torch.Tensor) -> Iterator[torch.Tensor]:
        for index in range(2):
            yield x * index

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum(self.parts(x), x)


@case(one, "compiled")
class Comprehensions(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        several = [x * index for index in range(3)]
        named = dict(zip("abc", several, strict=True))
        total = functools.reduce(lambda one, other: one + other, several)
        return torch.stack([named[key] for key in sorted(named)]), torch.cat(several), total


@case(two_sizes, "compiled ran")
class Evaluating(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)
        self.norm = nn.BatchNorm1d(4)
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.training else self.norm(self.dropout(x))


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
class AutocastWithin(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        with torch.no_grad():
            doubled = x * 2
        with torch.autocast("cpu", dtype=torch.bfloat16):
            low = x @ x.t()
        with torch.autocast("cpu", enabled=False):
            high = x @ x.t()
        return doubled, low, high


@case(two_sizes, "compiled ran", context="torch.inference_mode()")
class UnderInferenceMode(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x).relu_()


@case(two_sizes, "compiled ran", context="torch.enable_grad()")
class WithGradientsOn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("last", torch.zeros(4))
        self.last: torch.Tensor

    def forward(self, x: torch.Tensor) -> Any:
        y = self.layer(x)
        self.last.copy_(y.sum(0))
        return y


@case(
    two_sizes,
    "compiled ran",
    context="torch.autocast('cpu', dtype=torch.bfloat16), torch.no_grad()",
    tolerance=1e-2,
)
class UnderAutocast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x)
