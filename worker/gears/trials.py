"""Whether padding changes results: the data it is tried with, and how results are compared.

Padding is zeros. A maximum over rows only shows it where all rows lie below zero, a minimum where all lie
above, and ``all`` where all are true; so calls of those kinds are tried beside the caller's own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch

# How far a padded call may be from the same call without padding, by the type of the numbers.
_TOLERANCES = {torch.float64: 1e-8, torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 1e-2}


def trials(inputs: Sequence[Any], padded: Collection[int]) -> Iterator[Sequence[Any]]:
    """The caller's inputs; then the same with other data in those that are padded, where any is possible."""
    yield inputs
    free = [position for position in padded if _may_change(inputs[position])]
    if free:
        for sign in (-1, 1):
            other = list(inputs)
            for position in free:
                other[position] = _one_sided(inputs[position], sign)
            yield other


def _may_change(value: torch.Tensor) -> bool:
    """Not integers, nor numbers that are all whole: they may be indexes, and others may lie out of range."""
    if value.dtype is torch.bool:
        return True
    return value.is_floating_point() and not bool(torch.equal(value, value.round()))


def _one_sided(value: torch.Tensor, sign: int) -> torch.Tensor:
    with torch.inference_mode(mode=False), torch.no_grad():
        # Strides as they are: what was compiled may rely on them.
        other = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
        return other.fill_(sign > 0) if value.dtype is torch.bool else other.copy_((value.abs() + 1) * sign)


def close(one: Any, other: Any) -> bool:
    """Whether two results are equal up to rounding."""
    if not isinstance(one, torch.Tensor):
        return bool(one == other)
    tolerance = _TOLERANCES.get(one.dtype)
    if tolerance is None:
        return bool(torch.equal(one, other))
    scale = tolerance * max(1.0, float(other.abs().nan_to_num(0.0, 0.0, 0.0).max()) if other.numel() else 1.0)
    return one.shape == other.shape and bool(
        torch.allclose(one, other, rtol=tolerance, atol=scale, equal_nan=True)
    )
