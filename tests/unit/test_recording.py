"""One run of a graph, noted operator by operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from warmrank.worker.errors import NotCapturable
from warmrank.worker.torch_private.places import Place
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


def test_view_is_a_layout_over_the_same_memory(recording: Recording) -> None:
    multiplied, added = recording.operations
    (made,) = multiplied.results
    assert made is not None
    assert added.args[0] == made._replace(size=(4, 2), stride=(1, 4))
    assert added.results == (None,)


def test_memory_is_told_by_who_made_it(recording: Recording) -> None:
    (made,) = recording.made
    assert recording.made[made] == 2 * 4 * 4
    assert any(tensor is CONSTANT for tensor in recording.given.values())
    assert made not in recording.given
    assert recording.operations[0].touched == {made, *recording.given}


def test_inputs_and_outputs_are_places_and_numbers(recording: Recording) -> None:
    row, x, factor = recording.outputs
    assert recording.inputs == (x, 5)
    assert isinstance(row, Place)
    assert (row.size, row.storage in recording.made, factor) == ((4,), True, 5)


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
