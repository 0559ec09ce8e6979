"""Operators written in Python: a change of what they do while a graph is lowered is noticed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from worker import sources
from worker.errors import NotPortable
from worker.inference import cache_compile
from worker.torch_private.python_operators import files_of

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
ON_DEVICE = """
import torch
FACTOR = 4
library = torch.library.Library("{name}", "FRAGMENT")
library.define("op(Tensor x) -> Tensor")
library.impl("op", lambda x: x * FACTOR, "CPU")
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
    later = outcome()
    assert (later.outcome, later.reason) == ("compiled", f"source of {name} changed")


def test_kernels_that_run_on_the_device_are_called_anew_each_time(defined: Any) -> None:
    name = "warmrank_on_device"
    defined(ON_DEVICE, name)

    def called(x: torch.Tensor) -> Any:
        return getattr(torch.ops, name).op(x)

    assert files_of(torch.fx.symbolic_trace(called)) == frozenset()


def test_operator_that_no_later_process_can_find_is_refused() -> None:
    with pytest.raises(NotPortable, match="no later process could find"):
        sources.collect_files(["<stdin>"])


def test_torchs_own_files_are_pinned_by_its_version() -> None:
    assert sources.collect_files([str(torch.library.__file__)]) == ()
