"""A trace: ATen operators in place, with views, each with its line; guards on sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.support.small_models import Cached, Plain
from tests.support.tracing import operators_of, traced
from warmrank.worker.torch_private.dynamo_guards import TracedGuard
from warmrank.worker.torch_private.lowering import LoweredGraph, lower
from warmrank.worker.torch_private.tracing import Trace

ROWS = torch.ones(2, 4)
aten = torch.ops.aten


@pytest.fixture(scope="module")
def store() -> Trace:
    """A method with a parameter, a buffer that it writes to, and a dynamic input."""
    return traced(Cached().store, ROWS)


@pytest.fixture(scope="module")
def affine() -> Trace:
    return traced(Plain().affine, ROWS, dynamic=False)


def test_operators_in_place_stay_in_place(store: Trace) -> None:
    assert "aten.copy_.default" in operators_of(store.lowered)


def test_every_operator_keeps_its_line(store: Trace) -> None:
    calls = [node for node in store.lowered.graph.graph.nodes if node.op == "call_function"]
    assert all("small_models.py" in (node.stack_trace or "") for node in calls)


def test_casts_of_autocast_within_the_method_are_operators_of_the_graph() -> None:
    class Casts(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return nn.functional.linear(x, x)

    assert "aten._to_copy.default" in operators_of(traced(Casts().forward, ROWS).lowered)


def test_operator_without_effect_or_use_is_dropped() -> None:
    class Wasteful(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.exp()
            return x + 1

    assert operators_of(traced(Wasteful().forward, ROWS).lowered) == ["aten.add.Tensor"]


def test_lower_works_inside_torch_compile() -> None:
    seen: list[LoweredGraph] = []

    def backend(graph_module: Any, _: Any) -> Any:
        seen.append(lower(graph_module, {}))
        return graph_module

    with torch.no_grad():
        torch.compile(Plain().affine, backend=backend)(ROWS)
    assert "L['x']" in [item.source for item in seen[0].inputs]
    torch._dynamo.reset()


# Sizes in guards.


class Doubles(nn.Module):
    """Takes any size."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def guards(trace_: Trace, kind: str) -> list[TracedGuard]:
    return [guard for guard in trace_.guards if guard.kind == kind]


def sizes_of_x(trace_: Trace) -> tuple[Any, Any]:
    (guard,) = [guard for guard in guards(trace_, "TENSOR_MATCH") if guard.source == "L['x']"]
    return guard.sizes, guard.strides


def test_size_that_the_method_asked_for_is_fixed() -> None:
    class Halves(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.reshape(-1, 2, 2) if x.shape[1] == 4 else x

    assert sizes_of_x(traced(Halves().forward, ROWS)) == ((None, 4), (4, 1))


def test_size_that_a_decomposition_asked_for_is_fixed() -> None:
    def by_rows(x: torch.Tensor, factor: float) -> torch.Tensor:
        return x + x if x.shape[0] == 2 else x - x

    trace_ = traced(Plain().affine, ROWS, decompositions={aten.mul.Tensor: by_rows})
    assert sizes_of_x(trace_)[0] == (2, 4)


@pytest.mark.parametrize("dim", [0, 1], ids=["first", "second"])
def test_sizes_of_one_are_never_dynamic(dim: int) -> None:
    x = torch.ones(1, 4) if dim == 0 else torch.ones(4, 1)
    assert sizes_of_x(traced(Doubles().forward, x))[0][dim] == 1
