"""The Python objects that a frame will write to."""

from __future__ import annotations

import torch
from torch import nn

from tests.support.small_models import Plain
from tests.support.tracing import traced

ROWS = torch.ones(2, 4)


class Writes(nn.Module):
    """Writes to Python objects that were there before the call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.seen: list[int] = []

    def forward(self, x: torch.Tensor, log: list[torch.Tensor]) -> torch.Tensor:
        self.calls += 1
        log.append(x)
        fresh = [x]
        fresh.append(x * 2)
        return fresh[1]


def test_writes_are_those_to_objects_of_before_the_call() -> None:
    trace_ = traced(Writes().forward, ROWS, [])
    assert {(write.source, write.attribute) for write in trace_.writes} == {
        ("L['self']", "calls"),
        ("L['log']", ""),
    }


def test_writes_of_a_method_that_only_computes_are_none() -> None:
    assert traced(Plain().affine, ROWS, dynamic=False).writes == ()


def test_writes_are_noted_for_one_trace_only() -> None:
    from torch._dynamo.side_effects import SideEffects

    before = SideEffects.codegen_update_mutated
    traced(Writes().forward, ROWS, [])
    assert SideEffects.codegen_update_mutated is before
