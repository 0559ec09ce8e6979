"""Two imports away from the model."""

from __future__ import annotations

import torch

SHIFT = 0.25


def shifted(x: torch.Tensor) -> torch.Tensor:
    return x + SHIFT


def shifted_twice(x: torch.Tensor) -> torch.Tensor:
    return x + 2.0 * SHIFT


def untraced(x: torch.Tensor) -> torch.Tensor:
    return x - 100.0
