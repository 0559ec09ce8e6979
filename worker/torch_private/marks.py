"""Marks of dimensions on tensors, as Dynamo reads them; written here without importing Dynamo.

Source of the attributes: ``mark_dynamic`` and its like in ``torch/_dynamo/decorators.py``, 2.11 to 2.15.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from warmrank.worker.errors import GearError
from warmrank.worker.torch_private.operators import readable

_DYNAMIC, _MAYBE, _STATIC = (
    "_dynamo_dynamic_indices",
    "_dynamo_weak_dynamic_indices",
    "_dynamo_static_indices",
)
_UNBACKED = ("_dynamo_unbacked_indices", "_dynamo_strict_unbacked_indices")
_RANGES, _HINTS, _MARKED = "_dynamo_dynamic_range", "_dynamo_hint_overrides", "_has_dynamo_dim_marking"


# From 2.15 on, a dimension without bounds has no range, and one with a range, however wide, must fill it.
_ALL_HAVE_RANGES = torch.torch_version.TorchVersion(torch.__version__) < (2, 15)  # type: ignore[operator]


class DimRange(NamedTuple):
    """Allowed sizes of a dimension, by the names under which Dynamo reads them; None for no bound."""

    dim: int
    min: int | None = None
    max: int | None = None


def mark_geared(tensor: torch.Tensor, gears: Mapping[int, Iterable[int]]) -> None:
    """Mark the geared dimensions for ``torch.compile``, which traces before anything here is asked.

    Dynamo always makes a size of 1 a constant, so a dimension with such a gear is only asked to be dynamic.
    """
    lasting = {dim for dim, sizes in gears.items() if 1 not in sizes}
    if lasting:
        _mark_dynamic(tensor, lasting)
    if lasting != gears.keys():
        setattr(tensor, _MAYBE, {*getattr(tensor, _MAYBE, ()), *(gears.keys() - lasting)})
        setattr(tensor, _MARKED, True)


def _mark_dynamic(tensor: torch.Tensor, dims: Iterable[int]) -> None:
    before = {mark.dim for mark in getattr(tensor, _RANGES, ())}
    setattr(tensor, _DYNAMIC, {*getattr(tensor, _DYNAMIC, ()), *dims})
    if _ALL_HAVE_RANGES:
        new = (DimRange(dim) for dim in dims if dim not in before)
        setattr(tensor, _RANGES, {*getattr(tensor, _RANGES, ()), *new})
    setattr(tensor, _HINTS, dict(getattr(tensor, _HINTS, {})))
    setattr(tensor, _MARKED, True)


def marked_dims(tensor: torch.Tensor) -> frozenset[int]:
    """Dimensions that somebody asked to be dynamic."""
    return frozenset((*getattr(tensor, _DYNAMIC, ()), *getattr(tensor, _MAYBE, ())))


@contextlib.contextmanager
def traced_as(hints: Iterable[tuple[torch.Tensor, Mapping[int, int] | None]]) -> Iterator[None]:
    """Geared tensors marked for one trace, each geared dimension with the size that the trace goes by.

    None takes all marks away. The marks that they had are put back at the end.
    """
    names = (_DYNAMIC, _MAYBE, _STATIC, _RANGES, _HINTS, _MARKED)
    saved = []
    try:
        for tensor, sizes in hints:
            before = {name: value for name, value in vars(tensor).items() if name in names}
            saved.append((tensor, before))
            if sizes is None:
                for name in before:
                    del vars(tensor)[name]
            else:
                _mark_dynamic(tensor, sizes)
                setattr(tensor, _HINTS, {**getattr(tensor, _HINTS), **sizes})
        yield
    finally:
        for tensor, before in saved:
            for name in names:
                vars(tensor).pop(name, None)
            for name, value in before.items():
                setattr(tensor, name, value)


def refuse_unbacked(tensor: Any, source: str) -> None:
    """Refuse ``mark_unbacked``: what Dynamo then asserts at run time would have to be kept as well.

    Raises:
        GearError: a dimension is marked so; the message names it.
    """
    for name in _UNBACKED:
        dims = sorted(getattr(tensor, name, ()))
        if dims:
            msg = (
                f"dimension {dims[0]} of {readable(source)} is marked by "
                "torch._dynamo.decorators.mark_unbacked, which a cached function does not support; use "
                "torch._dynamo.mark_dynamic, or set_dim_gears for a few sizes"
            )
            raise GearError(msg, input=source, dim=str(dims[0]))


def _marked_as_dynamo_marks() -> bool:
    from torch._dynamo.decorators import mark_dynamic, maybe_mark_dynamic

    mine, dynamos = torch.empty(1, 1, device="cpu"), torch.empty(1, 1, device="cpu")
    mark_geared(mine, {0: (2, 4), 1: (1, 2)})
    mark_dynamic(dynamos, 0)
    maybe_mark_dynamic(dynamos, 1)
    written = vars(dynamos).keys() - {"_specialize_on"}
    return written <= vars(mine).keys() and (_RANGES in written) == (_RANGES in vars(mine))


PROBES = {
    "mark_dynamic and maybe_mark_dynamic write the attributes that are written here": _marked_as_dynamo_marks
}
