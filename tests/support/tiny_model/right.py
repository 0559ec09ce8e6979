"""One of two files with the same text, so that their code objects are equal."""

from __future__ import annotations

import torch


def curved(x: torch.Tensor) -> torch.Tensor:
    return x - x.sin() * 0.25
