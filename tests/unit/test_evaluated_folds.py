"""Calls that Dynamo makes while it traces: state of the process is a condition, addresses are refused."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.tracing import compiled, misfits, traces_more
from warmrank.worker.errors import NotPortable

X = torch.ones(3)
NUMBERS = [1]
NEWER = pytest.mark.skipif(torch.__version__ < "2.13", reason="Dynamo before 2.13 breaks the graph there")


class Asks(nn.Module):
    """Multiplies by what a function says."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        super().__init__()
        self.ask = ask

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.mul(x, self.ask())


class Meta(type):
    number = 5

    def __getitem__(cls, _: int) -> int:
        return Meta.number

    def __add__(cls, _: int) -> int:
        return Meta.number


class Made(metaclass=Meta):
    """A class of a metaclass of the user's."""


class Indexed:
    number = 5

    def __class_getitem__(cls, _: int) -> int:
        return Indexed.number


class Plain:
    """Has no text of its own."""


PLAIN, OTHER = Plain(), Plain()


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
    before = {name: vars(Meta)[name] for name in attributes if name in vars(Meta)}
    for name, value in attributes.items():
        setattr(Meta, name, value)
    try:
        yield
    finally:
        for name in attributes:
            delattr(Meta, name)
        for name, value in before.items():
            setattr(Meta, name, value)


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
    "hash of a class": lambda: hash(Plain) % 7,
    "hash of a dtype": lambda: hash((torch.float32, 1)) % 7,
    "hash of a frozen set": lambda: hash(frozenset([None, 1])) % 7,
    "id of a list": lambda: id(NUMBERS) % 7,
    "id of a function": lambda: id(metaclass_of) % 7,
    "ids as keys": lambda: {id(NUMBERS): 3}[id(NUMBERS)],
    "order of classes": lambda: list({Plain, Indexed}).index(Plain),
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


def test_variable_of_the_environment_that_a_fake_kernel_reads_is_a_condition(monkeypatch):
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

    number = 3


class Counts(nn.Module):
    """Writes to a class."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Counted.number += 1
        return x * Counted.number


@traces_more
def test_trace_writes_nothing_to_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counted, "number", 3)
    artifact = compiled(Counts().forward, X)
    assert Counted.number == 3
    assert misfits(artifact, Counts().forward, X) == ()
    Counted.number = 4
    assert misfits(artifact, Counts().forward, X) != ()
