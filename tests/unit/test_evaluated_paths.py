"""What traced code reaches through a class or an enum has conditions, as what it reaches by itself has."""

from __future__ import annotations

import contextlib
import enum
import functools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from tests.support.tracing import cached, compiled, misfits, since
from warmrank.worker.errors import GraphBreak, NotPortable

X = torch.arange(3.0)


def attributes(**defaults: int) -> Callable[[type], type]:
    """As ``attrs`` makes an ``__init__``: of what it found in the class."""

    def define(cls: type) -> type:
        def __init__(self: Any, **given: int) -> None:  # noqa: N807
            for name, default in defaults.items():
                setattr(self, name, given.get(name, default))

        cls.__init__ = __init__  # type: ignore[misc]
        return cls

    return define


class Knob:
    """An object whose attribute is a default value."""

    number = 3


def registered() -> int:
    return 3


registered.by_kind = MappingProxyType({int: registered})  # type: ignore[attr-defined]


def of_number(numbers: list[int]) -> type:
    class Made:
        def __init__(self) -> None:
            self.first = numbers[0]

        def method(self) -> int:
            return numbers[0]

        @property
        def member(self) -> int:
            return numbers[0]

        @staticmethod
        def static() -> int:
            return numbers[0]

        @classmethod
        def of_class(cls) -> int:
            return numbers[0]

        def __len__(self) -> int:
            return numbers[0]

        def given(self, knob: Knob = Knob()) -> int:  # noqa: B008
            return knob.number

    return Made


class Descriptor:
    """Reads what its ``__get__`` holds."""


def described(numbers: list[int]) -> type:
    class Reads(Descriptor):
        def __get__(self, instance: Any, owner: Any = None) -> int:
            return numbers[0]

    return Reads


NUMBERS = [3]
Made = of_number(NUMBERS)
Derived = type("Derived", (Made,), {})
Holder = type("Holder", (), {"number": described(NUMBERS)()})


@attributes(first=2, second=3)
class Defined:
    first: int

    if TYPE_CHECKING:

        def __init__(self, *, second: int) -> None: ...


class Color(enum.Enum):
    RED = 2
    BLUE = 5


class Bits(enum.IntFlag):
    ONE = 1
    TWO = 2


class Evaluates(nn.Module):
    def __init__(self, asked: Callable[[], Any]) -> None:
        super().__init__()
        self.asked = asked

    def forward(self, x: torch.Tensor) -> Any:
        return x * self.asked()


READS: dict[str, Callable[[], Any]] = {
    "a constructor's variable": lambda: Made().first,
    "a method's variable": lambda: Made().method(),
    "a property's variable": lambda: Made().member,
    "a static method's variable": lambda: Made().static(),
    "a class method's variable": lambda: Made().of_class(),
    "a special method's variable": lambda: len(Made()),
    "a base's variable": lambda: Derived().method(),
    "a descriptor's variable": lambda: Holder().number,
}


@torch.no_grad()
@pytest.mark.parametrize("read", READS)
def test_variable_of_a_method_of_a_new_object_is_a_condition(read: str, cache: Path) -> None:
    function = cached(Evaluates(READS[read]).forward, cache)
    for number in (3, 4, 3):
        NUMBERS[0] = number
        torch.testing.assert_close(function(X), X * number)


@torch.no_grad()
def test_variable_of_a_constructor_is_a_condition(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    function = cached(Evaluates(lambda: Defined(second=4).first).forward, cache)
    torch.testing.assert_close(function(X), X * 2)
    (cell,) = vars(Defined)["__init__"].__closure__
    monkeypatch.setitem(cell.cell_contents, "first", 7)
    torch.testing.assert_close(function(X), X * 7)


@torch.no_grad()
def test_default_value_of_a_method_of_a_new_object_is_followed(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = cached(Evaluates(lambda: Made().given()).forward, cache)
    torch.testing.assert_close(function(X), X * 3)
    monkeypatch.setattr(Knob, "number", 7)
    torch.testing.assert_close(function(X), X * 7)


MEMBERS: dict[str, Callable[[], Any]] = {
    "by its name": lambda: Color["RED"].value,
    "by its value": lambda: Color(2).value,
}


@torch.no_grad()
@pytest.mark.parametrize("look_up", MEMBERS)
def test_member_of_an_enum_that_is_looked_up_is_a_condition(
    look_up: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = Evaluates(MEMBERS[look_up])
    artifact = compiled(module.forward, X)
    assert not misfits(artifact, module.forward, X)
    monkeypatch.setattr(Color.RED, "_value_", 4)
    assert misfits(artifact, module.forward, X)


@torch.no_grad()
def test_member_that_is_gone_is_named_by_the_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Evaluates(lambda: int(Bits.ONE | Bits.TWO))
    artifact = compiled(module.forward, X)
    monkeypatch.setattr(Bits(3), "_name_", "TWO|FOUR")
    assert any("TWO|FOUR" in reason for reason in misfits(artifact, module.forward, X))


class Named:
    """An object with attributes of any names."""


@torch.no_grad()
@pytest.mark.parametrize("name", ["\ufb01", "two words", "class", ""])
def test_attribute_that_no_expression_can_name_is_refused(name: str, cache: Path) -> None:
    named = Named()
    setattr(named, name, 3)
    with pytest.raises(NotPortable, match="attribute called"):
        cached(Evaluates(lambda: getattr(named, name)).forward, cache)(X)


@torch.no_grad()
def test_attribute_of_a_function_that_has_no_guard_is_refused_by_name(cache: Path) -> None:
    module = Evaluates(lambda: registered.by_kind[int]() + 0)  # type: ignore[attr-defined]
    with pytest.raises((NotPortable, GraphBreak), match="mappingproxy"):
        cached(module.forward, cache)(X)


class Numbers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.key = float("nan")
        self.numbers = {self.key: 3}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.numbers.get(self.key, 7)


@torch.no_grad()
def test_object_under_a_key_that_is_nan_is_refused_by_name(cache: Path) -> None:
    with pytest.raises(NotPortable, match=r"NaN|nan"):
        cached(Numbers().forward, cache)(X)


class Looks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.key = float("nan")
        self.keys = [self.key]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (2 if self.key in self.keys else 3)


@since("2.13", "Dynamo looks for NaN by its value")
@torch.no_grad()
def test_identity_of_nan_is_a_condition(cache: Path) -> None:
    module = Looks()
    function = cached(module.forward, cache)
    torch.testing.assert_close(function(X), X * 2)
    module.key = float("nan")
    torch.testing.assert_close(function(X), X * 3)


class Deletes(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.step = 4
        y = x * self.step
        del self.step
        return y


@torch.no_grad()
def test_attribute_that_the_call_deletes_is_deleted_if_it_was_there_before(cache: Path) -> None:
    module = Deletes()
    function = cached(module.forward, cache)
    for before in ({}, {"step": 1}, {}):
        vars(module).update(before)
        torch.testing.assert_close(function(X), X * 4)
        assert "step" not in vars(module)


class Limited(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps = deque([1, 2], maxlen=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        steps = self.steps.copy()
        steps.append(5)
        return x * sum(steps)


@torch.no_grad()
def test_copy_of_a_deque_has_its_limit(cache: Path) -> None:
    torch.testing.assert_close(cached(Limited().forward, cache)(X), X * 7)


@dataclass(frozen=True)
class Key:
    name: str


class Keyed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.by_color = {Color.RED: 2}
        self.by_key = {Key("a"): 3}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by_color[Color.RED] * self.by_key[Key("a")]


@torch.no_grad()
def test_keys_of_dicts_do_not_hang_on_the_hash_seed(cache: Path) -> None:
    function = cached(Keyed().forward, cache)
    function(X)
    (variant,) = function.variants
    assert not variant.stored.artifact.guards.asked


@functools.singledispatch
def weighed(value: Any) -> int:
    return 2


@weighed.register
def _(value: int) -> int:
    return 3


class Weighs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.value: Any = 5

    @functools.singledispatchmethod
    def weight(self, value: Any) -> int:
        return 2

    @weight.register
    def _(self, value: int) -> int:
        return 3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * weighed(self.value) * self.weight(self.value)


@torch.no_grad()
def test_function_that_dispatches_follows_type_and_registry(cache: Path) -> None:
    module = Weighs()
    function = cached(module.forward, cache)
    torch.testing.assert_close(function(X), X * 9)
    module.value = "a"
    torch.testing.assert_close(function(X), X * 4)
    weighed.register(str, lambda _: 7)
    torch.testing.assert_close(function(X), X * 14)


class Depth:
    """A context that counts those who are in it, and says so."""

    def __init__(self) -> None:
        self.step, self.depth = 2, 0

    def __enter__(self) -> int:
        self.depth += self.step
        return self.depth

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        self.depth -= self.step
        return kind is ValueError

    def __str__(self) -> str:
        return "d" * self.step


class Enters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.depth = Depth()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with self.depth as depth:
            x = x * depth
        with self.depth:
            raise ValueError
        return x + len("%s-%d" % (self.depth, 4))  # noqa: UP031 - the subject


@torch.no_grad()
def test_object_from_before_the_call_is_entered_and_gives_its_text(cache: Path) -> None:
    module = Enters()
    function = cached(module.forward, cache)
    torch.testing.assert_close(function(X), X * 2 + 4)
    module.depth.step = 3
    torch.testing.assert_close(function(X), X * 3 + 5)
    assert module.depth.depth == 0


class Own:
    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        return hash(self.number)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own) and other.number == self.number

    def __repr__(self) -> str:
        return f"own '{self.number}'"

    def __format__(self, spec: str) -> str:
        return spec * self.number


class Texts(torch.nn.Module):
    """Makes texts of an object in each of Python's ways, and looks it up among equal ones."""

    def __init__(self) -> None:
        super().__init__()
        self.own = Own(3)
        self.by_own = {Own(3): 2.0}

    def formatted(self, x: torch.Tensor) -> Any:
        made = "%r|100%%|%-9s|%.2f" % (self.own, self.own, 2.5)  # noqa: UP031 - the subject
        return x * len(made) + len(f"{self.own:ab}") * 100 + len(f"{self.own}") + 7 * (made[0] == "o")

    def keyed(self, x: torch.Tensor) -> Any:
        made = {Own(3): 1.0, Own(4): 2.0, Own(3): 3.0}
        return x * made[self.own] + len(made)

    def looked_up(self, x: torch.Tensor) -> Any:
        return x * self.by_own[self.own]


@torch.no_grad()
def test_texts_of_an_object_are_those_of_its_own_methods(tmp_path: Path) -> None:
    model = Texts()
    function = cached(model.formatted, tmp_path)
    for number in (3, 4):
        model.own.number = number
        assert torch.equal(function(X), model.formatted(X))


@torch.no_grad()
def test_keys_that_say_themselves_which_are_equal_are_asked_or_refused_by_name(tmp_path: Path) -> None:
    model = Texts()
    with contextlib.suppress(GraphBreak):  # torch up to 2.12
        assert torch.equal(cached(model.keyed, tmp_path)(X), model.keyed(X))
    with pytest.raises((NotPortable, GraphBreak), match=r"Key the dict by texts|overridden __hash__"):
        cached(model.looked_up, tmp_path)(X)
