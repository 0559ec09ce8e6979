"""After a full check: a change of what a function reads is noticed, and other changes soon cost nothing."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest
import torch

from tests.support.made_guards import like, made_guards
from tests.support.tracing import Checked

X = torch.arange(6.0).reshape(3, 2)


COUNTED = 0
TABLE = {"k": 2}


class Holder(torch.nn.Module):
    count = 0

    def __init__(self) -> None:
        super().__init__()
        self.scale = 2.0
        self.table = {"k": 2}
        self.listed = [object()]
        self.weight = torch.nn.Parameter(torch.ones(2, 3))


def step(self: Any, x: Any) -> Any:
    return x


CONDITIONS: tuple[tuple[str, str, Any], ...] = (
    ("L['self'].scale", "equals", {"float": (2.0).hex()}),
    ("L['self'].table['k']", "equals", 2),
    ("L['self']._parameters['weight']", "tensor", like(torch.nn.Parameter(torch.ones(2, 3)))),
    ("G['TABLE']['k']", "equals", 2),
    ("L['self'].listed[0]", "not_none", None),
    ("L['x']", "tensor", like(X)),
)


def holder(*more: tuple[str, str, Any]) -> tuple[Checked, Holder]:
    module = Holder()
    return Checked(made_guards(*CONDITIONS, *more), step, module, x=X), module


def count_global(module: Holder, number: int) -> None:
    globals()["COUNTED"] = number


def put_weight(module: Holder, number: int) -> None:
    module.weight = torch.nn.Parameter(torch.full((2, 3), float(number)))


BESIDE: dict[str, Callable[[Holder, int], Any]] = {
    "attribute": lambda m, n: setattr(m, "unread", n),
    "equal value": lambda m, n: setattr(m, "scale", float("2.0")),
    "item": lambda m, n: m.table.update(unread=n),
    "weight": put_weight,
    "data of another weight": lambda m, n: setattr(m.weight, "data", torch.full((2, 3), float(n))),
    "global": count_global,
    "item of a global": lambda m, n: TABLE.update(unread=n),
    "class": lambda m, n: setattr(Holder, "count", n),
    "member of a list": lambda m, n: m.listed.__setitem__(0, object()),
}


@pytest.mark.parametrize("name", BESIDE)
def test_what_changes_on_every_call_beside_the_conditions_soon_costs_no_full_check(name: str) -> None:
    checked, module = holder()
    for number in range(12):
        BESIDE[name](module, number)
        assert checked.call()
    before = checked.num_full_checks
    for number in range(12, 20):
        BESIDE[name](module, number)
        assert checked.call()
    assert checked.num_full_checks == before


READ: dict[str, Callable[[Holder, pytest.MonkeyPatch], Any]] = {
    "attribute": lambda m, _: setattr(m, "scale", 3.0),
    "item": lambda m, _: m.table.update(k=3),
    "sizes of a weight": lambda m, _: setattr(m, "weight", torch.nn.Parameter(torch.ones(3, 2))),
    "item of a global": lambda _, patch: patch.setitem(TABLE, "k", 3),
    "global": lambda _, patch: patch.setitem(globals(), "TABLE", {"k": 3}),
    "member of a list": lambda m, _: m.listed.__setitem__(0, None),
}


@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize("beside", BESIDE)
def test_conditions_count_as_well_where_other_things_change_on_every_call(beside, read, monkeypatch):
    checked, module = holder()
    for number in range(12):
        BESIDE[beside](module, number)
        assert checked.call()
    READ[read](module, monkeypatch)
    assert not checked.call()


def test_argument_that_is_now_the_modules_own_is_noticed() -> None:
    module = Holder()
    guards = made_guards(("L['self'].table", "distinct", ["L['x']"]))
    checked = Checked(guards, step, module, x={"k": 2})
    assert checked.calls.hold(({"k": 2},), {})
    assert not checked.calls.hold((module.table,), {})


def test_threads_see_the_same() -> None:
    checked, module = holder()
    wrong: list[bool] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            wrong.extend(found for found in [checked.holds()] if not found)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(50):
        assert checked.call()
    stop.set()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval)
    assert not wrong
    module.scale = 3.0
    assert not checked.holds()


def test_default_values_that_can_be_changed_are_noticed() -> None:
    def defaulted(self: Any, x: Any, given: list[int] = [1]) -> Any:  # noqa: B006 - under test
        return x

    assert isinstance(defaulted, FunctionType)
    checked = Checked(made_guards(), defaulted, Holder(), x=X)
    assert checked.holds()
    (defaulted.__defaults__ or ([],))[0].append(2)
    assert not checked.holds()
