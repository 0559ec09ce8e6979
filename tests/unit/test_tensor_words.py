"""Words of tensors: each change of a tensor or of its memory shows; what cannot be read is not watched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from warmrank.worker.torch_private.unchanged import TensorWatch, _places

MODES = (torch.enable_grad, torch.no_grad, torch.inference_mode)


def matrix() -> nn.Parameter:
    return nn.Parameter(torch.arange(12.0).reshape(3, 4))


def watched(*inputs: Any) -> TensorWatch:
    watch = TensorWatch(range(len(inputs)))
    while (words := watch.take(inputs)) is None:
        pass
    watch.keep(words)
    return watch


CHANGES: dict[str, Callable[[nn.Parameter], Any]] = {
    "dtype": lambda p: setattr(p, "data", p.data.double()),
    "transposed data": lambda p: setattr(p, "data", p.data.reshape(4, 3).t()),
    "transposed in place": lambda p: p.t_(),
    "sizes": lambda p: setattr(p, "data", p.data[:2]),
    "dimensions": lambda p: p.unsqueeze_(0),
    "strides of a dimension of size one": lambda p: setattr(
        p, "data", torch.empty_strided((3, 4, 1), (4, 1, 7))
    ),
    "offset": lambda p: setattr(p, "data", torch.zeros(30)[7:19].view(3, 4)),
    "memory": lambda p: setattr(p, "data", p.data.clone()),
    "resized": lambda p: p.requires_grad_(False).resize_(2, 2),
    "smaller storage": lambda p: p.untyped_storage().resize_(8),
    "set": lambda p: p.set_(torch.ones(5).untyped_storage()),
    "negative bit": lambda p: setattr(p, "data", torch._neg_view(p.data)),
    "requires_grad": lambda p: p.requires_grad_(False),
    "class": lambda p: setattr(p, "__class__", nn.Buffer),
    "swapped": lambda p: torch.utils.swap_tensors(p, nn.Parameter(torch.zeros(3, 4))),
}


@pytest.mark.parametrize("change", CHANGES)
def test_change_is_seen_in_every_mode(change: str) -> None:
    inputs = (matrix(), 3, matrix().detach())
    watch = TensorWatch((0, 2))
    while (words := watch.take(inputs)) is None:
        pass
    watch.keep(words)
    for mode in MODES:
        with mode():
            assert watch.same(inputs)
    with torch.no_grad():
        CHANGES[change](inputs[0])
    for mode in MODES:
        with mode():
            assert not watch.same(inputs)


def test_gradients_that_a_buffer_asks_for_later_are_seen() -> None:
    buffer = torch.ones(3)
    watch = watched(buffer)
    assert watch.same((buffer,))
    buffer.requires_grad_(True)
    assert not watch.same((buffer,))


def test_values_may_change() -> None:
    parameter = matrix()
    watch = watched(parameter)
    with torch.no_grad():
        parameter.add_(1)
        parameter.detach().fill_(2)
    assert watch.same((parameter,))


def test_equal_tensors_are_others() -> None:
    first, second = matrix(), matrix()
    watch = watched(first, second)
    assert watch.same((first, second))
    assert not watch.same((second, first))
    assert not watch.same((first, second, second))
    assert not watch.same([first, second])


@pytest.mark.parametrize(
    "other",
    [None, 3, torch.eye(3).to_sparse(), torch.zeros((1,) * 6)],
    ids=["nothing", "number", "sparse", "six dimensions"],
)
def test_what_cannot_be_read_is_not_watched(other: Any) -> None:
    watch = TensorWatch((0, 1))
    inputs = (matrix(), other)
    assert all(watch.take(inputs) is None for _ in range(20))
    assert not watch.same(inputs)


def test_what_changes_always_is_read_ever_more_seldom() -> None:
    watch = TensorWatch((0,))
    taken = [number for number in range(1, 40) if watch.take((matrix(),)) is not None]
    assert taken == [2, 6, 14, 30]


def test_words_are_found_in_this_build() -> None:
    assert _places() is not None
