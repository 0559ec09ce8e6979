"""Dynamo's graph as ATen operators on lifted inputs: in place, with views, each with its line."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.support.small_models import Cached, Plain
from tests.support.tracing import operators_of, traced
from warmrank.worker.torch_private.lowering import LoweredGraph, lower
from warmrank.worker.torch_private.tracing import Trace, trace

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


def test_views_stay_views(store: Trace) -> None:
    assert "aten.slice.Tensor" in operators_of(store.lowered)


def test_every_operator_keeps_its_line(store: Trace) -> None:
    calls = [node for node in store.lowered.graph.graph.nodes if node.op == "call_function"]
    assert all("small_models.py" in (node.stack_trace or "") for node in calls)


def test_composite_operators_stay_whole(affine: Trace) -> None:
    assert operators_of(affine.lowered) == ["aten.linear.default", "aten.mul.Tensor"]


def test_casts_of_autocast_are_operators_of_the_graph() -> None:
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        found = operators_of(
            trace(Plain().affine, (ROWS,), {}, dynamic=False, decompositions={}, build=str)[0].lowered
        )
    assert "aten._to_copy.default" in found


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
