"""The request: what it is made of, what changes its key, and what must not."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from warmrank.worker.keys.environment import environment
from warmrank.worker.keys.request import Request, request

from warmrank.cache_store.keys import changed_components
from warmrank.worker.configs.compiler_config import CompilerConfig
from warmrank.worker.engines.graph import GraphEngine
from warmrank.worker.runtime.options import CacheOptions

ENGINE = GraphEngine()
ADD = torch.ops.aten.add.Tensor


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


FACTOR = 2.0


def by_global(x: torch.Tensor) -> torch.Tensor:
    return x * FACTOR


def made() -> Callable[[torch.Tensor], torch.Tensor]:
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x + x

    return doubled


def test_equal_modules_ask_for_the_same() -> None:
    assert asked() == asked()


def test_components_include_the_environment() -> None:
    assert environment().items() <= asked().components.items()


def test_key_is_short_hex() -> None:
    assert re.fullmatch("[0-9a-f]{32}", asked().key)


def test_weights_do_not_count() -> None:
    other = Small()
    nn.init.ones_(other.get_parameter("inner.weight"))
    assert asked(other) == asked()


def test_engine_version_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = asked()
    monkeypatch.setattr(ENGINE, "version", "99")
    assert changed_names(before, asked()) == {"engine"}


def test_format_of_the_artifact_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = asked()
    monkeypatch.setattr("warmrank.worker.runtime.artifact.FORMAT", 99)
    assert changed_names(before, asked()) == {"artifact format"}


def test_dynamic_counts() -> None:
    assert changed_names(asked(), asked(dynamic=False)) == {"dynamic"}


@pytest.mark.parametrize(
    "name",
    ["debug.run_eagerly", "debug.aclgraph.enable_output_clone", "debug.aclgraph.clone_input"],
)
def test_option_counts_and_is_named(name: str) -> None:
    value = not functools.reduce(getattr, name.split("."), CompilerConfig())
    other = asked(config=with_option(name, value))
    assert changed_names(asked(), other) == {"config"}
    assert other.components["config"] == f"{name}={str(value).lower()}"


def test_option_at_its_default_does_not_count() -> None:
    config = with_option("debug.run_eagerly", value=False)
    assert asked(config=config) == asked()
    assert asked(config=config).components["config"] == "defaults"


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


def test_decomposition_counts() -> None:
    assert changed_names(asked(), asked(custom_decompositions={ADD: double})) == {"decompositions"}


def test_body_of_a_decomposition_counts() -> None:
    one, other = asked(custom_decompositions={ADD: double}), asked(custom_decompositions={ADD: triple})
    assert changed_names(one, other) == {"decompositions"}


def test_constant_that_a_decomposition_reads_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = asked(custom_decompositions={ADD: by_global})
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    assert changed_names(before, asked(custom_decompositions={ADD: by_global})) == {"decompositions"}


def test_order_of_decompositions_does_not_count() -> None:
    pairs = {ADD: double, torch.ops.aten.mul.Tensor: triple}
    turned = dict(reversed(pairs.items()))
    assert asked(custom_decompositions=pairs) == asked(custom_decompositions=turned)


@pytest.mark.parametrize("make", [made, lambda: functools.partial(made())], ids=["function", "partial"])
def test_address_of_a_decomposition_does_not_count(make: Callable[[], Any]) -> None:
    kept = [make(), make()]  # both alive, so that their addresses differ
    one, other = (asked(custom_decompositions={ADD: item}) for item in kept)
    assert one == other


def test_partial_decompositions_of_different_functions_differ() -> None:
    one = asked(custom_decompositions={ADD: functools.partial(double)})
    other = asked(custom_decompositions={ADD: functools.partial(triple)})
    assert one != other
