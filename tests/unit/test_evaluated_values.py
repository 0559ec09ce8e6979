"""Values that are looked up or compared: another value, of the same type, is noticed by a load."""

from __future__ import annotations

import enum
from collections import namedtuple
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.tracing import compiled, misfits

X = torch.ones(3)


class Color(enum.Enum):
    RED = 2
    BLUE = 5


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Name(enum.StrEnum):
    ONE = "one"
    TWO = "two"


Pair = namedtuple("Pair", "a b")  # noqa: PYI024 - the untyped form is what is tried

VALUES: dict[str, tuple[Any, Any]] = {
    "enum": (Color.RED, Color.BLUE),
    "int enum": (Level.LOW, Level.HIGH),
    "str enum": (Name.ONE, Name.TWO),
    "named tuple": (Pair(3, 2), Pair(3, 3)),
    "tuple": ((1, 2), (1, 3)),
    "dtype": (torch.float32, torch.float64),
    "frozenset": (frozenset((1,)), frozenset((2,))),
}
TABLE: dict[Any, int] = {value: number for pair in VALUES.values() for number, value in enumerate(pair, 2)}
FIRST = frozenset(pair[0] for pair in VALUES.values())


class Owner:
    """An object of the user's."""

    value: Any


class Reads(nn.Module):
    """Reads a value in one way."""

    def __init__(self, way: str, value: Any) -> None:
        super().__init__()
        self.way = way
        self.owner = Owner()
        self.owner.value = value
        self.other = value

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        value = self.owner.value
        if self.way == "item":
            return x * TABLE[value]
        if self.way == "in dict":
            return x * (2 if value in {self.other: 1} else 3)
        if self.way == "in set":
            return x * (2 if value in FIRST else 3)
        if self.way == "in nested":
            return x * (2 if (value, 1) in {(self.other, 1): 1} else 3)
        return x * (2 if value == self.other else 3)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("way", ["item", "in dict", "in set", "in nested", "equal"])
@pytest.mark.parametrize("kind", VALUES)
def test_value_that_is_looked_up_or_compared_is_guarded(kind: str, way: str) -> None:
    first, second = VALUES[kind]
    module = Reads(way, first)
    made = compiled(module.forward, X)
    assert misfits(made, module.forward, X) == ()
    module.owner.value = second
    assert misfits(made, module.forward, X)
