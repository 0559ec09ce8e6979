"""Decompositions for Inductor that refuse what eager refuses, such as numbers of rows which are not there.

Inductor's own make ``index`` and ``index_put`` of rows, which count negative numbers from the end; ``gather``
and ``scatter`` do not. Those of some losses leave the check of their inputs out. Operators that round to 16
bits where eager does not, or the other way round, are eager's. Relied on
(``tests/integration/test_max_autotune.py``): an operator without a decomposition, or whose decomposition is
``NotImplemented``, runs eager's kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from warmrank.worker.torch_private.eager_kernels import LOSSES, NAMES, rounds_otherwise


def with_checks(table: Mapping[Any, Any]) -> dict[Any, Any]:
    """Inductor's decompositions, with these in place of its own."""
    fills = {op: _from_the_end(table[op]) for op in _FILLS}
    rules = {op: rule for op, rule in {**table, **_ALONG, **fills}.items() if op not in _WITHOUT_CHECKS}
    return {
        op: _unless_eagers(op, rule) if getattr(op, "_opname", "") in NAMES else rule
        for op, rule in rules.items()
    }


def _unless_eagers(op: Any, rule: Callable[..., Any]) -> Callable[..., Any]:
    def decomposed(*args: Any, **kwargs: Any) -> Any:
        return NotImplemented if rounds_otherwise(op, args, kwargs) else rule(*args, **kwargs)

    return decomposed


def _from_the_end(fill: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The decomposition, which copies rows, for numbers that count from the end as well."""

    def filled(x: torch.Tensor, dim: int, index: torch.Tensor, value: Any) -> torch.Tensor:
        num_rows = x.shape[dim] if x.ndim else 1
        return fill(x, dim, torch.where(index < 0, index + num_rows, index), value)

    return filled


def _index_select(x: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    if not x.ndim:
        return _index_select(x.reshape(1), dim, index).reshape(())
    size = [*x.shape]
    size[dim] = index.numel()
    made = x.gather(dim, _expanded(index, dim, size))
    return made.contiguous(memory_format=torch._prims_common.suggest_memory_format(x))


def _index_copy(x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    if not x.ndim:
        return _index_copy(x.reshape(1), dim, index, source).reshape(())
    rows = source if source.ndim else source.reshape(1)
    return x.scatter(dim, _expanded(index, dim, rows.shape), rows)


def _index_add(
    x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *, alpha: Any = 1
) -> Any:
    has_kernel = x.dtype != torch.bfloat16  # Inductor has none for it
    if not (x.ndim and source.ndim and has_kernel):
        return NotImplemented
    return x.scatter_add(dim, _expanded(index, dim, source.shape), source if alpha == 1 else source * alpha)


def _expanded(index: torch.Tensor, dim: int, size: Sequence[int]) -> torch.Tensor:
    """Row numbers along one dimension, for all others."""
    rows = [1] * len(size)
    rows[dim] = -1
    return index.to(torch.int64).reshape(rows).expand(size)


_WITHOUT_CHECKS = (
    *LOSSES,
    torch.ops.aten.max_unpool2d.default,
    torch.ops.aten.max_unpool3d.default,
    torch.ops.aten.binary_cross_entropy.default,  # of numbers that are no probabilities
    torch.ops.aten.addmm.default,  # with a factor of 0, which leaves NaN out
    torch.ops.aten.addmv.default,
)
_FILLS = (torch.ops.aten.index_fill.int_Scalar, torch.ops.aten.index_fill.int_Tensor)
_ALONG: dict[Any, Callable[..., torch.Tensor]] = {
    torch.ops.aten.index_select.default: _index_select,
    torch.ops.aten.index_copy.default: _index_copy,
    torch.ops.aten.index_add.default: _index_add,
}
