"""Orders of sets that a function makes: Dynamo goes over them as they were filled, Python does not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from warmrank.inference import cache_compile
from warmrank.worker.errors import NotPortable

X = torch.ones(2)


def added(members: Iterable[Any]) -> set[Any]:
    made = set()
    for member in members:
        made.add(member)
    return made


def with_more(members: set[Any], member: Any) -> set[Any]:
    members.add(member)
    return members


def without(members: set[Any], member: Any) -> set[Any]:
    members.discard(member)
    return members


def placed(numbers: Iterable[int]) -> int:
    return sum(place * number for place, number in enumerate(numbers))


PAIR = (1, 2)
MADE: dict[str, Callable[[], Any]] = {
    "literal": lambda: placed({3 + len(PAIR), 1, len(PAIR)}),
    "literal of constants": lambda: placed({9, 4, 2, 17, 33}),
    "constant": lambda: sum(place * ord(name) for place, name in enumerate(frozenset(["b", "a", "c"]))),
    "comprehension": lambda: placed({number % 7 for number in (9, 4, 2)}),
    "of a list": lambda: placed(set([3, 1, 2])),  # noqa: C405 - a call
    "added": lambda: placed(added([9, 4, 2, 17])),
    "more than a literal": lambda: placed(with_more({9, 4, 2, 17}, 25)),
    "printed": lambda: sum(map(ord, str({9, 4, 2, 17})[:3])),
    "popped": lambda: {30, 10, 20}.pop() + 1,
    "in no order": lambda: max({9, 4} | {17}) + len({9, 4} | {17}) + sum(sorted({9, 4} | {17})),
    "algebra": lambda: len(({9, 4} | {17}) - {4} ^ {9, 3}) + ({9} <= {9, 4} | {2}),
}
FROM_SETS: dict[str, Callable[[], Any]] = {
    "union": lambda: placed({9, 4} | {17, 2}),
    "copy": lambda: placed(set({9, 4, 2, 17})),
    "frozen": lambda: placed(frozenset({9, 4, 2, 17})),
    "updated": lambda: placed(updated({9, 4}, {17, 2})),
    "lost": lambda: placed(without(added([9, 4, 2, 17]), 4)),
    "popped": lambda: ({9, 4} | {17, 2}).pop() + 1,
}


def updated(members: set[Any], more: set[Any]) -> set[Any]:
    members.update(more)
    return members


def over_a_constant() -> int:
    total = 0
    for number in {9, 4, 2, 17, 33}:  # noqa: PLC0208 - its order is what is tried
        total = total * 2 + number
    return total


MADE["loop over a constant"] = over_a_constant


class Makes(nn.Module):
    """Multiplies by what a function makes."""

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__()
        self.make = make

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.mul(x, self.make())


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_set_made_in_the_trace_has_the_order_that_python_gives_it(
    make: Callable[[], Any], tmp_path: Path
) -> None:
    module = Makes(make)
    assert torch.equal(cache_compile(module.forward, cache_dir=tmp_path)(X), module(X))


@pytest.mark.parametrize("make", FROM_SETS.values(), ids=FROM_SETS)
def test_order_of_a_set_made_of_sets_is_refused(make: Callable[[], Any], tmp_path: Path) -> None:
    with pytest.raises(NotPortable, match=r"order of a set .* sorted"):
        cache_compile(Makes(make).forward, cache_dir=tmp_path)(X)
