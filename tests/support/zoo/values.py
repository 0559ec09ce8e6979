"""Modules that take and return all kinds of values, or read Python state of all kinds."""

from __future__ import annotations

import collections
import enum
import functools
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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


@dataclass
class Inner:
    x: torch.Tensor
    factor: float = 2.0


@dataclass
class Outer:
    inner: Inner
    count: int
    names: list[str] = field(default_factory=list)


@dataclass
class Output:
    value: torch.Tensor
    extra: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Strict:
    x: torch.Tensor
    scale: float = 2.0
    shape: tuple[int, ...] = (1, 2)


class Pair(NamedTuple):
    a: torch.Tensor
    b: int


@case(
    lambda: [
        call(Outer(Inner(numbers(3, 4)), 2)),
        call(Outer(Inner(numbers(6, 4)), 5)),
        call(Outer(Inner(numbers(6, 4), 3.0), 2)),
    ],
    "compiled ran compiled",
)
def nested_dataclass(self: Any, given: Outer) -> torch.Tensor:
    return given.inner.x * given.inner.factor + given.count


@case(
    lambda: [
        call(Strict(x=numbers(3, 4))),
        call(Strict(x=numbers(6, 4))),
        call(Strict(x=numbers(3, 4), scale=3.0)),
    ],
    "compiled ran compiled",
)
def strict_dataclass(self: Any, given: Strict) -> Any:
    return Strict(x=given.x * given.scale, shape=(given.x.shape[0], given.shape[1]))


@case(lambda: [call(Pair(numbers(3, 4), 2)), call(Pair(numbers(3, 4), 5))], "compiled ran")
def named_tuple_input(self: Any, pair: Pair) -> torch.Tensor:
    return pair.a * pair.b


@case(
    lambda: [call(numbers(3, 4), scale=2.0), call(numbers(3, 4), scale=3.0), call(numbers(3, 4), scale=2.0)],
    "compiled compiled ran",
)
def keyword_only(self: Any, x: torch.Tensor, *, scale: float = 1.0, bias: torch.Tensor | None = None) -> Any:
    return x * scale if bias is None else x * scale + bias


@case(
    lambda: [
        call(numbers(3, 4), numbers(3, 4, seed=1), k=numbers(3, 4, seed=2)),
        call(numbers(3, 4)),
        call(numbers(3, 4), numbers(3, 4, seed=1), other=numbers(3, 4)),
    ],
    "compiled compiled compiled",
)
def any_arguments(self: Any, *several: torch.Tensor, **named: torch.Tensor) -> torch.Tensor:
    result = several[0] * 0.5
    for index, x in enumerate(several):
        result = result + x * index
    for x in named.values():
        result = result - x
    return result


@case(
    lambda: [call(numbers(3, 4), 2, numbers(3, 4)), call(numbers(3, 4), len=numbers(3, 4), type=3)],
    "compiled ran",
)
def names_of_builtins(self: Any, id: torch.Tensor, type: int, len: torch.Tensor) -> torch.Tensor:  # noqa: A002
    return id * type + len


@case(
    lambda: [
        call({"a": numbers(3, 4), "b": numbers(3, 4, seed=1)}),
        call({"a": numbers(7, 4), "b": numbers(7, 4, seed=1)}),
        call({"b": numbers(3, 4), "a": numbers(3, 4, seed=1)}),
    ],
    "compiled ran compiled",
)
def dict_input(self: Any, given: dict[str, torch.Tensor]) -> Any:
    result = given["a"] * 0
    for x in given.values():
        result = result * 2 + x
    return {"out": result, "size": len(given)}


@case(
    lambda: [
        call((numbers(3, 4), (numbers(3, 4, seed=1), 2))),
        call((numbers(3, 4), (numbers(3, 4, seed=1), 4))),
        call([numbers(3, 4), (numbers(3, 4, seed=1), 2)]),
    ],
    "compiled ran compiled",
)
def tuple_input(self: Any, pair: Any) -> Any:
    return pair[0] + pair[1][0] * pair[1][1]


@case(
    lambda: [call(numbers(3, 4), None), call(numbers(3, 4), numbers(3, 4)), call(numbers(5, 4), None)],
    "compiled compiled ran",
)
def none_input(self: Any, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
    return x * 2 if y is None else x + y


def scalar_calls() -> list[Call]:
    x = numbers(3, 4)
    return [
        call(x, True, 3, 0.5, "relu"),
        call(x, False, 3, 0.5, "relu"),
        call(x, True, 4, 0.5, "relu"),
        call(x, True, 3, 0.25, "relu"),
        call(x, True, 3, 0.5, "gelu"),
        call(x, True, -2, 0.5, "relu"),
        call(x, True, 0, 0.5, "relu"),
        call(x, 1, 3, 0.5, "relu"),
    ]


@case(scalar_calls, "compiled compiled ran compiled compiled ran ran compiled", tolerance=1e-6)
def scalars(self: Any, x: torch.Tensor, flag: bool, count: int, factor: float, name: str) -> Any:
    return getattr(F, name)(x + count if flag else x - count) * factor


@case(lambda: [call(numbers(3, 4), Mode.FAST), call(numbers(3, 4), Mode.SLOW)], "compiled compiled")
def enum_input(self: Any, x: torch.Tensor, mode: Mode) -> torch.Tensor:
    return x * mode.value


@case(lambda: [call(numbers(3, 4), torch.float64), call(numbers(3, 4), torch.float16)], "compiled compiled")
def dtype_input(self: Any, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return x.to(dtype)


@case(
    lambda: [call(numbers(3, 4), [1, 2]), call(numbers(3, 4), [1, 2, 3]), call(numbers(3, 4), [1, 5])],
    "compiled compiled ran",
)
def list_of_integers(self: Any, x: torch.Tensor, given: list[int]) -> torch.Tensor:
    return x * sum(given)


def list_calls() -> list[Call]:
    x = numbers(3, 4)
    return [call(x, [x + 1, x + 2]), call(x, [x + 1, x + 2, x + 3]), call(x, 5), call(x, x + 1)]


@case(list_calls, "compiled compiled compiled compiled")
def list_or_not(self: Any, x: torch.Tensor, given: Any) -> Any:
    return x + len(given) + given[0] if isinstance(given, list) else x * given


@case(lambda: [call(numbers(3, 4), torch.tensor(2)), call(numbers(3, 4), torch.tensor(3))], "compiled ran")
def tensor_for_number(self: Any, x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    return x * count


@case(lambda: [call(numbers(3, 4), 3), call(numbers(3, 4), 4)], "compiled compiled")
def loop_over_integer(self: Any, x: torch.Tensor, count: int) -> torch.Tensor:
    for index in range(count):
        x = x + index
    return x


@case(two_sizes, "compiled ran")
def asks_for_type(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x * 2 if type(x) is torch.Tensor else x


@case(lambda: [call(numbers(n, 4)) for n in (3, 16, 2)], "compiled compiled ran")
def branch_on_size(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.shape[0] > 8 else x * 3


@case(lambda: [call(numbers(n, 4)) for n in (4, 5, 6, 8)], "compiled compiled ran ran")
def even_sizes(self: Any, x: torch.Tensor) -> torch.Tensor:
    """In the first call both sizes are 4, which binds neither to the other."""
    return x.view(x.shape[0] // 2, 2, 4).sum(1) if x.shape[0] % 2 == 0 else x.sum(0)


@case(lambda: [call(numbers(n, 4)) for n in (3, 1, 0, 2)], "compiled compiled compiled ran")
def special_sizes(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x + torch.ones(1, 4)


@case(lambda: [call(numbers(n, 4)) for n in (3, 5, 3)], "compiled compiled ran", options={"dynamic": False})
def fixed_sizes(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x * x.shape[0]


@case(lambda: [call(numbers(3, 4)), call(numbers(4, 3)), call(numbers(4, 4))], "compiled ran ran")
def any_sizes(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x.reshape(-1) * 2


@case(two_sizes, "compiled ran")
def tensor_constants(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x * torch.tensor([1.0, 2.0, 3.0, 4.0]) + torch.arange(4) + torch.zeros(x.shape[0], 1)


@case(two_sizes, "compiled ran")
def returns_dataclass(self: Any, x: torch.Tensor) -> Any:
    return Output(x * 2, extra=x.shape), Output(x + Inner(x).factor)


@case(two_sizes, "compiled ran")
def returns_named_tuple(self: Any, x: torch.Tensor) -> Pair:
    return Pair(x * 2, x.shape[0])


@case(two_sizes, "compiled ran")
def returns_many_things(self: Any, x: torch.Tensor) -> Any:
    nested = (x + 1, [x * 2, None, "k", 1.5, True])
    return {"size": x.shape, "count": x.numel(), "nested": nested}, x.dtype, x.size(0) * 2, x.device


@case(two_sizes, "compiled ran")
def returns_torchs_tuples(self: Any, x: torch.Tensor) -> Any:
    return torch.max(x, dim=0), x.sort(1)


@case(
    lambda: [call(numbers(3, 4, dtype=torch.complex64)), call(numbers(3, 4, dtype=torch.complex64).conj())],
    "compiled compiled",
)
def complex_numbers(self: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(x * 2)
