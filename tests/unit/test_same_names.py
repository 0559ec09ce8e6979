"""Classes, members of enums, named tuples and methods that share a name: each is taken for itself."""

from __future__ import annotations

import enum
import functools
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.tracing import ROWS, cached, since
from warmrank.worker.errors import NotPortable

pytestmark = pytest.mark.usefixtures("no_grad")


def act() -> Any:
    class Act:
        pass

    return Act


def phases() -> Any:
    class Phase(enum.Enum):
        DECODE = 1

    return Phase


class Tag:
    pass


Soft, Hard, First, Second, FormerTag = act(), act(), phases(), phases(), Tag


class Tag:  # type: ignore[no-redef] # the same once more
    pass


class Softer(Soft):  # type: ignore[misc, valid-type] # of a class out of a function
    pass


class Asking(nn.Module):
    def forward(self, x: torch.Tensor, it: Any) -> Any:
        return x * (5 if isinstance(it, Soft | Tag) or it is First.DECODE else 7)


PAIRS = {
    "classes out of a function": (Soft(), Hard()),
    "a subclass": (Softer(), Hard()),
    "a class that was replaced": (Tag(), FormerTag()),
    "members of enums": (First.DECODE, Second.DECODE),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_equals_of_one_name_are_told_apart(pair: str, cache: Path) -> None:
    model, held = Asking(), PAIRS[pair]
    for order in (held, held[::-1]):
        function = cached(model.forward, cache)
        for it in (*order, *order):
            assert torch.equal(function(ROWS, it), model(ROWS, it))
    assert {result.outcome for result in function.results.values()} == {"loaded"}


Result = namedtuple("Result", "hidden mask")  # noqa: PYI024 - made as users make them
Misnamed = namedtuple("Named", "hidden mask")  # type: ignore[name-match] # noqa: PYI024 - likewise


class Returning(nn.Module):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: torch.Tensor) -> Any:
        return self.kind(x + 1, x * 0)


def test_named_tuple_whose_fields_changed_is_made_anew(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turned: Any = namedtuple("Result", "mask hidden")  # type: ignore[name-match] # noqa: PYI024 - likewise
    for kind in (Result, turned):
        monkeypatch.setitem(globals(), "Result", kind)
        found = cached(Returning(kind).forward, cache)(ROWS)
        assert (type(found), [*found.hidden.shape]) == (kind, [2, 4])
        assert torch.equal(found.hidden, kind(ROWS + 1, ROWS * 0).hidden)


def test_named_tuple_that_its_name_does_not_lead_to_is_refused(cache: Path) -> None:
    with pytest.raises(NotPortable, match="has no class Named by that name; assign it to the name"):
        cached(Returning(Misnamed).forward, cache)(ROWS)


class Choosing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.chosen = self.one

    def one(self, x: torch.Tensor) -> torch.Tensor:
        return x * 5

    def other(self, x: torch.Tensor) -> torch.Tensor:
        return x * 7

    def forward(self, x: torch.Tensor, model: Any) -> Any:
        answers = (
            self.chosen == self.one,
            self.chosen != self.one,
            self.chosen in [self.other, self.other],
            model.one == self.one,
            {self.one: 3}.get(self.chosen, 4),
        )
        return self.one(x) if self.chosen == self.one else self.other(x), answers


@since("2.13", "Dynamo breaks the graph there")
def test_bound_methods_are_compared_by_function_and_object(cache: Path) -> None:
    model = Choosing()
    for chosen in (model.one, model.other):
        model.chosen = chosen
        found, answers = cached(model.forward, cache)(ROWS, Choosing())
        expected, expected_answers = model(ROWS, Choosing())
        assert torch.equal(found, expected)
        assert answers == expected_answers


def _times(number: int) -> Any:
    """Decorate a method; both decorators' functions have one name."""

    def decorate(method: Any) -> Any:
        if number == 2:

            @functools.wraps(method)
            def run(self: Any, x: torch.Tensor) -> Any:
                return method(self, x) * 2
        else:

            @functools.wraps(method)
            def run(self: Any, x: torch.Tensor) -> Any:
                return method(self, x) * 3

        return run

    return decorate


def _scales(number: int) -> Any:
    """An object of one of two classes, all of whose names are equal."""

    class Decorated:
        @_times(number)  # type: ignore[untyped-decorator] # of any method
        def decorated(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

        chosen = (lambda self, x: x * 2) if number == 2 else (lambda self, x: x * 3)

    if number == 2:

        class Base:
            def scale(self, x: torch.Tensor) -> torch.Tensor:
                return x * 2

            @classmethod
            def of_class(cls, x: torch.Tensor) -> torch.Tensor:
                return x * 2

            def __len__(self) -> int:
                return 2
    else:

        class Base:  # type: ignore[no-redef] # of the same name, as is meant
            def scale(self, x: torch.Tensor) -> torch.Tensor:
                return x * 3

            @classmethod
            def of_class(cls, x: torch.Tensor) -> torch.Tensor:
                return x * 3

            def __len__(self) -> int:
                return 3

    class Scale(Base, Decorated):
        pass

    return Scale()


class Once:
    def scale(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


FormerOnce = Once


class Once:  # type: ignore[no-redef] # the same once more
    def scale(self, x: torch.Tensor) -> torch.Tensor:
        return x * 3


class Scaling(nn.Module):
    def __init__(self, by: Any) -> None:
        super().__init__()
        self.by = by

    def scale(self, x: torch.Tensor) -> Any:
        return self.by.scale(x)

    def of_class(self, x: torch.Tensor) -> Any:
        return self.by.of_class(x)

    def length(self, x: torch.Tensor) -> Any:
        return x * len(self.by)

    def decorated(self, x: torch.Tensor) -> Any:
        return self.by.decorated(x)

    def chosen(self, x: torch.Tensor) -> Any:
        return self.by.chosen(x)


@pytest.mark.parametrize("name", ["scale", "of_class", "length", "decorated", "chosen"])
def test_methods_of_one_name_in_one_function_are_told_apart(name: str, cache: Path) -> None:
    for _ in range(2):
        for number in (2, 3):
            model = Scaling(_scales(number))
            method = getattr(model, name)
            assert torch.equal(cached(method, cache)(ROWS), method(ROWS))


def test_methods_of_a_class_that_was_replaced_are_told_apart(cache: Path) -> None:
    for kind in (Once, FormerOnce, Once, FormerOnce):
        model = Scaling(kind())
        assert torch.equal(cached(model.scale, cache)(ROWS), model.scale(ROWS))
