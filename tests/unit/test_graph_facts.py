"""Graphs: inputs, outputs that share memory, random operators; passes of the user's, and none ever stale."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed
from torch.nn import functional

import warmrank
from tests.support.small_models import Cached, Unfit
from tests.support.tracing import traced
from warmrank.inference import cache_compile
from warmrank.worker.compile.analysis import analyse
from warmrank.worker.configs.compiler_config import CompilerConfig
from warmrank.worker.errors import BackwardNotSupported, BadPass, RandomOp
from warmrank.worker.keys import reachable
from warmrank.worker.keys.reachable import reachable_digest
from warmrank.worker.runtime.artifact import GraphFacts
from warmrank.worker.torch_private.recording import RANDOM, traits_of

pytestmark = pytest.mark.usefixtures("no_grad", "fresh_dynamo")

ROWS = torch.ones(2, 4)
CACHE = torch.zeros(8, 4)


def facts(method: Callable[..., Any], x: torch.Tensor) -> GraphFacts:
    return analyse(traced(method, x, dynamic=False).lowered, "self")


def classes(method: Callable[..., Any], *args: Any, **kwargs: Any) -> dict[str, str]:
    """Class of each input by the last part of its source."""
    trace = traced(method, *args, **kwargs)
    found = analyse(trace.lowered, "self")
    names = [item.source.rpartition("[")[2].strip("']\"") for item in trace.lowered.inputs]
    return dict(zip(names, found.input_classes, strict=True))


WRITES: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "view": lambda cache, x: cache.view(-1)[:4].reshape(4).copy_(x[0]),
    "keyword": lambda cache, x: torch.add(x, 1.0, out=cache),
    "assignment": lambda cache, x: cache.__setitem__(0, x[0]),
    "type_as": lambda cache, x: cache.type_as(x).add_(1.0),
    "broadcast": lambda cache, x: torch.broadcast_tensors(cache, x[0])[0].add_(1.0),
    "einsum": lambda cache, x: torch.einsum("ij->ji", cache).add_(1.0),
    "idle dropout": lambda cache, x: nn.functional.dropout(cache, 0.5, training=False).add_(1.0),
}


class Writes(nn.Module):
    """Writes to an argument."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def forward(self, cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        WRITES[self.way](cache, x)
        return x * 2


class Layers(nn.Module):
    """Dropout as a layer, as a function, and inside attention."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=self.p)

    def functional(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x + 1, self.p, training=True)

    def draws(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.bernoulli(x)

    def integers(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.randint(0, 3, (4,))


@pytest.mark.parametrize("way", WRITES)
def test_argument_that_is_written_is_mutated_whatever_the_way(way: str) -> None:
    found = classes(Writes(way).forward, (ROWS if way == "keyword" else CACHE).clone(), ROWS)
    assert (found["cache"], found["x"]) == ("mutated", "user")


COPIES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "to": lambda x: x.to(torch.float64),
    "contiguous": lambda x: x.t().contiguous(),
    "reshape": lambda x: x.t().reshape(-1),
}


class Copies(nn.Module):
    """Returns, and writes to, copies of an argument that operators make which otherwise return views."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return COPIES[self.way](x), COPIES[self.way](x).add_(1)


@pytest.mark.parametrize("way", COPIES)
def test_copy_that_another_call_would_not_make_is_no_view(way: str) -> None:
    found = facts(Copies(way).forward, ROWS.clone())
    assert (found.aliased_outputs, found.input_classes) == ((), ("user",))


@pytest.mark.parametrize(
    ("method", "operator"),
    [
        (Unfit().eval().draws, "aten.randn_like"),
        (Layers(0.5).functional, "dropout"),
        (Layers(0.5).draws, "aten.bernoulli"),
        (Layers(0.5).integers, "aten.randint"),
    ],
    ids=["randn_like", "dropout", "bernoulli", "randint"],
)
def test_random_operator_is_refused_by_name(method: Callable[..., Any], operator: str) -> None:
    with pytest.raises(
        RandomOp, match="draws random numbers, which a cached graph does not support"
    ) as raised:
        facts(method, ROWS.clone())
    assert operator in raised.value.operator


@pytest.mark.parametrize(
    ("method", "x"),
    [
        (Unfit().eval().drops, ROWS),
        (Layers(0.0).attention, torch.ones(1, 1, 2, 4)),
        (Layers(0.0).functional, ROWS),
    ],
    ids=["eval", "attention", "probability zero"],
)
def test_operator_that_is_told_not_to_draw_is_allowed(method: Callable[..., Any], x: torch.Tensor) -> None:
    assert facts(method, x).num_outputs == 1


aten = torch.ops.aten


@pytest.mark.parametrize(
    ("operator", "why"),
    [
        (aten.bernoulli.default, RANDOM),
        (aten._local_scalar_dense.default, "hands a value of a tensor to Python"),
        (aten.nonzero.default, "size depends on values"),
        (aten.resize_.default, "changes the memory behind a tensor"),
        (torch.ops.higher_order.cond, "is a higher-order operator"),
    ],
    ids=str,
)
def test_what_cannot_be_repeated_has_a_reason(operator: Any, why: str) -> None:
    assert why in traits_of(operator).refused


FACTOR = [2.0]


class Doubling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        return self.linear(x) * 2.0

    def viewed(self, x: torch.Tensor) -> Any:
        return x + 1.0


def with_pass(function: Any, when: str = "pre") -> CompilerConfig:
    config = CompilerConfig()
    setattr(config, f"post_grad_custom_{when}_pass", function)
    return config


def cached(tmp_path: Path, config: CompilerConfig, method: str = "forward") -> Any:
    torch.manual_seed(0)
    return cache_compile(getattr(Doubling(), method), config=config, cache_dir=tmp_path)


def times(factor: float) -> Callable[..., None]:
    def change_factor(graph_module: Any, example_inputs: Any, config: Any) -> None:
        for node in graph_module.graph.nodes:
            if node.target is torch.ops.aten.mul.Tensor:
                node.args = (node.args[0], factor)

    return change_factor


def times_global(graph_module: Any, example_inputs: Any, config: Any) -> None:
    times(FACTOR[0])(graph_module, example_inputs, config)


def noting(graph_module: Any, example_inputs: Any, config: Any) -> None:
    logging.getLogger("tests.passes").warning("the pass ran")


def test_pass_runs_when_compiled_and_never_when_loaded(tmp_path, caplog):
    x = torch.ones(2, 4)
    first = cached(tmp_path, with_pass(noting))(x)
    assert caplog.messages.count("the pass ran") == 1
    function = cached(tmp_path, with_pass(noting))
    torch.testing.assert_close(function(x), first)
    assert function.last_result.outcome == "loaded"
    assert caplog.messages.count("the pass ran") == 1


def to_view(graph_module: Any, example_inputs: Any, config: Any) -> None:
    """Returns the input itself instead of a new tensor."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.target is torch.ops.aten.add.Tensor:
            with graph.inserting_before(node):
                view = graph.call_function(torch.ops.aten.view_as.default, (node.args[0], node.args[0]))
            node.replace_all_uses_with(view)
            graph.erase_node(node)


def test_output_that_a_pass_makes_a_view_is_known_as_one(tmp_path: Path) -> None:
    function = cached(tmp_path, with_pass(to_view), "viewed")
    x = torch.ones(2, 4)
    result = function(x)
    assert result.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert function.variants[0].stored.artifact.facts.aliased_outputs == (0,)


def broken_target(graph_module: Any, example_inputs: Any, config: Any) -> None:
    for node in graph_module.graph.nodes:
        if node.target is torch.ops.aten.mul.Tensor:
            node.target, node.args = torch.ops.aten.mm.default, (node.args[0], node.args[0])


def removed_input(graph_module: Any, example_inputs: Any, config: Any) -> None:
    graph = graph_module.graph
    placeholder = next(node for node in graph.nodes if node.op == "placeholder")
    with graph.inserting_after(placeholder):
        placeholder.replace_all_uses_with(graph.call_function(torch.ops.aten.ones.default, ([4, 4],)))
    graph.erase_node(placeholder)


@pytest.mark.parametrize("function", [broken_target, removed_input])
def test_pass_that_breaks_the_graph_is_named(tmp_path: Path, function: Any) -> None:
    with pytest.raises(BadPass, match=rf"post_grad_custom_pre_pass \({function.__name__}\)") as caught:
        cached(tmp_path, with_pass(function))(torch.ones(2, 4))
    assert caught.value.option == "post_grad_custom_pre_pass"
    assert not list(tmp_path.rglob("compiled_module"))


def test_another_global_that_a_pass_reads_is_another_request(tmp_path, monkeypatch):
    x = torch.ones(2, 4)
    for factor in (3.0, 5.0):
        monkeypatch.setitem(times_global.__globals__, "FACTOR", [factor])
        function = cached(tmp_path, with_pass(times_global))
        torch.testing.assert_close(function(x), function.module.linear(x) * factor)


def multiplied(x: torch.Tensor, y: Any) -> torch.Tensor:
    return x / (1.0 / FACTOR[0])


@pytest.mark.parametrize(
    "options",
    [
        {"config": with_pass(times_global)},
        {"custom_decompositions": {torch.ops.aten.mul.Tensor: multiplied}},
    ],
    ids=["pass", "decomposition"],
)
def test_what_a_pass_or_a_decomposition_reads_may_change_after_a_load(options, tmp_path, monkeypatch):
    module, x = Doubling(), torch.ones(2, 4)
    function = cache_compile(module.forward, cache_dir=tmp_path, **options)
    for factor in (2.0, 5.0, 2.0):
        monkeypatch.setitem(times_global.__globals__, "FACTOR", [factor])
        torch.testing.assert_close(function(x), module.linear(x) * factor)
    assert len(function.variants) == 2


def test_calls_digest_nothing_of_decompositions_until_what_they_read_changes(tmp_path, monkeypatch):
    digested: list[Any] = []

    def counted(*values: Any) -> str:
        digested.extend(values)
        return reachable_digest(*values)

    monkeypatch.setattr(reachable, "reachable_digest", counted)
    monkeypatch.setitem(multiplied.__globals__, "FACTOR", read := [2.0])
    module = Doubling()
    decompositions = {torch.ops.aten.mul.Tensor: multiplied}
    function = cache_compile(module.forward, custom_decompositions=decompositions, cache_dir=tmp_path)
    x = torch.ones(2, 4)
    for _ in range(3):
        function(x)
    digested.clear()
    for _ in range(3):
        function(x)
    assert not digested
    read[0] = 7.0
    torch.testing.assert_close(function(x), module.linear(x) * 7.0)


@dataclass(frozen=True)
class Times:
    factor: float

    def __call__(self, graph_module: Any, example_inputs: Any, config: Any) -> None:
        times(self.factor)(graph_module, example_inputs, config)

    def method(self, graph_module: Any, example_inputs: Any, config: Any) -> None:
        self(graph_module, example_inputs, config)


def reaching(value: Any) -> Callable[[], Any]:
    return lambda: value


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1, Times(1.0)], [1, Times(2.0)]),
        ({"a": Times(1.0)}, {"a": Times(2.0)}),
        ({Times(1.0)}, {Times(2.0)}),
        (re.compile("a"), re.compile("b")),
        (torch.tensor([1.0]), torch.tensor([2.0])),
        (torch.tensor([1]), torch.tensor([1.0])),
        (torch.arange(4000).numpy(), torch.arange(4000).numpy()[::-1]),
        (nn.Linear(2, 2), nn.Linear(2, 2)),
        (Times(1.0).method, Times(2.0).method),
    ],
    ids=["list", "dict", "set", "pattern", "tensor", "dtype", "array", "module", "method"],
)
def test_digest_follows_what_a_function_reaches(one: Any, other: Any) -> None:
    assert reachable_digest(reaching(one)) != reachable_digest(reaching(other))
    assert reachable_digest(reaching(one)) == reachable_digest(reaching(one))


def test_digest_does_not_follow_what_the_product_keeps() -> None:
    """A script's operators lie beside its `cache_compile`."""
    assert reachable.reached(cache_compile) == [cache_compile]


def compiled(function: Any, **options: Any) -> Any:
    return torch.compile(function, backend=warmrank.get_npu_backend(), **options)


def test_compiled_method_that_writes_in_place_equals_eager() -> None:
    model, reference = Cached(), Cached()
    reference.load_state_dict(model.state_dict())
    run, x = compiled(model.accumulate, dynamic=False), torch.arange(8.0).reshape(2, 4)
    for value in (1.0, 2.0):
        assert torch.equal(run(x * value), reference.accumulate(x * value))
    assert torch.equal(model.cache, reference.cache)


def test_input_that_requires_gradients_is_an_error_with_the_remedy() -> None:
    said = r"requires gradients; call the compiled model under torch.no_grad\(\)"
    with torch.enable_grad(), pytest.raises(BackendCompilerFailed, match=said) as raised:
        compiled(lambda x: x * 2)(ROWS.clone().requires_grad_())
    assert isinstance(raised.value.inner_exception, BackwardNotSupported)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = 0.3

    def forward(self, x: torch.Tensor, by: float = 1.0) -> torch.Tensor:
        return functional.scaled_dot_product_attention(x, x, x, scale=self.scale) * by


@pytest.mark.parametrize("dynamic", [False, True, None])
def test_floats_of_a_compiled_model_are_constants_that_are_guarded(dynamic: bool | None) -> None:
    model = Scaled()
    run = compiled(model, dynamic=dynamic, fullgraph=True)
    for rows, by in ((3, 1.0), (4, 2.5), (4, 3.5)):
        x = torch.rand(1, rows, 8)
        assert torch.equal(run(x, by), model(x, by))
    model.scale = 0.5
    assert torch.equal(run(x, by), model(x, by))
