"""Operators written in Python: a change of what they do while a graph is lowered is noticed."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.tracing import compiled, misfits
from warmrank.inference import cache_compile

COMPOSITE = """
import torch
library = torch.library.Library("{name}", "FRAGMENT")
library.define("op(Tensor x) -> Tensor")
library.impl("op", lambda x: x * 2.0 + FACTOR, "CompositeImplicitAutograd")
FACTOR = 1.0
"""
OVERLOAD = """
import torch
FACTOR = 1.0
library = torch.library.Library("{name}", "FRAGMENT")
library.define("op.out_of_two(Tensor x) -> Tensor")
library.define("op.other(Tensor x, int y) -> Tensor")
library.impl("op.out_of_two", lambda x: x * 2.0 + FACTOR, "CompositeImplicitAutograd")
"""
META = """
import torch
FACTOR = 4
def op(x): return x[:, :FACTOR].contiguous()
library = torch.library.Library("{name}", "FRAGMENT")
library.define("op(Tensor x) -> Tensor")
library.impl("op", op, "CPU")
library.impl("op", op, "Meta")
"""
FAKE = """
import torch
FACTOR = 4
@torch.library.custom_op("{name}::op", mutates_args=())
def op(x: torch.Tensor) -> torch.Tensor: return x[:, :FACTOR].contiguous()
@op.register_fake
def _(x): return torch.empty(x.shape[0], FACTOR)
"""


class Uses(nn.Module):
    """Calls an operator, and reads the shape of its result."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.operator = getattr(torch.ops, name).op

    def step(self, x: torch.Tensor) -> Any:
        y = self.operator(x)
        return y.sum(-1) / y.shape[-1]


@pytest.fixture
def defined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports a module with an operator, and forgets it at the end."""
    made: list[str] = []

    def define(text: str, name: str) -> ModuleType:
        (tmp_path / f"{name}.py").write_text(text.format(name=name))
        monkeypatch.syspath_prepend(str(tmp_path))
        made.append(name)
        return importlib.import_module(name)

    yield define
    for name in made:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (COMPOSITE, "warmrank_composite"),
        (OVERLOAD, "warmrank_overload"),
        (META, "warmrank_meta"),
        (FAKE, "warmrank_fake"),
    ],
    ids=["CompositeImplicitAutograd", "overload", "Meta", "custom_op"],
)
def test_change_of_an_operators_file_is_a_miss(defined: Any, text: str, name: str, tmp_path: Path) -> None:
    module = defined(text, name)
    model, x = Uses(name), torch.ones(3, 8)

    def outcome() -> Any:
        function = cache_compile(model.step, cache_dir=tmp_path / "cache")
        with torch.no_grad():
            assert torch.allclose(function(x), model.step(x))
        return function.last_result

    assert [outcome().outcome, outcome().outcome] == ["compiled", "loaded"]
    file = Path(str(module.__file__))
    file.write_text(file.read_text().replace("FACTOR = ", "FACTOR = 1 + "))
    module.FACTOR += 1  # as a new process would find it
    later = outcome()
    assert later.outcome == "compiled"
    assert f"operator {name}::op" in later.reason


ELSEWHERE = """
import torch
import {name}_sizes as sizes
@torch.library.custom_op("{name}::op", mutates_args=())
def op(x: torch.Tensor) -> torch.Tensor: return x[:, :sizes.FACTOR].contiguous()
@op.register_fake
def _(x): return torch.empty(x.shape[0], sizes.size())
"""
SIZES = """
FACTOR = 4
def size(): return FACTOR
"""


def test_constant_of_another_module_that_decides_a_shape_is_a_condition(defined: Any, tmp_path: Path) -> None:
    name = "warmrank_elsewhere"
    sizes = defined(SIZES, f"{name}_sizes")
    defined(ELSEWHERE, name)
    model, x = Uses(name), torch.ones(3, 8)

    def outcome() -> Any:
        function = cache_compile(model.step, cache_dir=tmp_path / "cache")
        with torch.no_grad():
            assert torch.equal(function(x), model.step(x))
        return function.last_result.outcome if function.last_result else ""

    assert [outcome(), outcome()] == ["compiled", "loaded"]
    sizes.FACTOR = 2
    assert outcome() == "compiled"


@pytest.mark.parametrize("guards", ["once", "skip"])
def test_operator_that_is_not_registered_is_looked_for(guards: Any, defined: Any, tmp_path: Path) -> None:
    name = f"warmrank_late_{guards}"
    module = defined(META, name)
    model, x = Uses(name), torch.ones(3, 8)

    def outcome() -> str:
        function = cache_compile(model.step, cache_dir=tmp_path / "cache", guards=guards)
        with torch.no_grad():
            function(x)
        return function.last_result.outcome if function.last_result else ""

    assert outcome() == "compiled"
    module.library._destroy()
    del sys.modules[name]
    assert outcome() == "loaded"


X = torch.tensor([-1.0, 2.0, 3.0])
FACTOR = 7


def other(x: Any, *_: Any) -> Any:
    return x * FACTOR


class CallsTorch(nn.Module):
    """Calls one function of torch."""

    def __init__(self, use: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.use = use

    def forward(self, x: torch.Tensor) -> Any:
        return self.use(x)


USES: dict[str, tuple[Callable[[torch.Tensor], Any], Any, str]] = {
    "method": (lambda x: x.abs(), torch.Tensor, "abs"),
    "operator": (lambda x: x + 1, torch.Tensor, "__add__"),
    "function": (lambda x: torch.abs(x), torch, "abs"),  # noqa: PLW0108 - traced
    "function that another one calls": (lambda x: nn.functional.relu(x), torch, "relu"),  # noqa: PLW0108
    "method that a function calls": (lambda x: nn.functional.softmax(x, 0), torch.Tensor, "softmax"),
}
PATCHES: dict[str, Any] = {
    "function": other,
    "another of torch's": torch.Tensor.neg,
    "partial": functools.partial(torch.mul, other=3),
}


@pytest.mark.parametrize("patch", PATCHES)
@pytest.mark.parametrize("use", USES)
def test_patch_is_noticed(use: str, patch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call, owner, name = USES[use]
    module = CallsTorch(call)
    artifact = compiled(module.forward, X)
    assert misfits(artifact, module.forward, X) == ()
    monkeypatch.setattr(owner, name, PATCHES[patch])
    assert any("was patched" in reason for reason in misfits(artifact, module.forward, X))


class Layered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.act = nn.ReLU()

    def forward(self, x: torch.Tensor) -> Any:
        return nn.functional.normalize(self.act(x), dim=0)


CHANGES: dict[str, tuple[Any, str, Any]] = {
    "method of another layer": (nn.ReLU, "forward", nn.Sigmoid.forward),
    "code of a method": (nn.ReLU.forward, "__code__", nn.Sigmoid.forward.__code__),
    "function in C": (nn.ReLU, "forward", torch.sigmoid),
    "code of a function": (nn.functional.normalize, "__code__", nn.functional.softmax.__code__),
}


@pytest.mark.parametrize("change", CHANGES)
def test_functions_of_torch_in_other_places_are_noticed(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = Layered()
    artifact = compiled(module.forward, X)
    assert misfits(artifact, module.forward, X) == ()
    monkeypatch.setattr(*CHANGES[change])
    assert misfits(artifact, module.forward, X)


@pytest.mark.parametrize("change", CHANGES)
def test_artifact_of_functions_in_other_places_fits_no_process_without(change, monkeypatch):
    module = Layered()
    with monkeypatch.context() as patch:
        patch.setattr(*CHANGES[change])
        artifact = compiled(module.forward, X)
    assert misfits(artifact, module.forward, X)


class Measures(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * len([1, 2])


def test_global_that_hides_a_builtin_is_noticed_and_so_is_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = compiled(Measures().forward, X)
    assert misfits(artifact, Measures().forward, X) == ()
    monkeypatch.setitem(globals(), "len", lambda _: 9)
    assert misfits(artifact, Measures().forward, X) != ()
    hidden = compiled(Measures().forward, X)
    assert misfits(hidden, Measures().forward, X) == ()
    monkeypatch.undo()
    assert misfits(hidden, Measures().forward, X) != ()
