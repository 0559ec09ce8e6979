"""The request: what it is made of, what changes its key, and what must not."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from warmrank.cache_store.keys import changed_components
from warmrank.worker.configs.compiler_config import CompilerConfig
from warmrank.worker.engines.graph import GraphEngine
from warmrank.worker.keys.request import Request, request
from warmrank.worker.runtime.options import CacheOptions

ENGINE = GraphEngine()
ADD, MUL = torch.ops.aten.add.Tensor, torch.ops.aten.mul.Tensor


class Small(nn.Module):
    def __init__(self, width: int = 4, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.inner: nn.Module = nn.Linear(width, 4, dtype=dtype)
        self.register_buffer("table", torch.zeros(2))


def asked(module: nn.Module | None = None, **changed: Any) -> Request:
    options = CacheOptions(**{"config": CompilerConfig(), **changed})
    return request(module or Small(), options, ENGINE)


def changed_names(one: Request, other: Request) -> set[str]:
    return {change.name for change in changed_components(one.components, other.components)}


def with_option(name: str, value: object) -> CompilerConfig:
    config = CompilerConfig()
    *sections, option = name.split(".")
    setattr(functools.reduce(getattr, sections, config), option, value)
    return config


def double(x: torch.Tensor) -> torch.Tensor:
    return x + x


def triple(x: torch.Tensor) -> torch.Tensor:
    return x * 3


def test_weights_do_not_count() -> None:
    other = Small()
    nn.init.ones_(other.get_parameter("inner.weight"))
    assert asked(other) == asked()


def test_format_of_the_artifact_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = asked()
    monkeypatch.setattr("warmrank.worker.runtime.artifact.FORMAT", 99)
    assert changed_names(before, asked()) == {"artifact format"}


@pytest.mark.parametrize(
    "name", ["debug.run_eagerly", "debug.aclgraph.enable_output_clone", "debug.aclgraph.clone_input"]
)
def test_option_counts_and_is_named(name: str) -> None:
    value = not functools.reduce(getattr, name.split("."), CompilerConfig())
    other = asked(config=with_option(name, value))
    assert changed_names(asked(), other) == {"config"}
    assert other.components["config"] == f"{name}={str(value).lower()}"


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda module: setattr(module, "inner", nn.Identity()), {"module", "parameters"}),
        (lambda module: module.add_module("more", nn.ReLU()), {"module"}),
        (lambda module: module.register_buffer("table", torch.zeros(3)), {"parameters"}),
        (lambda module: module.register_buffer("table", torch.zeros(2, dtype=torch.int64)), {"parameters"}),
        (lambda module: module.register_buffer("table", None), {"parameters"}),
        (lambda module: module.to("meta"), {"parameters"}),
        (lambda module: module.half(), {"parameters"}),
    ],
    ids=["layer type", "layer", "shape", "dtype", "missing", "device kind", "half"],
)
def test_structure_of_the_module_counts(change: Callable[[nn.Module], Any], names: set[str]) -> None:
    module = Small()
    change(module)
    assert changed_names(asked(), asked(module)) == names


def made() -> Callable[[torch.Tensor], torch.Tensor]:
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x + x

    return doubled


KEPT = [made(), made()]  # both alive, so that their addresses differ


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({}, {ADD: double}, False),
        ({ADD: double}, {ADD: triple}, False),
        ({ADD: functools.partial(double)}, {ADD: functools.partial(triple)}, False),
        ({ADD: KEPT[0]}, {ADD: KEPT[1]}, True),
        ({ADD: functools.partial(KEPT[0])}, {ADD: functools.partial(KEPT[1])}, True),
        ({ADD: double, MUL: triple}, {MUL: triple, ADD: double}, True),
    ],
    ids=["one more", "body", "body of a partial", "address", "address of a partial", "order"],
)
def test_decompositions_count_by_what_they_do(one: Any, other: Any, *, same: bool) -> None:
    first, second = (asked(custom_decompositions=given) for given in (one, other))
    assert changed_names(first, second) == (set() if same else {"decompositions"})
