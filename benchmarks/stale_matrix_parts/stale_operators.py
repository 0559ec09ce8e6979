"""Operators in Python, of the model that ``benchmarks/stale_matrix.py`` changes."""

from __future__ import annotations

from typing import Any

import torch

WIDTH = 4


def blend(x: torch.Tensor) -> torch.Tensor:
    """Implementation of an operator that is taken apart where it is traced."""
    return x * 0.75 + 0.5


def twist(x: torch.Tensor) -> torch.Tensor:
    """Implementation of an operator that is called as a whole."""
    return x.flip(-1).contiguous()


def cut(x: torch.Tensor) -> torch.Tensor:
    """Implementation, on tensors and on fake ones, of an operator that decides on its result's shape."""
    return x[:, :WIDTH].contiguous()


_LIBRARY: Any = torch.library
_OPS = _LIBRARY.Library("stale_model", "DEF")
_OPS.define("blend(Tensor x) -> Tensor")
_OPS.impl("blend", blend, "CompositeImplicitAutograd")
_OPS.define("cut(Tensor x) -> Tensor")
_OPS.impl("cut", cut, "CPU")
_OPS.impl("cut", cut, "Meta")
_OPS.define("twist(Tensor x) -> Tensor", tags=torch.Tag.needs_fixed_stride_order)
_OPS.impl("twist", twist, "CPU")
_OPS.impl("twist", torch.empty_like, "Meta")
