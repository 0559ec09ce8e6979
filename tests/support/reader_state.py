"""Kinds of Python state that `tests/support/reader.py` holds and reads."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from torch import nn


class Child:
    def __init__(self) -> None:
        self.x = 2


class Thing:
    KIND = 4

    def __init__(self) -> None:
        self.x = 2
        self.child = Child()
        self.hidden = 4

    @property
    def shown(self) -> int:
        return self.hidden

    def plus(self) -> int:
        return self.x + 1


class OtherThing(Thing):
    KIND = 7


class Sized:
    """Everything it does depends on one number."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __contains__(self, value: int) -> bool:
        return value < self.count

    def __getitem__(self, index: int) -> int:
        return self.count + index

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))

    def __bool__(self) -> bool:
        return self.count > 5

    def __eq__(self, other: object) -> bool:
        return self.count == other

    __hash__ = None  # type: ignore[assignment]

    def __call__(self) -> int:
        return self.count


class Looked:
    def __init__(self) -> None:
        self.table = {"found": 2}

    def __getattr__(self, name: str) -> int:
        return self.table[name]


class Slotted:
    __slots__ = ("x",)

    def __init__(self) -> None:
        self.x = 2


@dataclass
class Plain:
    value: int


@dataclass(frozen=True)
class Frozen:
    value: int


class Pair(NamedTuple):
    left: int
    right: int


class Colour(enum.Enum):
    RED = 1
    GREEN = 2
    ULTRAMARINE = 3


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Dictionary(dict[str, int]):
    pass


class Listing(list[int]):
    pass


def joined(a: int, b: int) -> int:
    return a * 10 + b


def closed_over() -> Callable[[int], int]:
    factor = 2

    def inner(value: int) -> int:
        return value * factor

    return inner


def matched(pair: tuple[int, int]) -> int:
    match pair:
        case (1, right):
            return right
        case _:
            return 50


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = 2


class Base(nn.Module):
    INHERITED = 6
