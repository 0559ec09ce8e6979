"""What was registered with TorchAir in this process: fusion patterns and converters are part of the key."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from warmrank import CompilerConfig
from warmrank.inference import cache_compile
from warmrank.worker.errors import NotPortable

PACKAGES = {"reduce-overhead": "torchair", "npugraph_ex": "npugraph_ex"}
ROW = torch.empty(2, 4)


class Model(nn.Module):
    def sums(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + y)


class Scaled:
    """Functions of patterns that are methods."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def replacement(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x) * self.factor


def sum_relu(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.relu(x + y)


def relu_sum(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) + torch.relu(y)  # something else, so that it shows


def relu(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x)


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(x)


def by_type(x: torch.Tensor) -> torch.Tensor:
    return x.float().relu() if x.dtype == torch.float16 else x.relu()


def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    return torch.relu(x * factor)


def scaled_sigmoid(x: torch.Tensor, factor: float) -> torch.Tensor:
    return torch.sigmoid(x * factor)


@pytest.fixture(params=list(PACKAGES))
def config(request: pytest.FixtureRequest) -> CompilerConfig:
    made = CompilerConfig()
    made.mode = request.param
    return made


@pytest.fixture
def register(config: CompilerConfig, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Registers these patterns, and no others: each a tuple of arguments, a dict of options at its end."""
    from warmrank.worker.engines.torchair_vendor import vendor_for

    vendor_for(config.mode)
    manager = importlib.import_module(f"{PACKAGES[config.mode]}.patterns.pattern_pass_manager")

    def registered(*patterns: tuple[Any, ...]) -> None:
        theirs = manager._pattern_manager()  # by this very object others apply it
        monkeypatch.setattr(theirs, "pass_dict", type(theirs.pass_dict)("registered"))
        for pattern in patterns:
            options = pattern[3] if len(pattern) > 3 else {}
            manager.register_replacement(*pattern[:3], **options)

    return registered


def components(config: CompilerConfig, directory: Path) -> dict[str, str]:
    return cache_compile(Model().sums, config=config, cache_dir=directory).request().components


LONG, SHORT = (sum_relu, relu_sum, (ROW, ROW.clone())), (relu, sigmoid, (ROW,))


# In this mode alone: a process that compiled with npugraph_ex cannot compile with torchair afterwards.
@pytest.mark.parametrize("config", ["npugraph_ex"], indirect=True)
def test_other_order_of_patterns_is_compiled_anew(register, config, tmp_path):
    x, y = torch.tensor([[-2.0, 1, 2, 3]]), torch.tensor([[3.0, -4, 1, 1]])
    found = []
    for patterns in ((LONG, SHORT), (SHORT, LONG), (LONG, SHORT)):
        register(*patterns)
        function = cache_compile(Model().sums, config=config, cache_dir=tmp_path)
        value = function(x, y).clone()
        assert function.last_result is not None
        found.append((function.last_result.outcome, torch.equal(value, relu_sum(x, y))))
    assert found == [("compiled", True), ("compiled", False), ("loaded", True)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((by_type, sigmoid, (ROW.half(),)), (by_type, sigmoid, (ROW,))),
        (SHORT, (relu, sigmoid, (ROW.clone().requires_grad_(),))),
        (
            (scaled, scaled_sigmoid, (ROW, 2.5), {"scalar_workaround": {"factor": 2.5}}),
            (scaled, scaled_sigmoid, (ROW, 3.5), {"scalar_workaround": {"factor": 3.5}}),
        ),
        ((relu, Scaled(2.0).replacement, (ROW,)), (relu, Scaled(3.0).replacement, (ROW,))),
    ],
    ids=["types of the example", "gradients of the example", "scalar_workaround", "method of another object"],
)
def test_pattern_that_is_registered_otherwise_is_another_key(one, other, register, config, tmp_path):
    keys = []
    for pattern in (one, other, one):
        register(pattern)
        keys.append(components(config, tmp_path)["patterns"])
    assert keys[0] == keys[2] != keys[1]


def test_function_that_traces_a_pattern_and_the_form_of_it_are_in_the_key(register, config, tmp_path):
    from torch._inductor.pattern_matcher import CallFunction, KeywordArg, fwd_only

    operators = torch.ops.aten
    forms: list[dict[str, Any]] = [
        {},
        {"trace_fn": functools.partial(fwd_only, run_functional_passes=False)},
        *(
            {"search_fn_pattern": CallFunction([first, second], KeywordArg("x"))}
            for first, second in (
                (operators.relu.default, operators.abs.default),
                (operators.relu.default, operators.neg.default),
            )
        ),
    ]
    keys = []
    for form in forms:
        register((*SHORT, form))
        keys.append(components(config, tmp_path)["patterns"])
    assert len(set(keys)) == len(forms)


def test_pattern_of_another_make_is_refused(register, config, tmp_path, monkeypatch):
    register()
    manager = sys.modules[f"{PACKAGES[config.mode]}.patterns.pattern_pass_manager"]
    entry = SimpleNamespace(extra_check=lambda match: None)
    strange = SimpleNamespace(pass_dict=SimpleNamespace(patterns={("call_function", "x"): [entry]}))
    monkeypatch.setattr(manager, "_global_pattern_pass_manager", strange)
    with pytest.raises(NotPortable, match=r"registered with .* in a way that is not known"):
        components(config, tmp_path)


def test_vendors_pattern_counts_where_it_has_its_turn_before_a_users(register, config, tmp_path):
    vendors = FunctionType(sigmoid.__code__, {"__name__": "torchair.patterns", "torch": torch})
    passed_off = functools.wraps(vendors)(FunctionType(sigmoid.__code__, globals()))
    keys = []
    for patterns in ((), (LONG,), (LONG, (relu, vendors, (ROW,))), ((relu, vendors, (ROW,)), LONG)):
        register(*patterns)
        keys.append(components(config, tmp_path).get("patterns"))
    register((relu, vendors, (ROW,)))
    assert "patterns" not in components(config, tmp_path)
    register((relu, passed_off, (ROW,)))
    assert "patterns" in components(config, tmp_path)
    assert keys[0] is None
    assert keys[1] == keys[2] != keys[3]


# Converters.


@pytest.fixture
def operator() -> Iterator[Any]:
    library = torch.library.Library("registered", "DEF")
    library.define("mine(Tensor x) -> Tensor")
    yield torch.ops.registered.mine.default
    library._destroy()


@pytest.mark.parametrize("place", ["operator", "registry"])
def test_converter_is_in_the_key_of_mode_max_autotune(place, operator, tmp_path, monkeypatch):
    import torchair

    registry = importlib.import_module("torchair._ge_concrete_graph.fx2ge_converter")

    made = CompilerConfig()
    made.mode = "max-autotune"

    def with_converter(name: str) -> str:
        def convert(x: Any, meta_outputs: Any = None) -> Any:
            return torchair.ge.custom_op(name, inputs={"x": x}, outputs=["y"])

        torchair.register_fx_node_ge_converter(operator)(convert)
        if place == "registry":
            monkeypatch.setitem(registry._CONVERTERS, operator, vars(operator).pop("_ge_converter"))
        return components(made, tmp_path)["converters"]

    assert "converters" not in components(made, tmp_path)
    found = [with_converter(name) for name in ("Relu", "Sigmoid", "Relu")]
    assert found[0] == found[2] != found[1]
    made.mode = "reduce-overhead"
    assert "converters" not in components(made, tmp_path)


def test_converter_that_replaces_the_vendors_and_passes_for_it_is_in_the_key(tmp_path, monkeypatch):
    import torchair

    config = CompilerConfig()
    config.mode = "max-autotune"
    add: Any = torch.ops.aten.add.Tensor
    before = components(config, tmp_path)
    vendors = add._ge_converter
    monkeypatch.setattr(add, "_ge_converter", vendors)

    @functools.wraps(vendors)
    def convert(*args: Any, meta_outputs: Any = None, **kwargs: Any) -> Any:
        return vendors(*args, meta_outputs=meta_outputs, **kwargs)

    torchair.register_fx_node_ge_converter(add)(convert)
    assert "converters" not in before
    assert components(config, tmp_path)["converters"].startswith("1, ")
