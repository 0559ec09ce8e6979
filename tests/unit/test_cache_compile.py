"""`cache_compile` and `get_backend`: what is refused before anything is compiled, and how."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.small_models import Plain
from warmrank.inference import cache_compile, get_backend
from warmrank.worker.configs.compiler_config import CompilerConfig
from warmrank.worker.errors import BadConfig, BadFunction, ConfigMismatch


class Decorated(nn.Module):
    @torch.no_grad()
    def quiet(self, x: torch.Tensor) -> torch.Tensor:
        return x

    @staticmethod
    def static(x: torch.Tensor) -> torch.Tensor:
        return x

    @classmethod
    def of_class(cls, x: torch.Tensor) -> torch.Tensor:
        return x

    partial = functools.partialmethod(lambda self, x, y: x, y=1)


class NoModule:
    def method(self, x: torch.Tensor) -> torch.Tensor:
        return x


def plain(x: torch.Tensor) -> torch.Tensor:
    return x


def with_limit(limit: int) -> CompilerConfig:
    config = CompilerConfig()
    config.debug.aclgraph.static_capture_size_limit = limit
    return config


@pytest.fixture
def model() -> Plain:
    return Plain()


# The function.


@pytest.mark.parametrize(
    "function",
    [plain, Plain.affine, Plain(), Decorated.static, Decorated().static, NoModule().method,
     Decorated.of_class, torch.relu, len, "affine", None],
    ids=["function", "unbound", "module", "static", "static of an instance", "of no module", "class method",
         "operator", "builtin", "text", "none"],
)  # fmt: skip
def test_function_that_is_no_method_of_a_module_is_refused(function: Any) -> None:
    with pytest.raises(
        BadFunction, match=r"(?s)takes a bound method of an nn.Module, got .*; pass self.method"
    ):
        cache_compile(function)


@pytest.mark.parametrize("name", ["quiet", "partial"])
def test_decorated_method_is_refused_with_the_remedy(name: str) -> None:
    with pytest.raises(BadFunction, match=r"Move the body into an undecorated method|pass self.method"):
        cache_compile(getattr(Decorated(), name))


# Configuration and backend.


def test_configuration_that_differs_from_the_backends_is_refused_option_by_option(model: Plain) -> None:
    backend = get_backend(compiler_config=with_limit(3))
    with pytest.raises(
        ConfigMismatch,
        match=r"disagree \(debug.aclgraph.static_capture_size_limit: 5 / 3\); pass one of them",
    ) as raised:
        cache_compile(model.affine, config=with_limit(5), backend=backend)
    assert raised.value.differing == ["debug.aclgraph.static_capture_size_limit: 5 / 3"]


def test_configuration_changed_later_does_not_change_what_is_asked(model: Plain) -> None:
    config = with_limit(3)
    cached = cache_compile(model.affine, config=config)
    config.debug.aclgraph.static_capture_size_limit = 5
    assert "static_capture_size_limit=3" in cached.request().components["config"]


def test_decompositions_of_the_backend_are_used_and_the_functions_own_win(model: Plain) -> None:
    add, mul = torch.ops.aten.add.Tensor, torch.ops.aten.mul.Tensor
    backend = get_backend(custom_decompositions={add: plain, mul: plain})
    cached = cache_compile(model.affine, backend=backend, custom_decompositions={mul: torch.relu})
    same = cache_compile(model.affine, custom_decompositions={add: plain, mul: torch.relu})
    assert cached.request() == same.request()


@pytest.mark.parametrize(
    "backend", ["npu", plain, functools.partial(plain)], ids=["text", "function", "partial"]
)
def test_backend_of_another_make_is_refused(model: Plain, backend: Any) -> None:
    with pytest.raises(
        BadConfig, match=r"expected what warmrank.get_npu_backend\(compiler_config=...\) returns"
    ):
        cache_compile(model.affine, backend=backend)


# Other parameters.


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("guard", "guards"),
        ("on_recompilation", "on_recompile"),
        ("cachedir", "cache_dir"),
        ("dynamics", "dynamic"),
        ("tprank", "tp_rank"),
        ("custom_decomposition", "custom_decompositions"),
    ],
)
def test_unknown_parameter_is_refused_with_the_nearest(model: Plain, name: str, nearest: str) -> None:
    arguments: dict[str, Any] = {name: 1}
    with pytest.raises(BadConfig, match=rf"no parameter '{name}'; did you mean '{nearest}'\?") as raised:
        cache_compile(model.affine, **arguments)
    assert raised.value.parameter == name


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("guards", "never", "guards is 'never'; allowed: 'always', 'once', 'skip'"),
        ("guards", True, "guards is True; allowed: 'always', 'once', 'skip'"),
        ("on_recompile", "stop", "on_recompile is 'stop'; allowed: 'add', 'abandon'"),
        ("dynamic", 1, r"dynamic is 1 \(int\); expected bool"),
        ("global_rank", "0", r"global_rank is '0' \(str\); expected int"),
        ("global_rank", True, r"global_rank is True \(bool\); expected int"),
        ("tp_rank", 0.0, r"tp_rank is 0.0 \(float\); expected int"),
        ("pp_rank", -1, "pp_rank is -1; ranks count from 0"),
        ("ge_cache", "yes", r"ge_cache is 'yes' \(str\); expected bool"),
        ("config", "reduce-overhead", r"config is 'reduce-overhead' \(str\); expected CompilerConfig"),
        ("config", {"mode": "reduce-overhead"}, r"config is {.*} \(dict\); expected CompilerConfig"),
        ("cache_dir", 3, r"cache_dir is 3 \(int\); expected"),
        ("cache_dir", b"cache", r"cache_dir is b'cache' \(bytes\); expected"),
        ("custom_decompositions", [plain], r"custom_decompositions is \[.*\] \(list\); expected"),
    ],
)
def test_value_of_the_wrong_type_is_refused_by_name(model: Plain, name: str, value: Any, said: str) -> None:
    with pytest.raises(BadConfig, match=said) as raised:
        cache_compile(model.affine, **{name: value})
    assert raised.value.parameter == name


# The package's own surface.
