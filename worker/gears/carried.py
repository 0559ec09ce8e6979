"""Gears as tensors carry them: an attribute under TorchAir's name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from warmrank.worker.gears.model import Gears

ATTRIBUTE = "dim_gears"


class _Process:
    used = False  # gears cost nothing where nobody sets any


def carry(t: torch.Tensor, dim_gears: Mapping[int, Sequence[int]]) -> None:
    """See `worker.inference.set_dim_gears`."""
    import torch

    from warmrank.worker.errors import GearError
    from warmrank.worker.gears.model import checked_gears
    from warmrank.worker.torch_private.marks import mark_geared

    if not isinstance(t, torch.Tensor):
        msg = f"set_dim_gears: t is of type {type(t).__qualname__}; expected a torch.Tensor"
        raise GearError(msg, found=type(t).__qualname__)
    checked = checked_gears(t.shape, dim_gears)
    if getattr(t, ATTRIBUTE, checked) != checked:
        msg = f"Tensor {t} already has set dim gears, and it is not supported to set it again."
        raise GearError(msg, found=repr(checked), allowed=repr(getattr(t, ATTRIBUTE)))
    if checked:
        mark_geared(t, checked)
        setattr(t, ATTRIBUTE, checked)
        _Process.used = True


def any_set() -> bool:
    """True if a tensor of this process was ever given gears."""
    return _Process.used


def carried(value: Any) -> Gears | None:
    """The gears that a value carries."""
    return getattr(value, ATTRIBUTE, None) or None


def encoded(gears: Gears | None) -> list[list[Any]]:
    """Gears as plain JSON values, in the order of the dimensions; empty for none."""
    return [[dim, list(gears[dim])] for dim in sorted(gears)] if gears else []
