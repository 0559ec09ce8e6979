"""Modules that use what Python and its libraries offer beside torch: numbers, objects, calls that tell."""

from __future__ import annotations

import enum
import functools
import logging
import math
import operator
import re
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import nn
from torch.utils._pytree import register_pytree_node, tree_map

from tests.support.zoo.case import Call, call, case, numbers, refused
from tests.support.zoo.values import one, two_sizes

LOG = logging.getLogger(__name__)
GAIN: ContextVar[float] = ContextVar("GAIN", default=2.0)
FACTOR: Any = np.float32(1.1)
SECOND = operator.itemgetter(1)
PATTERN = re.compile(r"layer\d+")


class Leaf:
    def __init__(self, value: torch.Tensor) -> None:
        self.value = value


register_pytree_node(Leaf, lambda leaf: ([leaf.value], None), lambda values, _: Leaf(*values))


class Count(int):
    pass


class Ratio(float):
    pass


class Name(str):
    __slots__ = ()


class Kind(enum.StrEnum):
    RELU = "relu"


class Weight(nn.Parameter):
    """As vLLM's weights: attributes of their own, and no rules for operators."""

    output_dim = 0


def three_sizes() -> list[Call]:
    return [call(numbers(8, 4)), call(numbers(6, 4)), call(numbers(9, 4))]


@case(three_sizes, "compiled ran compiled")
def made_of_sizes(self: Any, x: torch.Tensor) -> tuple[Any, ...]:
    num, width = x.shape
    x = x / math.sqrt(width) * round(num / 2) + math.log2(num) + math.ceil(num / 3) + num**0.5
    x = x + num % 3 + abs(num - width) + min(num, width) + float(num)
    if math.sqrt(num) >= 3 or num & 1:
        x = x * 3
    return x[: num // 2], math.sqrt(num), num / 2, num > 7, torch.arange(num)


@case(two_sizes, "compiled compiled")
def no_symbol(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Dynamo has no symbols for what this makes of a size."""
    quotient, rest = divmod(x.shape[0], 2)
    return x * quotient + rest + len(str(x.shape[0])) + math.gcd(x.shape[0], 4)


@case(
    lambda: [call(numbers(3, 4), np.ones(4, np.float32)), call(numbers(3, 4), np.arange(4.0))],
    "compiled compiled",
    table=lambda: np.arange(4, dtype=np.float32),
    flag=lambda: np.bool_(True),
    count=lambda: np.int64(2),
)
def num_py(self: Any, x: torch.Tensor, given: Any) -> torch.Tensor:
    x = x * FACTOR * (FACTOR * np.float32(3)) + self.count if self.flag else x
    x = x.repeat(self.count, 1)
    return x + torch.from_numpy(self.table) + torch.from_numpy(given)


@case(one, "compiled")
def pytree(self: Any, x: torch.Tensor) -> Any:
    return tree_map(torch.neg, {"leaf": Leaf(x)})["leaf"].value


@case(one, "compiled", device=lambda: torch.device("cpu", 0))
def device_with_index(self: Any, x: torch.Tensor) -> Any:
    return x.to(self.device).add_(1), x * 2


@case(
    one,
    "compiled",
    count=lambda: Count(3),
    ratio=lambda: Ratio(0.5),
    name=lambda: Name("relu"),
    kind=lambda: Kind.RELU,
    number=lambda: np.int64(2),
)
def derived_numbers(self: Any, x: torch.Tensor) -> torch.Tensor:
    x = x * self.count + self.ratio * self.number
    return F.relu(x) if self.name == "relu" and self.kind == "relu" else x


@case(
    one,
    "compiled",
    by_dtype=lambda: {torch.float32: 2.0, torch.float16: 3.0},
    by_device=lambda: {torch.device("cpu"): 1.0},
    by_object=lambda: {
        Kind.RELU: 1.0,
        Weight: 2.0,
        F.relu: 3.0,
        (1, "a"): 4.0,
        None: 5.0,
    },
)
def unusual_keys(self: Any, x: torch.Tensor) -> Any:
    x = x * self.by_dtype[x.dtype] + self.by_device[x.device]
    return x + self.by_object[Weight] + self.by_object[F.relu] + self.by_object[1, "a"] + self.by_object[None]


@case(one, "compiled", scales=lambda: {"a": 3.0}, first=lambda: operator.attrgetter("scales"))
def objects_of_the_library(self: Any, x: torch.Tensor) -> torch.Tensor:
    if PATTERN.match("layer12"):
        x = x * SECOND((2.0, 5.0))
    gain: float = self.first(self)["a"] + GAIN.get()
    return x + gain


@case(lambda: [*one(), *one()], "compiled compiled")
class CachedProperty(nn.Module):
    """Evaluated by the first call, which stores it in the module."""

    @functools.cached_property
    def scale(self) -> float:
        return 2.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


@case(one, "compiled", weight=lambda: Weight(numbers(4, 4)), output_dim=lambda: 2)
def weight_subclass(self: Any, x: torch.Tensor) -> torch.Tensor:
    return F.linear(x, self.weight)


class Traced(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.relu() * 2


@case(one, "compiled", traced=lambda: torch.fx.symbolic_trace(Traced()))
def graph_module(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.traced(x) + 1  # type: ignore[no-any-return]


# Captured, the operators within aten.gru run one by one, which rounds otherwise in the last bit.
@case(lambda: [call(numbers(2, 3, 4))], "compiled", options={"dynamic": False}, tolerance=1e-6)
class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gru = nn.GRU(4, 3, batch_first=True, bidirectional=True)

    def forward(self, x: torch.Tensor) -> Any:
        return self.gru(x)


@case(one, "compiled")
def telling(self: Any, x: torch.Tensor) -> torch.Tensor:
    LOG.debug("x %s", x, extra={"shape": x.shape})
    logging.getLogger(__name__).debug("once more")
    return x * 3 if LOG.isEnabledFor(logging.NOTSET + 1) else x


@case(one, "compiled")
class Generators(nn.Module):
    def parts(self, x: torch.Tensor) -> Iterator[torch.Tensor]:
        for step in range(3):
            yield x + step

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([part * 2 for part in self.parts(x)])


@refused(one, "NotPortable")
def version(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x * 3 if x._version > 3 else x * 2
