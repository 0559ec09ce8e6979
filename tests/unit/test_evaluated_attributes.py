"""Attributes that were asked for and not there: whatever appears later is noticed by a load."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.support import small_models
from tests.support.tracing import compiled, misfits, traces_more

X = torch.ones(3)


def by_hasattr(owner: Any, x: torch.Tensor) -> torch.Tensor:
    return x * 2 if hasattr(owner, "later") else x + 1


def by_default(owner: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.mul(x, getattr(owner, "later", 3))


def by_exception(owner: Any, x: torch.Tensor) -> torch.Tensor:
    try:
        return torch.mul(x, owner.later)
    except AttributeError:
        return x + 1


class Asks(nn.Module):
    """Asks an object for an attribute."""

    def __init__(self, owner: Any, ask: Callable[[Any, torch.Tensor], torch.Tensor] = by_hasattr) -> None:
        super().__init__()
        self.owner = owner
        self.ask = ask

    def method(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.ask(self.owner, x)


class Slots:
    __slots__ = ("later",)


def function(x: torch.Tensor) -> torch.Tensor:
    return x


class Owner:
    """An object of the user's, and a class."""


class Falls:
    """Has what nobody gave it."""

    def __getattr__(self, name: str) -> int:
        if name != "later":
            raise AttributeError(name)
        return 3


OWNERS: dict[str, Callable[[], Any]] = {
    "module of Python": lambda: small_models,
    "function": lambda: function,
    "partial": lambda: functools.partial(function),
    "cached function": lambda: functools.lru_cache(function),
    "class": lambda: Owner,
    "object": Owner,
    "object with slots": Slots,
    "namespace": types.SimpleNamespace,
    "layer": lambda: nn.Linear(3, 3),
}


def after_adding(owner: Any, module: Asks) -> tuple[tuple[str, ...], tuple[str, ...]]:
    artifact = compiled(module.forward, X)
    before = misfits(artifact, module.forward, X)
    owner.later = 7
    try:
        return before, misfits(artifact, module.forward, X)
    finally:
        del owner.later


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=traces_more if kind == "cached function" else ()) for kind in OWNERS]
)
def test_attribute_that_appears_is_noticed(kind: str) -> None:
    owner = OWNERS[kind]()
    before, after = after_adding(owner, Asks(owner))
    assert before == ()
    assert any("no attr 'later'" in reason for reason in after)


@pytest.mark.parametrize("ask", [by_default, by_exception])
def test_every_way_to_ask_is_noticed(ask: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
    before, after = after_adding(small_models, Asks(small_models, ask))
    assert before == ()
    assert any("no attr 'later'" in reason for reason in after)


def test_attribute_of_a_bound_method_that_appears_is_noticed() -> None:
    module = Asks(None)
    module.owner = module.method
    before, after = after_adding(Asks.method, module)
    assert before == ()
    assert any("no attr 'later'" in reason for reason in after)


def test_attribute_whose_presence_alone_was_asked_for_is_noticed_when_it_goes() -> None:
    small_models.later = 1  # type: ignore[attr-defined]
    module = Asks(small_models)
    artifact = compiled(module.forward, X)
    del small_models.later  # type: ignore[attr-defined]
    assert any("has attr 'later'" in reason for reason in misfits(artifact, module.forward, X))


class Mapped(dict[str, int]):
    """A dict with attributes."""

    def __getattr__(self, name: str) -> int:
        if name not in self:
            raise AttributeError(name)
        return self[name]


class FallsBack(nn.Module):
    """Multiplies by an attribute that a fallback of its class has."""

    def __getattr__(self, name: str) -> Any:
        return 3 if name == "later" else super().__getattr__(name)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.mul(x, self.later)


class Layered(nn.Module):
    """A layer's answer, scaled."""

    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("scale", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.mul(self.layer(x), self.scale)


def set_in_dict(owner: Any, name: str, value: Any) -> None:
    owner.__dict__[name] = value


HIDDEN: dict[str, tuple[Callable[[], nn.Module], Callable[[Any], None]]] = {
    "object": (lambda: Asks(Falls(), by_default), lambda m: setattr(m.owner, "later", 8)),
    "dict": (lambda: Asks(Mapped(later=2), by_default), lambda m: set_in_dict(m.owner, "later", 8)),
    "module": (FallsBack, lambda m: set_in_dict(m, "later", 9)),
    "parameter": (Layered, lambda m: set_in_dict(m.layer, "weight", torch.zeros(3, 3))),
    "buffer": (Layered, lambda m: set_in_dict(m, "scale", torch.zeros(3))),
    "layer": (Layered, lambda m: set_in_dict(m, "layer", nn.Identity())),
    "buffer by a parameter": (Layered, lambda m: m._parameters.update(scale=nn.Parameter(torch.zeros(3)))),
}


@pytest.mark.parametrize("case", HIDDEN)
def test_attribute_of_its_own_that_hides_what_getattr_gave_is_noticed(case: str) -> None:
    make, hide = HIDDEN[case]
    module = make()
    artifact = compiled(module.forward, X)
    assert misfits(artifact, module.forward, X) == ()
    hide(module)
    assert misfits(artifact, module.forward, X) != ()
