"""Constants with methods of the user's, and equal constants that are or are not one object, are refused."""

from __future__ import annotations

import enum
import functools
import gc
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.tracing import compiled, misfits
from warmrank.worker.errors import GraphBreak, NotPortable
from warmrank.worker.torch_private.evaluated import is_number_of_device

X = torch.ones(3)
LIMIT = [3]
# Dynamo of torch 2.11 breaks the graph where it would hash what hashes itself.
REFUSALS = (NotPortable,) if torch.__version__ >= "2.12" else (NotPortable, GraphBreak)


class Color(enum.Enum):
    """A member says what a list of the module says."""

    RED = 2
    BLUE = 5

    def __eq__(self, other: object) -> bool:
        return self is other or self.value < LIMIT[0]

    def __hash__(self) -> int:
        return hash(self.name)

    def __bool__(self) -> bool:
        return int(self.value) < LIMIT[0]


class Plain(enum.Enum):
    RED = 2
    BLUE = 5


class Meta(type):
    def __bool__(cls) -> bool:
        return LIMIT[0] > 2


class Named(metaclass=Meta):
    """A class that is true or false."""


class Equal:
    """Equal to all of its kind."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equal)

    def __hash__(self) -> int:
        return 1


@functools.total_ordering
@dataclass(frozen=True)
class Size:
    number: int

    def __lt__(self, other: Size) -> bool:
        return self.number < other.number + LIMIT[0]

    def __bool__(self) -> bool:
        return self.number < LIMIT[0]


class Chooses(nn.Module):
    """Takes one of two ways by a constant."""

    def __init__(self, value: Any, other: Any = None) -> None:
        super().__init__()
        self.value, self.other = value, other


class IfTrue(Chooses):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if self.value else x * 3


class IfNot(Chooses):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if not self.value else x * 3


class IfAnd(Chooses):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if self.value and x.dim() else x * 3


class IfAmong(Chooses):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if self.value in (self.other, None) else x * 3


class IfIn(Chooses):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if self.value in self.other else x * 3


class IfSame(Chooses):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if self.value is self.other else x * 3


class IfNotSame(Chooses):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if self.value is not self.other else x * 3


def is_noticed(make: Callable[[], nn.Module]) -> bool:
    """True if a trace is refused, or does not fit where the list of the module says something else."""
    try:
        artifact = compiled(make().forward, X)
    except REFUSALS:
        return True
    assert misfits(artifact, make().forward, X) == ()
    LIMIT[0] = 1
    try:
        return misfits(artifact, make().forward, X) != ()
    finally:
        LIMIT[0] = 3


MADE: dict[str, Callable[[], nn.Module]] = {
    "if a member": lambda: IfTrue(Color.RED),
    "if no member": lambda: IfNot(Color.RED),
    "if a member and": lambda: IfAnd(Color.RED),
    "if among members": lambda: IfAmong(Color.RED, Color.BLUE),
    "if a class": lambda: IfTrue(Named),
    "if no class": lambda: IfNot(Named),
    "if a frozen object": lambda: IfTrue(Size(2)),
    "if in a set": lambda: IfIn(Color.RED, {Color.BLUE}),
}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_method_of_a_constant_is_noticed(make: Callable[[], nn.Module]) -> None:
    assert is_noticed(make)


@pytest.mark.parametrize("way", [IfTrue, IfNot, IfAnd, IfAmong, IfSame, IfNotSame])
@pytest.mark.parametrize("value", [Plain.RED, nn.Linear, None, True, 3, ()], ids=repr)
def test_constant_without_methods_is_no_reason_to_refuse(way: type[Chooses], value: Any) -> None:
    artifact = compiled(way(value, value).forward, X)
    assert misfits(artifact, way(value, value).forward, X) == ()


def test_code_that_a_garbage_collection_runs_is_nothing_that_a_trace_asked_for() -> None:
    before, collected = gc.get_threshold(), []

    def note(phase: str, _info: Any) -> None:
        collected.append(phase)

    gc.callbacks.append(note)
    gc.set_threshold(1)
    try:
        compiled(IfNotSame(Plain.RED, Plain.BLUE).forward, X)
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(note)
    assert collected


@pytest.mark.parametrize("way", [IfSame, IfNotSame])
@pytest.mark.parametrize("value", [(1.5, 2), "text", 10_000, 2.5, frozenset((1,))], ids=repr)
def test_identity_of_equal_constants_is_refused(way: type[Chooses], value: Any) -> None:
    with pytest.raises(NotPortable, match="compare them with =="):
        compiled(way(value, value).forward, X)


def test_set_whose_members_say_which_are_equal_is_refused() -> None:
    with pytest.raises(REFUSALS, match=r"decides what is in a set|overridden __hash__"):
        compiled(IfIn(Equal(), {Equal()}).forward, X)


def test_constants_that_differ_may_be_asked_whether_they_are_one() -> None:
    artifact = compiled(IfSame((1.5, 2), (1.5, 3)).forward, X)
    assert misfits(artifact, IfSame((1.5, 2), (1.5, 3)).forward, X) == ()
    assert misfits(artifact, IfSame((1.5, 2), (1.5, 2)).forward, X) != ()


@pytest.mark.parametrize(
    ("device", "source", "name", "is_refused"),
    [
        ("cuda:1", None, "index", True),
        ("cuda:1", None, "type", False),
        ("cuda:1", "L['self'].device", "index", False),  # which a guard compares
        ("cpu", None, "index", False),
    ],
)
def test_number_of_the_device_of_a_tensor_is_refused(
    device: str, source: str | None, name: str, *, is_refused: bool
) -> None:
    variable = SimpleNamespace(value=torch.device(device), source=source)
    assert is_number_of_device(variable, name) == is_refused
