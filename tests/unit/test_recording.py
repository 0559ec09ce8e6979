"""One run of a graph, noted operator by operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from warmrank.worker.errors import NotCapturable
from warmrank.worker.torch_private.recording import Recording, record

CONSTANT = torch.full((2, 4), 3.0)


def graph(x: torch.Tensor, factor: int) -> Sequence[Any]:
    y = x * CONSTANT
    y.t().add_(1.0)
    return y[0], x, factor


@pytest.fixture
def recording() -> Recording:
    return record(graph, [torch.ones(2, 4), 5])


def test_kernels_are_noted_and_views_are_not(recording: Recording) -> None:
    names = [str(operation.overload) for operation in recording.operations]
    assert names == ["aten.mul.Tensor", "aten.add_.Tensor"]


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (lambda x: (x.nonzero(),), "size depends on values"),
        (lambda x: (x[x > 0],), "of a mask"),
        (lambda x: (x.bernoulli(),), "draws random numbers"),
        (lambda x: (CONSTANT.mul_(1.0),), "neither an input nor made by the graph"),
        (lambda x: (x.t_(),), "changes the layout of an input"),
    ],
    ids=["size", "mask", "random", "constant", "layout"],
)
def test_what_cannot_be_repeated_is_refused(run: Any, why: str) -> None:
    with pytest.raises(NotCapturable, match=why):
        record(run, [torch.ones(2, 4)])
