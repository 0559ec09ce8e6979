"""What schema and name of an operator say about repeating it on fixed addresses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from warmrank.worker.torch_private.recording import RANDOM, traits_of

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("operator", "written"),
    [(aten.add.Tensor, ()), (aten.add_.Tensor, (0,)), (aten.add.out, ("out",)), (aten.copy_.default, (0,))],
    ids=str,
)
def test_what_is_written_stands_where_a_call_gives_it(operator: Any, written: tuple[Any, ...]) -> None:
    assert traits_of(operator).written == written


@pytest.mark.parametrize(
    ("operator", "why"),
    [
        (aten.bernoulli.default, RANDOM),
        (aten._local_scalar_dense.default, "hands a value of a tensor to Python"),
        (aten.nonzero.default, "size depends on values"),
        (aten.resize_.default, "changes the memory behind a tensor"),
        (torch.ops.higher_order.cond, "is a higher-order operator"),
    ],
    ids=str,
)
def test_what_cannot_be_repeated_has_a_reason(operator: Any, why: str) -> None:
    assert why in traits_of(operator).refused


@pytest.mark.parametrize(
    ("operator", "trait"),
    [
        (aten.view.default, "views"),
        (aten.t_.default, "changes_metadata"),
        (aten.empty.memory_format, "idle"),
        (aten.index.Tensor, "masked"),
        (torch.ops._c10d_functional.all_reduce.default, "collective"),
        (torch.ops._c10d_functional.wait_tensor.default, "idle"),
    ],
    ids=str,
)
def test_trait_is_seen_and_an_addition_lacks_it(operator: Any, trait: str) -> None:
    assert getattr(traits_of(operator), trait)
    assert not getattr(traits_of(aten.add.Tensor), trait)
