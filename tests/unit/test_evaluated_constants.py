"""Constants with methods of the user's, and equal constants that are or are not one object, are refused."""

from __future__ import annotations

import builtins
import contextlib
import enum
import functools
import importlib.util
import logging
import os
import re
import sys
import types
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.tracing import cached, compiled, misfits, not_in_2_12, traces_more
from warmrank.worker.errors import GraphBreak, NotPortable

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


@pytest.mark.parametrize(
    "make",
    [pytest.param(make, marks=not_in_2_12 if name == "if in a set" else ()) for name, make in MADE.items()],
    ids=MADE,
)
def test_method_of_a_constant_is_noticed(make: Callable[[], nn.Module]) -> None:
    assert is_noticed(make)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("way", [IfTrue, IfNot, IfAnd, IfAmong, IfSame, IfNotSame])
@pytest.mark.parametrize("value", [Plain.RED, nn.Linear, None, True, 3, ()], ids=repr)
def test_constant_without_methods_is_no_reason_to_refuse(way: type[Chooses], value: Any) -> None:
    artifact = compiled(way(value, value).forward, X)
    assert misfits(artifact, way(value, value).forward, X) == ()


@pytest.mark.parametrize("way", [IfSame, IfNotSame])
@pytest.mark.parametrize("value", [(1.5, 2), "text", 10_000, 2.5, frozenset((1,)), range(3)], ids=repr)
def test_identity_of_equal_constants_is_refused(way: type[Chooses], value: Any) -> None:
    with pytest.raises(NotPortable, match="compare them with =="):
        compiled(way(value, value).forward, X)


def test_constants_that_differ_may_be_asked_whether_they_are_one() -> None:
    artifact = compiled(IfSame((1.5, 2), (1.5, 3)).forward, X)
    assert misfits(artifact, IfSame((1.5, 2), (1.5, 3)).forward, X) == ()
    assert misfits(artifact, IfSame((1.5, 2), (1.5, 2)).forward, X) != ()


NUMBERS = [1]
NEWER = pytest.mark.skipif(torch.__version__ < "2.13", reason="Dynamo before 2.13 breaks the graph there")


class Asks(nn.Module):
    """Multiplies by what a function says."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        super().__init__()
        self.ask = ask

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.mul(x, self.ask())


class Kind(type):
    number = 5

    def __getitem__(cls, _: int) -> int:
        return Kind.number

    def __add__(cls, _: int) -> int:
        return Kind.number


class Made(metaclass=Kind):
    """A class of a metaclass of the user's."""


class Indexed:
    number = 5

    def __class_getitem__(cls, _: int) -> int:
        return Indexed.number


class Textless:
    """Has no text of its own."""


PLAIN, OTHER = Textless(), Textless()


@contextlib.contextmanager
def recursion_limit() -> Iterator[None]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(before + 7)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


@contextlib.contextmanager
def module_installed() -> Iterator[None]:
    sys.modules["not_installed"] = types.ModuleType("not_installed")
    sys.modules["not_installed"].__spec__ = importlib.util.spec_from_loader("not_installed", None)
    try:
        yield
    finally:
        del sys.modules["not_installed"]


@contextlib.contextmanager
def metaclass_of(**attributes: Any) -> Iterator[None]:
    before = {name: vars(Kind)[name] for name in attributes if name in vars(Kind)}
    for name, value in attributes.items():
        setattr(Kind, name, value)
    try:
        yield
    finally:
        for name in attributes:
            delattr(Kind, name)
        for name, value in before.items():
            setattr(Kind, name, value)


CHANGES: dict[str, tuple[Callable[[], Any], Callable[[], contextlib.AbstractContextManager[None]]]] = {
    "recursion limit": (lambda: sys.getrecursionlimit(), recursion_limit),  # noqa: PLW0108 - traced
    "attribute of a metaclass": (lambda: Made.number, lambda: metaclass_of(number=7)),
    "one more method of a metaclass": (
        lambda: 2 if Made else 3,  # type: ignore[truthy-function]
        lambda: metaclass_of(__bool__=lambda _cls: False),
    ),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_change_of_what_a_call_read_is_noticed(kind: str) -> None:
    ask, change = CHANGES[kind]
    module = Asks(ask)
    artifact = compiled(module.forward, X)
    assert misfits(artifact, module.forward, X) == ()
    with change():
        assert misfits(artifact, module.forward, X)


class Doubling(type):
    def __call__(cls, number: int) -> Any:
        made = super().__call__(number)
        made.number *= 2
        return made


class Adding(Doubling):
    def __call__(cls, number: int) -> Any:
        made = super().__call__(number)
        made.number += 1
        return made


class Doubled(metaclass=Adding):
    def __init__(self, number: int) -> None:
        self.number = number


class Direct(Adding):
    def __call__(cls, number: int) -> Any:
        made: Any = type.__call__(cls, number)
        made.number += 4
        return made


class Past(metaclass=Direct):
    def __init__(self, number: int) -> None:
        self.number = number


class Parts:
    def scaled(self, factor: int, number: int) -> int:
        return factor * number

    tripled = functools.partialmethod(scaled, 3)


FORWARDED: dict[str, tuple[Callable[[], Any], tuple[type, str, Any]]] = {
    "a metaclass": (lambda: Doubled(3).number, (Adding, "__call__", Doubling.__call__)),
    "a metaclass's base": (lambda: Doubled(3).number, (Doubling, "__call__", type.__call__)),
    "a metaclass that asks Python's own": (
        lambda: Past(3).number,
        (Direct, "__call__", Doubling.__call__),
    ),
    "partialmethod": (
        lambda: Parts().tripled(5),
        (Parts, "tripled", functools.partialmethod(Parts.scaled, 4)),
    ),
}


@pytest.mark.parametrize("kind", FORWARDED)
def test_call_that_python_forwards_is_traced(kind: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask, change = FORWARDED[kind]
    module = Asks(ask)
    function = cached(module.forward, cache)
    for _ in range(2):
        with torch.no_grad():
            assert torch.equal(function(X), module.forward(X))
        monkeypatch.setattr(*change)


def test_value_that_somebody_put_among_the_builtins_is_a_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtins, "put_by_test", True, raising=False)
    module = Asks(lambda: 2 if put_by_test else 3)  # type: ignore[name-defined]  # noqa: F821
    artifact = compiled(module.forward, X)
    assert misfits(artifact, module.forward, X) == ()
    monkeypatch.setattr(builtins, "put_by_test", False)
    assert misfits(artifact, module.forward, X) == ("builtins['put_by_test']: True -> False",)


@NEWER
def test_module_that_is_installed_later_is_noticed() -> None:
    module = Asks(lambda: 2 if importlib.util.find_spec("not_installed") else 3)
    artifact = compiled(module.forward, X)
    assert misfits(artifact, module.forward, X) == ()
    with module_installed():
        assert any("find_spec" in reason for reason in misfits(artifact, module.forward, X))


ADDRESSES: dict[str, Callable[[], Any]] = {
    "repr": lambda: len(repr(PLAIN)),
    "str": lambda: len(str(PLAIN)),
    "repr of a function": lambda: len(repr(metaclass_of)),
    "order by text": lambda: sorted([PLAIN, OTHER], key=str).index(PLAIN),
    "hash of an object": lambda: hash(PLAIN) % 7,
    "hash of a class": lambda: hash(Textless) % 7,
    "hash of a dtype": lambda: hash((torch.float32, 1)) % 7,
    "hash of a frozen set": lambda: hash(frozenset([None, 1])) % 7,
    "id of a list": lambda: id(NUMBERS) % 7,
    "id of a function": lambda: id(metaclass_of) % 7,
    "ids as keys": lambda: {id(NUMBERS): 3}[id(NUMBERS)],
    "order of classes": lambda: list({Textless, Indexed}).index(Textless),
}


@NEWER
@pytest.mark.parametrize("kind", ADDRESSES)
def test_what_hangs_on_an_address_is_refused(kind: str) -> None:
    with pytest.raises(NotPortable, match="address"):
        compiled(Asks(ADDRESSES[kind]).forward, X)


UNTRACED: dict[str, Callable[[], Any]] = {
    "index of a class": lambda: Indexed[0],  # type: ignore[misc]
    "index by a metaclass": lambda: Made[0],
    "operator of a metaclass": lambda: Made + 1,
}


@NEWER
@pytest.mark.parametrize("kind", UNTRACED)
def test_code_of_the_users_that_runs_untraced_is_refused(kind: str) -> None:
    with pytest.raises(NotPortable, match="not traced itself"):
        compiled(Asks(UNTRACED[kind]).forward, X)


@NEWER
def test_bound_method_of_c_is_read_with_its_type() -> None:
    """CPython 3.11 crashes where ``Pattern.match`` is bound without one."""
    module = Asks(lambda match=re.compile("a+").match: 2 if match("ab") else 3)  # type: ignore[misc]
    assert misfits(compiled(module.forward, X), module.forward, X) == ()


def test_level_of_a_logger_that_the_function_looks_up_is_a_condition():
    module = Asks(lambda: logging.getLogger("warmrank.test").isEnabledFor(logging.DEBUG))
    artifact = compiled(module.forward, X)
    logging.getLogger("warmrank.test").setLevel(logging.DEBUG)
    assert misfits(artifact, module.forward, X) == ("Logger.isEnabledFor(warmrank.test, 10): False -> True",)


def test_variable_of_the_environment_that_a_fake_kernel_reads_is_a_condition(monkeypatch):
    @torch.library.custom_op("warmrank_test_folds::sized", mutates_args=())
    def sized(x: torch.Tensor) -> torch.Tensor:
        return x.new_ones(int(os.environ.get("WARMRANK_TEST_SIZE", "4")))

    sized.register_fake(lambda x: x.new_empty(int(os.environ.get("WARMRANK_TEST_SIZE", "4"))))
    module = Asks(lambda: sized(X).shape[0])
    artifact = compiled(module.forward, X)
    assert misfits(artifact, module.forward, X) == ()
    monkeypatch.setenv("WARMRANK_TEST_SIZE", "5")
    assert misfits(artifact, module.forward, X) == ("getenv(WARMRANK_TEST_SIZE): None -> 5",)


class Counted:
    """A class that counts."""

    number: float = 3


class Counts(nn.Module):
    """Writes to a class."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Counted.number += 1
        return x * Counted.number


@traces_more
@not_in_2_12
def test_trace_writes_nothing_to_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counted, "number", 3)
    artifact = compiled(Counts().forward, X)
    assert Counted.number == 3
    assert misfits(artifact, Counts().forward, X) == ()
    Counted.number = 4
    assert misfits(artifact, Counts().forward, X) == ()
    Counted.number = 4.5
    assert misfits(artifact, Counts().forward, X) != ()


class Tint(enum.Enum):
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
    "enum": (Tint.RED, Tint.BLUE),
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
