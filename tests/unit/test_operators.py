"""Operators: what their schemas say of memory and arguments, and their names in source."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.support.tracing import traced
from warmrank.worker.torch_private.operators import aliased_arguments, memory_of, mutated_arguments
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
