"""Operators: what their schemas say of memory and arguments, and their names in source."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.support.tracing import traced
from warmrank.worker.errors import NotPortable
from warmrank.worker.torch_private.operators import (
    aliased_arguments,
    arguments_at,
    memory_of,
    mutated_arguments,
    operator_path,
)
from warmrank.worker.torch_private.tracing import Trace

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


@pytest.mark.parametrize(
    ("target", "positions"),
    [(aten.add.Tensor, ()), (aten.view.default, (0,)), (aten.slice.Tensor, (0,)), (aten.add_.Tensor, (0,))],
    ids=str,
)
def test_schema_says_what_is_shared(target: Any, positions: tuple[int, ...]) -> None:
    assert aliased_arguments(target) == positions


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


@pytest.mark.parametrize("value", [None, 3, torch.ones(2).to_sparse()], ids=["none", "number", "sparse"])
def test_memory_of_what_has_no_strided_memory_is_none(value: Any) -> None:
    assert list(memory_of(value)) == []


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (aten.add.Tensor, "torch.ops.aten.add.Tensor"),
        (aten.relu.default, "torch.ops.aten.relu.default"),
        (aten.add_.Tensor, "torch.ops.aten.add_.Tensor"),
    ],
    ids=str,
)
def test_operator_has_a_path_that_leads_back_to_it(target: Any, path: str) -> None:
    assert operator_path(target) == path
    assert eval(path) is target  # noqa: S307 - a path of torch.ops


@pytest.mark.parametrize(
    "target", [torch.add, aten.add, torch.ops.higher_order.cond], ids=["builtin", "packet", "higher order"]
)
def test_operator_without_an_overload_has_no_path(target: Any) -> None:
    with pytest.raises(NotPortable, match="which has no portable name"):
        operator_path(target)


def test_arguments_are_found_by_their_places_and_defaults_fill_in() -> None:
    x = torch.fx.Graph().placeholder("x")
    node = torch.fx.Graph().call_function(aten.add.out, (x, 2), {"out": x})
    assert arguments_at(node, (1, 3)) == [2, x]
    assert arguments_at(node, (2,)) == [1]  # alpha
