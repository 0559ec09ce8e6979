"""Which objects are one and the same is a condition, by whatever paths the code reaches them."""

from __future__ import annotations

import enum
import itertools
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from tests.support.tracing import compiled, misfits

ROWS = torch.ones(2, 4)
SHARED = [2.0]
NAMELESS = (lambda x: x, lambda x: x)


def counters() -> tuple[Callable[..., Any], Callable[..., Any]]:
    count = 1

    def raised(x: torch.Tensor) -> Any:
        nonlocal count
        count = count + 1
        return x * count

    def read(x: torch.Tensor) -> Any:
        return x * count

    return raised, read


class Counted:
    def __init__(self) -> None:
        self.k = 1

    def step(self) -> int:
        return self.k

    @classmethod
    def made(cls) -> str:
        return cls.__name__


class CountedTwice(Counted):
    pass


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Pair(NamedTuple):
    size: int


class Holder(nn.Module):
    """Two of everything, equal to each other."""

    def __init__(self) -> None:
        super().__init__()
        self.a: Any = [1.0]
        self.b: Any = [1.0]
        self.raised, self.read = counters()

    def appends(self, x: torch.Tensor) -> Any:
        self.a.append(2.0)
        return x * len(self.b)

    def adds(self, x: torch.Tensor) -> Any:
        self.a.add(2)
        return x * len(self.b)

    def sets(self, x: torch.Tensor) -> Any:
        self.a["k"] = 2.0
        return x * len(self.b)

    def attributes(self, x: torch.Tensor) -> Any:
        self.a.k = 7
        return x * self.b.k

    def compares(self, x: torch.Tensor) -> Any:
        return x if self.a is self.b else x * 2

    def looks_up(self, x: torch.Tensor) -> Any:
        return x * {self.a: 3}.get(self.b, 5)

    def argument(self, x: torch.Tensor, given: list[float]) -> Any:
        given.append(2.0)
        return x * len(self.a)

    def shared(self, x: torch.Tensor) -> Any:
        return x * self.a[0] + SHARED[0]

    def counted(self, x: torch.Tensor) -> Any:
        return self.raised(x) + self.read(x)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("method", "make"),
    [
        ("appends", lambda: [1.0]),
        ("appends", lambda: deque([1.0])),
        ("adds", lambda: {1}),
        ("sets", lambda: {"a": 1.0}),
        ("attributes", Counted),
        ("compares", lambda: [1.0]),
        ("compares", itertools.cycle(NAMELESS).__next__),
    ],
    ids=["list", "deque", "set", "dict", "object", "is", "functions without a name"],
)
@pytest.mark.parametrize("same", [False, True], ids=["distinct first", "same first"])
def test_objects_that_become_one_or_two_are_noticed(method: str, make: Callable[[], Any], same: bool) -> None:
    holder = Holder()
    one, other = make(), make()
    holder.a, holder.b = one, one if same else other
    artifact = compiled(getattr(holder, method), ROWS)
    assert not misfits(artifact, getattr(holder, method), ROWS)
    holder.b = other if same else one
    assert misfits(artifact, getattr(holder, method), ROWS)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Color.RED, Color.BLUE),
        (Pair(1), Pair(2)),
        (Counted().step, Counted().step),
        (Counted.made, CountedTwice.made),
    ],
    ids=["enum", "named tuple", "method", "class method"],
)
@pytest.mark.parametrize("same", [False, True], ids=["distinct first", "same first"])
def test_key_that_is_or_was_another_object_is_noticed(one: Any, other: Any, same: bool) -> None:
    holder = Holder()
    holder.a, holder.b = one, one if same else other
    artifact = compiled(holder.looks_up, ROWS)
    assert not misfits(artifact, holder.looks_up, ROWS)
    holder.b = other if same else one
    assert misfits(artifact, holder.looks_up, ROWS)


def test_argument_that_is_an_attribute_too_is_noticed() -> None:
    holder = Holder()
    artifact = compiled(holder.argument, ROWS, [1.0])
    assert not misfits(artifact, holder.argument, ROWS, [1.0])
    assert misfits(artifact, holder.argument, ROWS, holder.a)


def test_attribute_that_is_no_longer_a_global_is_noticed() -> None:
    holder = Holder()
    holder.a = SHARED
    artifact = compiled(holder.shared, ROWS)
    assert not misfits(artifact, holder.shared, ROWS)
    holder.a = list(SHARED)
    assert misfits(artifact, holder.shared, ROWS)


def test_functions_that_no_longer_share_a_variable_are_noticed() -> None:
    holder = Holder()
    artifact = compiled(holder.counted, ROWS)
    assert not misfits(artifact, holder.counted, ROWS)
    holder.read = counters()[1]
    assert misfits(artifact, holder.counted, ROWS)


def test_attribute_that_was_looked_for_and_walked_is_noticed_when_it_goes() -> None:
    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.held: Any = Counted()
            vars(self.held)["sizes"] = {"a": 1}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * len(list((self.held.sizes if hasattr(self.held, "sizes") else {}).keys()))

    looks: Any = Looks()
    artifact = compiled(looks.forward, ROWS)
    assert not misfits(artifact, looks.forward, ROWS)
    del looks.held.sizes
    assert misfits(artifact, looks.forward, ROWS)
