"""The Python objects that a frame will write to."""

from __future__ import annotations

import torch
from torch import nn

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
