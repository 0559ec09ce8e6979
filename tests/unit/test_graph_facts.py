"""What the runtime must know of a graph: classes of inputs, outputs that share memory, random operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.small_models import Unfit
from tests.support.tracing import traced
from warmrank.worker.compile.analysis import analyse
from warmrank.worker.errors import RandomOp
from warmrank.worker.runtime.artifact import GraphFacts
from warmrank.worker.torch_private.lowering import LoweredGraph
from warmrank.worker.torch_private.operators import memory_of, mutated_arguments
from warmrank.worker.torch_private.recording import RANDOM, traits_of
from warmrank.worker.torch_private.tracing import Trace

ROWS = torch.ones(2, 4)
CACHE = torch.zeros(8, 4)


def lowered(method: Callable[..., Any], *args: Any, **kwargs: Any) -> LoweredGraph:
    return traced(method, *args, dynamic=False, **kwargs).lowered


def facts(method: Callable[..., Any], *args: Any, self_name: str = "self", **kwargs: Any) -> GraphFacts:
    return analyse(lowered(method, *args, **kwargs), self_name)


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
    """Writes to an argument, and returns views of what it has."""

    def __init__(self, way: str = "") -> None:
        super().__init__()
        self.way = way
        self.register_buffer("table", torch.zeros(8, 4))
        self.table: torch.Tensor

    def writes(self, cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        WRITES[self.way](cache, x)
        return x * 2

    def several(self, cache: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x + 1, self.table[2:4], cache[:1], (x * 2).view(-1), self.table.add_(1.0)


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
    found = classes(Writes(way).writes, (ROWS if way == "keyword" else CACHE).clone(), ROWS)
    assert (found["cache"], found["x"]) == ("mutated", "user")


def test_outputs_that_share_memory_with_an_input_are_known() -> None:
    found = facts(Writes().several, CACHE, ROWS)
    assert (found.num_outputs, found.aliased_outputs) == (5, (1, 2, 4))


# Random operators.


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
    ("target", "positions"),
    [
        (aten.add.Tensor, ()),
        (aten.add_.Tensor, (0,)),
        (aten.copy_.default, (0,)),
        (aten.slice.Tensor, ()),
        (aten.index_put_.default, (0,)),
        (aten._foreach_add_.List, (0,)),
        (aten.add.out, (3,)),
    ],
    ids=str,
)
def test_schema_says_what_is_written(target: Any, positions: tuple[int, ...]) -> None:
    assert mutated_arguments(target) == positions


def memory(trace_: Trace, name: str) -> set[int]:
    (node,) = [node for node in trace_.lowered.graph.graph.nodes if node.name == name]
    return set(memory_of(node.meta["val"]))


def test_memory_of_a_composite_operator_without_a_copy_is_that_of_its_input() -> None:
    class Turned(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            return torch.einsum("ij->ji", x) + torch.broadcast_tensors(x, y)[1].T

    trace_ = traced(Turned().forward, torch.ones(2, 4), torch.ones(2, 4), dynamic=False)
    assert memory(trace_, "einsum") == memory(trace_, "arg0_1")
    assert memory(trace_, "broadcast_tensors") == memory(trace_, "arg0_1") | memory(trace_, "arg1_1")


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


@pytest.mark.parametrize(
    ("operator", "trait"),
    [
        (aten.view.default, "views"),
        (aten.t_.default, "changes_metadata"),
        (aten.empty.memory_format, "idle"),
        (aten.index.Tensor, "masked"),
        (torch.ops._c10d_functional.all_reduce.default, "collective"),
        (torch.ops._c10d_functional.wait_tensor.default, "idle"),
    ],
    ids=str,
)
def test_trait_is_seen_and_an_addition_lacks_it(operator: Any, trait: str) -> None:
    assert getattr(traits_of(operator), trait)
    assert not getattr(traits_of(aten.add.Tensor), trait)
