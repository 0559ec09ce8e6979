"""Classes of values that fuzzed programs hold; servers have imported them, so that no process need."""

from __future__ import annotations

import abc
import collections
import dataclasses
import enum
import typing
from typing import Any, NamedTuple, Protocol, runtime_checkable


class Color(enum.Enum):
    RED = 2
    BLUE = 5


class Level(enum.IntEnum):
    LOW = 2
    HIGH = 5


class Flags(enum.Flag):
    ONE = 1
    TWO = 2
    FOUR = 4


class Text(enum.StrEnum):
    A = "aa"
    B = "bbbb"


@dataclasses.dataclass
class Config:
    size: Any = 3
    name: Any = "n"


@dataclasses.dataclass(frozen=True)
class Frozen:
    size: Any = 3
    name: Any = "n"


@dataclasses.dataclass(slots=True)
class SlottedConfig:
    size: Any = 3
    name: Any = "n"


class Pair(NamedTuple):
    size: Any
    name: Any = "n"


Old = collections.namedtuple("Old", "size name")  # noqa: PYI024 - the old form is what is tried


class Box:
    """Anything may be set."""


class Held:
    """One value."""

    def __init__(self, a: Any) -> None:
        self.a = a

    def get(self) -> Any:
        return self.a

    @property
    def prop(self) -> Any:
        return self.a


class Thing:
    KIND = 4

    def __init__(self) -> None:
        self.x, self.hidden = 2, 4
        self.child = Held(2)

    @property
    def shown(self) -> int:
        return self.hidden


class OtherThing(Thing):
    KIND = 7


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a: Any) -> None:
        self.a = a


class Equal:
    """Equal to what holds an equal value."""

    def __init__(self, a: Any) -> None:
        self.a = a

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equal) and self.a == other.a

    def __hash__(self) -> int:
        return hash(self.a)


class Sized:
    """Has a length, items, members and a truth of its own."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __bool__(self) -> bool:
        return self.n > 4

    def __getitem__(self, index: int) -> int:
        return self.n * 10 + index

    def __contains__(self, item: int) -> bool:
        return item < self.n

    def __iter__(self) -> typing.Iterator[int]:
        return iter(range(self.n))

    def __add__(self, other: int) -> int:
        return self.n + other


class Called:
    def __init__(self, a: Any) -> None:
        self.a = a

    def __call__(self, y: Any) -> Any:
        return y * self.a


class Dynamic:
    """Makes attributes up from a dict."""

    def __init__(self, **values: Any) -> None:
        self.values = values

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["values"][name]
        except KeyError:
            raise AttributeError(name) from None


class Int(int):
    pass


class Float(float):
    pass


class Str(str):
    __slots__ = ()


class List(list):  # type: ignore[type-arg]
    pass


class Dict(dict):  # type: ignore[type-arg]
    pass


class Base:
    size = 2

    @classmethod
    def made(cls) -> str:
        return cls.__name__


class Left(Base):
    pass


class Right(Base):
    size = 5


class Abstract(abc.ABC):  # noqa: B024 - members are registered
    pass


class Member:
    pass


@runtime_checkable
class Has(Protocol):
    size: int


class Checked(type):
    def __instancecheck__(cls, thing: object) -> bool:
        return bool(getattr(thing, "counted", False))


class Counted(metaclass=Checked):
    pass


class Constant:
    """A descriptor without an owner's state."""

    def __init__(self, a: Any) -> None:
        self.a = a

    def __get__(self, owner: object, kind: type | None = None) -> Any:
        return self.a


def double(y: Any) -> Any:
    return y * 2


def triple(y: Any) -> Any:
    return y * 3


def multiplied(y: Any, by: Any = 3) -> Any:
    return y * by


DEVICE = "cpu"
"""Where models and arguments lie."""


def numbers(*shape: int, seed: int = 0, dtype: Any = None) -> Any:
    """The same random tensor in every process."""
    import torch

    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)
