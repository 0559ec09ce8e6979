"""Views among the arguments, and sizes that happen to be equal: no conditions that nobody needs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.support.tracing import traced
from warmrank.worker.errors import NotPortable


def shape_conditions(model: nn.Module, x: torch.Tensor) -> str:
    guards = traced(model.forward, x).guards
    return " and ".join(text for guard in guards if guard.kind == "SHAPE_ENV" for text in guard.conditions)


def test_sizes_that_happen_to_be_equal_are_not_bound_to_each_other() -> None:
    assert "x'].size()[0] == " not in shape_conditions(nn.ReLU(), torch.ones(4, 4).clone())


def test_view_puts_no_condition_on_its_base() -> None:
    assert "_base" not in shape_conditions(nn.ReLU(), torch.ones(9, 7)[2:6, :4])


def test_function_that_asks_for_a_base_is_refused_by_its_argument() -> None:
    class Asks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if x._base is None else x * 3

    with pytest.raises(NotPortable, match=r"asks L\['x'\] for _base"):
        traced(Asks().forward, torch.ones(4, 4)[1:])
