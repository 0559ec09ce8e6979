"""The memory that a tensor spans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import torch


def _span(tensor: torch.Tensor) -> int:
    """Elements from the first to the last, both included, where there are any."""
    span = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        span += (size - 1) * stride
    return span


def span_bytes(tensor: torch.Tensor) -> int:
    """Bytes from the first element to behind the last."""
    return _span(tensor) * tensor.element_size() if tensor.numel() else 0


def aligned(size_bytes: int, alignment: int) -> int:
    """The size, rounded up so that what follows is aligned."""
    return -(-size_bytes // alignment) * alignment


def tensor_in(
    storage: torch.UntypedStorage, offset: int, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    """A tensor in a storage; ``offset`` counts elements.

    Made outside of inference mode, it can be written in and out of that mode.
    """
    return torch.empty(0, dtype=dtype, device=storage.device).set_(storage, offset, size, stride)


def memory_of(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or, where elements overlap (``expand``), all the memory that it spans, each cell once."""
    span = _span(tensor)
    return tensor if tensor.numel() <= max(span, 0) else tensor.as_strided((span,), (1,))


def duplicate(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, gaps and overlaps, in memory of its own."""
    copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    memory_of(copy).copy_(memory_of(tensor))
    return copy


def lies_in_storage(tensor: torch.Tensor) -> bool:
    """Whether all elements of a tensor are within its storage, which somebody may have made smaller."""
    if tensor.layout is not torch.strided or not tensor.numel() or tensor.is_meta:
        return True
    end = (tensor.storage_offset() + _span(tensor)) * tensor.itemsize
    return end <= tensor.untyped_storage().nbytes()


def picker(positions: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """Picks elements out of a sequence, always as a tuple."""
    if len(positions) > 1:
        return itemgetter(*positions)
    return lambda inputs: tuple(inputs[index] for index in positions)
