"""Where a tensor lies, as numbers; and which tensors are more than a layout over memory."""

from __future__ import annotations

import pytest
import torch

from warmrank.worker.errors import NotCapturable
from warmrank.worker.torch_private.places import check, lazily, ordinary, place_of


class Own(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[override]
        return NotImplemented


def test_ordinary_tensor_shares_memory_and_can_be_written_after_inference_mode() -> None:
    with torch.inference_mode():
        made = torch.zeros(2, 2)
    ordinary(made.t())[0, 1].fill_(5.0)
    assert made.tolist() == [[0.0, 0.0], [5.0, 0.0]]


@pytest.mark.parametrize("change", [torch.conj, lambda x: x.conj().imag], ids=["conjugate", "negative"])
def test_lazy_bits_are_carried_over(change) -> None:
    x = change(torch.tensor([1 + 2j]))
    place = place_of(0, x)
    assert place.conjugate or place.negative
    plain = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage(), x.storage_offset(), x.size(), x.stride())
    assert torch.equal(lazily(plain, place), x)
    assert not torch.equal(plain, x)


@pytest.mark.parametrize(
    ("tensor", "what"),
    [
        (torch.ones(2, device="meta"), "a tensor on meta"),
        (torch.ones(2).to_sparse(), "layout torch.sparse_coo"),
        (torch.ones(2).as_subclass(Own), "a Own, which has a __torch_dispatch__"),
        (torch._efficientzerotensor(2), "zeros without memory"),
    ],
    ids=["device", "sparse", "subclass", "zeros"],
)
def test_tensor_that_is_more_than_a_layout_is_refused_by_name(tensor: torch.Tensor, what: str) -> None:
    with pytest.raises(NotCapturable, match=what):
        check(tensor)
