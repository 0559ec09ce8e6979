"""Marks of dimensions: written as Dynamo's own functions write them, and put back after a trace."""

from __future__ import annotations

import pytest
import torch

from warmrank.worker.errors import GearError
from warmrank.worker.torch_private.marks import mark_geared, marked_dims, refuse_unbacked, traced_as


def marks_of(tensor: torch.Tensor) -> dict[str, object]:
    """What is written on a tensor; the ranges by their fields: Dynamo has a class of its own for them.

    That there are marks at all is an attribute since torch 2.13, and one that no earlier release reads.
    """
    found = dict(vars(tensor))
    found.pop("_has_dynamo_dim_marking", None)
    ranges = found.pop("_dynamo_dynamic_range", ())
    return {**found, "ranges": {(item.dim, item.min, item.max) for item in ranges}}


def test_mark_is_what_dynamos_own_function_writes() -> None:
    mine, dynamos = torch.ones(4, 4), torch.ones(4, 4)
    mark_geared(mine, {0: (2, 4)})
    torch._dynamo.mark_dynamic(dynamos, 0)
    assert marks_of(mine)
    assert marks_of(mine).items() <= marks_of(dynamos).items()


def test_marks_of_a_trace_are_put_back() -> None:
    marked, plain = torch.ones(4, 4), torch.ones(4, 4)
    torch._dynamo.mark_dynamic(marked, 1)
    before = dict(vars(marked))
    with traced_as([(marked, {0: 4}), (plain, {0: 4})]):
        assert marked_dims(marked) == {0, 1}
        assert marked_dims(plain) == {0}
    assert vars(marked) == before
    assert vars(plain) == {}


def test_unbacked_mark_is_refused_by_dimension() -> None:
    x = torch.ones(4, 4)
    refuse_unbacked(x, "L['x']")
    torch._dynamo.decorators.mark_unbacked(x, 1)
    with pytest.raises(GearError, match=r"dimension 1 of .* is marked by .*mark_unbacked"):
        refuse_unbacked(x, "L['x']")
